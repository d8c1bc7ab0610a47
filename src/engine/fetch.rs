//! Tiles of datasets in object stores: fetched without keeping a decode thread, all of a tile or the parts that a reader
//! needs.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Engine;
use crate::dataset::{DatasetError, Part, Tile};
use crate::format::TileId;
use crate::format::manifest::TileSpec;
use crate::store::Held;

/// Of a tile that is smaller, all is fetched at once: a second request takes longer than the rest of the tile.
const LEAST_FOR_PARTS: u64 = 4 << 20;
/// The same of one of which the row starts are needed.
const LEAST_FOR_HEAD: u64 = 512 << 10;
/// No more than one part in this many of a tile is fetched in parts; who wants more gets all of it.
const SHARE_IN_PARTS: u64 = 4;

/// All of a tile is fetched for a reader of a few cells where at least so many of its size fit into memory.
const TILES_THAT_FIT: u64 = 4;

/// A tile of which a part is in memory as long as this is there.
#[derive(Clone)]
pub(super) struct Fetched {
    pub tile: Arc<Tile>,
    #[allow(dead_code, reason = "what counts is that it is there")]
    held: Held,
}

/// What a reader needs of a tile, as far as that can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needed {
    Much,
    FewCells,
    RowStarts,
}

/// What becomes of a part that was fetched.
type Then = Box<dyn FnOnce(&Arc<Engine>, Result<Fetched, Arc<DatasetError>>) + Send>;

/// What is being fetched, and who waits for it.
#[derive(Default)]
pub(super) struct Fetching(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: HashMap<(TileId, Part), Vec<Then>>,
    /// Tiles that were found to be wrong: no parts of these, which would not show that they are.
    distrusted: HashSet<TileId>,
}

impl Fetching {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the tile be fetched whole from now on.
    pub(super) fn distrust(&self, tile: TileId) {
        self.lock().distrusted.insert(tile);
    }

    fn trusts(&self, tile: TileId) -> bool {
        !self.lock().distrusted.contains(&tile)
    }
}

impl Engine {
    /// Whether tiles have to be fetched.
    pub(super) fn is_remote(&self) -> bool {
        self.view.dataset().store().is_remote()
    }

    /// Runs `work` on the decode pool; where it may wait for a server, on a thread that may.
    pub(super) fn spawn_patient(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) {
        if !self.is_remote() {
            return self.spawn(work);
        }
        let engine = self.clone();
        let work = move || {
            // What the dead job owed to others is told to them as it is dropped.
            if catch_unwind(AssertUnwindSafe(|| work(&engine))).is_err() {
                log::error!("a thread that reads from a store panicked; its readers get an error");
            }
        };
        self.view.dataset().store().wait_in(Box::new(work));
    }

    /// The tile with all of its bytes in reach; `None` when they have to be fetched.
    pub(super) fn reach(&self, id: TileId) -> Result<Option<Fetched>, DatasetError> {
        let dataset = self.view.dataset();
        let tile = match dataset.opened(id) {
            Some(tile) => tile,
            None if self.is_remote() => return Ok(None),
            None => dataset.tile(id)?,
        };
        let held = tile.hold(Part::Whole);
        Ok(held.map(|held| Fetched { tile, held }))
    }

    /// Fetches a part of a tile, unless that is being done, and calls `then` on a thread of the pool.
    pub(super) fn fetch(
        self: &Arc<Self>,
        tile: TileId,
        part: Part,
        then: impl FnOnce(&Arc<Self>, Result<Fetched, Arc<DatasetError>>) + Send + 'static,
    ) {
        if let Some(error) = self.tiles_not_given.failure(&tile) {
            return self.spawn(move |engine| then(engine, Err(error)));
        }
        let mut fetching = self.fetching.lock();
        let waiting = fetching.waiting.entry((tile, part)).or_default();
        waiting.push(Box::new(then));
        let is_first = waiting.len() == 1;
        drop(fetching);
        if is_first {
            self.spawn_patient(move |engine| {
                let read = || engine.view.dataset().fetch(tile, part).map_err(Arc::new);
                // Whoever waits is told by being dropped.
                let fetched = catch_unwind(AssertUnwindSafe(read)).ok();
                let waiting = engine.fetching.lock().waiting.remove(&(tile, part));
                let Some(fetched) = fetched else { return };
                if let Err(error) = &fetched {
                    engine.tiles_not_given.note(tile, error);
                }
                let fetched = fetched.map(|(tile, held)| Fetched { tile, held });
                if let Ok(fetched) = &fetched
                    && part == Part::Whole
                    && fetched.tile.bytes_in_parts() > 0
                {
                    engine.check_early(fetched.clone());
                }
                for then in waiting.into_iter().flatten() {
                    let fetched = fetched.clone();
                    engine.spawn(move |engine| then(engine, fetched));
                }
            });
        }
    }

    /// Checks a tile of which parts were served, now that it is whole.
    fn check_early(self: &Arc<Self>, fetched: Fetched) {
        self.spawn(move |engine| {
            let tile = &fetched.tile;
            match engine.view.dataset().verify(tile) {
                Ok(()) => {
                    engine.discard_unverified(tile);
                    if !tile.parts_agree() {
                        log::error!("{}: parts that were read before had wrong bytes", tile.name());
                        engine.stats.count_error("checksum");
                    }
                }
                Err(error) => {
                    engine.failed(&error);
                    engine.give_up(tile, &error);
                }
            }
        });
    }

    /// What is to be fetched of a tile that is not open, for a reader who needs this of it.
    pub(super) fn first_part(&self, tile: TileId, needed: Needed) -> Part {
        let least = match needed {
            Needed::Much => return Part::Whole,
            Needed::FewCells => LEAST_FOR_PARTS,
            Needed::RowStarts => LEAST_FOR_HEAD,
        };
        let bytes = self.view.dataset().manifest().tile(tile).bytes;
        match bytes >= least && self.fetching.trusts(tile) {
            true => Part::Head,
            false => Part::Whole,
        }
    }

    /// What is to be fetched of a tile of which a chunk is needed.
    pub(super) fn part_for_chunk(&self, tile: &Tile, chunk: usize, needed: Needed) -> Part {
        let part = Part::Chunk(chunk);
        let TileSpec { id, bytes, .. } = tile.layout().spec;
        let few = || tile.bytes_in_parts() + tile.part_bytes(part) <= bytes / SHARE_IN_PARTS;
        // Where few tiles fit into memory, all of one would be gone before the reader comes back to it.
        let fits = bytes <= self.view.dataset().store().room() / TILES_THAT_FIT;
        match needed == Needed::FewCells && bytes >= LEAST_FOR_PARTS && (few() || !fits) && self.fetching.trusts(id) {
            true => part,
            false => Part::Whole,
        }
    }
}
