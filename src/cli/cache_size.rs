//! How much memory the cache may take: what the machine and the control groups leave, and sizes as people write them.
//!
//! Reads `/proc` and the control group trees; knows nothing of what is cached.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::fs::mount::table::{Entry, Table};

/// The memory that this process may count on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The least of what the machine has and of the limits of every control group this process is in.
    pub capacity: u64,
    /// The least of what the machine has available and of what each control group has left below its limit, when page cache
    /// and other memory that the kernel takes back by itself is not counted as used.
    pub available: u64,
}

impl Memory {
    /// Asks the running system.
    ///
    /// Limits are those of control groups of version 2 (`memory.max`, `memory.high`) and version 1
    /// (`memory.limit_in_bytes`), of the group of this process and all groups around it.
    pub fn of_this_process() -> Self {
        let mounts = Table::read().unwrap_or_default();
        Self::read(Path::new("/proc"), &mounts, Path::new("/"))
    }

    /// Asks the system described by the files of `proc` and by the control group mounts in `mounts`, which are found below `root`.
    fn read(proc: &Path, mounts: &Table, root: &Path) -> Self {
        let mut memory = machine(proc);
        let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        for group in groups.lines().filter_map(Group::parse) {
            for folder in group.folders(mounts) {
                memory.confine(&root.join(folder.strip_prefix("/").unwrap_or(&folder)), group.version);
            }
        }
        memory
    }

    /// The size of the cache unless told otherwise: a quarter of what is available.
    ///
    /// Available rather than installed memory, so that a mount started beside a large job does not push it out.
    pub fn default_cache_size(&self) -> u64 {
        self.available / 4
    }

    fn confine(&mut self, folder: &Path, version: Version) {
        let Some(limit) = version.limit(folder) else { return };
        self.capacity = self.capacity.min(limit);
        self.available = self.available.min(limit.saturating_sub(version.kept(folder)));
    }
}

/// What the machine has, from `meminfo`. Without it, nothing is known, and nothing may be taken.
fn machine(proc: &Path) -> Memory {
    let text = fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let capacity = field("MemTotal").unwrap_or(0);
    Memory {
        capacity,
        available: field("MemAvailable").unwrap_or(capacity).min(capacity),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn fs_type(self) -> &'static str {
        match self {
            Self::One => "cgroup",
            Self::Two => "cgroup2",
        }
    }

    /// The limit that the group in `folder` sets, if any.
    fn limit(self, folder: &Path) -> Option<u64> {
        let files: &[&str] = match self {
            Self::One => &["memory.limit_in_bytes"],
            Self::Two => &["memory.max", "memory.high"],
        };
        // "max" is no limit, and no number; version 1 says so with a number larger than any machine.
        files.iter().filter_map(|file| read_number(&folder.join(file))).min()
    }

    /// The bytes that the group in `folder` uses and the kernel cannot take back: anonymous memory and that of tmpfs.
    fn kept(self, folder: &Path) -> u64 {
        let names: &[&str] = match self {
            Self::One => &["total_rss", "total_shmem"],
            Self::Two => &["anon", "shmem"],
        };
        let text = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let fields = text.lines().filter_map(|line| line.split_once(' '));
        let numbers = fields
            .filter(|(name, _)| names.contains(name))
            .filter_map(|(_, value)| value.trim().parse().ok());
        numbers.fold(0, u64::saturating_add)
    }
}

fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A control group that this process is in and that may limit its memory.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    path: PathBuf,
}

impl Group {
    /// One line of `/proc/self/cgroup`: `0::/user.slice` or `4:memory:/job`.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match controllers {
            "" => Version::Two,
            controllers if controllers.split(',').any(|controller| controller == "memory") => Version::One,
            _ => return None,
        };
        let path = PathBuf::from(path);
        Some(Self { version, path })
    }

    /// The folders of this group and the groups around it, as far as they can be seen.
    fn folders(&self, mounts: &Table) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for mount in mounts.entries().iter().filter(|mount| self.is_shown_by(mount)) {
            // In a container the mount may show a part of the tree only, and this process's group at its top.
            let below = self.path.strip_prefix(&mount.root).unwrap_or(Path::new(""));
            folders.extend(below.ancestors().map(|group| mount.mount_point.join(group)));
        }
        folders
    }

    fn is_shown_by(&self, mount: &Entry) -> bool {
        let has_memory = || {
            mount
                .super_options
                .to_string_lossy()
                .split(',')
                .any(|option| option == "memory")
        };
        mount.fs_type == self.version.fs_type() && (self.version == Version::Two || has_memory())
    }
}

