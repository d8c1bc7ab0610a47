//! A dataset in an object store: S3, Google Cloud Storage, Azure, or a web server.
//!
//! Everything here blocks the thread that calls it, as reading a file does; requests run on a small runtime of their own.
//! Objects that are asked for whole are fetched with one request and kept in memory for a while, and so are parts that
//! are asked for; of others, only the bytes that are read are fetched. Every request after the first to an object names the state that was found then
//! (`If-Match`), so that bytes of two states are never mixed.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use lru::LruCache;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore};
use rustix::process::{getegid, geteuid};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};

use super::disk_cache::{DiskCache, Entry, State};
use super::explain::explain;
use super::{Access, Attributes, Held, Object, Store, StoreError, Traffic, Version};

/// Room for an answer is made at once up to this size.
const MOST_PROMISED: u64 = 256 << 20;

/// How long is waited before an answer that broke off is asked for again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(5);

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
    store: Arc<dyn ObjectStore>,
    /// Of the dataset's objects.
    prefix: Path,
    location: String,
    limits: Limits,
    disk: Option<DiskCache>,
    requests: Semaphore,
    kept: Mutex<Kept>,
    /// What was found of objects that were asked for.
    known: Mutex<HashMap<String, Found>>,
    /// An object that is another one when the others may be.
    anchor: OnceLock<String>,
    /// Set for good when it is another one.
    replaced: AtomicBool,
    opened: SystemTime,
    counters: Counters,
    cancelled: watch::Sender<bool>,
    /// Set when it turns out that the server gives whole objects only.
    has_no_ranges: AtomicBool,
    /// There until this is dropped.
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    found_on_disk: AtomicU64,
}

/// Objects and parts of objects, those used last at the end.
struct Kept {
    objects: LruCache<Key, Slot>,
    bytes: u64,
}

/// An object, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    path: Arc<str>,
    /// `None` for all of it.
    part: Option<Range<u64>>,
}

impl Key {
    fn whole(path: &str) -> Self {
        Self {
            path: path.into(),
            part: None,
        }
    }
}

/// An object that is there, or is being fetched by whoever holds the lock.
type Slot = Arc<Mutex<Fetch>>;

#[derive(Default)]
enum Fetch {
    /// Whoever gets the lock first fetches it.
    #[default]
    Wanted,
    Here(Bytes, Found),
    /// Those who waited are told the same; those who come later try again.
    Failed(io::ErrorKind, String),
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

/// Why there is no answer.
enum Failure {
    /// Asking again would not help, or was done already.
    Refused(io::Error),
    /// The answer was good as far as it came.
    BrokenOff(io::Error),
}

impl Failure {
    /// What happened in the middle of an answer.
    fn midway(error: Error) -> Self {
        let error = explain(error);
        match error.kind() {
            io::ErrorKind::StaleNetworkFileHandle | io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
                Self::Refused(error)
            }
            _ => Self::BrokenOff(error),
        }
    }
}

/// How far a request came.
#[derive(Default)]
struct Progress {
    /// Bytes of the answer that came.
    arrived: AtomicU64,
    /// How the last answer ended before its end.
    broken_off: Mutex<Option<io::Error>>,
}

