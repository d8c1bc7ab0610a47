//! Answers "these bytes of that virtual file", from view to cache to dataset and back.
//!
//! Nothing that asks the engine waits: every call takes a continuation, which runs at once when the bytes are there
//! and on a thread of the decode pool when they had to be made. So whoever serves metadata never stands behind a
//! decode.

mod chunk;
mod fetch;
mod gather;
mod key;
mod needs;
mod read_ahead;
mod recent;
mod report;
mod rows;
mod spanning;
mod stats;
mod whole;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rayon::{ThreadPool, ThreadPoolBuilder};
use thiserror::Error;

use recent::Recent;

pub use key::{Key, Pin};
pub use stats::{OpenMode, Stats};

use crate::cache::tmpfs::PrivateTmpfs;
use crate::cache::{Cache, Failure, Spares};
use crate::dataset::DatasetError;
use crate::format::TileId;
use crate::view::{Rows, View, ViewError};

/// Why bytes could not be had. What it says was logged; a reader gets an I/O error.
#[derive(Debug, Clone, Error)]
pub enum ReadError {
    /// The dataset is at fault.
    #[error("{0}")]
    Dataset(Arc<DatasetError>),
    /// There cannot be such a file.
    #[error("{0}")]
    View(Arc<ViewError>),
    /// The thread that made the bytes died.
    #[error("decoding was abandoned")]
    Abandoned,
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
    /// Whether a tile that is kept more closely than the first must not be read through a file that spans all.
    pub guard_tiles: bool,
}

/// The engine of one mount.
pub struct Engine {
    view: View,
    cache: Arc<Cache<Key>>,
    pool: ThreadPool,
    threads: usize,
    tmpfs: Option<PrivateTmpfs>,
    stats: Stats,
    report: report::Report,
    waiting: needs::Waiting,
    fetching: fetch::Fetching,
    tiles_not_given: Recent<TileId>,
    rows_not_given: Recent<(TileId, Rows)>,
    sizes_not_found: Recent<()>,
    readers: read_ahead::Readers,
    spares: Arc<Spares>,
    spanning: Option<spanning::Spanning>,
    /// Bytes of files that are being filled.
    filling: AtomicU64,
}

impl Engine {
    /// An engine that serves `view`.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn new(view: View, options: Options) -> io::Result<Arc<Self>> {
        let spanning = options.guard_tiles.then(spanning::Spanning::default);
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
            waiting: needs::Waiting::default(),
            fetching: fetch::Fetching::default(),
            tiles_not_given: Recent::new(recent::A_MOMENT),
            rows_not_given: Recent::new(recent::A_MOMENT),
            sizes_not_found: Recent::new(needs::GONE),
            readers: read_ahead::Readers::default(),
            spares: Arc::default(),
            spanning,
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
    pub fn cache(&self) -> &Cache<Key> {
        &self.cache
    }

    /// The text of `.dcfs/stats.json`, of [`crate::view::STATS_BYTES`] bytes.
    pub fn stats_json(&self) -> Vec<u8> {
        self.stats.to_json(&self.cache, self.view.dataset().store().traffic())
    }

    /// Whether whole arrays can be put into files for the kernel.
    pub fn has_files(&self) -> bool {
        self.tmpfs.is_some()
    }

    /// Whether a tile that is kept more closely than the first is not read through a file that spans all.
    pub fn guards_tiles(&self) -> bool {
        self.spanning.is_some()
    }

    /// Runs `work` on the decode pool.
    fn spawn(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let engine = self.clone();
        self.pool.spawn(move || work(&engine));
    }

    /// Logs and counts what went wrong.
    fn failed(&self, error: &DatasetError) {
        self.stats.count_error(error.kind());
        match error.is_stale() && self.is_remote() {
            // Each of its objects is another one.
            true => self.report.tell_as("a dataset that was replaced", &error.to_string()),
            false => self.report.tell(error),
        }
    }
}
