//! What the daemon counts, and how `.dcfs/stats.json` says it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Key;
use crate::cache::Cache;
use crate::store::Traffic;
use crate::view::STATS_BYTES;

/// How a file was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// The kernel serves it from a decoded file.
    Passthrough,
    /// Its reads come to the daemon.
    Fuse,
}

/// Counters, all from the start of the mount.
#[derive(Debug)]
pub struct Stats {
    started: Instant,
    opens_passthrough: AtomicU64,
    opens_fuse: AtomicU64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    chunks_decoded: AtomicU64,
    bytes_decoded: AtomicU64,
    columns_read: AtomicU64,
    prefetches: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, u64>>,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            opens_passthrough: AtomicU64::new(0),
            opens_fuse: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            chunks_decoded: AtomicU64::new(0),
            bytes_decoded: AtomicU64::new(0),
            columns_read: AtomicU64::new(0),
            prefetches: AtomicU64::new(0),
            errors: Mutex::default(),
        }
    }
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Stats {
    /// A file was opened.
    pub fn count_open(&self, mode: OpenMode) {
        match mode {
            OpenMode::Passthrough => add(&self.opens_passthrough, 1),
            OpenMode::Fuse => add(&self.opens_fuse, 1),
        }
    }

    /// A read request was answered with `bytes` bytes.
    pub fn count_read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    /// A request failed, or a part of the dataset did.
    pub fn count_error(&self, kind: &'static str) {
        *self
            .errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(kind)
            .or_default() += 1;
    }

    pub(super) fn count_chunk(&self, bytes: u64) {
        add(&self.chunks_decoded, 1);
        add(&self.bytes_decoded, bytes);
    }

    pub(super) fn count_column(&self) {
        add(&self.columns_read, 1);
    }

    pub(super) fn count_prefetch(&self) {
        add(&self.prefetches, 1);
    }

    /// Time since the mount was made.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// One JSON object and a newline, with blanks before the newline so that its size never changes.
    pub(super) fn to_json(&self, cache: &Cache<Key>, traffic: Option<Traffic>) -> Vec<u8> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = cache.counters();
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut value = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_seconds": self.uptime().as_secs_f64(),
            "opens": { "passthrough": get(&self.opens_passthrough), "fuse": get(&self.opens_fuse) },
            "reads": { "requests": get(&self.reads), "bytes": get(&self.bytes_read) },
            "decoded": {
                "chunks": get(&self.chunks_decoded),
                "bytes": get(&self.bytes_decoded),
                "columns": get(&self.columns_read),
                "prefetched": get(&self.prefetches),
            },
            "cache": {
                "limit_bytes": cache.limit(),
                "bytes": cache.used(),
                "pinned_bytes": cache.pinned_bytes(),
                "blocks": counters.blocks,
                "pinned_blocks": counters.pinned,
                "hits": counters.hits,
                "misses": counters.misses,
                "evictions": counters.evictions,
            },
            "errors": errors,
        });
        if let Some(traffic) = traffic {
            value["store"] = json!({
                "requests": traffic.requests,
                "bytes": traffic.bytes,
                "failures": traffic.failures,
                "tries": traffic.tries,
                "failed_tries": traffic.failed_tries,
                "found_on_disk": traffic.found_on_disk,
                "kept_bytes": traffic.kept_bytes,
            });
        }
        let mut text = serde_json::to_vec_pretty(&value).expect("counters are plain JSON");
        text.resize(STATS_BYTES as usize - 1, b' ');
        text.push(b'\n');
        text
    }
}
