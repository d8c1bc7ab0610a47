//! Whether a folder may be mounted on, and clearing away what a dead predecessor left there.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, StatxFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::table::{Entry, Table, describe};
use super::unmount::{Target, UnmountError, When};

/// How long a mount found at the mountpoint may take to say whether it lives.
const PULSE_PATIENCE: Duration = Duration::from_secs(5);
/// As many symbolic links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// Why a folder was refused as a mountpoint.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// Nothing has this name.
    #[error("mountpoint {0} does not exist; make it with: mkdir -p {0}", path.display())]
    Missing { path: PathBuf },
    /// Something other than a folder.
    #[error("mountpoint {} is not a directory; give an empty directory", path.display())]
    NotDirectory { path: PathBuf },
    /// Mounting would hide what is in it.
    #[error("mountpoint {} is not empty (it holds {entry:?}); mounting would hide what is in it, give an empty directory", path.display())]
    NotEmpty { path: PathBuf, entry: OsString },
    /// Reading the dataset would then wait for the mount, which waits for the dataset.
    #[error("mountpoint {} contains the dataset {}; the mount would hide it from itself, give a directory elsewhere", path.display(), dataset.display())]
    ContainsDataset { path: PathBuf, dataset: PathBuf },
    /// Whatever walks, copies or hashes the dataset would then walk, copy or hash its decoded form too, many times its size.
    #[error("mountpoint {} lies inside the dataset {}; copies and checks of the dataset would read the mount too, give a directory elsewhere", path.display(), dataset.display())]
    InsideDataset { path: PathBuf, dataset: PathBuf },
    /// Another file system is mounted there.
    #[error("{} is the mountpoint of something else already: {} of type {fs_type}; unmount it or give another directory", path.display(), source_name.display())]
    Occupied {
        path: PathBuf,
        source_name: OsString,
        fs_type: String,
    },
    /// A running dcfs is mounted there.
    #[error("{0} is already mounted with {1}; to mount anew: dcfs umount {0}", path.display(), source_name.display())]
    Mounted { path: PathBuf, source_name: OsString },
    /// A dcfs is mounted there that neither answers nor is dead.
    #[error("the dcfs mounted at {0} does not answer; to remove it: dcfs umount --lazy {0}", path.display())]
    Silent { path: PathBuf },
    /// A dcfs of a user who lets nobody else in, so that it cannot be asked whether it lives.
    #[error("{who} has mounted a dcfs at {path} that only they may enter; to remove it: dcfs umount {path}",
        who = owner.map_or_else(|| "somebody".to_owned(), |uid| format!("user {uid}")), path = path.display())]
    Private { path: PathBuf, owner: Option<u32> },
    /// Another process is mounting there at this moment.
    #[error("another dcfs is being mounted at {} at this moment", path.display())]
    Contended { path: PathBuf },
    /// A dead dcfs is mounted there and cannot be taken away.
    #[error("a dead dcfs is mounted at {} and cannot be removed: {reason}", path.display())]
    Stale { path: PathBuf, reason: UnmountError },
    /// The operating system refused something.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PrepareError + 'a {
    move |source| PrepareError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// A folder that may be mounted on: absolute, free of symbolic links, empty, nothing mounted there.
///
/// While the value lives the folder is locked against another `dcfs mount`.
#[derive(Debug)]
pub struct Mountpoint {
    path: PathBuf,
    _lock: File,
}

impl Mountpoint {
    /// The folder's absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Checks that `mountpoint` may be mounted on, detaching dead mounts of this program from it first.
///
/// `dataset` is the folder that will be served, if it is one.
///
/// The table of mounts is asked before the folder is touched, so that a foreign mount whose server hangs is refused, not waited for.
///
/// # Errors
/// [`PrepareError`] says what is in the way and what to do about it.
pub fn prepare(mountpoint: &Path, dataset: Option<&Path>) -> Result<Mountpoint, PrepareError> {
    let path = locate(mountpoint)?;
    clear_dead_layers(&path)?;
    // Before looking whether it is empty, which a folder around the dataset never is: that reason would help nobody.
    if let Some(dataset) = dataset {
        keep_apart(&path, dataset)?;
    }
    let lock = open_empty(&path)?;
    Ok(Mountpoint { path, _lock: lock })
}

/// The absolute path of `path` with every symbolic link followed, without asking anything of a file
/// system that is mounted exactly there.
///
/// # Errors
/// A parent folder does not exist or may not be searched, the last name is missing, or links go round in a circle.
pub fn locate(path: &Path) -> Result<PathBuf, PrepareError> {
    let mut path = std::path::absolute(path).map_err(io_error("make absolute the path", path))?;
    for _ in 0..MAX_LINKS {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().map_err(io_error("resolve", &path));
        };
        let parent = match parent.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(PrepareError::Missing { path }),
            result => result.map_err(io_error("resolve", parent))?,
        };
        let candidate = parent.join(name);
        // A link cannot be mounted on, so what is mounted is no link; and `readlink` unlike `stat` asks nothing of a mounted file system.
        match fs::read_link(&candidate) {
            Ok(target) => path = parent.join(target),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PrepareError::Missing { path: candidate });
            }
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return Ok(candidate),
            Err(_) if !mounts()?.stack(&candidate).is_empty() => return Ok(candidate),
            Err(error) => return Err(io_error("resolve", &candidate)(error)),
        }
    }
    Err(io_error("resolve", &path)(Errno::LOOP.into()))
}

