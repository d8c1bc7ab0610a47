//! A dataset in a directory of this machine.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags, getxattr, openat};
use rustix::io::Errno;

use super::{Access, Attributes, Object, Store, StoreError, Version};

/// A directory. Files are read with `pread` and never mapped: a mapping of a file that somebody truncates kills the
/// process that touches it.
pub struct Directory {
    root: PathBuf,
    opened: File,
    links: Links,
}

/// Which symbolic links in a dataset are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// All.
    Anywhere,
    /// Those that stay in the dataset's folder: for a daemon that shows others what it may read itself.
    Within,
}

/// The largest access control list that is looked at.
const ACL_BYTES: usize = 64 << 10;

impl Directory {
    /// The directory at `path`, which must exist.
    ///
    /// # Errors
    /// When there is no directory at `path`, or it may not be read.
    pub fn open(path: &Path, links: Links) -> Result<Self, StoreError> {
        let failed = |source| StoreError {
            name: path.display().to_string(),
            source,
        };
        let root = path.canonicalize().map_err(failed)?;
        if !root.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        let opened = File::open(&root).map_err(failed)?;
        Ok(Self { root, opened, links })
    }

    /// The directory's absolute path without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What is at `path` below the root, or the root where it is empty: found, but not opened for reading yet.
    fn find(&self, path: &str) -> Result<Found, StoreError> {
        let failed = |errno: Errno| self.error(path, errno.into());
        let below = if path.is_empty() { "." } else { path };
        let file = openat(&self.opened, below, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        let file = File::from(file);
        // Wherever links led, and whatever has their names by now, this is the file that was found.
        let handle = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let real = std::fs::read_link(&handle).map_err(|source| self.error(path, source))?;
        if self.links == Links::Within && !real.starts_with(&self.root) {
            let reason = "a link that leads out of the dataset; such links are followed only without --allow-other";
            return Err(self.error(path, io::Error::new(io::ErrorKind::PermissionDenied, reason)));
        }
        Ok(Found { file, handle, real })
    }

    fn error(&self, path: &str, source: io::Error) -> StoreError {
        StoreError {
            name: self.root.join(path).display().to_string(),
            source,
        }
    }
}

/// A file that was found.
struct Found {
    /// Not opened for reading.
    file: File,
    /// A name of this very file for this process.
    handle: PathBuf,
    /// Its path without links.
    real: PathBuf,
}

impl Store for Directory {
    fn location(&self) -> String {
        self.root.display().to_string()
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Object>, StoreError> {
        let found = self.find(path)?;
        let metadata = found.file.metadata().map_err(|source| self.error(path, source))?;
        if !metadata.is_file() {
            let reason = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(self.error(path, reason));
        }
        let file = File::open(&found.handle).map_err(|source| self.error(path, source))?;
        let name = self.root.join(path);
        Ok(Arc::new(LocalFile {
            file,
            name,
            size: metadata.len(),
        }))
    }

    fn attributes(&self, path: &str) -> Result<Attributes, StoreError> {
        let failed = |source| self.error(path, source);
        let Found { file, handle, real } = self.find(path)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut access = access_of(&handle, &metadata);
        for folder in real.ancestors().skip(1) {
            access = access.below(access_of(folder, &folder.metadata().map_err(failed)?));
        }
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(metadata.mtime().max(0) as u64);
        Ok(Attributes {
            size: metadata.len(),
            modified,
            is_folder: metadata.is_dir(),
            version: version_of(&metadata),
            access,
        })
    }
}

struct LocalFile {
    file: File,
    name: PathBuf,
    size: u64,
}

impl Object for LocalFile {
    fn name(&self) -> String {
        self.name.display().to_string()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn version(&self) -> io::Result<Version> {
        Ok(version_of(&self.file.metadata()?))
    }
}

/// What mode and access control list together say.
fn access_of(path: &Path, metadata: &Metadata) -> Access {
    let access = Access::of(metadata);
    let mut list = vec![0; ACL_BYTES];
    match getxattr(path, "system.posix_acl_access", &mut list[..]) {
        Ok(length) => access.with_acl(&list[..length]),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => access,
        Err(_) => access.for_owner_only(),
    }
}

fn version_of(metadata: &Metadata) -> Version {
    Version::File {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.len(),
        modified: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
    }
}
