//! placeholder
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, openat};
use rustix::mount::*;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
pub struct PrivateTmpfs {
    root: OwnedFd,
}
impl PrivateTmpfs {
    pub fn new(size: u64) -> io::Result<Self> {
        let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&fs, "huge", "within_size")?;
        fsconfig_set_string(&fs, "size", size.to_string())?;
        fsconfig_create(&fs)?;
        Ok(Self {
            root: fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?,
        })
    }
    pub fn file(&self, len: u64) -> io::Result<File> {
        let fd = openat(
            &self.root,
            ".",
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )?;
        if len > 0 {
            fallocate(&fd, FallocateFlags::empty(), 0, len)?;
        }
        Ok(fd.into())
    }
}
