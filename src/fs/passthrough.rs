//! Whether the kernel serves decoded files by itself on this mount.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::BackingId;

/// Whether passthrough is in use: off until kernel and daemon have agreed on it.
#[derive(Debug, Clone, Default)]
pub struct Passthrough(Arc<AtomicBool>);

impl Passthrough {
    /// Whether decoded files are handed to the kernel.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Has every read come to the daemon from now on.
    pub fn forgo(&self) {
        self.0.store(false, Ordering::Release);
    }

    pub(super) fn agreed(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Tries whether the kernel takes `file`, a file of the kind that is to be handed to it later.
///
/// `device` belongs to a session that has begun. The kernel keeps the file for as long as the mount lasts, so it
/// should be a small one.
///
/// # Errors
/// What the kernel says: it is too old, or the daemon lacks CAP_SYS_ADMIN.
pub fn takes_backing_files(passthrough: &Passthrough, device: impl AsFd, file: &File) -> io::Result<()> {
    if !passthrough.is_on() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "it has no FUSE passthrough"));
    }
    BackingId::create_raw(device, file).map(|_| ())
}
