//! From mounted to unmounted: waiting until the mount answers, saying so, and stopping within bounded time.
//!
//! Knows the mount and its session, not what is served.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

use crate::fs::mount::{Mounted, UnmountError, Unmounted};

/// The file that every mount has, read to see that the mount answers.
const README: &str = "README.txt";
/// How long requests that were under way may take after the mount has left the tree.
const GRACE: Duration = Duration::from_secs(3);

/// Why a mount is not ready.
#[derive(Debug, Error)]
pub enum NotReady {
    /// It does not answer.
    #[error("the mount at {} did not answer within {} s", path.display(), patience.as_secs())]
    Silent { path: PathBuf, patience: Duration },
    /// It answers with an error.
    #[error("the mount does not work: cannot read {}: {source}", path.display())]
    Failed { path: PathBuf, source: io::Error },
}

/// Reads a file through the mount at `mountpoint`, as any program would. The session must be running.
///
/// # Errors
/// It failed, or took longer than `patience`.
pub fn await_answer(mountpoint: &Path, patience: Duration) -> Result<(), NotReady> {
    let path = mountpoint.join(README);
    let (answer, answers) = mpsc::channel();
    let readme = path.clone();
    // The thread may hang as long as the mount does; it ends with the process.
    thread::spawn(move || answer.send(look(&readme)).ok());
    match answers.recv_timeout(patience) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(source)) => Err(NotReady::Failed { path, source }),
        Err(_) => Err(NotReady::Silent {
            path: mountpoint.to_owned(),
            patience,
        }),
    }
}

fn look(readme: &Path) -> io::Result<()> {
    let size = fs::symlink_metadata(readme)?.len();
    match fs::read(readme) {
        Ok(text) if text.len() as u64 == size && size > 0 => Ok(()),
        Ok(text) => Err(io::Error::other(format!("{} bytes were read of {size}", text.len()))),
        // The mount answered. With owner and mode given by the user, they may have shut themselves out.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

/// Tells the service manager, if one asked to be told, that the mount is ready, and what it is.
pub fn announce_ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::warn!("cannot tell the service manager: {error}");
    }
}

/// What SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// The terminal is gone, and with it whoever wanted the mount: stop.
    Stop,
    /// A daemon has no terminal.
    Ignore,
}

/// The signals that stop the program. The first asks it to; the second ends it at once.
#[derive(Debug)]
pub struct StopSignals {
    signals: Signals,
}

impl StopSignals {
    /// Catches them from now on; those that come before [`until_stopped`] are kept for it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn catch(hangup: Hangup) -> io::Result<Self> {
        let mut stops = vec![SIGTERM, SIGINT];
        match hangup {
            Hangup::Stop => stops.push(SIGHUP),
            Hangup::Ignore => {
                signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
            }
        }
        let asked_before = Arc::new(AtomicBool::new(false));
        for &signal in &stops {
            // In this order: the flag that the first signal sets is there for the second to see.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked_before))?;
            signal_hook::flag::register(signal, Arc::clone(&asked_before))?;
        }
        Ok(Self {
            signals: Signals::new(&stops)?,
        })
    }
}

/// Does `work`, and calls `stop` if a signal asks to stop before it is done.
///
/// # Errors
/// The system refuses to have signals caught.
pub fn interruptible<T>(stop: impl FnOnce() + Send + 'static, work: impl FnOnce() -> T) -> io::Result<T> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let watch = signals.handle();
    let watcher = thread::spawn(move || {
        if signals.forever().next().is_some() {
            stop();
        }
    });
    let result = work();
    watch.close();
    // It calls `stop` at most, which does not panic.
    let _ = watcher.join();
    Ok(result)
}

/// Why a mount that was served ended badly.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Requests could not be received any more.
    #[error("the FUSE session failed: {0}")]
    Session(io::Error),
    /// The mount is still there.
    #[error(transparent)]
    Unmount(#[from] UnmountError),
}

enum Event {
    SessionEnded(io::Result<()>),
    Asked,
}

/// Serves until a signal asks to stop or the mount is unmounted from outside, and leaves no mount behind. `join_session` waits for the end of the session.
///
/// A mount in use leaves the tree at once; its users get a few seconds for what they have under way, then the caller should end the process.
///
/// # Errors
/// The session failed, or the mount could not be taken away.
pub fn until_stopped(
    mounted: Mounted,
    signals: StopSignals,
    join_session: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(), ServeError> {
    let (event, events) = mpsc::channel();
    let session_event = event.clone();
    thread::spawn(move || session_event.send(Event::SessionEnded(join_session())).ok());
    let StopSignals { mut signals } = signals;
    thread::spawn(move || signals.forever().next().map(|_| event.send(Event::Asked).ok()));

    let first = events.recv();
    notify(&[NotifyState::Stopping]);
    let path = mounted.path().to_owned();
    let unmounted = mounted.unmount();
    match first {
        Ok(Event::Asked) => {
            if unmounted? == Unmounted::Lazily {
                log::warn!(
                    "{} was in use when it was unmounted; its users keep what they have open for a few seconds",
                    path.display()
                );
            }
            match events.recv_timeout(GRACE) {
                Ok(Event::SessionEnded(Err(error))) => log::warn!("the FUSE session ended with: {error}"),
                Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            Ok(())
        }
        Ok(Event::SessionEnded(Err(error))) => Err(ServeError::Session(error)),
        Ok(Event::SessionEnded(Ok(()))) => {
            log::info!("{} was unmounted", path.display());
            unmounted?;
            Ok(())
        }
        // Both senders are gone only if both threads panicked.
        Err(mpsc::RecvError) => Err(ServeError::Session(io::Error::other("the session's thread panicked"))),
    }
}
