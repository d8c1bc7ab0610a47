//! The threads that encode and write tiles, and how many tiles they may have in hand.
//!
//! Chunks, not tiles, are what threads share, so that a small dataset uses all of them and a large one does not need
//! a tile in memory for each. The last thread to finish a chunk of a tile writes the tile.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::WriteError;
use super::file::write_file;
use crate::format::TileId;
use crate::format::encode::{ChunkEncoder, CsrRows, EncodeError, EncodedChunk, assemble, chunk_cells};
use crate::format::manifest::tile_path;

/// The cells of one tile.
#[derive(Debug, Default)]
pub(super) struct TileRows {
    pub indptr: Vec<i64>,
    pub indices: Vec<u32>,
    pub counts: Vec<u32>,
}

/// What encoding needs to know besides the cells.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub root: PathBuf,
    pub n_genes: u32,
    pub tile_size: u64,
    pub n_chunks: u32,
    pub level: i32,
}

/// Encodes tiles on its own threads. Dropped, it forgets the tiles that are waiting and ends the threads.
pub(super) struct Encoders {
    pool: rayon::ThreadPool,
    shared: Arc<Shared>,
    most_in_hand: usize,
}

struct Shared {
    settings: Settings,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// Encoders nobody is using: a zstd context at a high level is dear to make.
    idle: Mutex<Vec<ChunkEncoder>>,
}

#[derive(Default)]
struct Progress {
    in_hand: usize,
    encoded: Encoded,
    /// File size of each tile, once it is written.
    bytes: Vec<Option<u64>>,
    /// What went wrong, in the first tile in which something did.
    failed: Option<(TileId, WriteError)>,
    /// Nobody wants the rest.
    abandoned: bool,
    /// Somebody said so from outside.
    stopped: bool,
}

/// How much has been encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Cells of the chunks that are encoded.
    pub cells: u64,
    /// Their nonzeros.
    pub nonzeros: u64,
    /// Their size, encoded, in bytes.
    pub bytes: u64,
    /// Tiles that are written.
    pub tiles: u64,
    /// Of the cells, those of tiles that were there already.
    pub kept_cells: u64,
}

/// Watches a writer at work, and can stop it, from any thread.
#[derive(Clone)]
pub struct Watch(Arc<Shared>);

impl Watch {
    /// How far it is.
    pub fn encoded(&self) -> Encoded {
        lock(&self.0.progress).encoded
    }

    /// Has every later call of the writer fail with [`WriteError::Stopped`], and soon also one that is waiting for
    /// tiles to be encoded.
    pub fn stop(&self) {
        let mut progress = lock(&self.0.progress);
        progress.abandoned = true;
        progress.stopped = true;
    }
}

impl Progress {
    /// Why no more tiles are taken.
    fn fault(&mut self) -> Option<WriteError> {
        if let Some((_, error)) = self.failed.take() {
            self.abandoned = true;
            return Some(error);
        }
        self.stopped.then_some(WriteError::Stopped)
    }
}

/// A tile in hand.
struct Job {
    tile: TileId,
    rows: TileRows,
    /// Its chunks, once encoded, and how many are missing.
    chunks: Mutex<(Vec<Option<EncodedChunk>>, usize)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Encoders {
    /// Starts `threads` threads, one for each processor when 0.
    pub fn start(settings: Settings, threads: usize) -> Result<Self, WriteError> {
        // An encoder made now shows that zstd has the level.
        let encoder = ChunkEncoder::new(settings.level).map_err(|source| WriteError::Tile { tile: 0, source })?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|thread| format!("encode-{thread}"))
            .build()
            .map_err(|source| WriteError::Threads { threads, source })?;
        let most_in_hand = pool.current_num_threads().div_ceil(settings.n_chunks as usize) + 1;
        let shared = Arc::new(Shared {
            settings,
            progress: Mutex::default(),
            changed: Condvar::new(),
            idle: Mutex::new(vec![encoder]),
        });
        Ok(Self {
            pool,
            shared,
            most_in_hand,
        })
    }

    /// Takes the next tile, waiting until there is room for it.
    ///
    /// # Errors
    /// When a tile taken earlier could not be encoded or written.
    pub fn push(&self, tile: TileId, rows: TileRows) -> Result<(), WriteError> {
        let mut progress = self.wait_until(|progress| progress.in_hand < self.most_in_hand);
        if let Some(error) = progress.fault() {
            return Err(error);
        }
        progress.in_hand += 1;
        progress.bytes.push(None);
        drop(progress);
        let cells = chunk_cells(&rows.indptr, self.shared.settings.n_chunks);
        let chunks = Mutex::new((vec![None; cells.len()], cells.len()));
        let job = Arc::new(Job { tile, rows, chunks });
        for (chunk, cells) in cells.into_iter().enumerate() {
            let (shared, job) = (self.shared.clone(), job.clone());
            self.pool.spawn_fifo(move || shared.encode(&job, chunk, cells));
        }
        Ok(())
    }

