//! What has been decoded, shared by every reader: one budget, one LRU, and one load at a time of each block.
//!
//! The cache knows how large blocks are and who is using them. It does not know how they are made: whoever finds one
//! missing gets a [`Ticket`], makes the block and hands it in; whoever finds it being made waits for the same result.

mod block;
mod budget;
pub mod mapping;
pub mod tmpfs;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

pub use block::{Block, Buffer, Spares};
pub use budget::{Budget, Reservation};

use crate::dataset::DatasetError;

/// What names a block. What blocks there are is the business of whoever makes them.
pub trait Key: Copy + Eq + Hash + Send + 'static {}

impl<T: Copy + Eq + Hash + Send + 'static> Key for T {}

/// Why there is no block.
#[derive(Debug, Clone)]
pub enum Failure {
    /// Files that are held open fill the budget.
    NoRoom,
    /// It could not be made.
    Failed(Arc<DatasetError>),
    /// Whoever made it died.
    Abandoned,
}

/// What those who wait for a block get.
pub type Outcome = Result<Arc<Block>, Failure>;

type Waiter = Box<dyn FnOnce(Outcome) + Send>;

/// A block being made.
#[derive(Default)]
struct Flight {
    state: Mutex<FlightState>,
}

#[derive(Default)]
struct FlightState {
    waiters: Vec<Waiter>,
    outcome: Option<Outcome>,
}

/// The result of [`Cache::lookup`].
pub enum Lookup<K: Key> {
    /// It is there.
    Hit(Arc<Block>),
    /// It is not; the caller makes it.
    Missing(Ticket<K>),
    /// Somebody is making it.
    Busy(Pending),
}

/// The result of [`Cache::join`].
pub enum Joined {
    /// It is there.
    Block(Arc<Block>),
    /// Somebody is making it.
    Busy(Pending),
}

/// A block that somebody else is making.
pub struct Pending(Arc<Flight>);

impl Pending {
    /// Calls `waiter` with the result when there is one, on the thread that has it; at once if that was long ago.
    pub fn subscribe(self, waiter: impl FnOnce(Outcome) + Send + 'static) {
        let mut state = lock(&self.0.state);
        match &state.outcome {
            None => state.waiters.push(Box::new(waiter)),
            Some(outcome) => {
                let outcome = outcome.clone();
                drop(state);
                waiter(outcome);
            }
        }
    }
}

/// The duty to make a block. Dropping it tells those who wait that there will be none.
pub struct Ticket<K: Key> {
    cache: Arc<Cache<K>>,
    key: K,
    flight: Arc<Flight>,
    done: bool,
}

impl<K: Key> Ticket<K> {
    /// What is to be made.
    pub fn key(&self) -> K {
        self.key
    }

    /// Sets memory aside, evicting what was used least recently.
    pub fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.cache.reserve(bytes)
    }

    /// Hands in the result: to the cache if the block has a reservation, and to those who wait in any case.
    pub fn finish(mut self, result: Result<Block, Failure>) -> Outcome {
        self.done = true;
        let outcome = result.map(Arc::new);
        self.cache.settle(self.key, &self.flight, &outcome);
        outcome
    }
}

impl<K: Key> Drop for Ticket<K> {
    fn drop(&mut self) {
        if !self.done {
            self.cache.settle(self.key, &self.flight, &Err(Failure::Abandoned));
        }
    }
}

/// A block that stays until this is dropped.
pub struct Pin<K: Key> {
    cache: Arc<Cache<K>>,
    key: K,
    block: Arc<Block>,
}

impl<K: Key> Pin<K> {
    /// The block.
    pub fn block(&self) -> &Arc<Block> {
        &self.block
    }
}

impl<K: Key> Drop for Pin<K> {
    fn drop(&mut self) {
        lock(&self.cache.state).unpin(self.key);
    }
}

struct State<K: Key> {
    /// Blocks that may be evicted, in order of use.
    idle: LruCache<K, Arc<Block>>,
    /// Blocks in files that somebody has open, and how often.
    pinned: HashMap<K, (Arc<Block>, usize)>,
    flights: HashMap<K, Arc<Flight>>,
    counters: Counters,
}

/// What the cache has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found the block, or found it being made.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Blocks evicted to make room.
    pub evictions: u64,
    /// Blocks in the cache.
    pub blocks: u64,
    /// Of these, blocks in files that are open.
    pub pinned: u64,
}

/// Decoded blocks within a budget.
pub struct Cache<K: Key> {
    budget: Arc<Budget>,
    state: Mutex<State<K>>,
    /// The most blocks that are kept; each may need a file descriptor or a mapping.
    most_blocks: usize,
}

impl<K: Key> Cache<K> {
    /// A cache of at most `bytes` bytes in at most `most_blocks` blocks.
    pub fn new(bytes: u64, most_blocks: usize) -> Arc<Self> {
        let state = State {
            idle: LruCache::unbounded(),
            pinned: HashMap::new(),
            flights: HashMap::new(),
            counters: Counters::default(),
        };
        Arc::new(Self {
            budget: Budget::new(bytes),
            state: Mutex::new(state),
            most_blocks: most_blocks.max(1),
        })
    }

