//! Mounting and unmounting by system call, for those whom the kernel lets.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::table::{Entry, FS_TYPE, MountId};
use super::{DEV_FUSE, MountError, MountOptions};

/// Whether this process may mount by itself. What counts is the capability in effect, not being user 0: services run as others
/// with it, and containers run as user 0 without.
pub fn may_mount() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Opens `/dev/fuse` and mounts it at `path`.
pub fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device =
        rustix::fs::open(DEV_FUSE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(MountError::device)?;
    let data = mount_data(&device, options);
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(&options.source_name, path, FS_TYPE, flags, Some(data.as_c_str())).map_err(|errno| {
        MountError::Kernel {
            path: path.to_owned(),
            source: errno.into(),
        }
    })?;
    Ok(device)
}

fn mount_data(device: &OwnedFd, options: &MountOptions) -> CString {
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(max_read) = options.max_read {
        data.push_str(&format!(",max_read={max_read}"));
    }
    CString::new(data).unwrap_or_default()
}

/// Unmounts what is uppermost at `path`.
///
/// # Errors
/// `EBUSY` while anything on it is open, mapped, or somebody's working directory.
pub fn unmount(path: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)?)
}

/// Detaches exactly the mount `entry`: it vanishes from the tree at once, and from memory when its last user lets go.
///
/// The mount is held by a descriptor while its number is compared, so that one stacked over it meanwhile is never detached instead.
///
/// # Errors
/// `EINVAL` when `entry` is not what is uppermost at its mount point.
pub fn detach(entry: &Entry) -> io::Result<()> {
    let held = hold(&entry.mount_point)?;
    if mount_of(&held)? != entry.id {
        return Err(Errno::INVAL.into());
    }
    let through = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    Ok(rustix::mount::unmount(&through, UnmountFlags::DETACH)?)
}

/// A descriptor of the folder that asks nothing of the file system it is on.
fn hold(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The number of the uppermost mount at `path` that no other mount gets before the next boot. Linux before 6.8 has none; nor does it tell that
/// of another user's private FUSE mount.
///
/// The ordinary number and the device number are both given to the next mount as soon as the first is gone.
pub fn lasting_id(path: &Path) -> Option<u64> {
    const STATX_MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let held = hold(path).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let answer = rustix::fs::statx(&held, "", flags, STATX_MNT_ID_UNIQUE).ok()?;
    StatxFlags::from_bits_retain(answer.stx_mask)
        .contains(STATX_MNT_ID_UNIQUE)
        .then_some(answer.stx_mnt_id)
}

/// The mount on which an open file lies.
fn mount_of(file: &OwnedFd) -> io::Result<MountId> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    mount_id(&text).ok_or_else(|| io::Error::other("the kernel does not tell the mount of an open file"))
}

/// The mount named by the text of a `/proc/PID/fdinfo/FD`.
pub fn mount_id(fdinfo: &str) -> Option<MountId> {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    value.trim().parse().ok().map(MountId)
}

/// Whether a name can be given to the kernel at all.
pub fn is_nameable(name: &OsStr) -> bool {
    !name.as_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_an_open_file_is_read_from_its_description() {
        assert_eq!(
            mount_id("pos:\t0\nflags:\t02\nmnt_id:\t27\nino:\t5\n"),
            Some(MountId(27))
        );
        assert_eq!(mount_id("pos:\t0\n"), None);
    }

    #[test]
    fn the_mount_of_a_proc_file_is_procs() {
        let file = OwnedFd::from(std::fs::File::open("/proc/self/status").unwrap());
        let table = super::super::table::Table::read().unwrap();
        assert_eq!(table.get(mount_of(&file).unwrap()).unwrap().fs_type, "proc");
    }
}
