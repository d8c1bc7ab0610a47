//! Memory for decoded arrays that is also a file: a tmpfs of huge pages that appears in no table of mounts.
//!
//! The kernel serves passthrough opens from these files at the speed of memory. Filling fresh huge pages takes a tenth of
//! the time of filling small ones, which the global setting of shared memory usually asks for; a tmpfs of its own may ask otherwise.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use thiserror::Error;

/// Why a private tmpfs, or a file on it, cannot be had.
#[derive(Debug, Error)]
pub enum TmpfsError {
    /// Making one takes CAP_SYS_ADMIN.
    #[error("making a private tmpfs needs CAP_SYS_ADMIN")]
    NotPermitted,
    /// Linux before 5.2 mounts nothing without a name.
    #[error("this kernel cannot mount a tmpfs without a mountpoint; Linux 5.2 or later can")]
    OldKernel,
    /// The kernel refused for another reason.
    #[error("cannot make a private tmpfs: {step}: {source}")]
    Create { step: &'static str, source: io::Error },
    /// There is no room for the file: the tmpfs is full, or the memory of the machine or the control group is.
    #[error("no memory for {len} bytes of decoded data: {source}")]
    Full { len: u64, source: io::Error },
    /// The file cannot be made for another reason.
    #[error("cannot make a file of {len} bytes on the private tmpfs: {source}")]
    File { len: u64, source: io::Error },
}

impl TmpfsError {
    fn create(step: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted,
            Errno::NOSYS => Self::OldKernel,
            errno => Self::Create {
                step,
                source: errno.into(),
            },
        }
    }
}

/// A tmpfs of this process alone. It has no name, so nobody else finds it, and it is gone with the last descriptor of it or its files.
#[derive(Debug)]
pub struct PrivateTmpfs {
    root: OwnedFd,
    huge_pages: bool,
}

impl PrivateTmpfs {
    /// Makes one that holds at most `size` bytes. Takes no memory yet.
    ///
    /// # Errors
    /// [`TmpfsError::NotPermitted`] and [`TmpfsError::OldKernel`] are ordinary: those who meet them serve without passthrough.
    pub fn new(size: u64) -> Result<Self, TmpfsError> {
        match Self::with_pages(size, true) {
            // A kernel without transparent huge pages does not know the option.
            Err(TmpfsError::Create { step: HUGE, .. }) => Self::with_pages(size, false),
            result => result,
        }
    }

    fn with_pages(size: u64, huge_pages: bool) -> Result<Self, TmpfsError> {
        let context =
            rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(TmpfsError::create("fsopen"))?;
        let set = |key: &'static str, value: &str| {
            rustix::mount::fsconfig_set_string(&context, key, value).map_err(TmpfsError::create(key))
        };
        set("source", "dcfs-cache")?;
        // A size of 0 would mean: no limit.
        set("size", &size.max(1).to_string())?;
        // Bounded by the bytes already; the default would bound small tiles by the machine's memory instead.
        set("nr_inodes", "0")?;
        set("mode", "0700")?;
        if huge_pages {
            set(HUGE, "within_size")?;
        }
        rustix::mount::fsconfig_create(&context).map_err(TmpfsError::create("create"))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(TmpfsError::create("fsmount"))?;
        Ok(Self { root, huge_pages })
    }

    /// Whether files here are made of huge pages as far as their size fills them, and as far as the kernel finds any.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// A nameless file of `len` bytes of zeros, open for reading and writing, whose memory is there: writing through a mapping of it cannot fail.
    ///
    /// The memory is freed with the last descriptor and mapping of the file.
    ///
    /// # Errors
    /// [`TmpfsError::Full`] when there is no room; nothing is kept then.
    pub fn file(&self, len: u64) -> Result<File, TmpfsError> {
        let fail = |errno: Errno| match errno {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT => TmpfsError::Full {
                len,
                source: errno.into(),
            },
            errno => TmpfsError::File {
                len,
                source: errno.into(),
            },
        };
        // EXCL: the file can never be given a name.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, ".", flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
        if len > 0 {
            // The size comes first: huge pages are given only within it.
            rustix::fs::ftruncate(&file, len).map_err(fail)?;
            allocate(&file, len).map_err(fail)?;
        }
        Ok(File::from(file))
    }
}

/// The option of tmpfs that asks for huge pages.
const HUGE: &str = "huge";

