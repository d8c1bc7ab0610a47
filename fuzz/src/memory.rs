//! A store whose objects are byte vectors.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use dcfs::store::{Access, Attributes, Object, Store, StoreError, Version};

/// A dataset in memory.
#[derive(Default)]
pub struct Memory {
    objects: HashMap<String, Arc<[u8]>>,
}

impl Memory {
    /// The same with `bytes` at `path`.
    pub fn with(mut self, path: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        self.objects.insert(path.into(), bytes.into());
        self
    }

    fn find(&self, path: &str) -> Result<Arc<[u8]>, StoreError> {
        self.objects.get(path).cloned().ok_or_else(|| StoreError {
            name: path.to_owned(),
            source: io::ErrorKind::NotFound.into(),
        })
    }
}

/// One object.
pub struct InMemory {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub bytes: Arc<[u8]>,
}

impl Object for InMemory {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let source = self.bytes.get(offset as usize..);
        let source = source.and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn version(&self) -> io::Result<Version> {
        Ok(version(self.size()))
    }
}

/// Nothing here ever changes.
fn version(size: u64) -> Version {
    Version::File {
        device: 0,
        inode: 0,
        size,
        modified: 0,
    }
}

impl Store for Memory {
    fn location(&self) -> String {
        "memory".into()
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Object>, StoreError> {
        let bytes = self.find(path)?;
        let name = path.to_owned();
        Ok(Arc::new(InMemory { name, bytes }))
    }

    fn attributes(&self, path: &str) -> Result<Attributes, StoreError> {
        let size = self.find(path)?.len() as u64;
        Ok(Attributes {
            size,
            is_folder: false,
            version: version(size),
            modified: SystemTime::UNIX_EPOCH,
            access: Access {
                uid: 0,
                gid: 0,
                mode: 0o444,
            },
        })
    }
}
