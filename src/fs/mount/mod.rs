//! The life of a mount: is the place free, mount, raise read-ahead, unmount.
//!
//! Knows `/dev/fuse`, `mount(2)`, `fusermount3` and the kernel's table of mounts; does not know what is served. The caller
//! gives the returned descriptor to a FUSE session and holds on to [`Mounted`].
//!
//! ```no_run
//! # use std::path::Path;
//! # use dcfs::fs::mount::{MountOptions, mount, prepare};
//! let mountpoint = prepare(Path::new("/mnt/ds"), Some(Path::new("/data/ds")))?;
//! let options = MountOptions {
//!     source_name: "/data/ds".into(),
//!     allow_other: false,
//!     max_read: None,
//! };
//! let (device, mounted) = mount(mountpoint, &options)?;
//! // ... serve the requests that come from `device` ...
//! mounted.unmount()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fusermount;
mod kernel;
mod prepare;
mod read_ahead;
pub mod table;
mod unmount;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fuser::BackgroundSession;
use rustix::io::Errno;
use thiserror::Error;

pub use fusermount::HelperError;
pub use kernel::{may_mount, mount_id};
pub use prepare::{Mountpoint, PrepareError, Pulse, locate, prepare, pulse};
pub use read_ahead::ReadAhead;
pub use unmount::{Target, UnmountError, When};

use table::Table;

/// The device through which the kernel speaks with file system servers.
const DEV_FUSE: &str = "/dev/fuse";

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// What `mount` and `df` show as the source; any text.
    pub source_name: OsString,
    /// Let users other than the one who mounts in. The kernel checks owners and modes of the served files either way.
    pub allow_other: bool,
    /// The largest read request in bytes, if it is to be less than the kernel's own limit.
    pub max_read: Option<u32>,
}

/// Why nothing was mounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The kernel has no FUSE, or a container was given none.
    #[error("{DEV_FUSE} is missing; load it with: modprobe fuse (containers: run with --device {DEV_FUSE})")]
    NoDevice,
    /// The device is closed to this user.
    #[error(
        "{DEV_FUSE} may not be opened: permission denied (usual is mode 0666; containers: run with --device {DEV_FUSE})"
    )]
    DeviceForbidden,
    /// The device cannot be opened for another reason.
    #[error("cannot open {DEV_FUSE}: {0}")]
    Device(io::Error),
    /// The system's administrator must permit `--allow-other` to ordinary users.
    #[error(
        "--allow-other is not permitted to ordinary users here; an administrator can permit it with the line user_allow_other in /etc/fuse.conf"
    )]
    AllowOtherForbidden,
    /// Ordinary users may mount only on folders they may write to.
    #[error("you may not write to the mountpoint {}; ordinary users can mount only on their own directories", path.display())]
    NotOwner { path: PathBuf },
    /// The source's name cannot be handed to the kernel.
    #[error("the source's name contains a zero byte")]
    SourceName,
    /// `fusermount3` would not.
    #[error("cannot mount on {}: {source}", path.display())]
    Helper { path: PathBuf, source: HelperError },
    /// `mount(2)` would not.
    #[error("cannot mount on {}: {source}", path.display())]
    Kernel { path: PathBuf, source: io::Error },
    /// The mount was made, and taken away by somebody else at once.
    #[error("the mount at {} vanished as soon as it was made", path.display())]
    Vanished { path: PathBuf },
}

impl MountError {
    fn device(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NoDevice,
            Errno::ACCESS | Errno::PERM => Self::DeviceForbidden,
            errno => Self::Device(errno.into()),
        }
    }
}

/// Waits for the end of a session, which comes when its file system is unmounted for the last of its users.
///
/// A thread that is just being handed a request then is told "connection aborted" by the kernel instead of "no such
/// device", and means the same.
///
/// # Errors
/// The session ended otherwise.
pub fn join_session(session: BackgroundSession) -> io::Result<()> {
    match session.join() {
        Err(error) if error.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => Ok(()),
        ended => ended,
    }
}

/// Mounts on `mountpoint`, read-only, without set-user-id files and devices, with permissions checked by the kernel:
/// by `mount(2)` where this process has CAP_SYS_ADMIN, through `fusermount3` otherwise.
///
/// Returns the opened `/dev/fuse`, from which nothing has been read yet: until a session does, whoever looks at the mount waits.
///
/// # Errors
/// [`MountError`]; nothing is mounted then.
pub fn mount(mountpoint: Mountpoint, options: &MountOptions) -> Result<(OwnedFd, Mounted), MountError> {
    let path = mountpoint.path();
    if !kernel::is_nameable(&options.source_name) {
        return Err(MountError::SourceName);
    }
    let device = match may_mount() {
        true => kernel::mount(path, options)?,
        false => fusermount::mount(path, options)?,
    };
    let table = Table::read().map_err(|source| MountError::Kernel {
        path: path.to_owned(),
        source,
    })?;
    // The mountpoint was empty of mounts and is locked against others of this program, so a dcfs in the stack is the one just made.
    let entry = table
        .stack(path)
        .into_iter()
        .rev()
        .find(|entry| entry.is_ours())
        .cloned();
    let entry = entry.ok_or_else(|| MountError::Vanished { path: path.to_owned() })?;
    Ok((
        device,
        Mounted {
            target: Target::new(entry),
            left: false,
        },
    ))
}

/// A mount that this process made. Dropping it detaches the mount, so that none is left behind when a start fails half way.
#[derive(Debug)]
pub struct Mounted {
    target: Target,
    left: bool,
}

impl Mounted {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.target.entry().mount_point
    }

    /// Raises the kernel's read-ahead on this mount to `kib` KiB where permitted.
    pub fn raise_read_ahead(&self, kib: u32) -> ReadAhead {
        read_ahead::raise(self.target.entry().device, kib)
    }

    /// Unmounts, lazily if it is in use. Does nothing when it was unmounted by others; never touches a mount that is not this one.
    ///
    /// # Errors
    /// The mount is still there: something is mounted over it, or permission is lacking.
    pub fn unmount(mut self) -> Result<Unmounted, UnmountError> {
        self.left = true;
        match self.target.take_down(When::Unused) {
            Ok(true) => Ok(Unmounted::Now),
            Ok(false) => Ok(Unmounted::Before),
            Err(UnmountError::Busy { .. }) => match self.target.take_down(When::Lazily)? {
                true => Ok(Unmounted::Lazily),
                false => Ok(Unmounted::Before),
            },
            Err(error) => Err(error),
        }
    }
}

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody was using it.
    Now,
    /// It is gone from the tree, and its last users still hold what they had open.
    Lazily,
    /// Somebody else had unmounted it.
    Before,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if let Err(error) = self.target.take_down(When::Lazily) {
            log::error!("{error}");
        }
    }
}
