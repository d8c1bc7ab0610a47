//! A dataset in an object store: S3, Google Cloud Storage, Azure, or a web server.
//!
//! Everything here blocks the thread that calls it, as reading a file does. Objects that are asked for whole are fetched
//! with one request and kept in memory for a while, and so are parts that are asked for; of others, only the bytes that are
//! read are fetched. Every request after the first to an object names the state that was found then (`If-Match`), so that
//! bytes of two states are never mixed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use rustix::process::{getegid, geteuid};
use sha2::{Digest, Sha256};

use super::client::Tries;
use super::disk_cache::{DiskCache, Entry, State};
use super::kept::{Kept, Key};
use super::requests::Requests;
use super::{Access, Attributes, Held, Object, Store, StoreError, Traffic, Version};

/// How a store is used.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A request that is not answered after so long, with all its retries, is an error.
    pub patience: Duration,
    /// Requests on their way at the same time.
    pub parallel: NonZeroUsize,
    /// Bytes of objects fetched whole that are kept in memory.
    pub kept_bytes: u64,
}

/// A place in an object store.
#[derive(Clone)]
pub struct Bucket(Arc<Shared>);

struct Shared {
    location: String,
    limits: Limits,
    requests: Requests,
    tries: Arc<Tries>,
    kept: Kept<Found>,
    disk: Option<DiskCache>,
    found_on_disk: AtomicU64,
    /// What was found of objects that were asked for.
    known: Mutex<HashMap<String, Found>>,
    /// An object that is another one when the others may be.
    anchor: OnceLock<String>,
    /// Set for good when it is another one.
    replaced: AtomicBool,
    /// Set when it turns out that the server gives whole objects only.
    has_no_ranges: AtomicBool,
    /// Set when it turns out that it does not take HEAD.
    has_no_head: AtomicBool,
    opened: SystemTime,
}

/// A state of an object.
#[derive(Debug, Clone)]
struct Found {
    size: u64,
    modified: SystemTime,
    /// The store's own name of the state.
    e_tag: Option<String>,
    version: Version,
}

impl Found {
    fn of(meta: &ObjectMeta) -> Self {
        let mut state = String::new();
        let modified = meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
        // Without a tag there is nothing but size and time to tell states apart.
        let _ = write!(state, "{:?} {:?} {} {modified}", meta.e_tag, meta.version, meta.size);
        let mut tag = [0; 16];
        tag.copy_from_slice(&Sha256::digest(state)[..16]);
        Self {
            size: meta.size,
            modified: meta.last_modified.into(),
            e_tag: meta.e_tag.clone(),
            version: Version::Object { size: meta.size, tag },
        }
    }
}

impl Found {
    fn state(&self) -> Option<State<'_>> {
        match &self.version {
            Version::Object { size, tag } => Some(State { size: *size, tag }),
            Version::File { .. } => None,
        }
    }
}

impl Bucket {
    /// The objects below `prefix` of a store. `location` is what a person calls the place; `tries` is what its clients count. What is fetched whole is kept in
    /// `disk`, if there is one.
    ///
    /// # Errors
    /// When no threads can be started.
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        tries: Arc<Tries>,
        prefix: Path,
        location: String,
        limits: Limits,
        disk: Option<DiskCache>,
    ) -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            location,
            limits,
            requests: Requests::new(store, prefix, limits.patience, limits.parallel)?,
            tries,
            kept: Kept::new(limits.kept_bytes),
            disk,
            found_on_disk: AtomicU64::new(0),
            known: Mutex::default(),
            anchor: OnceLock::new(),
            replaced: AtomicBool::new(false),
            has_no_ranges: AtomicBool::new(false),
            has_no_head: AtomicBool::new(false),
            opened: SystemTime::now(),
        })))
    }
}

impl Shared {
    fn name(&self, path: &str) -> String {
        format!("{}/{path}", self.location)
    }

    fn error(&self, path: &str, source: io::Error) -> StoreError {
        StoreError {
            name: self.name(path),
            source,
        }
    }

    /// What the store says of an object now.
    fn look(&self, path: &str) -> io::Result<Found> {
        let found = self.ask_state(path).map_err(|error| self.or_changed(error))?;
        self.hold_to(path, &found)?;
        Ok(found)
    }

