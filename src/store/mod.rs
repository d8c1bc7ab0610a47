//! Where a dataset's bytes are.
//!
//! A [`Store`] opens [`Object`]s by their path below the dataset's root (`tiles/tile_000000.dct`). It knows nothing
//! of what is in them. There are two kinds of stores, a [`Directory`] of this machine and a [`Bucket`] of an object store;
//! which of them a text names is a [`Location`].

mod access;
mod aws_profile;
mod bucket;
mod client;
mod connect;
mod credentials;
mod directory;
mod disk_cache;
mod explain;
mod kept;
mod location;
mod requests;
pub(crate) mod trust;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use thiserror::Error;

pub use access::Access;
pub use aws_profile::ProfileError;
pub use bucket::{Bucket, Limits};
pub use connect::{ConnectError, Connection, connect};
pub use directory::{Directory, Links};
pub use disk_cache::{DiskCache, DiskCacheError};
pub(crate) use explain::{NO_REASON, NOT_ALLOWED};
pub use location::{Location, LocationError};
pub use trust::Distrust;

/// Something in the store could not be opened or read.
#[derive(Debug, Error)]
#[error("{name}: {source}")]
pub struct StoreError {
    /// Full name of the object, as a person would give it to another tool.
    pub name: String,
    /// What the system said.
    pub source: io::Error,
}

/// What tells one state of an object from another: equal versions mean equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// Of a file of this machine.
    File {
        /// Where the file is.
        device: u64,
        /// Which file this is on its device.
        inode: u64,
        /// Size in bytes.
        size: u64,
        /// Last modification, in nanoseconds since the epoch.
        modified: i128,
    },
    /// Of an object of a server.
    Object {
        /// Size in bytes.
        size: u64,
        /// A hash of what the server calls this state.
        tag: [u8; 16],
    },
}

/// What `stat` shows of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Size in bytes.
    pub size: u64,
    /// Last modification.
    pub modified: SystemTime,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Which state of it this is.
    pub version: Version,
    /// Who may read it, taking into account the folders on the way to it.
    pub access: Access,
}

/// Keeps bytes that were fetched in memory for as long as it is there. Empty where nothing is fetched.
#[derive(Debug, Clone, Default)]
pub struct Held(#[allow(dead_code, reason = "what counts is that it is there")] Option<Bytes>);

/// What was asked of a server since it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests, each with all its retries.
    pub requests: u64,
    /// Bytes of objects in the answers.
    pub bytes: u64,
    /// Requests that were given up.
    pub failures: u64,
    /// What was sent for the requests: each retry by itself.
    pub tries: u64,
    /// Tries that had no answer, or one that says to try again (408, 429, 5xx).
    pub failed_tries: u64,
    /// Objects that were found in the cache on disk instead.
    pub found_on_disk: u64,
    /// Bytes of objects in memory.
    pub kept_bytes: u64,
}

/// An opened object: an immutable sequence of bytes.
pub trait Object: Send + Sync {
    /// Full name, for messages.
    fn name(&self) -> String;

    /// Size in bytes when it was opened.
    fn size(&self) -> u64;

    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// When they cannot be read, or the object ends before `offset + buffer.len()`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// The state of the object now. An object that changed since it was opened has another version.
    ///
    /// # Errors
    /// When the store cannot tell.
    fn version(&self) -> io::Result<Version>;

    /// Takes hold of the bytes `range`; `None` when reading them would take a request to a server.
    fn hold(&self, _range: &Range<u64>) -> Option<Held> {
        Some(Held::default())
    }

    /// Whether all parts in memory have the bytes that the whole object in memory has there.
    fn parts_agree(&self) -> bool {
        true
    }

    /// Has the bytes `range` fetched with one request, unless they are in memory.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    fn fetch(&self, _range: &Range<u64>) -> io::Result<Held> {
        Ok(Held::default())
    }
}

/// A place that holds a dataset.
pub trait Store: Send + Sync {
    /// The dataset's root, as a person would give it.
    fn location(&self) -> String;

    /// Opens the object at `path` below the root.
    ///
    /// # Errors
    /// When it is not there, may not be read, or is no regular file.
    fn open(&self, path: &str) -> Result<Arc<dyn Object>, StoreError>;

    /// What `stat` shows of the object or folder at `path`; the empty path is the root.
    ///
    /// # Errors
    /// When it is not there or may not be looked at.
    fn attributes(&self, path: &str) -> Result<Attributes, StoreError>;

    /// Opens an object that will be read from one end to the other, and more than once: a store that fetches may do so
    /// with one request, unless the object has more than `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::open`]; and where all of it would be fetched, when it is larger.
    fn open_whole(&self, path: &str, _limit: u64) -> Result<Arc<dyn Object>, StoreError> {
        self.open(path)
    }

    /// Opens an object of which parts will be read, and its first `head` bytes first: a store that fetches may do so
    /// with one request. Where all of it is fetched all the same, it has at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Self::open_whole`].
    fn open_parts(&self, path: &str, _head: u64, _limit: u64) -> Result<Arc<dyn Object>, StoreError> {
        self.open(path)
    }

    /// The same as [`Self::attributes`] as far as it is known without asking a server, so that `stat` never waits for one.
    ///
    /// # Errors
    /// As [`Self::attributes`].
    fn shown(&self, path: &str) -> Result<Attributes, StoreError> {
        self.attributes(path)
    }

    /// Names an object that was read and that is written last whenever the others are written: when it is another one, so may the
    /// others be, those as well that were not looked at yet.
    fn anchor(&self, _path: &str) {}

    /// Keeps nothing that was fetched of an object, because it turned out to be wrong.
    fn forget(&self, _path: &str) {}

    /// How many requests to a server may be on their way at the same time; 0 where there is none.
    fn requests_at_once(&self) -> usize {
        0
    }

    /// Bytes of fetched objects that stay in memory.
    fn room(&self) -> u64 {
        u64::MAX
    }

    /// Whether every read is a request to a server.
    fn is_remote(&self) -> bool {
        self.requests_at_once() > 0
    }

    /// Runs `job` on a thread that may wait for a server; on this one where there is none.
    fn wait_in(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }

    /// Ends all requests, and those that come, with an error.
    fn cancel(&self) {}

    /// What was asked of a server; `None` where there is none.
    fn traffic(&self) -> Option<Traffic> {
        None
    }
}

/// Reads a small object whole.
///
/// # Errors
/// When it cannot be opened or read, or is larger than `limit` bytes.
pub fn read_whole(store: &dyn Store, path: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
    let object = store.open_whole(path, limit)?;
    let failed = |source| StoreError {
        name: object.name(),
        source,
    };
    if object.size() > limit {
        let reason = format!("{} bytes, expected at most {limit}", object.size());
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, reason)));
    }
    let mut bytes = vec![0; object.size() as usize];
    object.read_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}
