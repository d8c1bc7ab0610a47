//! What a server did not give a while ago, so that those who ask again at once do not wait again.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::dataset::DatasetError;

/// A kernel whose read-ahead failed asks again, page by page.
pub(super) const A_MOMENT: Duration = Duration::from_millis(100);
/// How many failures are remembered.
const REMEMBERED: usize = 10_000;

/// Failures of the time that has just passed.
pub(super) struct Recent<K> {
    lasts: Duration,
    failures: Mutex<HashMap<K, (Instant, Arc<DatasetError>)>>,
}

impl<K: Eq + Hash> Recent<K> {
    /// Failures of which those of so long ago count.
    pub(super) fn new(lasts: Duration) -> Self {
        Self {
            lasts,
            failures: Mutex::default(),
        }
    }

    /// Why `key` was not to be had just now.
    pub(super) fn failure(&self, key: &K) -> Option<Arc<DatasetError>> {
        let failures = self.lock();
        let (when, error) = failures.get(key)?;
        (when.elapsed() < self.lasts).then(|| error.clone())
    }

    /// Notes that `key` was not to be had, if that is because of a server that does not answer.
    pub(super) fn note(&self, key: K, error: &Arc<DatasetError>) {
        if !error.is_unreachable() {
            return;
        }
        let mut failures = self.lock();
        if failures.len() >= REMEMBERED {
            failures.clear();
        }
        failures.insert(key, (Instant::now(), error.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, (Instant, Arc<DatasetError>)>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::store::StoreError;

    fn failure(kind: io::ErrorKind) -> Arc<DatasetError> {
        let name = "tile".into();
        let source = kind.into();
        Arc::new(StoreError { name, source }.into())
    }

    #[test]
    fn silence_counts_for_a_while_and_what_is_missing_does_not() {
        let recent = Recent::new(Duration::from_secs(86400));
        recent.note(1, &failure(io::ErrorKind::TimedOut));
        recent.note(2, &failure(io::ErrorKind::NotFound));
        assert!(recent.failure(&1).is_some());
        assert!(recent.failure(&2).is_none());
        let over = Recent::new(Duration::ZERO);
        over.note(1, &failure(io::ErrorKind::TimedOut));
        assert!(over.failure(&1).is_none());
    }
}
