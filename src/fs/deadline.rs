//! Every request ends: one that a source keeps waiting too long is answered with an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen};

/// Something that can be answered with an error.
pub(super) trait Answer: Send + 'static {
    fn fail(self, errno: Errno);
}

macro_rules! answer {
    ($($reply:ty),*) => {
        $(impl Answer for $reply {
            fn fail(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

answer!(ReplyAttr, ReplyData, ReplyEntry, ReplyOpen);

/// A reply that is sent once: by whoever has the answer, or by the watchman.
pub(super) struct Guarded<R: Answer> {
    id: u64,
    reply: Arc<Mutex<Option<R>>>,
    requests: Arc<Requests>,
}

impl<R: Answer> Guarded<R> {
    /// The reply, unless its time was up.
    pub(super) fn take(self) -> Option<R> {
        lock(&self.requests.waiting).remove(&self.id);
        lock(&self.reply).take()
    }
}

/// Dropped by a thread that panicked: the request gets its error now, not when its time is up.
impl<R: Answer> Drop for Guarded<R> {
    fn drop(&mut self) {
        lock(&self.requests.waiting).remove(&self.id);
        let reply = lock(&self.reply).take();
        if let Some(reply) = reply {
            reply.fail(Errno::EIO);
        }
    }
}

trait Expire: Send {
    /// Answers with an error; says whether there was still something to answer.
    fn expire(&self) -> bool;
}

impl<R: Answer> Expire for Arc<Mutex<Option<R>>> {
    fn expire(&self) -> bool {
        let reply = lock(self).take();
        reply.map(|reply| reply.fail(Errno::EIO)).is_some()
    }
}

/// A request, and since when it waits.
type Waiting = (Instant, Box<dyn Expire>);

#[derive(Default)]
struct Requests {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// Watches requests that were not answered at once.
pub(super) struct Deadlines {
    requests: Arc<Requests>,
    /// Dropping it ends the watch.
    _stop: Sender<()>,
}

impl Deadlines {
    /// Answers what waits longer than `limit` with EIO, and calls `expired` each time.
    pub(super) fn new(limit: Duration, expired: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let requests = Arc::new(Requests::default());
        let (stop, stopped) = channel();
        let watched = requests.clone();
        std::thread::Builder::new()
            .name("deadline".into())
            .spawn(move || watch(&watched, limit, &stopped, expired))?;
        Ok(Self { requests, _stop: stop })
    }

    /// Puts `reply` under watch.
    pub(super) fn guard<R: Answer>(&self, reply: R) -> Guarded<R> {
        let id = self.requests.next.fetch_add(1, Ordering::Relaxed);
        let reply = Arc::new(Mutex::new(Some(reply)));
        lock(&self.requests.waiting).insert(id, (Instant::now(), Box::new(reply.clone())));
        Guarded {
            id,
            reply,
            requests: self.requests.clone(),
        }
    }
}

fn watch(requests: &Requests, limit: Duration, stopped: &Receiver<()>, expired: impl Fn()) {
    let step = (limit / 10).clamp(Duration::from_millis(10), Duration::from_secs(1));
    while stopped.recv_timeout(step) == Err(RecvTimeoutError::Timeout) {
        let late: Vec<_> = {
            let mut waiting = lock(&requests.waiting);
            let ids: Vec<u64> = waiting
                .iter()
                .filter(|(_, (since, _))| since.elapsed() >= limit)
                .map(|(&id, _)| id)
                .collect();
            ids.into_iter().filter_map(|id| waiting.remove(&id)).collect()
        };
        for (_, request) in late {
            if request.expire() {
                expired();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Probe(std::sync::mpsc::Sender<Errno>);

    impl Answer for Probe {
        fn fail(self, errno: Errno) {
            self.0.send(errno).unwrap();
        }
    }

    #[test]
    fn a_request_nobody_answers_gets_an_error_and_cannot_be_answered_again() {
        let (late, told) = channel();
        let deadlines = Deadlines::new(Duration::from_millis(20), move || late.send(()).unwrap()).unwrap();
        let (tx, rx) = channel();
        let guarded = deadlines.guard(Probe(tx));
        assert_eq!(rx.recv().unwrap().code(), Errno::EIO.code());
        told.recv().unwrap();
        assert!(guarded.take().is_none());
    }

    #[test]
    fn an_answered_request_is_not_watched_any_more() {
        let deadlines = Deadlines::new(Duration::from_secs(3600), || ()).unwrap();
        let (tx, _rx) = channel();
        assert!(deadlines.guard(Probe(tx)).take().is_some());
        assert!(lock(&deadlines.requests.waiting).is_empty());
    }
}
