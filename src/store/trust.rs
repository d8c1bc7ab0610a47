//! Whom something in a cache can be from.
//!
//! A daemon that serves everybody must not serve what somebody else wrote in the name of the dataset. So every folder from
//! the cache's root on, and the file, must belong to this user or to root, and be closed to the writing of others.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use thiserror::Error;

/// Somebody else may have written what is in the cache.
#[derive(Debug, Error)]
pub enum Distrust {
    /// It belongs to another user.
    #[error(
        "{} belongs to user {owner}, expected user {expected} or root; it is not used, since its owner may have put anything there",
        path.display()
    )]
    Owner { path: PathBuf, owner: u32, expected: u32 },
    /// Others may write to it.
    #[error(
        "{} may be written by others (mode {mode:03o}); it is not used, since they may have put anything there",
        path.display()
    )]
    Writable { path: PathBuf, mode: u32 },
    /// It could not be looked at.
    #[error("cannot look at {}: {source}", path.display())]
    Unknown { path: PathBuf, source: io::Error },
}

/// Opens a file for reading, if it is one: to open a pipe is to wait for whoever writes to it.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Checks a file and the folders it is in.
pub(crate) fn check(root: &Path, path: &Path, file: &File) -> Result<(), Distrust> {
    let metadata = file.metadata().map_err(|source| unknown(path, source))?;
    one(path, &metadata)?;
    check_folders(root, path.parent().unwrap_or(root))
}

/// Checks the folders from `root` to `folder`.
pub(crate) fn check_folders(root: &Path, folder: &Path) -> Result<(), Distrust> {
    for folder in folder.ancestors() {
        let metadata = folder.metadata().map_err(|source| unknown(folder, source))?;
        one(folder, &metadata)?;
        if folder == root {
            break;
        }
    }
    Ok(())
}

fn unknown(path: &Path, source: io::Error) -> Distrust {
    let path = path.to_owned();
    Distrust::Unknown { path, source }
}

fn one(path: &Path, metadata: &Metadata) -> Result<(), Distrust> {
    let (owner, expected) = (metadata.uid(), geteuid().as_raw());
    if owner != 0 && owner != expected {
        let path = path.to_owned();
        return Err(Distrust::Owner { path, owner, expected });
    }
    let mode = metadata.mode() & 0o7777;
    // Of a sticky folder of root's, such as /tmp, others cannot rename or remove what is not theirs.
    let sticky = metadata.is_dir() && mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !sticky {
        let path = path.to_owned();
        return Err(Distrust::Writable { path, mode });
    }
    Ok(())
}
