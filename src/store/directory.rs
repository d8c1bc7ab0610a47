//! A dataset in a directory of this machine.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Access, Attributes, Object, Store, StoreError, Version};

/// A directory. Files are read with `pread` and never mapped: a mapping of a file that somebody truncates kills the
/// process that touches it.
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// The directory at `path`, which must exist.
    ///
    /// # Errors
    /// When there is no directory at `path`.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError {
            name: path.display().to_string(),
            source,
        };
        let root = path.canonicalize().map_err(failed)?;
        if !root.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { root })
    }

    /// The directory's absolute path without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn error(&self, path: &str, source: io::Error) -> StoreError {
        StoreError {
            name: self.root.join(path).display().to_string(),
            source,
        }
    }
}

impl Store for Directory {
    fn location(&self) -> String {
        self.root.display().to_string()
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Object>, StoreError> {
        // A FIFO of this name must not make the open wait for a writer.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(self.root.join(path))
            .map_err(|source| self.error(path, source))?;
        let metadata = file.metadata().map_err(|source| self.error(path, source))?;
        if !metadata.is_file() {
            let reason = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(self.error(path, reason));
        }
        let name = self.root.join(path);
        Ok(Arc::new(LocalFile {
            file,
            name,
            size: metadata.len(),
        }))
    }

    fn attributes(&self, path: &str) -> Result<Attributes, StoreError> {
        let failed = |source| self.error(path, source);
        let full = self.root.join(path).canonicalize().map_err(failed)?;
        let metadata = full.metadata().map_err(failed)?;
        let mut access = Access::of(&metadata);
        for folder in full.ancestors().skip(1) {
            access = access.below(Access::of(&folder.metadata().map_err(failed)?));
        }
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(metadata.mtime().max(0) as u64);
        Ok(Attributes {
            size: metadata.len(),
            modified,
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

fn version_of(metadata: &Metadata) -> Version {
    Version {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.len(),
        modified: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
    }
}