/// A size as people write it: bytes, or a share of the memory there is.
///
/// `K`, `M`, `G`, `T` and `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; `KB`, `MB`, `GB`, `TB` are powers of 1000; a bare number is bytes.
/// Large and small letters mean the same.
///
/// ```
/// # use dcfs::cli::cache_size::CacheSize;
/// assert_eq!("1.5GiB".parse(), Ok(CacheSize::Bytes(3 << 29)));
/// assert_eq!("8g".parse(), Ok(CacheSize::Bytes(8 << 30)));
/// assert!("8X".parse::<CacheSize>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    /// This many bytes.
    Bytes(u64),
    /// This many hundredths of [`Memory::capacity`]; more than 0, at most 100.
    Percent(f64),
}

impl CacheSize {
    /// The size in bytes on a system with this memory.
    pub fn bytes(self, memory: &Memory) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (memory.capacity as f64 * (percent / 100.0)) as u64,
        }
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// It does not start with a number.
    #[error("{0:?} is no size; write for example 8G, 512M, 1.5GiB, 25% or a number of bytes")]
    Number(String),
    /// The number is followed by something unknown.
    #[error("{unit:?} is no unit of size; use K, M, G or T (powers of 1024), KB, MB, GB or TB (powers of 1000), or %")]
    Unit { unit: String },
    /// A share of nothing, or of more than there is.
    #[error("{0} is outside the range: more than 0%, at most 100%")]
    Percent(String),
    /// Nothing, or more than 2^63-1 bytes.
    #[error("{0} is outside the range: at least 1 byte, at most 8388607T")]
    Range(String),
}