fn mounts() -> Result<Table, PrepareError> {
    Table::read().map_err(io_error("read", Path::new("/proc/self/mountinfo")))
}

/// Detaches the dead mounts of this program stacked at `path`, from the top, until none is left.
fn clear_dead_layers(path: &Path) -> Result<(), PrepareError> {
    loop {
        let table = mounts()?;
        let stack = table.stack(path);
        let Some(top) = stack.last() else { return Ok(()) };
        if !top.is_ours() {
            return Err(PrepareError::Occupied {
                path: path.to_owned(),
                source_name: top.source.clone(),
                fs_type: describe(&top.fs_type),
            });
        }
        refuse_living(top)?;
        log::warn!(
            "removing the dead mount of {} from {}",
            top.source.display(),
            path.display()
        );
        Target::new((*top).clone())
            .take_down(When::Lazily)
            .map_err(|reason| PrepareError::Stale {
                path: path.to_owned(),
                reason,
            })?;
        if mounts()?.get(top.id).is_some_and(|entry| entry.device == top.device) {
            return Err(io_error("remove the dead mount from", path)(Errno::BUSY.into()));
        }
    }
}

fn refuse_living(mount: &Entry) -> Result<(), PrepareError> {
    let path = mount.mount_point.clone();
    match pulse(&mount.mount_point) {
        Pulse::Dead => Ok(()),
        Pulse::Alive => Err(PrepareError::Mounted {
            path,
            source_name: mount.source.clone(),
        }),
        Pulse::Silent => Err(PrepareError::Silent { path }),
        Pulse::Private => Err(PrepareError::Private {
            path,
            owner: mount.fuse_owner(),
        }),
    }
}

/// Whether somebody serves a FUSE mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It answered.
    Alive,
    /// Its server has gone: "Transport endpoint is not connected".
    Dead,
    /// No answer in time.
    Silent,
    /// Its owner lets nobody else in, not even to ask.
    Private,
}

/// Asks the FUSE mount at `path` for a sign of life, and waits no longer than a few seconds.
pub fn pulse(path: &Path) -> Pulse {
    let (answer, answers) = mpsc::channel();
    let path = path.to_owned();
    // The thread may hang as long as the mount does; it holds nothing.
    thread::spawn(move || {
        // Attributes that the kernel remembers would make a dead mount look alive.
        let reply = rustix::fs::statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        answer.send(reply.map(drop)).ok();
    });
    match answers.recv_timeout(PULSE_PATIENCE) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Pulse::Dead,
        Ok(Err(Errno::ACCESS)) => Pulse::Private,
        Ok(_) => Pulse::Alive,
        Err(_) => Pulse::Silent,
    }
}

/// Opens and locks the folder, and checks that nothing is in it.
fn open_empty(path: &Path) -> Result<File, PrepareError> {
    let metadata = fs::symlink_metadata(path).map_err(io_error("examine", path))?;
    if !metadata.is_dir() {
        return Err(PrepareError::NotDirectory { path: path.to_owned() });
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map_err(|errno| io_error("open", path)(errno.into()))?;
    // Any other failure: some network file systems have no locks for folders; there a race merely ends in two stacked mounts.
    if let Err(Errno::WOULDBLOCK) = rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        return Err(PrepareError::Contended { path: path.to_owned() });
    }
    match fs::read_dir(path).map_err(io_error("list", path))?.next() {
        None => Ok(File::from(folder)),
        Some(entry) => Err(PrepareError::NotEmpty {
            path: path.to_owned(),
            entry: entry.map_err(io_error("list", path))?.file_name(),
        }),
    }
}

fn keep_apart(path: &Path, dataset: &Path) -> Result<(), PrepareError> {
    let dataset = dataset.canonicalize().map_err(io_error("resolve", dataset))?;
    if lies_within(&dataset, path)? {
        return Err(PrepareError::ContainsDataset {
            path: path.to_owned(),
            dataset,
        });
    }
    if lies_within(path, &dataset)? {
        return Err(PrepareError::InsideDataset {
            path: path.to_owned(),
            dataset,
        });
    }
    Ok(())
}

/// Whether `folder` is one of the folders on the way to `path`, or `path` itself. Folders are compared by device and inode as well,
/// because a bind mount gives the same folder two paths.
fn lies_within(path: &Path, folder: &Path) -> Result<bool, PrepareError> {
    let identity = |path: &Path| -> Result<(u64, u64), PrepareError> {
        let metadata = fs::metadata(path).map_err(io_error("examine", path))?;
        Ok((metadata.dev(), metadata.ino()))
    };
    let sought = identity(folder)?;
    for ancestor in path.ancestors() {
        if ancestor == folder || identity(ancestor)? == sought {
            return Ok(true);
        }
    }
    Ok(false)
}