    /// Counts the next tile, which has these cells, as written: its file of `bytes` bytes is there already.
    ///
    /// # Errors
    /// When a tile taken earlier could not be encoded or written.
    pub fn keep(&self, rows: &TileRows, bytes: u64) -> Result<(), WriteError> {
        let mut progress = lock(&self.shared.progress);
        if let Some(error) = progress.fault() {
            return Err(error);
        }
        progress.bytes.push(Some(bytes));
        let cells = rows.indptr.len() as u64 - 1;
        progress.encoded.cells += cells;
        progress.encoded.kept_cells += cells;
        progress.encoded.nonzeros += rows.indices.len() as u64;
        progress.encoded.bytes += bytes;
        progress.encoded.tiles += 1;
        Ok(())
    }

    /// Lets other threads see how far this is.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.shared))
    }

    /// Waits for every tile and gives the size of each file.
    ///
    /// # Errors
    /// When one could not be encoded or written.
    pub fn finish(self) -> Result<Vec<u64>, WriteError> {
        let mut progress = self.wait_until(|progress| progress.in_hand == 0);
        match progress.fault() {
            Some(error) => Err(error),
            None => Ok(progress.bytes.iter().flatten().copied().collect()),
        }
    }

    fn wait_until(&self, ready: impl Fn(&Progress) -> bool) -> MutexGuard<'_, Progress> {
        let progress = lock(&self.shared.progress);
        let waited = self.shared.changed.wait_while(progress, |progress| !ready(progress));
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Encoders {
    fn drop(&mut self) {
        lock(&self.shared.progress).abandoned = true;
        drop(self.wait_until(|progress| progress.in_hand == 0));
    }
}

impl Shared {
    /// Encodes a chunk of a tile, and writes the tile when it was the last.
    fn encode(&self, job: &Job, chunk: usize, cells: Range<usize>) {
        let encoded = match self.is_over() {
            true => None,
            false => match self.encode_chunk(job, cells) {
                Ok(encoded) => {
                    self.count(&encoded);
                    Some(encoded)
                }
                Err(source) => {
                    self.fail(job.tile, self.tile_error(job.tile, source));
                    None
                }
            },
        };
        let chunks = {
            let mut chunks = lock(&job.chunks);
            chunks.0[chunk] = encoded;
            chunks.1 -= 1;
            (chunks.1 == 0).then(|| std::mem::take(&mut chunks.0))
        };
        let Some(chunks) = chunks else { return };
        // A chunk is missing when something failed, and then so is the tile.
        if let Some(chunks) = chunks.into_iter().collect::<Option<Vec<_>>>() {
            match self.write(job, &chunks) {
                Ok(bytes) => {
                    let mut progress = lock(&self.progress);
                    progress.bytes[job.tile] = Some(bytes);
                    progress.encoded.tiles += 1;
                }
                Err(error) => self.fail(job.tile, error),
            }
        }
        lock(&self.progress).in_hand -= 1;
        self.changed.notify_all();
    }

    fn count(&self, chunk: &EncodedChunk) {
        let encoded = &mut lock(&self.progress).encoded;
        encoded.cells += chunk.n_cells();
        encoded.nonzeros += chunk.nnz();
        encoded.bytes += chunk.bytes();
    }

    fn is_over(&self) -> bool {
        let progress = lock(&self.progress);
        progress.abandoned || progress.failed.is_some()
    }

    fn encode_chunk(&self, job: &Job, cells: Range<usize>) -> Result<EncodedChunk, EncodeError> {
        let TileRows {
            indptr,
            indices,
            counts,
        } = &job.rows;
        let rows = CsrRows::new(self.settings.n_genes, indptr, indices, counts)?;
        let idle = lock(&self.idle).pop();
        let mut encoder = match idle {
            Some(encoder) => encoder,
            None => ChunkEncoder::new(self.settings.level)?,
        };
        let encoded = encoder.encode(&rows, cells);
        lock(&self.idle).push(encoder);
        encoded
    }

    fn write(&self, job: &Job, chunks: &[EncodedChunk]) -> Result<u64, WriteError> {
        let bytes = assemble(self.settings.n_genes, &job.rows.indptr, chunks)
            .map_err(|source| self.tile_error(job.tile, source))?;
        let path = self.settings.root.join(tile_path(job.tile));
        write_file(path, &bytes).map(|written| written.bytes)
    }

    fn tile_error(&self, tile: TileId, source: EncodeError) -> WriteError {
        let source = source.counted_from(tile as u64 * self.settings.tile_size);
        WriteError::Tile { tile, source }
    }

    fn fail(&self, tile: TileId, error: WriteError) {
        let mut progress = lock(&self.progress);
        if progress.failed.as_ref().is_none_or(|&(first, _)| tile < first) {
            progress.failed = Some((tile, error));
        }
    }
}
