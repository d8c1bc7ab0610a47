//! Where the datasets that are measured are kept, in the target folder, from one run to the next.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::Result;

/// The folder the datasets are in, which this process has for itself: two benches at a time would measure each other.
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Waits for other benches to end.
    pub fn lock() -> Result<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = target.parent().unwrap_or(target).join("bench");
        fs::create_dir_all(&path)?;
        let lock = File::create(path.join("lock"))?;
        lock.lock()?;
        Ok(Self { path, _lock: lock })
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}
