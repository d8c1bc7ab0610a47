//! The node's copy of obs columns, which `dcfs` shares with other programs (format, "Local cache"; format notes).
//!
//! `<cache>/<fingerprint>/obs/<column>.arrow` holds one column of a dataset as it is stored: an uncompressed Arrow IPC
//! file with one record batch per tile. Whoever adds columns holds an exclusive lock on `<cache>/<fingerprint>/.lock`;
//! whoever reads them holds none, since a file appears whole, by rename.
//!
//! Others write there too, so nothing in it is believed before it was held against the manifest and the schema.

mod column;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter};
use std::num::NonZeroUsize;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use thiserror::Error;

use crate::dataset::{Dataset, DatasetError};
use crate::format::TileId;
use crate::format::manifest::{ObsManifest, SCHEMA_PATH};
use crate::format::names::{MAX_NAME_BYTES, whole_column_file_name};
use crate::format::obs::ObsColumn;
use crate::store::{Distrust, trust};
pub use column::{CachedColumn, Disagreement};

/// Columns written in one walk over the tiles: each has a file open.
const COLUMNS_AT_ONCE: usize = 64;
/// Tiles whose values are held while they wait to be written, for each thread.
const TILES_AHEAD: usize = 4;
/// Columns are most of obs when they take at least one part in so many of it.
const MOST: u64 = 2;
/// How often a lock is tried that somebody else holds.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// What names of files begin with that are being written.
const TEMPORARY: &str = ".dcfs-";

/// Why a column is not in the cache, or could not be put there.
#[derive(Debug, Error)]
pub enum CacheError {
    /// The dataset has no obs.
    #[error("{0} has no obs")]
    NoObs(String),
    /// Something in the cache could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Somebody else could put anything into the cache.
    #[error(transparent)]
    Distrust(#[from] Distrust),
    /// The column's name makes a longer file name than there can be.
    #[error("column {0:?} cannot be cached: its name takes more than {MAX_NAME_BYTES} bytes as that of a file")]
    Name(String),
    /// The dataset could not be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Arrow could not write a column.
    #[error("column {column:?} cannot be written: {source}")]
    Encode { column: String, source: ArrowError },
    /// Others were adding columns for too long.
    #[error("{} is locked by another program that adds columns", .0.display())]
    Busy(PathBuf),
    /// Somebody wants it to stop.
    #[error("interrupted")]
    Interrupted,
}

impl CacheError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// Where the columns of all datasets are kept on this machine.
#[derive(Debug, Clone)]
pub struct ObsCache {
    root: PathBuf,
}

/// How [`ObsCache::localize`] works, whom it tells, and how it is stopped.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Threads that read and decode.
    pub threads: NonZeroUsize,
    /// Called with every tile of a column that was read.
    pub done: &'a (dyn Fn() + Sync),
    /// Set when it is to stop.
    pub stop: &'a AtomicBool,
    /// How long to wait for others that add columns.
    pub patience: Duration,
}

impl Work<'_> {
    /// Threads that reading a dataset's columns is worth: one for each processor, or for each request that is on its way.
    pub fn threads_for(dataset: &Dataset) -> NonZeroUsize {
        let requests = NonZeroUsize::new(dataset.store().requests_at_once());
        requests.unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }
}