impl FromStr for CacheSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let digits = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim();
        let value: f64 = number.parse().map_err(|_| SizeError::Number(text.to_owned()))?;
        if unit == "%" {
            return match value > 0.0 && value <= 100.0 {
                true => Ok(Self::Percent(value)),
                false => Err(SizeError::Percent(text.to_owned())),
            };
        }
        let factor = unit_bytes(unit).ok_or_else(|| SizeError::Unit { unit: unit.to_owned() })?;
        let out_of_range = || SizeError::Range(text.to_owned());
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(factor).ok_or_else(out_of_range)?,
            // Not a whole number, or one far out of range, which the conversion turns into the largest there is.
            Err(_) => (value * factor as f64) as u64,
        };
        match bytes > 0 && i64::try_from(bytes).is_ok_and(|bytes| bytes < i64::MAX) {
            true => Ok(Self::Bytes(bytes)),
            false => Err(out_of_range()),
        }
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    if matches!(unit.as_str(), "" | "b") {
        return Some(1);
    }
    let power = match unit.chars().next()? {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        _ => return None,
    };
    match &unit[1..] {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A system made of files.
    struct System(PathBuf);

    impl System {
        fn new(name: &str, groups: &str) -> Self {
            let root = std::env::temp_dir().join(format!("dcfs-cache-size-{}-{name}", std::process::id()));
            let system = Self(root);
            system.put(
                "proc/meminfo",
                "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n",
            );
            system.put("proc/self/cgroup", groups);
            system
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn memory(&self, mounts: &str) -> Memory {
            Memory::read(&self.0.join("proc"), &Table::parse(mounts.as_bytes()), &self.0)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    const V2: &str = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "35 1 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 1 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

    #[test]
    fn without_limits_the_machine_decides() {
        let system = System::new("machine", "0::/\n");
        let memory = system.memory(V2);
        assert_eq!((memory.capacity, memory.available), (16 * GIB, 12 * GIB));
        assert_eq!(memory.default_cache_size(), 3 * GIB);
    }

    #[test]
    fn the_tightest_group_on_the_way_up_decides() {
        let system = System::new("v2", "0::/a.slice/b.service\n");
        system.put("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
        system.put("sys/fs/cgroup/a.slice/b.service/memory.high", "8589934592\n");
        system.put("sys/fs/cgroup/a.slice/memory.max", "4294967296\n");
        let memory = system.memory(V2);
        assert_eq!((memory.capacity, memory.available), (4 * GIB, 4 * GIB));
    }

    #[test]
    fn what_a_group_uses_is_not_available_but_its_page_cache_is() {
        let system = System::new("used", "0::/a\n");
        system.put("sys/fs/cgroup/a/memory.max", "4294967296\n");
        system.put(
            "sys/fs/cgroup/a/memory.stat",
            "anon 1073741824\nfile 3221225472\nshmem 536870912\nanon_thp 5\n",
        );
        let memory = system.memory(V2);
        assert_eq!((memory.capacity, memory.available), (4 * GIB, 4 * GIB - 3 * (GIB / 2)));
    }

    #[test]
    fn a_group_over_its_limit_leaves_nothing() {
        let system = System::new("over", "0::/a\n");
        system.put("sys/fs/cgroup/a/memory.high", "1073741824\n");
        system.put("sys/fs/cgroup/a/memory.stat", "anon 2147483648\n");
        assert_eq!(system.memory(V2).available, 0);
    }

    #[test]
    fn groups_of_version_one_count_and_their_unlimited_number_does_not() {
        let system = System::new(
            "v1",
            "9:name=systemd:/x\n4:memory,hugetlb:/job/step\n1:cpu:/job\n0::/\n",
        );
        system.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        system.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
        system.put("sys/fs/cgroup/memory/job/memory.stat", "rss 7\ntotal_rss 1073741824\n");
        system.put(
            "sys/fs/cgroup/memory/job/step/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        system.put("sys/fs/cgroup/cpu/job/memory.limit_in_bytes", "1\n");
        let memory = system.memory(&format!("{V1}{V2}"));
        assert_eq!((memory.capacity, memory.available), (2 * GIB, GIB));
    }

    #[test]
    fn a_container_that_sees_only_its_own_group_finds_its_limit() {
        let system = System::new("container", "0::/docker/abc/inner\n");
        system.put("sys/fs/cgroup/memory.max", "2147483648\n");
        system.put("sys/fs/cgroup/inner/memory.max", "1073741824\n");
        let mounts = V2.replace(" / /sys", " /docker/abc /sys");
        assert_eq!(system.memory(&mounts).capacity, GIB);
        let elsewhere = V2.replace(" / /sys", " /docker/other /sys");
        assert_eq!(system.memory(&elsewhere).capacity, 2 * GIB);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::of_this_process();
        assert!(memory.capacity > 0 && memory.available <= memory.capacity, "{memory:?}");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let bytes = |text: &str| match text.parse() {
            Ok(CacheSize::Bytes(bytes)) => bytes,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(bytes("8G"), 8 * GIB);
        assert_eq!(bytes("512M"), GIB / 2);
        assert_eq!(bytes("1.5GiB"), 3 * GIB / 2);
        assert_eq!(bytes(" 2 tib "), 2048 * GIB);
        assert_eq!(bytes("64kb"), 64_000);
        assert_eq!(bytes("4096"), 4096);
        assert_eq!(bytes("9007199254740993"), 9_007_199_254_740_993);
        assert_eq!("25%".parse(), Ok(CacheSize::Percent(25.0)));
        assert_eq!("12.5 %".parse(), Ok(CacheSize::Percent(12.5)));
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_reason() {
        let error = |text: &str| text.parse::<CacheSize>().unwrap_err();
        for text in ["", "G", "-1G", "big", ".", "1.2.3G", "NaN", "inf"] {
            assert_eq!(error(text), SizeError::Number(text.to_owned()));
        }
        for (text, unit) in [
            ("8X", "X"),
            ("8GiBs", "GiBs"),
            ("8é", "é"),
            ("8Gé", "Gé"),
            ("1e9", "e9"),
            ("5%%", "%%"),
        ] {
            assert_eq!(error(text), SizeError::Unit { unit: unit.to_owned() });
        }
        for text in ["0%", "100.1%"] {
            assert_eq!(error(text), SizeError::Percent(text.to_owned()));
        }
        for text in ["0", "0G", "0.1", "8388608T", "99999999999999999999", "99999999T"] {
            assert_eq!(error(text), SizeError::Range(text.to_owned()));
        }
    }

    #[test]
    fn a_share_is_of_the_memory_there_is() {
        let memory = Memory {
            capacity: 16 * GIB,
            available: GIB,
        };
        assert_eq!(CacheSize::Percent(25.0).bytes(&memory), 4 * GIB);
        assert_eq!(CacheSize::Bytes(5).bytes(&memory), 5);
    }
}
