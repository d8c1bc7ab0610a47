//! Obs columns from the node's cache.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;

use super::obs_cache::{CacheError, CachedColumn, ObsCache, Work};
use super::{Dataset, DatasetError, lock};
use crate::format::TileId;

/// A reader that waits for longer is better served from the dataset.
const PATIENCE: Duration = Duration::from_secs(5);
/// When others hold the lock, or the dataset could not be read, that is tried again, but not for every tile.
const PAUSE: Duration = Duration::from_secs(30);

/// Columns in the cache that were opened, each once for the life of the dataset.
pub(super) struct LocalColumns {
    cache: ObsCache,
    opened: Mutex<HashMap<usize, Slot>>,
}

/// Whoever opens a column holds its lock.
type Slot = Arc<Mutex<State>>;

#[derive(Default)]
enum State {
    /// Nobody has asked for it.
    #[default]
    Unknown,
    Here(Arc<CachedColumn>),
    /// Not to be had before then.
    Later(Instant),
    /// Not to be had from the cache at all.
    Useless,
}

impl LocalColumns {
    pub(super) fn new(cache: ObsCache) -> Self {
        Self {
            cache,
            opened: Mutex::default(),
        }
    }

    /// Values from the cache, where the column is put if it is not there; `None` when the cache is of no use for it.
    ///
    /// # Errors
    /// When the column is not there, and the store of the dataset does not answer: it need not be asked again.
    pub(super) fn read(
        &self,
        dataset: &Dataset,
        tile: TileId,
        column: usize,
    ) -> Result<Option<ArrayRef>, DatasetError> {
        let slot = lock(&self.opened).entry(column).or_default().clone();
        let mut state = lock(&slot);
        let is_due = match &*state {
            State::Unknown => true,
            State::Later(when) => Instant::now() >= *when,
            State::Here(_) | State::Useless => false,
        };
        if is_due {
            *state = self.open(dataset, column)?;
        }
        let State::Here(cached) = &*state else { return Ok(None) };
        let cached = cached.clone();
        drop(state);
        Ok(match cached.read(tile) {
            Ok(values) => Some(values),
            Err(reason) => {
                log::warn!("the cached copy of a column is not used any more: {reason}");
                *lock(&slot) = State::Useless;
                None
            }
        })
    }

    fn open(&self, dataset: &Dataset, column: usize) -> Result<State, DatasetError> {
        let work = Work {
            threads: Work::threads_for(dataset),
            done: &|| (),
            stop: &AtomicBool::new(false),
            patience: PATIENCE,
        };
        let open = || -> Result<Option<CachedColumn>, CacheError> {
            self.cache.localize(dataset, &[column], work)?;
            self.cache.column(dataset, column)
        };
        Ok(match open() {
            Ok(Some(column)) => State::Here(Arc::new(column)),
            Ok(None) => State::Useless,
            Err(CacheError::Dataset(error)) if error.is_unreachable() => return Err(error),
            // Whoever reads the column is told.
            Err(CacheError::Dataset(_)) => State::Later(Instant::now() + PAUSE),
            Err(error @ CacheError::Busy(_)) => {
                log::warn!("a column is read from the dataset for a while: {error}");
                State::Later(Instant::now() + PAUSE)
            }
            Err(error) => {
                log::warn!("a column is read from the dataset each time: {error}");
                State::Useless
            }
        })
    }
}
