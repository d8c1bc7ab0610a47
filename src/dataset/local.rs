//! Obs columns from the node's cache.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::ArrayRef;

use super::{Dataset, lock};
use crate::format::TileId;
use crate::obs_cache::{CacheError, CachedColumn, ObsCache, Work};

/// A reader that waits for longer is better served from the dataset.
const PATIENCE: Duration = Duration::from_secs(5);

/// Columns in the cache that were opened, each once for the life of the dataset.
pub(super) struct LocalColumns {
    cache: ObsCache,
    opened: Mutex<HashMap<usize, Slot>>,
}

/// Whoever opens a column holds its lock. `Some(None)` when it cannot be had from the cache.
type Slot = Arc<Mutex<Option<Option<Arc<CachedColumn>>>>>;

impl LocalColumns {
    pub(super) fn new(cache: ObsCache) -> Self {
        Self {
            cache,
            opened: Mutex::default(),
        }
    }

    /// Values from the cache, where the column is put if it is not there; `None` when the cache is of no use for it.
    pub(super) fn read(&self, dataset: &Dataset, tile: TileId, column: usize) -> Option<ArrayRef> {
        let slot = lock(&self.opened).entry(column).or_default().clone();
        let mut opened = lock(&slot);
        let cached = opened.get_or_insert_with(|| self.open(dataset, column)).clone()?;
        drop(opened);
        match cached.read(tile) {
            Ok(values) => Some(values),
            Err(reason) => {
                log::warn!("the cached copy of a column is not used any more: {reason}");
                *lock(&slot) = Some(None);
                None
            }
        }
    }

    fn open(&self, dataset: &Dataset, column: usize) -> Option<Arc<CachedColumn>> {
        let work = Work {
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            done: &|| (),
            stop: &AtomicBool::new(false),
            patience: PATIENCE,
        };
        let open = || -> Result<Option<CachedColumn>, CacheError> {
            self.cache.localize(dataset, &[column], work)?;
            self.cache.column(dataset, column)
        };
        match open() {
            Ok(column) => column.map(Arc::new),
            // Whoever reads the column is told.
            Err(CacheError::Dataset(_)) => None,
            Err(error) => {
                log::warn!("a column is read from the dataset each time: {error}");
                None
            }
        }
    }
}
