//! Files that are there whole or not at all. Knows nothing of what they hold.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::WriteError;
use crate::format::fingerprint::hex;

/// A file that is written under a temporary name in its own folder and appears, synced, with [`NewFile::commit`].
/// Dropped before that, it is removed.
pub(super) struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
    file: BufWriter<File>,
    sha256: Sha256,
    bytes: u64,
    committed: bool,
}

/// What a file that was written is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, 64 lower-case hex characters.
    pub sha256: String,
}

impl NewFile {
    /// Starts the file `path`, in a folder that exists.
    pub fn create(path: PathBuf) -> Result<Self, WriteError> {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(".tmp");
        let temporary = path.with_file_name(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(WriteError::io("create", &temporary))?;
        Ok(Self {
            path,
            temporary,
            file: BufWriter::with_capacity(1 << 16, file),
            sha256: Sha256::new(),
            bytes: 0,
            committed: false,
        })
    }

    /// Where the file will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file in its place, on disk.
    pub fn commit(mut self) -> Result<Written, WriteError> {
        self.file.flush().map_err(WriteError::io("write", &self.path))?;
        let file = self.file.get_ref();
        file.sync_all().map_err(WriteError::io("write", &self.path))?;
        fs::rename(&self.temporary, &self.path).map_err(WriteError::io("write", &self.path))?;
        self.committed = true;
        Ok(Written {
            bytes: self.bytes,
            sha256: hex(&self.sha256.finalize_reset()),
        })
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sha256.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing more can be done for a file that nobody asked to keep.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Writes the file `path` whole.
pub(super) fn write_file(path: PathBuf, bytes: &[u8]) -> Result<Written, WriteError> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes).map_err(WriteError::io("write", file.path()))?;
    file.commit()
}

/// Makes the names in a folder survive a power cut.
pub(super) fn sync_folder(path: &Path) -> Result<(), WriteError> {
    let folder = File::open(path).map_err(WriteError::io("open", path))?;
    folder.sync_all().map_err(WriteError::io("sync", path))
}

/// Creates the folder if there is none.
pub(super) fn create_folder(path: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(path).map_err(WriteError::io("create", path))
}
