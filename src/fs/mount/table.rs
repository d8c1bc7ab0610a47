//! The kernel's table of mounts, and which of them a path leads to.
//!
//! Nothing here touches the file system below a path: a mount whose server hangs must not hang whoever asks about it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The type under which every mount of this program shows in `mount` and `df`.
pub const FS_TYPE: &str = "fuse.dcfs";

/// The device number of a mounted file system, as `stat` reports it for files on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number; 0 for FUSE, as for every file system without a block device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// The kernel's number for one mount. Unique while the mount lives; used again afterwards, so it
/// names a mount for certain only together with its [`Device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MountId(pub u64);

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which mount this is.
    pub id: MountId,
    /// The mount it is mounted on. May be absent from the table when it lies outside this process's root.
    pub parent: MountId,
    /// The device number of its file system.
    pub device: Device,
    /// The folder of the file system that appears at `mount_point`; `/` unless it is a bind mount.
    pub root: PathBuf,
    /// Where it is mounted, seen from this process's root.
    pub mount_point: PathBuf,
    /// The file system's type with subtype: `ext4`, `fuse.sshfs`.
    pub fs_type: OsString,
    /// What is mounted there, in words the file system chose.
    pub source: OsString,
    /// Options of the file system, such as `user_id=1000` for FUSE.
    pub super_options: OsString,
}

impl Entry {
    /// Whether this is a mount made by this program, running or dead.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// The user who mounted a FUSE file system.
    pub fn fuse_owner(&self) -> Option<u32> {
        let options = self.super_options.to_str()?;
        options
            .split(',')
            .find_map(|option| option.strip_prefix("user_id="))?
            .parse()
            .ok()
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        let mut fields = line.split(|&b| b == b' ');
        let id = MountId(number(fields.next()?)?);
        let parent = MountId(number(fields.next()?)?);
        let mut device = fields.next()?.splitn(2, |&b| b == b':');
        let device = Device {
            major: number(device.next()?)?.try_into().ok()?,
            minor: number(device.next()?)?.try_into().ok()?,
        };
        let root = PathBuf::from(unescape(fields.next()?));
        let mount_point = PathBuf::from(unescape(fields.next()?));
        fields.next()?;
        // Any number of optional fields, ended by a lone hyphen.
        fields.find(|&field| field == b"-")?;
        let fs_type = unescape(fields.next()?);
        let source = unescape(fields.next()?);
        let super_options = unescape(fields.next().unwrap_or_default());
        Some(Self {
            id,
            parent,
            device,
            root,
            mount_point,
            fs_type,
            source,
            super_options,
        })
    }
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Undoes the kernel's `\ooo` escapes of blanks, tabs, newlines, backslashes and `#`.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match (byte, octal(tail)) {
            (b'\\', Some(escaped)) => {
                plain.push(escaped);
                rest = &tail[3..];
            }
            _ => {
                plain.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = digits.get(..3)?;
    digits.iter().try_fold(0u8, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
        _ => None,
    })
}

/// The mounts that this process sees, as they were at one moment.
#[derive(Debug, Clone, Default)]
pub struct Table {
    entries: Vec<Entry>,
}

impl Table {
    /// Reads the table of this process's mount namespace.
    ///
    /// # Errors
    /// `/proc` is not mounted or not readable.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    /// Parses the text of a `mountinfo` file. Lines that are not entries are passed over: the kernel
    /// may add to the format, and a line that cannot be read is no mount of ours.
    pub fn parse(text: &[u8]) -> Self {
        Self {
            entries: text.split(|&b| b == b'\n').filter_map(Entry::parse).collect(),
        }
    }