impl Progress {
    /// The error of a request that took longer than it may.
    fn time_is_up(&self, patience: Duration) -> io::Error {
        let seconds = patience.as_secs_f32();
        let reason = match (lock(&self.broken_off).take(), self.arrived.load(Ordering::Relaxed)) {
            (Some(error), _) => format!("answers broke off again and again for {seconds} s: {error}"),
            (None, 0) => format!("the store did not answer within {seconds} s"),
            (None, arrived) => format!("the answer did not come to its end within {seconds} s; {arrived} bytes came"),
        };
        io::Error::new(io::ErrorKind::TimedOut, reason)
    }
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
    /// The objects below `prefix` of a store. `location` is what a person calls the place. What is fetched whole is kept in
    /// `disk`, if there is one.
    ///
    /// # Errors
    /// When no threads can be started.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        location: String,
        limits: Limits,
        disk: Option<DiskCache>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("dcfs fetch")
            .enable_all()
            .build()?;
        Ok(Self(Arc::new(Shared {
            store,
            prefix,
            location,
            limits,
            disk,
            requests: Semaphore::new(limits.parallel.get()),
            kept: Mutex::new(Kept {
                objects: LruCache::unbounded(),
                bytes: 0,
            }),
            known: Mutex::default(),
            anchor: OnceLock::new(),
            replaced: AtomicBool::new(false),
            opened: SystemTime::now(),
            counters: Counters::default(),
            cancelled: watch::Sender::new(false),
            has_no_ranges: AtomicBool::new(false),
            runtime: Some(runtime),
        })))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever still waits for a server is no reason for this to wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there until this is dropped")
    }

    fn name(&self, path: &str) -> String {
        format!("{}/{path}", self.location)
    }

    fn path(&self, path: &str) -> Path {
        path.split('/')
            .fold(self.prefix.clone(), |prefix, part| prefix.join(part))
    }

    fn error(&self, path: &str, source: io::Error) -> StoreError {
        StoreError {
            name: self.name(path),
            source,
        }
    }

    /// Sends one request, with retries, and waits for all of its answer, which is of at most `limit` bytes.
    fn request(&self, path: &str, options: GetOptions, limit: u64) -> io::Result<(Bytes, ObjectMeta)> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let answer = self.ask(path, options, limit);
        match &answer {
            Ok((bytes, _)) => self.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed),
            Err(_) => self.counters.failures.fetch_add(1, Ordering::Relaxed),
        };
        answer
    }

    fn ask(&self, path: &str, options: GetOptions, limit: u64) -> io::Result<(Bytes, ObjectMeta)> {
        let patience = self.limits.patience;
        let progress = Progress::default();
        let answer = self.runtime().block_on(async {
            let mut cancelled = self.cancelled.subscribe();
            let cancelled = cancelled.wait_for(|&is_so| is_so);
            let answer = tokio::time::timeout(patience, self.insist(path, options, limit, &progress));
            match select(std::pin::pin!(cancelled), std::pin::pin!(answer)).await {
                Either::Left(_) => None,
                Either::Right((answer, _)) => Some(answer),
            }
        });
        answer
            .ok_or_else(cancelled)?
            .unwrap_or_else(|_| Err(progress.time_is_up(patience)))
    }

    /// Asks again when an answer breaks off that the store's library does not go on with, as it does where states have tags.
    async fn insist(
        &self,
        path: &str,
        options: GetOptions,
        limit: u64,
        progress: &Progress,
    ) -> io::Result<(Bytes, ObjectMeta)> {
        let _permit = self.requests.acquire().await;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.answer(path, options.clone(), limit, progress).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::BrokenOff(error)) => *lock(&progress.broken_off) = Some(error),
            }
            // Not all who lost a server at once come back at once.
            let part = RandomState::new().hash_one(path) as u32;
            tokio::time::sleep(pause.mul_f64(0.5 + f64::from(part) / f64::from(u32::MAX))).await;
            pause = (2 * pause).min(MOST_PAUSE);
        }
    }

    async fn answer(
        &self,
        path: &str,
        options: GetOptions,
        limit: u64,
        progress: &Progress,
    ) -> Result<(Bytes, ObjectMeta), Failure> {
        let (is_head, wanted) = (options.head, options.range.clone());
        let asked = self.store.get_opts(&self.path(path), options).await;
        let result = asked.map_err(|error| Failure::Refused(explain(error)))?;
        let meta = result.meta.clone();
        let size = match wanted {
            _ if is_head => 0,
            Some(GetRange::Bounded(range)) => range.end.min(meta.size).saturating_sub(range.start),
            _ => meta.size,
        };
        if size > limit {
            let reason = format!("{size} bytes, expected at most {limit}");
            let error = io::Error::new(io::ErrorKind::FileTooLarge, reason);
            return Err(Failure::Refused(error));
        }
        // As much as really comes: nothing large is made room for because a server says that it will.
        let mut bytes = BytesMut::with_capacity(size.min(MOST_PROMISED) as usize);
        if !is_head {
            let mut stream = result.into_stream();
            while let Some(part) = stream.try_next().await.map_err(Failure::midway)? {
                bytes.extend_from_slice(&part);
                progress.arrived.store(bytes.len() as u64, Ordering::Relaxed);
                if bytes.len() as u64 > size {
                    break;
                }
            }
        }
        if bytes.len() as u64 != size {
            let reason = format!("the store sent {} bytes, expected {size}", bytes.len());
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, reason);
            return Err(Failure::BrokenOff(error));
        }
        Ok((bytes.freeze(), meta))
    }

    /// What the store says of an object now.
    fn look(&self, path: &str) -> io::Result<Found> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let answer = self.request(path, options, 0).map_err(|error| self.or_changed(error))?;
        let found = Found::of(&answer.1);
        self.hold_to(path, &found)?;
        Ok(found)
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
        if !self.replaced.load(Ordering::Relaxed) {
            let options = GetOptions {
                head: true,
                ..GetOptions::default()
            };
            let found = match self.request(anchor, options, 0) {
                Ok((_, meta)) => Some(Found::of(&meta).version),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let first = lock(&self.known).get(anchor).map(|first| first.version);
            if found == first {
                return Ok(());
            }
            if !self.replaced.swap(true, Ordering::Relaxed) {
                log::error!(
                    "{}: another one by now: the dataset was replaced; mount it again",
                    self.name(anchor)
                );
            }
        }
        Err(changed())
    }

    /// What is wrong with an object may be that the dataset is another one.
    fn or_changed(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge => self.check_anchor().err().unwrap_or(error),
            _ => error,
        }
    }

    /// Bytes of an object. Those who ask at the same time share the request.
    fn obtain(&self, key: &Key, limit: u64) -> io::Result<(Bytes, Found)> {
        let slot = lock(&self.kept)
            .objects
            .get_or_insert(key.clone(), Slot::default)
            .clone();
        let mut fetch = lock(&slot);
        match &*fetch {
            Fetch::Wanted => {}
            Fetch::Here(bytes, found) => return Ok((bytes.clone(), found.clone())),
            Fetch::Failed(kind, reason) => return Err(io::Error::new(*kind, reason.clone())),
        }
        let fetched = match &self.disk {
            Some(disk) if key.part.is_none() => self.fetch_once(&key.path, &disk.entry(&self.name(&key.path)), limit),
            _ => self.fetch(&key.path, key.part.clone(), limit),
        };
        *fetch = match &fetched {
            Ok((bytes, found)) => Fetch::Here(bytes.clone(), found.clone()),
            Err(error) => Fetch::Failed(error.kind(), error.to_string()),
        };
        drop(fetch);
        match &fetched {
            Ok((bytes, _)) => self.keep(key, &slot, bytes.len() as u64),
            Err(_) => {
                let mut kept = lock(&self.kept);
                if kept.objects.peek(key).is_some_and(|kept| Arc::ptr_eq(kept, &slot)) {
                    kept.objects.pop(key);
                }
            }
        }
        fetched
    }

    /// Bytes that are in memory.
    fn kept(&self, key: &Key) -> Option<Bytes> {
        let slot = lock(&self.kept).objects.get(key)?.clone();
        // Whoever has it locked is fetching it.
        match &*slot.try_lock().ok()? {
            Fetch::Here(bytes, _) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// All bytes of an object, or those of a part.
    fn fetch(&self, path: &str, part: Option<Range<u64>>, limit: u64) -> io::Result<(Bytes, Found)> {
        let options = GetOptions {
            if_match: lock(&self.known).get(path).and_then(|first| first.e_tag.clone()),
            range: part.map(GetRange::Bounded),
            ..GetOptions::default()
        };
        let answer = self
            .request(path, options, limit)
            .map_err(|error| self.or_changed(error))?;
        let (bytes, meta) = answer;
        let found = Found::of(&meta);
        self.hold_to(path, &found)?;
        Ok((bytes, found))
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
            self.counters.found_on_disk.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.map(|bytes| (bytes, found)))
    }

    /// Counts what was fetched, and forgets what was used longest ago and nobody holds.
    fn keep(&self, key: &Key, slot: &Slot, bytes: u64) {
        let mut kept = lock(&self.kept);
        if !kept.objects.peek(key).is_some_and(|kept| Arc::ptr_eq(kept, slot)) {
            return;
        }
        kept.bytes += bytes;
        while kept.bytes > self.limits.kept_bytes {
            // One that is being fetched is not counted yet.
            let idle = |slot: &Slot| match &*slot.try_lock().ok()? {
                Fetch::Here(bytes, _) if bytes.is_unique() => Some(bytes.len() as u64),
                _ => None,
            };
            let oldest = kept
                .objects
                .iter()
                .rev()
                .find_map(|(key, slot)| Some((key.clone(), idle(slot)?)));
            let Some((oldest, size)) = oldest else { break };
            kept.objects.pop(&oldest);
            kept.bytes -= size;
        }
    }

    /// Forgets an object and its parts.
    fn drop_kept(&self, path: &str) {
        let mut kept = lock(&self.kept);
        let keys = kept.objects.iter().map(|(key, _)| key);
        let keys: Vec<Key> = keys.filter(|key| &*key.path == path).cloned().collect();
        for key in keys {
            // Whoever is fetching it has it counted only if it is still there then.
            if let Some(slot) = kept.objects.pop(&key)
                && let Ok(fetch) = slot.try_lock()
                && let Fetch::Here(bytes, _) = &*fetch
            {
                kept.bytes = kept.bytes.saturating_sub(bytes.len() as u64);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not [`io::ErrorKind::Interrupted`], after which readers try again.
fn cancelled() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the request was cancelled")
}

pub(super) fn changed() -> io::Error {
    io::Error::new(
        io::ErrorKind::StaleNetworkFileHandle,
        "the object is not the one that was found before: the dataset was replaced; mount it again",
    )
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
        let fetched = self.0.obtain(&Key::whole(path), limit);
        let (_, found) = fetched.map_err(|source| self.0.error(path, source))?;
        Ok(Remote::new(&self.0, path, found, true))
    }

    /// What is to stay on the disk is fetched whole.
    fn open_parts(&self, path: &str, head: u64, limit: u64) -> Result<Arc<dyn Object>, StoreError> {
        if self.0.disk.is_some() || head >= limit {
            return self.open_whole(path, limit);
        }
        let fetched = self.0.obtain_part(&Key::whole(path), 0..head, limit);
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
        self.0.drop_kept(path);
    }

    fn requests_at_once(&self) -> usize {
        self.0.limits.parallel.get()
    }

    fn room(&self) -> u64 {
        self.0.limits.kept_bytes
    }

    fn wait_in(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.runtime().spawn_blocking(job);
    }

    fn cancel(&self) {
        self.0.cancelled.send_replace(true);
    }

    fn traffic(&self) -> Option<Traffic> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        Some(Traffic {
            requests: get(&counters.requests),
            bytes: get(&counters.bytes),
            failures: get(&counters.failures),
            found_on_disk: get(&counters.found_on_disk),
            kept_bytes: lock(&self.0.kept).bytes,
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
        if let Some(whole) = self.bucket.kept(&self.key(None)) {
            return Some((whole, 0));
        }
        let part = self.part_around(range)?;
        let start = part.start;
        Some((self.bucket.kept(&self.key(Some(part)))?, start))
    }

    fn range(&self, range: Range<u64>) -> io::Result<Bytes> {
        let cut = |bytes: &Bytes, start: u64| bytes.slice((range.start - start) as usize..(range.end - start) as usize);
        if self.whole {
            let (bytes, _) = self.bucket.obtain(&self.key(None), self.found.size)?;
            return Ok(cut(&bytes, 0));
        }
        if let Some((bytes, start)) = self.kept(&range) {
            return Ok(cut(&bytes, start));
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