    /// The state of an object: by HEAD, or by its first byte where that finds nothing, as servers say that do not take it.
    fn ask_state(&self, path: &str) -> io::Result<Found> {
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        if !self.has_no_head.load(Ordering::Relaxed) {
            match self.requests.request(path, head, 0) {
                Ok((_, meta)) => return Ok(Found::of(&meta)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let first_byte = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            ..GetOptions::default()
        };
        let (_, meta) = self.requests.request(path, first_byte, 1)?;
        self.has_no_head.store(true, Ordering::Relaxed);
        Ok(Found::of(&meta))
    }

    /// An object stays what it was when it was first found. One that is found now must be no newer than the anchor, or the anchor still be
    /// what it was.
    fn hold_to(&self, path: &str, found: &Found) -> io::Result<()> {
        let anchor = self
            .anchor
            .get()
            .and_then(|anchor| lock(&self.known).get(anchor).cloned());
        let is_new = !lock(&self.known).contains_key(path);
        if is_new && anchor.is_some_and(|anchor| found.modified > anchor.modified) {
            self.check_anchor()?;
        }
        let mut known = lock(&self.known);
        let first = known.entry(path.to_owned()).or_insert_with(|| found.clone());
        match first.version == found.version {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    /// An error when the anchor is no longer what it was; said once.
    fn check_anchor(&self) -> io::Result<()> {
        let Some(anchor) = self.anchor.get() else { return Ok(()) };
        if self.replaced.load(Ordering::Relaxed) {
            return Err(changed());
        }
        match self.ask_state(anchor) {
            Ok(found)
                if lock(&self.known)
                    .get(anchor)
                    .is_some_and(|first| first.version == found.version) =>
            {
                Ok(())
            }
            Ok(_) => {
                if !self.replaced.swap(true, Ordering::Relaxed) {
                    let name = self.name(anchor);
                    log::error!("{name}: another one by now: the dataset was replaced; mount it again");
                }
                Err(changed())
            }
            // It may come back as it was.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let reason = format!("the dataset is gone, for so is its {anchor}");
                Err(io::Error::new(io::ErrorKind::StaleNetworkFileHandle, reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request.
    fn request(&self, path: &str, options: GetOptions, limit: u64) -> io::Result<(Bytes, ObjectMeta)> {
        let answer = self.requests.request(path, options, limit);
        answer.map_err(|error| self.or_changed(error))
    }

    /// What is wrong with an object may be that the dataset is another one.
    fn or_changed(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge => self.check_anchor().err().unwrap_or(error),
            _ => error,
        }
    }

    /// All bytes of an object, or those of a part.
    fn fetch(&self, path: &str, part: Option<Range<u64>>, limit: u64) -> io::Result<(Bytes, Found)> {
        let options = GetOptions {
            if_match: lock(&self.known).get(path).and_then(|first| first.e_tag.clone()),
            range: part.map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let (bytes, meta) = self.request(path, options, limit)?;
        let found = Found::of(&meta);
        self.hold_to(path, &found)?;
        Ok((bytes, found))
    }

    /// Bytes of an object of at most `limit`. Those who ask at the same time share the request.
    fn obtain(&self, key: &Key, limit: u64) -> io::Result<(Bytes, Found)> {
        self.kept.obtain(key, || match &self.disk {
            Some(disk) if key.part.is_none() => self.fetch_once(&key.path, &disk.entry(&self.name(&key.path)), limit),
            _ => self.fetch(&key.path, key.part.clone(), limit),
        })
    }

    /// As [`Self::obtain`]; where the server gives whole objects only, all of an object of at most `limit` bytes.
    fn obtain_part(&self, key: &Key, part: Range<u64>, limit: u64) -> io::Result<(Bytes, Found)> {
        let part = Key {
            path: key.path.clone(),
            part: Some(part),
        };
        let fetched = self.with_ranges(|| self.obtain(&part, limit));
        fetched.unwrap_or_else(|| self.obtain(key, limit))
    }

    /// Sends a request for a part of an object; `None` when the server gives whole objects only.
    fn with_ranges<T>(&self, request: impl FnOnce() -> io::Result<T>) -> Option<io::Result<T>> {
        if self.has_no_ranges.load(Ordering::Relaxed) {
            return None;
        }
        let answer = request();
        if !answer
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::Unsupported)
        {
            return Some(answer);
        }
        if !self.has_no_ranges.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{}: the server has no range requests: what is needed in parts is fetched whole",
                self.location
            );
        }
        None
    }

    /// An object from the disk, or fetched and put there, by one process at a time.
    fn fetch_once(&self, path: &str, entry: &Entry, limit: u64) -> io::Result<(Bytes, Found)> {
        if let Some(there) = self.on_disk(path, entry, limit)? {
            return Ok(there);
        }
        // Longer than half of its time nobody waits for somebody else's request.
        let _fetching = entry.lock(self.limits.patience / 2);
        if let Some(there) = self.on_disk(path, entry, limit)? {
            return Ok(there);
        }
        let (bytes, found) = self.fetch(path, None, limit)?;
        if let Some(state) = found.state() {
            entry.write(state, &bytes);
        }
        Ok((bytes, found))
    }

    /// An object that is on the disk in the state in which the store has it. Where no state of it is, the store is not asked.
    fn on_disk(&self, path: &str, entry: &Entry, limit: u64) -> io::Result<Option<(Bytes, Found)>> {
        if !entry.has_any() {
            return Ok(None);
        }
        let known = lock(&self.known).get(path).cloned();
        let found = match known {
            Some(found) => found,
            None => self.look(path)?,
        };
        let bytes = found
            .state()
            .filter(|state| state.size <= limit)
            .and_then(|state| entry.read(state));
        if bytes.is_some() {
            self.found_on_disk.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.map(|bytes| (bytes, found)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn changed() -> io::Error {
    io::Error::new(
        io::ErrorKind::StaleNetworkFileHandle,
        "the object is not the one that was found before: the dataset was replaced; mount it again",
    )
}

fn whole(path: &str) -> Key {
    Key {
        path: path.into(),
        part: None,
    }
}

impl Store for Bucket {
    fn location(&self) -> String {
        self.0.location.clone()
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Object>, StoreError> {
        let found = self.0.look(path).map_err(|source| self.0.error(path, source))?;
        Ok(Remote::new(&self.0, path, found, false))
    }

    fn open_whole(&self, path: &str, limit: u64) -> Result<Arc<dyn Object>, StoreError> {
        let fetched = self.0.obtain(&whole(path), limit);
        let (_, found) = fetched.map_err(|source| self.0.error(path, source))?;
        Ok(Remote::new(&self.0, path, found, true))
    }

    /// What is to stay on the disk is fetched whole.
    fn open_parts(&self, path: &str, head: u64, limit: u64) -> Result<Arc<dyn Object>, StoreError> {
        if self.0.disk.is_some() || head >= limit {
            return self.open_whole(path, limit);
        }
        let fetched = self.0.obtain_part(&whole(path), 0..head, limit);
        let (_, found) = fetched.map_err(|source| self.0.error(path, source))?;
        let object = Remote::new(&self.0, path, found, false);
        lock(&object.parts).push(0..head);
        Ok(object)
    }

    fn attributes(&self, path: &str) -> Result<Attributes, StoreError> {
        if !path.is_empty() && !lock(&self.0.known).contains_key(path) {
            self.0.look(path).map_err(|source| self.0.error(path, source))?;
        }
        self.shown(path)
    }

    /// Stores do not know this machine's users: what the daemon may read is its user's.
    fn shown(&self, path: &str) -> Result<Attributes, StoreError> {
        let found = lock(&self.0.known).get(path).cloned();
        let is_folder = path.is_empty();
        let access = Access {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            mode: if is_folder { 0o500 } else { 0o400 },
        };
        let version = Version::Object { size: 0, tag: [0; 16] };
        Ok(Attributes {
            size: found.as_ref().map_or(0, |found| found.size),
            modified: found.as_ref().map_or(self.0.opened, |found| found.modified),
            is_folder,
            version: found.map_or(version, |found| found.version),
            access,
        })
    }

    fn anchor(&self, path: &str) {
        let _ = self.0.anchor.set(path.to_owned());
    }

    fn forget(&self, path: &str) {
        if let Some(disk) = &self.0.disk {
            disk.entry(&self.0.name(path)).forget();
        }
        self.0.kept.forget(path);
        // What it was found to be came with it. A tile that was shown is known by its checksum as well.
        if self.0.anchor.get().is_none_or(|anchor| anchor != path) {
            lock(&self.0.known).remove(path);
        }
    }

    fn requests_at_once(&self) -> usize {
        self.0.limits.parallel.get()
    }

    fn room(&self) -> u64 {
        self.0.kept.limit()
    }

    fn wait_in(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.requests.wait_in(job);
    }

    fn cancel(&self) {
        self.0.requests.cancel();
    }

    fn traffic(&self) -> Option<Traffic> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = self.0.requests.counters();
        Some(Traffic {
            requests: get(&counters.requests),
            bytes: get(&counters.bytes),
            failures: get(&counters.failures),
            tries: get(&self.0.tries.sent),
            failed_tries: get(&self.0.tries.failed),
            found_on_disk: get(&self.0.found_on_disk),
            kept_bytes: self.0.kept.bytes(),
        })
    }
}

struct Remote {
    bucket: Arc<Shared>,
    path: Arc<str>,
    found: Found,
    /// Whether it is fetched all at once.
    whole: bool,
    /// What was fetched of it with one request each.
    parts: Mutex<Vec<Range<u64>>>,
}

impl Remote {
    fn new(bucket: &Arc<Shared>, path: &str, found: Found, whole: bool) -> Arc<Self> {
        Arc::new(Self {
            bucket: bucket.clone(),
            path: path.into(),
            found,
            whole,
            parts: Mutex::default(),
        })
    }

    fn key(&self, part: Option<Range<u64>>) -> Key {
        Key {
            path: self.path.clone(),
            part,
        }
    }

    /// A part that was fetched and that `range` lies in.
    fn part_around(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let around = |part: &&Range<u64>| part.start <= range.start && range.end <= part.end;
        lock(&self.parts).iter().find(around).cloned()
    }

    /// Bytes in memory around `range`, and where they begin.
    fn kept(&self, range: &Range<u64>) -> Option<(Bytes, u64)> {
        if let Some(whole) = self.bucket.kept.get(&self.key(None)) {
            return Some((whole, 0));
        }
        let part = self.part_around(range)?;
        let start = part.start;
        Some((self.bucket.kept.get(&self.key(Some(part)))?, start))
    }

    fn range(&self, range: Range<u64>) -> io::Result<Bytes> {
        let cut = |bytes: &Bytes, start: u64| bytes.slice((range.start - start) as usize..(range.end - start) as usize);
        if let Some((bytes, start)) = self.kept(&range) {
            return Ok(cut(&bytes, start));
        }
        if self.whole {
            let (bytes, _) = self.bucket.obtain(&self.key(None), self.found.size)?;
            return Ok(cut(&bytes, 0));
        }
        let part = self.bucket.with_ranges(|| {
            let options = GetOptions {
                if_match: self.found.e_tag.clone(),
                range: Some(GetRange::Bounded(range.clone())),
                ..GetOptions::default()
            };
            self.bucket.request(&self.path, options, range.end - range.start)
        });
        let Some(part) = part else {
            let (bytes, _) = self.bucket.obtain(&self.key(None), self.found.size)?;
            return Ok(cut(&bytes, 0));
        };
        let (bytes, meta) = part?;
        match Found::of(&meta).version == self.found.version {
            true => Ok(bytes),
            false => Err(changed()),
        }
    }
}

impl Object for Remote {
    fn name(&self) -> String {
        self.bucket.name(&self.path)
    }

    fn size(&self) -> u64 {
        self.found.size
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        let end = offset
            .checked_add(buffer.len() as u64)
            .filter(|&end| end <= self.found.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(&self.range(offset..end)?);
        Ok(())
    }

    /// The state in which it was found. Whatever is read later is of this state, or an error.
    fn version(&self) -> io::Result<Version> {
        Ok(self.found.version)
    }

    fn hold(&self, range: &Range<u64>) -> Option<Held> {
        self.kept(range).map(|(bytes, _)| Held(Some(bytes)))
    }

    fn parts_agree(&self) -> bool {
        let Some(whole) = self.bucket.kept.get(&self.key(None)) else {
            return true;
        };
        let parts = lock(&self.parts).clone();
        parts.into_iter().all(|part| {
            let there = self.bucket.kept.get(&self.key(Some(part.clone())));
            there.is_none_or(|bytes| bytes == whole.slice(part.start as usize..part.end as usize))
        })
    }

    fn fetch(&self, range: &Range<u64>) -> io::Result<Held> {
        let whole = self.key(None);
        if *range == (0..self.found.size) {
            return self
                .bucket
                .obtain(&whole, self.found.size)
                .map(|(bytes, _)| Held(Some(bytes)));
        }
        let (bytes, _) = self.bucket.obtain_part(&whole, range.clone(), self.found.size)?;
        let mut parts = lock(&self.parts);
        if !parts.contains(range) {
            parts.push(range.clone());
        }
        Ok(Held(Some(bytes)))
    }
}
