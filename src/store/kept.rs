//! Objects as they were fetched, and parts of them, in memory.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lru::LruCache;

/// What was fetched, with the state that it is of, up to a number of bytes. What was used longest ago goes first; what somebody
/// holds stays.
pub(super) struct Kept<S> {
    limit: u64,
    contents: Mutex<Contents<S>>,
}

struct Contents<S> {
    objects: LruCache<Key, Slot<S>>,
    /// Of all that are here.
    bytes: u64,
}

/// An object, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub path: Arc<str>,
    /// `None` for all of it.
    pub part: Option<Range<u64>>,
}

/// What is here, or is being fetched by whoever holds the lock.
type Slot<S> = Arc<Mutex<Fetch<S>>>;

enum Fetch<S> {
    /// Whoever gets the lock first fetches it.
    Wanted,
    Here(Bytes, S),
    /// Those who waited are told the same; those who come later try again.
    Failed(io::ErrorKind, String),
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
        let wanted = || Arc::new(Mutex::new(Fetch::Wanted));
        let slot = lock(&self.contents).objects.get_or_insert(key.clone(), wanted).clone();
        let mut state = lock(&slot);
        match &*state {
            Fetch::Wanted => {}
            Fetch::Here(bytes, of) => return Ok((bytes.clone(), of.clone())),
            Fetch::Failed(kind, reason) => return Err(io::Error::new(*kind, reason.clone())),
        }
        let fetched = fetch();
        *state = match &fetched {
            Ok((bytes, of)) => Fetch::Here(bytes.clone(), of.clone()),
            Err(error) => Fetch::Failed(error.kind(), error.to_string()),
        };
        // Nobody counts what is locked. It may have been forgotten meanwhile.
        let mut contents = lock(&self.contents);
        if contents
            .objects
            .peek(key)
            .is_some_and(|there| Arc::ptr_eq(there, &slot))
        {
            match &fetched {
                Ok((bytes, _)) => contents.bytes += bytes.len() as u64,
                Err(_) => drop(contents.objects.pop(key)),
            }
        }
        contents.shrink_to(self.limit);
        fetched
    }

    /// What is here.
    pub(super) fn get(&self, key: &Key) -> Option<Bytes> {
        let slot = lock(&self.contents).objects.get(key)?.clone();
        // Whoever has it locked is fetching it.
        match &*slot.try_lock().ok()? {
            Fetch::Here(bytes, _) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// Forgets an object and its parts.
    pub(super) fn forget(&self, path: &str) {
        let mut contents = lock(&self.contents);
        let keys = contents.objects.iter().map(|(key, _)| key);
        let keys: Vec<Key> = keys.filter(|key| &*key.path == path).cloned().collect();
        for key in keys {
            // One that is being fetched is not counted.
            let slot = contents.objects.pop(&key);
            let size = slot.and_then(|slot| size_if(&slot, |_| true));
            contents.bytes -= size.unwrap_or(0);
        }
    }
}

impl<S> Contents<S> {
    fn shrink_to(&mut self, limit: u64) {
        while self.bytes > limit {
            let idle = |(key, slot): (&Key, &Slot<S>)| Some((key.clone(), size_if(slot, Bytes::is_unique)?));
            let Some((oldest, size)) = self.objects.iter().rev().find_map(idle) else {
                break;
            };
            self.objects.pop(&oldest);
            self.bytes -= size;
        }
    }
}

/// Bytes of what is here and of which `is_so` holds.
fn size_if<S>(slot: &Slot<S>, is_so: impl FnOnce(&Bytes) -> bool) -> Option<u64> {
    match &*slot.try_lock().ok()? {
        Fetch::Here(bytes, _) if is_so(bytes) => Some(bytes.len() as u64),
        _ => None,
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
                while lock(&kept.contents)
                    .objects
                    .peek(&key("a"))
                    .map_or(0, Arc::strong_count)
                    < 5
                {
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
