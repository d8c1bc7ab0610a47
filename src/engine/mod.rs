//! Answers "these bytes of that virtual file", from view to cache to dataset and back.
//!
//! Nothing that asks the engine waits: every call takes a continuation, which runs at once when the bytes are there
//! and on a thread of the decode pool when they had to be made. So whoever serves metadata never stands behind a
//! decode.

mod chunk;
mod column;
mod gather;
mod report;
mod stats;
mod whole;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rayon::{ThreadPool, ThreadPoolBuilder};
use thiserror::Error;

pub use gather::Cursor;
pub use stats::{OpenMode, Stats};

use crate::cache::tmpfs::PrivateTmpfs;
use crate::cache::{Cache, Failure};
use crate::dataset::DatasetError;
use crate::view::{Node, Size, View};

/// Why bytes could not be had. What it says was logged; a reader gets an I/O error.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// The dataset is at fault.
    #[error("{0}")]
    Dataset(Arc<DatasetError>),
    /// The thread that made the bytes died.
    #[error("decoding was abandoned")]
    Abandoned,
}

impl ReadError {
    /// Whether the dataset is not the one that was mounted.
    pub fn is_stale(&self) -> bool {
        match self {
            Self::Dataset(error) => error.is_stale(),
            Self::Abandoned => false,
        }
    }
}

impl From<DatasetError> for ReadError {
    fn from(error: DatasetError) -> Self {
        Self::Dataset(Arc::new(error))
    }
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Failed(error) => Self::Dataset(error),
            Failure::NoRoom | Failure::Abandoned => Self::Abandoned,
        }
    }
}

/// How an engine is to work.
pub struct Options {
    /// Bytes of decoded data that are kept.
    pub cache_bytes: u64,
    /// Blocks that are kept; each may take a file descriptor and a mapping.
    pub cache_blocks: usize,
    /// Threads that read and decode.
    pub threads: usize,
    /// Where files for the kernel to serve are made; without it every byte goes through read requests.
    pub tmpfs: Option<PrivateTmpfs>,
}

/// The engine of one mount.
pub struct Engine {
    view: View,
    cache: Arc<Cache>,
    pool: ThreadPool,
    threads: usize,
    tmpfs: Option<PrivateTmpfs>,
    stats: Stats,
    report: report::Report,
    texts: column::TextSizes,
    /// Bytes of files that are being filled.
    filling: AtomicU64,
}

impl Engine {
    /// An engine that serves `view`.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn new(view: View, options: Options) -> io::Result<Arc<Self>> {
        let threads = options.threads.max(1);
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("decode-{i}"))
            // What the dead job owed to others is told to them as it is dropped.
            .panic_handler(|_| log::error!("a decode thread panicked; its readers get an error"))
            .build()
            .map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            view,
            cache: Cache::new(options.cache_bytes, options.cache_blocks),
            pool,
            threads,
            tmpfs: options.tmpfs,
            stats: Stats::default(),
            report: report::Report::default(),
            texts: column::TextSizes::default(),
            filling: AtomicU64::new(0),
        }))
    }

    /// The files it serves.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// What it has done so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The decoded blocks.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The text of `.dcfs/stats.json`, of [`crate::view::STATS_BYTES`] bytes.
    pub fn stats_json(&self) -> Vec<u8> {
        self.stats.to_json(&self.cache)
    }

    /// Whether whole arrays can be put into files for the kernel.
    pub fn has_files(&self) -> bool {
        self.tmpfs.is_some()
    }

    /// The size of a file in bytes. Reads a string column the first time it is asked for one.
    ///
    /// # Errors
    /// `done` gets one when that column cannot be read.
    pub fn size(self: &Arc<Self>, node: Node, done: impl FnOnce(Result<u64, ReadError>) + Send + 'static) {
        match self.view.size(node) {
            Size::Known(bytes) => done(Ok(bytes)),
            Size::OfText => self.text_size(node, Box::new(done)),
        }
    }

    /// Runs `work` on the decode pool.
    fn spawn(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let engine = self.clone();
        self.pool.spawn(move || work(&engine));
    }

    /// Logs and counts what went wrong.
    fn failed(&self, error: &DatasetError) {
        self.stats.count_error(error.kind());
        self.report.tell(error);
    }
}
