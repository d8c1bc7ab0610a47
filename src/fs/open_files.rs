//! Who serves an open file: the kernel, from a decoded file it was handed, or the daemon, read by read.
//!
//! The kernel allows an inode one of the two at a time, and one decoded file for as long as any passthrough open
//! of it lasts. So the mode belongs to the inode from its first open to its last release.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};

use super::deadline::Guarded;
use super::errno;
use crate::engine::{Engine, OpenMode, Pin, ReadError};

/// An open that is to be answered.
pub(super) struct Opening {
    pub(super) handle: FileHandle,
    pub(super) reply: Guarded<ReplyOpen>,
}

enum Serving {
    /// The array is being decoded; these wait for it.
    Undecided(Vec<Opening>),
    /// The kernel serves it. Dropped in this order: the kernel's hold on the file, then the block's pin.
    Kernel {
        backing: BackingId,
        _pin: Pin,
        opens: usize,
    },
    /// The daemon serves it.
    Daemon { opens: usize },
}

/// What the caller of [`OpenFiles::open`] has to do.
pub(super) enum Next {
    /// Nothing: it was answered, or will be.
    Wait,
    /// Have the array decoded and call [`OpenFiles::decided`].
    Decide,
}

/// Modes of the inodes that are open.
pub(super) struct OpenFiles {
    engine: Arc<Engine>,
    serving: Mutex<HashMap<u64, Serving>>,
}

/// Flags of files whose reads come to the daemon: bytes never change, and there is nothing to flush.
pub(super) fn daemon_flags() -> FopenFlags {
    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH
}

impl OpenFiles {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            serving: Mutex::default(),
        }
    }

    /// Answers an open of `inode` in the mode it is in, or has it wait for the mode to be decided.
    pub(super) fn open(&self, inode: u64, opening: Opening) -> Next {
        let mut serving = self.lock();
        match serving.get_mut(&inode) {
            None => {
                serving.insert(inode, Serving::Undecided(vec![opening]));
                return Next::Decide;
            }
            Some(Serving::Undecided(waiting)) => waiting.push(opening),
            Some(Serving::Kernel { backing, opens, .. }) => {
                if let Some(reply) = opening.reply.take() {
                    *opens += 1;
                    self.by_kernel(reply, opening.handle, backing);
                }
            }
            Some(Serving::Daemon { opens }) => {
                if let Some(reply) = opening.reply.take() {
                    *opens += 1;
                    self.by_daemon(reply, opening.handle);
                }
            }
        }
        Next::Wait
    }

    /// Answers everybody who waits for `inode`: from `pin` if there is one. Returns the handles that came to nothing,
    /// of which no release will tell.
    pub(super) fn decided(&self, inode: u64, decision: Result<Option<Pin>, ReadError>) -> Vec<FileHandle> {
        let mut serving = self.lock();
        let Some(Serving::Undecided(opening)) = serving.remove(&inode) else {
            return Vec::new();
        };
        let mut waiting = Vec::new();
        let mut dropped = Vec::new();
        for Opening { handle, reply } in opening {
            // Of those whose time was up there is nobody left to answer.
            match (reply.take(), &decision) {
                (Some(reply), Ok(_)) => waiting.push((handle, reply)),
                (Some(reply), Err(error)) => {
                    reply.error(errno(error));
                    dropped.push(handle);
                }
                (None, _) => dropped.push(handle),
            }
        }
        let (Some((_, first)), Ok(pin)) = (waiting.first(), decision) else {
            return dropped;
        };
        let opens = waiting.len();
        match pin.and_then(|pin| Some((backing(first, &pin)?, pin))) {
            Some((backing, pin)) => {
                for (handle, reply) in waiting {
                    self.by_kernel(reply, handle, &backing);
                }
                serving.insert(
                    inode,
                    Serving::Kernel {
                        backing,
                        _pin: pin,
                        opens,
                    },
                );
            }
            None => {
                for (handle, reply) in waiting {
                    self.by_daemon(reply, handle);
                }
                serving.insert(inode, Serving::Daemon { opens });
            }
        }
        dropped
    }

    /// Forgets one open of `inode`.
    pub(super) fn release(&self, inode: u64) {
        let mut serving = self.lock();
        let Some(Serving::Kernel { opens, .. } | Serving::Daemon { opens }) = serving.get_mut(&inode) else {
            return;
        };
        *opens -= 1;
        if *opens == 0 {
            let last = serving.remove(&inode);
            drop(serving);
            drop(last);
        }
    }

    fn by_kernel(&self, reply: ReplyOpen, handle: FileHandle, backing: &BackingId) {
        self.engine.stats().count_open(OpenMode::Passthrough);
        reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH, backing);
    }

    fn by_daemon(&self, reply: ReplyOpen, handle: FileHandle) {
        self.engine.stats().count_open(OpenMode::Fuse);
        reply.opened(handle, daemon_flags());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Serving>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands the decoded file to the kernel.
fn backing(reply: &ReplyOpen, pin: &Pin) -> Option<BackingId> {
    let file = pin.block().file()?;
    match reply.open_backing(file) {
        Ok(backing) => Some(backing),
        Err(error) => {
            log::warn!("the kernel did not take a decoded file ({error}); its reads come to the daemon instead");
            None
        }
    }
}
