//! Objects as they were fetched, and parts of them, in memory.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use lru::LruCache;

/// What was fetched, with the state that it is of, up to a number of bytes. What was used longest ago goes first; what somebody
/// holds stays.
pub(super) struct Kept<S> {
    limit: u64,
    contents: Mutex<Contents<S>>,
}

struct Contents<S> {
    objects: LruCache<Key, Entry<S>>,
    /// Of all that are counted.
    bytes: u64,
}

struct Entry<S> {
    slot: Arc<Slot<S>>,
    /// Bytes that it was counted with, once it was fetched.
    counted: u64,
}

/// An object, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub path: Arc<str>,
    /// `None` for all of it.
    pub part: Option<Range<u64>>,
}

/// A place for what is fetched once.
struct Slot<S> {
    here: OnceLock<(Bytes, S)>,
    /// Locked by whoever fetches it. Those who waited are told why that failed; those who come later try again.
    failed: Mutex<Option<(io::ErrorKind, String)>>,
}

impl<S> Default for Entry<S> {
    fn default() -> Self {
        let slot = Slot {
            here: OnceLock::new(),
            failed: Mutex::default(),
        };
        Self {
            slot: Arc::new(slot),
            counted: 0,
        }
    }
}

impl<S: Clone> Kept<S> {
    /// Keeps `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        let contents = Mutex::new(Contents {
            objects: LruCache::unbounded(),
            bytes: 0,
        });
        Self { limit, contents }
    }

    /// Bytes that are kept at most.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.contents).bytes
    }

    /// What is here, or what `fetch` gives. Those who ask at the same time share that.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub(super) fn obtain(&self, key: &Key, fetch: impl FnOnce() -> io::Result<(Bytes, S)>) -> io::Result<(Bytes, S)> {
        let slot = lock(&self.contents)
            .objects
            .get_or_insert(key.clone(), Entry::default)
            .slot
            .clone();
        if let Some(here) = slot.here.get() {
            return Ok(here.clone());
        }
        let mut failed = lock(&slot.failed);
        if let Some(here) = slot.here.get() {
            return Ok(here.clone());
        }
        if let Some((kind, reason)) = &*failed {
            return Err(io::Error::new(*kind, reason.clone()));
        }
        let fetched = fetch();
        let mut contents = lock(&self.contents);
        // It may have been forgotten meanwhile.
        let entry = contents
            .objects
            .peek_mut(key)
            .filter(|entry| Arc::ptr_eq(&entry.slot, &slot));
        match (&fetched, entry) {
            (Ok((bytes, _)), Some(entry)) => {
                entry.counted = bytes.len() as u64;
                contents.bytes += bytes.len() as u64;
            }
            (Err(_), Some(_)) => drop(contents.objects.pop(key)),
            (_, None) => {}
        }
        match &fetched {
            Ok(here) => drop(slot.here.set(here.clone())),
            Err(error) => *failed = Some((error.kind(), error.to_string())),
        }
        contents.shrink_to(self.limit);
        fetched
    }

    /// What is here.
    pub(super) fn get(&self, key: &Key) -> Option<Bytes> {
        let mut contents = lock(&self.contents);
        let (bytes, _) = contents.objects.get(key)?.slot.here.get()?;
        Some(bytes.clone())
    }

    /// Forgets an object and its parts.
    pub(super) fn forget(&self, path: &str) {
        let mut contents = lock(&self.contents);
        let keys = contents.objects.iter().map(|(key, _)| key);
        let keys: Vec<Key> = keys.filter(|key| &*key.path == path).cloned().collect();
        for key in keys {
            let counted = contents.objects.pop(&key).map_or(0, |entry| entry.counted);
            contents.bytes -= counted;
        }
    }
}

impl<S> Contents<S> {
    fn shrink_to(&mut self, limit: u64) {
        let is_idle = |entry: &Entry<S>| entry.slot.here.get().is_some_and(|(bytes, _)| bytes.is_unique());
        while self.bytes > limit {
            let mut idle = self.objects.iter().rev().filter(|(_, entry)| is_idle(entry));
            let Some(oldest) = idle.next().map(|(key, _)| key.clone()) else {
                break;
            };
            let counted = self.objects.pop(&oldest).map_or(0, |entry| entry.counted);
            self.bytes -= counted;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn key(path: &str) -> Key {
        Key {
            path: path.into(),
            part: None,
        }
    }

    fn bytes(length: usize) -> io::Result<(Bytes, ())> {
        Ok((vec![7; length].into(), ()))
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_what_is_held_stays() {
        let kept = Kept::new(30);
        let (held, ()) = kept.obtain(&key("a"), || bytes(10)).unwrap();
        for name in ["b", "c"] {
            kept.obtain(&key(name), || bytes(10)).unwrap();
        }
        assert!(kept.get(&key("b")).is_some());
        kept.obtain(&key("d"), || bytes(10)).unwrap();
        let here = ["a", "b", "c", "d"].map(|name| kept.get(&key(name)).is_some());
        assert_eq!(here, [true, true, false, true]);
        assert_eq!(kept.bytes(), 30);
        drop(held);
        kept.obtain(&key("e"), || bytes(30)).unwrap();
        assert_eq!(kept.get(&key("a")), None);
    }

    #[test]
    fn those_who_ask_at_once_share_what_is_fetched_or_why_it_is_not() {
        for fails in [false, true] {
            let (kept, fetches) = (Kept::new(100), AtomicUsize::new(0));
            let fetch = || {
                fetches.fetch_add(1, Ordering::Relaxed);
                // Until the others wait for it.
                let waiting = || {
                    let contents = lock(&kept.contents);
                    let entry = contents.objects.peek(&key("a"));
                    entry.map_or(0, |entry| Arc::strong_count(&entry.slot))
                };
                while waiting() < 5 {
                    thread::yield_now();
                }
                match fails {
                    true => Err(io::Error::new(io::ErrorKind::TimedOut, "too late")),
                    false => bytes(10),
                }
            };
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let told = kept.obtain(&key("a"), fetch).map_err(|error| error.kind());
                        assert_eq!(told.is_err(), fails);
                        assert!(told.is_ok() || told == Err(io::ErrorKind::TimedOut));
                    });
                }
            });
            assert_eq!(fetches.load(Ordering::Relaxed), 1);
            assert_eq!(kept.bytes(), if fails { 0 } else { 10 });
            // Those who come later try again.
            assert_eq!(kept.obtain(&key("a"), || bytes(10)).unwrap().0.len(), 10);
        }
    }

    #[test]
    fn what_is_here_is_found_by_everybody_at_any_time() {
        let kept = Kept::new(100);
        kept.obtain(&key("a"), || bytes(10)).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| assert!(kept.get(&key("a")).is_some())));
            }
        });
    }

    #[test]
    fn an_object_is_forgotten_with_its_parts() {
        let kept = Kept::new(100);
        let part = Key {
            part: Some(0..4),
            ..key("a")
        };
        for key in [&key("a"), &part, &key("b")] {
            kept.obtain(key, || bytes(4)).unwrap();
        }
        kept.forget("a");
        assert_eq!((kept.get(&key("a")), kept.get(&part)), (None, None));
        assert_eq!(kept.bytes(), 4);
    }
}