impl ObsCache {
    /// The cache in the folder `root`, which need not exist yet.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// The cache that programs use unless they are told otherwise: `$DELTACELLS_CACHE`, `$XDG_CACHE_HOME/deltacells` or
    /// `~/.cache/deltacells`. `variable` gives environment variables. `None` when none of them is set.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let own = || folder("DELTACELLS_CACHE");
        let of_all = || folder("XDG_CACHE_HOME").map(|cache| cache.join("deltacells"));
        let home = || folder("HOME").map(|home| home.join(".cache/deltacells"));
        own().or_else(of_all).or_else(home).map(Self::at)
    }

    /// The folder of all datasets.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file of a column, which need not be there.
    ///
    /// # Errors
    /// When it would have a longer name than there can be.
    fn path(&self, obs: &ObsManifest, column: &ObsColumn) -> Result<PathBuf, CacheError> {
        let name = whole_column_file_name(&column.name, ".arrow");
        let name = name.ok_or_else(|| CacheError::Name(column.name.clone()))?;
        Ok(self.root.join(&obs.fingerprint).join("obs").join(name))
    }

    /// Whether there can be a copy of a column (its place in the schema).
    ///
    /// # Errors
    /// Why there cannot.
    ///
    /// # Panics
    /// When the dataset has no such column.
    pub fn can_keep(&self, dataset: &Dataset, column: usize) -> Result<(), CacheError> {
        let (obs, columns) = obs_of(dataset)?;
        self.path(obs, &columns[column]).map(drop)
    }

    /// A column (its place in the schema) if it is in the cache. One that disagrees with the dataset is deleted, as is the
    /// cache's rule, and counts as one that is not there.
    ///
    /// # Errors
    /// When there is something that cannot be read, or that others may have put there.
    ///
    /// # Panics
    /// When the dataset has no such column.
    pub fn column(&self, dataset: &Dataset, column: usize) -> Result<Option<CachedColumn>, CacheError> {
        let (obs, columns) = obs_of(dataset)?;
        let column = &columns[column];
        let path = self.path(obs, column)?;
        let file = match trust::open_file(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CacheError::io("open", &path)(error)),
        };
        trust::check(&self.root, &path, &file)?;
        // The dataset may have been open to more when the copy was made.
        let private = file
            .metadata()
            .is_ok_and(|metadata| metadata.permissions().mode() & 0o077 == 0);
        if !private && !is_open_to_all(dataset)? {
            let closed = file.set_permissions(Permissions::from_mode(0o600));
            closed.map_err(CacheError::io("close to others", &path))?;
        }
        let manifest = dataset.manifest();
        let cells = (0..manifest.n_tiles()).map(|tile| manifest.tile_cells(tile));
        match CachedColumn::open(file, column, cells) {
            Ok(column) => Ok(Some(column)),
            Err(Disagreement::Io(source)) => Err(CacheError::io("read", &path)(source)),
            Err(disagreement) => {
                log::warn!("{}: {disagreement}; it is deleted", path.display());
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        Err(CacheError::io("delete", &path)(error))
                    }
                    _ => Ok(None),
                }
            }
        }
    }

    /// Makes sure that columns (their places in the schema) are in the cache. Returns how many were not.
    ///
    /// Of the shards, only footers and the chunks of missing columns are read. Other programs that add columns of the same
    /// dataset are waited for, and what they add is not read again.
    ///
    /// # Errors
    /// When the dataset cannot be read or the cache not be written. Columns that were whole before stay.
    ///
    /// # Panics
    /// When the dataset has no such column.
    pub fn localize(&self, dataset: &Dataset, columns: &[usize], work: Work) -> Result<usize, CacheError> {
        let (obs, schema) = obs_of(dataset)?;
        for &column in columns {
            self.path(obs, &schema[column])?;
        }
        // Without the lock first: most of the time there is nothing to add.
        if self.missing(dataset, columns)?.is_empty() {
            return Ok(0);
        }
        let open_to_all = is_open_to_all(dataset)?;
        let folder = self.root.join(&obs.fingerprint);
        let columns_folder = folder.join("obs");
        create_folders(&columns_folder, open_to_all)?;
        trust::check_folders(&self.root, &columns_folder)?;
        let _lock = lock(&folder.join(".lock"), open_to_all, work)?;
        remove_leftovers(&columns_folder)?;
        let missing = self.missing(dataset, columns)?;
        let whole_shards = are_most_of_obs(dataset, &missing)?;
        for columns in missing.chunks(COLUMNS_AT_ONCE) {
            let files = columns
                .iter()
                .map(|&column| {
                    NewColumn::create(self.path(obs, &schema[column])?, column, &schema[column], open_to_all)
                })
                .collect::<Result<Vec<_>, _>>()?;
            fill(dataset, files, whole_shards, work)?;
        }
        Ok(missing.len())
    }

    /// Those of `columns` that are not in the cache, each once.
    fn missing(&self, dataset: &Dataset, columns: &[usize]) -> Result<Vec<usize>, CacheError> {
        let columns: BTreeSet<usize> = columns.iter().copied().collect();
        let mut missing = Vec::new();
        for column in columns {
            if self.column(dataset, column)?.is_none() {
                missing.push(column);
            }
        }
        Ok(missing)
    }
}