    /// Every mount in the table, in the kernel's order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The mount with this number.
    pub fn get(&self, id: MountId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// The mounts stacked at exactly `path`, the lowest first; the last one is what programs see.
    /// Empty when `path` is an ordinary folder. `path` must be absolute and free of symbolic links.
    ///
    /// Walks from the root as the kernel does, so that a mount hidden under a later mount on one of
    /// its parent folders is not taken for a visible one.
    pub fn stack(&self, path: &Path) -> Vec<&Entry> {
        self.walk(path).1
    }

    /// The mount that serves `path`: the uppermost one at `path`, or the one `path` lies on.
    /// `path` must be absolute and free of symbolic links.
    pub fn serving(&self, path: &Path) -> Option<&Entry> {
        let (below, stack) = self.walk(path);
        stack.last().copied().or(below)
    }

    /// The mount on which the folder `path` lies, and the mounts stacked at `path` itself.
    fn walk(&self, path: &Path) -> (Option<&Entry>, Vec<&Entry>) {
        let mut prefixes: Vec<&Path> = path.ancestors().collect();
        prefixes.reverse();
        let mut below = None;
        let mut stack = Vec::new();
        for prefix in prefixes {
            below = stack.last().copied().or(below);
            stack = self.climb(below, prefix);
        }
        (below, stack)
    }

    /// The mounts at `mount_point` above `base`, each mounted on the one before it.
    fn climb<'a>(&'a self, base: Option<&'a Entry>, mount_point: &Path) -> Vec<&'a Entry> {
        let mut stack: Vec<&Entry> = Vec::new();
        loop {
            let below = stack.last().copied().or(base);
            let next = self.entries.iter().find(|entry| {
                entry.mount_point == mount_point
                    && below.map_or_else(|| self.is_outermost(entry), |below| entry.parent == below.id)
                    && !stack.iter().any(|seen| seen.id == entry.id)
                    && base.is_none_or(|base| base.id != entry.id)
            });
            match next {
                Some(entry) => stack.push(entry),
                None => return stack,
            }
        }
    }

    /// Whether the table shows nothing below `entry`: the root of the namespace is its own parent or
    /// that of no listed mount, and in a `chroot` the lowest mounts have unlisted parents.
    fn is_outermost(&self, entry: &Entry) -> bool {
        entry.parent == entry.id || self.get(entry.parent).is_none()
    }
}

/// A mount's type as a person reads it.
pub fn describe(fs_type: &OsStr) -> String {
    String::from_utf8_lossy(fs_type.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(stack: &[&Entry]) -> Vec<u64> {
        stack.iter().map(|entry| entry.id.0).collect()
    }

    const TREE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:41 / /mnt/a\\040b\\011\\134c rw,nosuid,nodev shared:5 master:6 - fuse.dcfs /data/x\\040y ro,user_id=7,group_id=0
41 27 0:42 / /mnt/stack ro - fuse.dcfs one ro,user_id=0
43 42 0:44 / /mnt/stack ro - fuse.dcfs three ro
42 41 0:43 / /mnt/stack rw - tmpfs two rw
50 27 0:50 / /mnt/hidden rw - tmpfs hider rw
49 27 0:49 / /mnt/hidden/inner ro - fuse.dcfs below ro
51 50 0:51 / /mnt/hidden/other ro - fuse.dcfs above ro
";

    #[test]
    fn an_entry_is_read_with_its_escapes_undone() {
        let table = Table::parse(TREE.as_bytes());
        let stack = table.stack(Path::new("/mnt/a b\t\\c"));
        assert_eq!(ids(&stack), [40]);
        let entry = stack[0];
        assert_eq!(entry.source, "/data/x y");
        assert_eq!(entry.device, Device { major: 0, minor: 41 });
        assert_eq!(entry.fuse_owner(), Some(7));
        assert!(entry.is_ours());
    }

    #[test]
    fn a_backslash_without_three_octal_digits_stands_for_itself() {
        assert_eq!(unescape(b"a\\04"), "a\\04");
        assert_eq!(unescape(b"\\089"), "\\089");
        assert_eq!(unescape(b"\\777"), "\\777");
        assert_eq!(unescape(b"\\134040"), "\\040");
    }

    #[test]
    fn stacked_mounts_come_in_the_order_in_which_they_lie_whatever_the_order_of_lines() {
        let table = Table::parse(TREE.as_bytes());
        assert_eq!(ids(&table.stack(Path::new("/mnt/stack"))), [41, 42, 43]);
        assert_eq!(table.serving(Path::new("/mnt/stack/deep/er")).unwrap().id, MountId(43));
    }

    #[test]
    fn a_mount_hidden_by_one_on_its_parent_folder_is_not_seen() {
        let table = Table::parse(TREE.as_bytes());
        assert!(table.stack(Path::new("/mnt/hidden/inner")).is_empty());
        assert_eq!(ids(&table.stack(Path::new("/mnt/hidden/other"))), [51]);
        assert_eq!(table.serving(Path::new("/mnt/hidden/inner")).unwrap().id, MountId(50));
    }

    #[test]
    fn a_folder_that_merely_starts_with_a_mount_points_name_is_not_mounted() {
        let table = Table::parse(TREE.as_bytes());
        assert!(table.stack(Path::new("/mnt/stacked")).is_empty());
        assert_eq!(table.serving(Path::new("/mnt/stacked")).unwrap().id, MountId(27));
    }

    #[test]
    fn a_table_without_a_root_still_finds_what_is_listed() {
        let table = Table::parse(b"41 27 0:42 / /mnt/x ro - fuse.dcfs one ro\n42 41 0:43 / /mnt/x/y ro - tmpfs t ro\n");
        assert_eq!(ids(&table.stack(Path::new("/mnt/x"))), [41]);
        assert_eq!(ids(&table.stack(Path::new("/mnt/x/y"))), [42]);
        assert!(table.serving(Path::new("/srv")).is_none());
    }

    #[test]
    fn a_mount_that_is_its_own_parent_ends_the_walk() {
        let table = Table::parse(b"1 1 0:1 / / rw - rootfs rootfs rw\n2 1 0:2 / / rw - ext4 d rw\n");
        assert_eq!(ids(&table.stack(Path::new("/"))), [1, 2]);
    }

    #[test]
    fn damaged_lines_are_passed_over() {
        let table = Table::parse(b"\nnonsense\n1 2 3 4\n5 x 0:1 / / rw - a b c\n7 1 0:9 / / rw no hyphen\n");
        assert!(table.entries().is_empty());
    }

    #[test]
    fn this_machines_own_table_has_a_root_and_proc() {
        let table = Table::read().unwrap();
        assert_eq!(table.serving(Path::new("/proc/self")).unwrap().fs_type, "proc");
    }
}
