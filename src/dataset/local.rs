//! Obs columns from the node's cache.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;

use super::obs_cache::{CacheError, CachedColumn, ObsCache, Work};
use super::{Dataset, DatasetError, lock};
use crate::format::TileId;

/// A reader that waits for longer is better served from the dataset.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a lock is tried that somebody else holds.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// For so long a store that did not answer is not asked again for another column.
const A_MOMENT: Duration = Duration::from_secs(1);
/// When others hold the lock, or the dataset could not be read, that is tried again, but not for every tile.
const PAUSE: Duration = Duration::from_secs(30);

/// Columns in the cache that were opened, each once for the life of the dataset.
pub(super) struct LocalColumns {
    cache: ObsCache,
    opened: Mutex<HashMap<usize, Slot>>,
    /// Locked while a column is added, with the last time that the store did not answer, and what was said then.
    adding: Mutex<Option<(Instant, DatasetError)>>,
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
            adding: Mutex::default(),
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

    /// Waits until nobody of this process adds a column, but not for long.
    fn lock_adding(&self) -> Option<MutexGuard<'_, Option<(Instant, DatasetError)>>> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.adding.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            }
        }
    }

    fn open(&self, dataset: &Dataset, column: usize) -> Result<State, DatasetError> {
        let work = Work {
            threads: Work::threads_for(dataset),
            done: &|| (),
            stop: &AtomicBool::new(false),
            patience: PATIENCE,
        };
        let there = || self.cache.column(dataset, column);
        let add = || -> Result<Option<CachedColumn>, CacheError> {
            self.cache.localize(dataset, &[column], work)?;
            there()
        };
        // What is there waits for nobody. What is wrong with it is found again below.
        if let Ok(Some(column)) = there() {
            return Ok(State::Here(Arc::new(column)));
        }
        let Some(mut unanswered) = self.lock_adding() else {
            return Ok(State::Later(Instant::now() + PATIENCE));
        };
        // Others who waited need not wait again for the same.
        if let Some((when, error)) = &*unanswered
            && when.elapsed() < A_MOMENT
            && let Some(error) = error.again()
        {
            return Err(error);
        }
        let added = add();
        if let Err(CacheError::Dataset(error)) = &added {
            *unanswered = error.again().map(|error| (Instant::now(), error));
        }
        drop(unanswered);
        Ok(match added {
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