fn obs_of(dataset: &Dataset) -> Result<(&ObsManifest, &[ObsColumn]), CacheError> {
    match (&dataset.manifest().obs, dataset.schema()) {
        (Some(obs), Some(schema)) => Ok((obs, &schema.columns)),
        _ => Err(CacheError::NoObs(dataset.store().location())),
    }
}

/// Whether everybody on this machine may read the dataset's obs, and so its copy.
fn is_open_to_all(dataset: &Dataset) -> Result<bool, CacheError> {
    let attributes = dataset.store().attributes(SCHEMA_PATH).map_err(DatasetError::from)?;
    Ok(attributes.access.mode & 0o004 != 0)
}

fn create_folders(path: &Path, open_to_all: bool) -> Result<(), CacheError> {
    let mode = if open_to_all { 0o755 } else { 0o700 };
    let created = DirBuilder::new().recursive(true).mode(mode).create(path);
    created.map_err(CacheError::io("create", path))
}

/// Waits for the exclusive lock. It ends when the file is closed, whatever becomes of this process.
fn lock(path: &Path, open_to_all: bool, work: Work) -> Result<File, CacheError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(if open_to_all { 0o644 } else { 0o600 })
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(CacheError::io("open", path))?;
    let until = Instant::now().checked_add(work.patience);
    while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if errno != Errno::WOULDBLOCK {
            return Err(CacheError::io("lock", path)(errno.into()));
        }
        if work.stop.load(Ordering::Relaxed) {
            return Err(CacheError::Interrupted);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            return Err(CacheError::Busy(path.to_owned()));
        }
        thread::sleep(LOCK_PAUSE);
    }
    Ok(file)
}

/// Deletes what a process that died left half written. Nobody else writes while the lock is held.
fn remove_leftovers(folder: &Path) -> Result<(), CacheError> {
    let failed = || CacheError::io("look into", folder);
    for entry in fs::read_dir(folder).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let path = entry.path();
            fs::remove_file(&path).map_err(CacheError::io("delete", &path))?;
        }
    }
    Ok(())
}

/// Whether columns are so much of obs that whole shards are better fetched: with one request each, and their SHA-256 tells whether
/// they are right. The first shard stands for all.
fn are_most_of_obs(dataset: &Dataset, columns: &[usize]) -> Result<bool, CacheError> {
    let (obs, _) = obs_of(dataset)?;
    let Some(&bytes) = obs.shard_bytes.first() else {
        return Ok(false);
    };
    let largest = obs.shard_bytes.iter().max().copied().unwrap_or(0);
    if !dataset.store().is_remote() || columns.is_empty() || largest > dataset.store().room() / 2 {
        return Ok(false);
    }
    let mut wanted = 0;
    for &column in columns {
        wanted += dataset.column_bytes(0, column)?;
    }
    Ok(wanted >= bytes / MOST)
}

/// Reads the columns of all tiles, several tiles at once, and writes them in order.
fn fill(dataset: &Dataset, mut files: Vec<NewColumn>, whole_shards: bool, work: Work) -> Result<(), CacheError> {
    let per_shard = obs_of(dataset)?.0.tiles_per_file as usize;
    let columns: Vec<usize> = files.iter().map(|file| file.column).collect();
    let n_tiles = dataset.manifest().n_tiles();
    let window = TILES_AHEAD * work.threads.get();
    for first in (0..n_tiles).step_by(window) {
        let tiles = first..n_tiles.min(first + window);
        if whole_shards {
            for shard in tiles.start / per_shard..tiles.end.div_ceil(per_shard) {
                dataset.fetch_shard(shard)?;
            }
        }
        let wanted: Vec<(TileId, usize)> = tiles
            .flat_map(|tile| columns.iter().map(move |&column| (tile, column)))
            .collect();
        for (index, values) in read(dataset, &wanted, work)?.into_iter().enumerate() {
            let file = index % files.len();
            files[file].write(values)?;
        }
    }
    files.into_iter().try_for_each(NewColumn::commit)
}