    /// Finds `key`, or who makes it.
    pub fn lookup(self: &Arc<Self>, key: K) -> Lookup<K> {
        let mut state = lock(&self.state);
        if let Some(block) = state.find(key) {
            state.counters.hits += 1;
            return Lookup::Hit(block);
        }
        if let Some(flight) = state.flights.get(&key).cloned() {
            state.counters.hits += 1;
            return Lookup::Busy(Pending(flight));
        }
        state.counters.misses += 1;
        let flight = Arc::new(Flight::default());
        state.flights.insert(key, flight.clone());
        Lookup::Missing(Ticket {
            cache: self.clone(),
            key,
            flight,
            done: false,
        })
    }

    /// The block of `key` if it is there, which counts as a hit; its absence counts as nothing, for now somebody may
    /// look it up.
    pub fn get(&self, key: K) -> Option<Arc<Block>> {
        let mut state = lock(&self.state);
        let block = state.find(key)?;
        state.counters.hits += 1;
        Some(block)
    }

    /// As [`Self::get`], or who is making it, which is a hit too.
    pub fn join(&self, key: K) -> Option<Joined> {
        let mut state = lock(&self.state);
        let found = match state.find(key) {
            Some(block) => Joined::Block(block),
            None => Joined::Busy(Pending(state.flights.get(&key)?.clone())),
        };
        state.counters.hits += 1;
        Some(found)
    }

    /// The block of `key` if it is there. Does not count as a lookup.
    pub fn peek(&self, key: K) -> Option<Arc<Block>> {
        lock(&self.state).find(key)
    }

    /// Whether `key` is there or being made.
    pub fn has(&self, key: K) -> bool {
        let state = lock(&self.state);
        state.idle.contains(&key) || state.pinned.contains_key(&key) || state.flights.contains_key(&key)
    }

    /// Keeps `block`, which is that of `key`, until the result is dropped.
    pub fn pin(self: &Arc<Self>, key: K, block: Arc<Block>) -> Pin<K> {
        lock(&self.state).pin(key, &block);
        Pin {
            cache: self.clone(),
            key,
            block,
        }
    }

    /// Forgets the blocks of `keys` that nobody has pinned.
    pub fn discard(&self, keys: impl IntoIterator<Item = K>) {
        let mut state = lock(&self.state);
        let dropped: Vec<_> = keys.into_iter().filter_map(|key| state.idle.pop(&key)).collect();
        drop(state);
        drop(dropped);
    }

    /// Sets `bytes` aside, evicting what was used least recently until they fit.
    pub fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut evicted = Vec::new();
        let mut state = lock(&self.state);
        loop {
            let crowded = state.idle.len() + state.pinned.len() >= self.most_blocks;
            if !crowded && let Some(reservation) = self.budget.reserve(bytes) {
                return Some(reservation);
            }
            if bytes > self.budget.limit() {
                return None;
            }
            let (_, block) = state.idle.pop_lru()?;
            state.counters.evictions += 1;
            // The bytes come back when the last reader of the block is done with it, which is now unless a reply
            // is being written.
            if Arc::strong_count(&block) > 1 {
                evicted.push(block);
            }
        }
    }

    /// Bytes that blocks occupy or will.
    pub fn used(&self) -> u64 {
        self.budget.used()
    }

    /// The budget's size in bytes.
    pub fn limit(&self) -> u64 {
        self.budget.limit()
    }

    /// Bytes of the blocks that are pinned.
    pub fn pinned_bytes(&self) -> u64 {
        lock(&self.state)
            .pinned
            .values()
            .map(|(block, _)| block.len() as u64)
            .sum()
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        let state = lock(&self.state);
        let pinned = state.pinned.len() as u64;
        Counters {
            blocks: state.idle.len() as u64 + pinned,
            pinned,
            ..state.counters
        }
    }

    fn settle(&self, key: K, flight: &Flight, outcome: &Outcome) {
        let mut state = lock(&self.state);
        state.flights.remove(&key);
        if let Ok(block) = outcome
            && block.is_accounted()
        {
            state.idle.put(key, block.clone());
        }
        drop(state);
        let mut flight = lock(&flight.state);
        flight.outcome = Some(outcome.clone());
        let waiters = std::mem::take(&mut flight.waiters);
        drop(flight);
        for waiter in waiters {
            waiter(outcome.clone());
        }
    }
}

impl<K: Key> State<K> {
    fn find(&mut self, key: K) -> Option<Arc<Block>> {
        if let Some((block, _)) = self.pinned.get(&key) {
            return Some(block.clone());
        }
        self.idle.get(&key).cloned()
    }

    fn pin(&mut self, key: K, block: &Arc<Block>) {
        self.idle.pop(&key);
        self.pinned.entry(key).or_insert_with(|| (block.clone(), 0)).1 += 1;
    }

    fn unpin(&mut self, key: K) {
        let Some((_, pins)) = self.pinned.get_mut(&key) else {
            return;
        };
        *pins -= 1;
        if *pins == 0
            && let Some((block, _)) = self.pinned.remove(&key)
        {
            self.idle.put(key, block);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
