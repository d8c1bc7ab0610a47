//! Taking a mount of ours away, and never another.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use super::fusermount::HelperError;
use super::table::{Entry, Table, describe};
use super::{fusermount, kernel};

/// When a mount may be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Only if nobody uses it.
    Unused,
    /// At once from the tree of files, and from memory when its last user lets go.
    Lazily,
}

/// Why a mount is still there.
#[derive(Debug, Error)]
pub enum UnmountError {
    /// Something on it is open, mapped, or somebody's working directory.
    #[error("{} is in use", path.display())]
    Busy { path: PathBuf },
    /// Something else was mounted over it, which is not ours to take away.
    #[error("something of type {fs_type} is mounted over the dcfs at {0}; unmount that first: umount {0}", path.display())]
    Covered { path: PathBuf, fs_type: String },
    /// `fusermount3` would not.
    #[error("cannot unmount {}: {source}", path.display())]
    Helper { path: PathBuf, source: HelperError },
    /// The kernel would not.
    #[error("cannot unmount {}: {source}", path.display())]
    Kernel { path: PathBuf, source: io::Error },
}

/// One mount, known well enough not to be taken for another that comes after it at the same place.
#[derive(Debug, Clone)]
pub struct Target {
    entry: Entry,
    lasting_id: Option<u64>,
}

impl Target {
    /// The mount that `entry` described just now, if it is the uppermost one at its path.
    pub fn new(entry: Entry) -> Self {
        let lasting_id = kernel::lasting_id(&entry.mount_point);
        Self { entry, lasting_id }
    }

    /// Its line in the table of mounts.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Takes the mount away, if it is still there; returns whether it was.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] only for [`When::Unused`].
    pub fn take_down(&self, when: When) -> Result<bool, UnmountError> {
        if !self.is_uppermost()? {
            return Ok(false);
        }
        let result = if kernel::may_mount() {
            by_kernel(&self.entry, when)
        } else {
            by_helper(&self.entry.mount_point, when)
        };
        match result {
            Ok(()) => Ok(true),
            // It went by other hands, or was covered, between the look and the act.
            Err(error) => match self.is_uppermost()? {
                true => Err(error),
                false => Ok(false),
            },
        }
    }

    /// Whether the mount is still there, and is what programs see at its path.
    fn is_uppermost(&self) -> Result<bool, UnmountError> {
        let entry = &self.entry;
        let table = Table::read().map_err(|source| UnmountError::Kernel {
            path: entry.mount_point.clone(),
            source,
        })?;
        let stack = table.stack(&entry.mount_point);
        let same =
            |other: &Entry| other.id == entry.id && other.device == entry.device && other.fs_type == entry.fs_type;
        match stack.iter().position(|other| same(other)) {
            None => Ok(false),
            Some(place) if place + 1 == stack.len() => Ok(kernel::lasting_id(&entry.mount_point) == self.lasting_id),
            Some(place) => Err(UnmountError::Covered {
                path: entry.mount_point.clone(),
                fs_type: describe(&stack[place + 1].fs_type),
            }),
        }
    }
}

fn by_kernel(entry: &Entry, when: When) -> Result<(), UnmountError> {
    let path = &entry.mount_point;
    let result = match when {
        // The kernel cannot be asked to unmount a mount by number, and holding it open would make it busy: what was just read from the
        // table is as close as one gets.
        When::Unused => kernel::unmount(path),
        When::Lazily => kernel::detach(entry),
    };
    result.map_err(|source| match source.raw_os_error() {
        Some(errno) if errno == Errno::BUSY.raw_os_error() => UnmountError::Busy { path: path.clone() },
        _ => UnmountError::Kernel {
            path: path.clone(),
            source,
        },
    })
}

fn by_helper(path: &Path, when: When) -> Result<(), UnmountError> {
    fusermount::unmount(path, when == When::Lazily).map_err(|source| match source {
        HelperError::Refused(said) if said.contains("Device or resource busy") => {
            UnmountError::Busy { path: path.to_owned() }
        }
        source => UnmountError::Helper {
            path: path.to_owned(),
            source,
        },
    })
}