/// Reads columns of tiles. Threads of its own, because one of a pool would wait here for work that is behind it.
fn read(dataset: &Dataset, wanted: &[(TileId, usize)], work: Work) -> Result<Vec<ArrayRef>, CacheError> {
    let found: Vec<OnceLock<ArrayRef>> = wanted.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let take_part = || -> Result<(), CacheError> {
        while let Some((&(tile, column), room)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            wanted.get(index).zip(found.get(index))
        } {
            if work.stop.load(Ordering::Relaxed) {
                return Err(CacheError::Interrupted);
            }
            let values = dataset.stored_column(tile, column).inspect_err(|_| {
                // The others need not go on.
                next.store(wanted.len(), Ordering::Relaxed);
            })?;
            let _ = room.set(values);
            (work.done)();
        }
        Ok(())
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..work.threads.get().min(wanted.len()))
            .map(|_| scope.spawn(take_part))
            .collect();
        let own = take_part();
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        others.fold(own, Result::and)
    })?;
    Ok(found.into_iter().filter_map(OnceLock::into_inner).collect())
}

/// A column being written under a temporary name. Dropped before it is whole, it is removed.
struct NewColumn {
    column: usize,
    name: String,
    schema: SchemaRef,
    writer: FileWriter<BufWriter<File>>,
    path: PathBuf,
    temporary: Temporary,
}

/// The name of a file that is removed with this, unless it was renamed.
struct Temporary(Option<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Whoever adds columns next tries again.
            let _ = fs::remove_file(path);
        }
    }
}

impl NewColumn {
    fn create(path: PathBuf, column: usize, of: &ObsColumn, open_to_all: bool) -> Result<Self, CacheError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(if open_to_all { 0o644 } else { 0o600 })
            .open(&temporary)
            .map_err(CacheError::io("create", &temporary))?;
        let temporary = Temporary(Some(temporary));
        let schema = Arc::new(Schema::new(vec![Field::new(&of.name, of.kind.stored_type(), true)]));
        let writer = FileWriter::try_new_buffered(file, &schema).map_err(|source| encode(&of.name, source))?;
        Ok(Self {
            column,
            name: of.name.clone(),
            schema,
            writer,
            path,
            temporary,
        })
    }

    fn write(&mut self, values: ArrayRef) -> Result<(), CacheError> {
        let batch = RecordBatch::try_new(self.schema.clone(), vec![values]);
        let written = batch.and_then(|batch| self.writer.write(&batch));
        written.map_err(|source| self.failed(source))
    }

    fn commit(mut self) -> Result<(), CacheError> {
        self.writer.finish().map_err(|source| self.failed(source))?;
        let file = self.writer.get_ref().get_ref();
        file.sync_data().map_err(CacheError::io("write", &self.path))?;
        if let Some(temporary) = &self.temporary.0 {
            fs::rename(temporary, &self.path).map_err(CacheError::io("write", &self.path))?;
        }
        self.temporary.0 = None;
        Ok(())
    }

    /// A full disk is no fault of the column.
    fn failed(&self, source: ArrowError) -> CacheError {
        match source {
            ArrowError::IoError(_, source) => CacheError::io("write", &self.path)(source),
            source => encode(&self.name, source),
        }
    }
}

fn encode(column: &str, source: ArrowError) -> CacheError {
    let column = column.to_owned();
    CacheError::Encode { column, source }
}

#[cfg(test)]
mod tests;
