//! Requests to an object store, each tried until it is answered or its time is up.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};

use super::explain::{explain, was_given_up};

/// Room for an answer is made at once up to this size.
const MOST_PROMISED: u64 = 256 << 20;

/// How long is waited before an answer that broke off is asked for again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(5);

/// What sends requests to the objects below a prefix of a store.
pub(super) struct Requests {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// A request that is not answered after so long, with all its retries, is an error.
    patience: Duration,
    /// For those on their way at the same time.
    permits: Semaphore,
    cancelled: watch::Sender<bool>,
    counters: Counters,
    /// Whether the store has ever answered.
    has_answered: AtomicBool,
    /// There until this is dropped.
    runtime: Option<Runtime>,
}

/// What was asked so far.
#[derive(Default)]
pub(super) struct Counters {
    pub requests: AtomicU64,
    pub bytes: AtomicU64,
    pub failures: AtomicU64,
}

/// Why there is no answer.
enum Failure {
    /// Asking again would not help, or was done already.
    Refused(io::Error),
    /// Asking again may help, as when an answer was good as far as it came.
    Transient(io::Error),
}

impl Failure {
    /// What happened in the middle of an answer. What the store refuses then it refuses again when it is asked anew, unless that comes
    /// with new credentials.
    fn midway(error: Error) -> Self {
        let error = explain(error);
        match error.kind() {
            io::ErrorKind::StaleNetworkFileHandle => Self::Refused(error),
            _ => Self::Transient(error),
        }
    }
}

/// How far a request came.
#[derive(Default)]
struct Progress {
    /// Bytes of the answer that came.
    arrived: AtomicU64,
    /// Why it was asked again.
    last_failure: Mutex<Option<io::Error>>,
}

impl Progress {
    fn last_failure(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a request that took longer than it may.
    fn time_is_up(&self, patience: Duration) -> io::Error {
        let seconds = patience.as_secs_f32();
        if let Some(error) = self.last_failure().take() {
            let reason = format!("no good answer within {seconds} s; the last one: {error}");
            return io::Error::new(error.kind(), reason);
        }
        let reason = match self.arrived.load(Ordering::Relaxed) {
            0 => format!("the store did not answer within {seconds} s"),
            arrived => format!("the answer did not come to its end within {seconds} s; {arrived} bytes came"),
        };
        io::Error::new(io::ErrorKind::TimedOut, reason)
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // Whoever still waits for a server is no reason for this to wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Requests {
    /// At most `parallel` of them at the same time, each for `patience` at most.
    ///
    /// # Errors
    /// When no threads can be started.
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        patience: Duration,
        parallel: NonZeroUsize,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("dcfs fetch")
            .enable_all()
            .build()?;
        Ok(Self {
            store,
            prefix,
            patience,
            permits: Semaphore::new(parallel.get()),
            cancelled: watch::Sender::new(false),
            counters: Counters::default(),
            has_answered: AtomicBool::new(false),
            runtime: Some(runtime),
        })
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Ends those on their way, and all that come, with an error.
    pub(super) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Runs `job` on a thread that may wait.
    pub(super) fn wait_in(&self, job: Box<dyn FnOnce() + Send>) {
        self.runtime().spawn_blocking(job);
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there until this is dropped")
    }

    fn path(&self, path: &str) -> Path {
        path.split('/')
            .fold(self.prefix.clone(), |prefix, part| prefix.join(part))
    }

    /// Sends one request, with retries, and waits for all of its answer, which is of at most `limit` bytes.
    pub(super) fn request(&self, path: &str, options: GetOptions, limit: u64) -> io::Result<(Bytes, ObjectMeta)> {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let answer = self.ask(path, options, limit);
        match &answer {
            Ok((bytes, _)) => self.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed),
            Err(_) => self.counters.failures.fetch_add(1, Ordering::Relaxed),
        };
        answer
    }

    fn ask(&self, path: &str, options: GetOptions, limit: u64) -> io::Result<(Bytes, ObjectMeta)> {
        let patience = self.patience;
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
        let _permit = self.permits.acquire().await;
        let mut pause = FIRST_PAUSE;
        loop {
            match self.answer(path, options.clone(), limit, progress).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Transient(error)) => *progress.last_failure() = Some(error),
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
        let result =
            asked.map_err(
                |error| match was_given_up(&error) && self.has_answered.load(Ordering::Relaxed) {
                    // The library leaves room for a last try that takes long, which those of a store that is there do not.
                    true => Failure::Transient(explain(error)),
                    false => Failure::Refused(explain(error)),
                },
            )?;
        self.has_answered.store(true, Ordering::Relaxed);
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
            return Err(Failure::Transient(error));
        }
        Ok((bytes.freeze(), meta))
    }
}

/// Not [`io::ErrorKind::Interrupted`], after which readers try again.
fn cancelled() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the request was cancelled")
}