fn allocate(file: &OwnedFd, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    const MIB: u64 = 1 << 20;

    /// A tmpfs, unless this process may not have one, which is said.
    fn tmpfs(size: u64) -> Option<PrivateTmpfs> {
        match PrivateTmpfs::new(size) {
            Err(error @ (TmpfsError::NotPermitted | TmpfsError::OldKernel)) => {
                crate::testdata::skip(error);
                None
            }
            result => Some(result.unwrap()),
        }
    }

    #[test]
    fn a_file_has_its_memory_from_the_start_and_gives_it_back() {
        let Some(tmpfs) = tmpfs(16 * MIB) else { return };
        let len = 5 * MIB + 12_345;
        let file = tmpfs.file(len).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.nlink()), (len, 0));
        assert!(metadata.blocks() * 512 >= len, "{} blocks", metadata.blocks());
        assert!(
            metadata.blocks() * 512 < len + 64 * 1024,
            "huge pages beyond the end: {}",
            metadata.blocks()
        );
        let used = || {
            let stat = rustix::fs::fstatvfs(&tmpfs.root).unwrap();
            (stat.f_blocks - stat.f_bfree) * stat.f_bsize
        };
        assert!(used() >= len);
        drop(file);
        assert_eq!(used(), 0);
    }

    #[test]
    fn what_is_written_is_read_back_and_the_rest_is_zero() {
        let Some(tmpfs) = tmpfs(16 * MIB) else { return };
        let file = tmpfs.file(3 * MIB).unwrap();
        file.write_all_at(b"counts", 2 * MIB + 5).unwrap();
        let mut bytes = [9; 8];
        file.read_exact_at(&mut bytes, 2 * MIB + 4).unwrap();
        assert_eq!(&bytes, b"\0counts\0");
    }

    #[test]
    fn files_beyond_the_size_are_refused_and_leave_nothing() {
        let Some(tmpfs) = tmpfs(4 * MIB) else { return };
        let kept = tmpfs.file(3 * MIB).unwrap();
        assert!(matches!(tmpfs.file(2 * MIB), Err(TmpfsError::Full { len, .. }) if len == 2 * MIB));
        drop(kept);
        tmpfs.file(4 * MIB).unwrap();
    }

    #[test]
    fn an_empty_array_is_an_empty_file() {
        let Some(tmpfs) = tmpfs(MIB) else { return };
        assert_eq!(tmpfs.file(0).unwrap().metadata().unwrap().len(), 0);
    }

    #[test]
    fn many_small_files_fit() {
        let Some(tmpfs) = tmpfs(16 * MIB) else { return };
        let files: Vec<File> = (0..1000).map(|_| tmpfs.file(100).unwrap()).collect();
        assert_eq!(files.len(), 1000);
    }

    #[test]
    fn a_kernel_without_huge_pages_gives_small_ones() {
        if tmpfs(MIB).is_none() {
            return;
        }
        let tmpfs = PrivateTmpfs::with_pages(16 * MIB, false).unwrap();
        assert!(!tmpfs.huge_pages());
        assert_eq!(tmpfs.file(3 * MIB).unwrap().metadata().unwrap().len(), 3 * MIB);
    }

    #[test]
    fn a_large_file_is_made_of_huge_pages() {
        let Some(tmpfs) = tmpfs(64 * MIB) else { return };
        if !tmpfs.huge_pages() {
            crate::testdata::skip("this kernel has no huge pages for tmpfs");
            return;
        }
        let file = tmpfs.file(32 * MIB).unwrap();
        let map = map_and_touch(&file, 32 * MIB as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let header = format!("{:x}-", map as usize);
        let huge = smaps.split(&header).nth(1).and_then(|rest| {
            let line = rest.lines().find(|line| line.starts_with("ShmemPmdMapped:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        });
        assert!(huge.unwrap() >= 16 * 1024, "{huge:?} KiB in huge pages");
    }

    /// Maps the file and touches it, for the kernel to tell what it is made of.
    fn map_and_touch(file: &File, len: usize) -> *mut std::ffi::c_void {
        use rustix::mm::{MapFlags, ProtFlags};
        // SAFETY: a fresh shared mapping at an address of the kernel's choice, of a file that has `len` bytes and that nobody shrinks; it is
        // only read, through volatile reads within `len`, and stays until the process ends.
        unsafe {
            let map = rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap();
            for page in (0..len).step_by(4096) {
                std::ptr::read_volatile(map.cast::<u8>().add(page));
            }
            map
        }
    }
}
