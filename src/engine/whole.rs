//! Whole arrays of a tile in files of the private tmpfs, for the kernel to serve by itself.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::chunk::decode_into;
use super::{Engine, ReadError};
use crate::cache::mapping::{Window, map_finished};
use crate::cache::{Block, Failure, Key, Lookup, Outcome, Pin, Reservation, Ticket};
use crate::dataset::{Array, DatasetError, Tile};
use crate::format::TileId;
use crate::store::StoreError;

/// Of the budget, this much at most stays free of open files, so that reads through FUSE have where to decode to.
const LEAST_FOR_READS: u64 = 256 << 20;
/// Memory comes in pages.
const PAGE: u64 = 4096;

/// What becomes of the file: `None` when there is no room for it.
type Done = Box<dyn FnOnce(Result<Option<Pin>, ReadError>) + Send>;

/// Hands the outcome to whoever asked first.
type Deliver = Box<dyn FnOnce(Outcome) + Send>;

impl Engine {
    /// A whole array in a file, decoded now if it is not there. `done` gets `None` when files that are open fill the
    /// budget; then the array can be read all the same, chunk by chunk.
    pub fn whole(
        self: &Arc<Self>,
        tile: TileId,
        array: Array,
        done: impl FnOnce(Result<Option<Pin>, ReadError>) + Send + 'static,
    ) {
        let key = Key::Whole { tile, array };
        if let Some(block) = self.cache.get(key) {
            return done(Ok(Some(self.cache.pin(key, block))));
        }
        self.spawn(move |engine| engine.make_whole(key, tile, array, Box::new(done)));
    }

    /// The whole array if it is there.
    pub(super) fn whole_block(&self, tile: TileId, array: Array) -> Option<Arc<Block>> {
        self.tmpfs
            .as_ref()
            .and_then(|_| self.cache.get(Key::Whole { tile, array }))
    }

    fn make_whole(self: &Arc<Self>, key: Key, tile: TileId, array: Array, done: Done) {
        let engine = self.clone();
        let deliver = move |outcome: Outcome| match outcome {
            Ok(block) => done(Ok(Some(engine.cache.pin(key, block)))),
            Err(Failure::NoRoom) => done(Ok(None)),
            Err(failure) => done(Err(failure.into())),
        };
        match self.cache.lookup(key) {
            Lookup::Hit(block) => deliver(Ok(block)),
            Lookup::Busy(pending) => pending.subscribe(deliver),
            Lookup::Missing(ticket) => {
                let tile = match self.view.dataset().tile(tile) {
                    Ok(tile) => tile,
                    Err(error) => {
                        self.failed(&error);
                        return deliver(ticket.finish(Err(Failure::Failed(Arc::new(error)))));
                    }
                };
                self.fill(tile, array, ticket, Box::new(deliver));
            }
        }
    }

    fn fill(self: &Arc<Self>, tile: Arc<Tile>, array: Array, ticket: Ticket, deliver: Deliver) {
        let bytes = array.bytes(&tile.layout().spec);
        let (file, reservation) = match self.make_room(&tile, bytes, &ticket) {
            Ok(Some(made)) => made,
            Ok(None) => return deliver(ticket.finish(Err(Failure::NoRoom))),
            Err(error) => {
                self.failed(&error);
                return deliver(ticket.finish(Err(Failure::Failed(Arc::new(error)))));
            }
        };
        let chunks = if array == Array::Indptr {
            1
        } else {
            tile.layout().chunks.len()
        };
        let workers = self.threads.min(chunks.max(1));
        let fill = Arc::new(Fill {
            tile,
            array,
            bytes,
            file,
            next: AtomicUsize::new(0),
            working: AtomicUsize::new(workers),
            failed: OnceLock::new(),
            end: Mutex::new(Some((ticket, reservation, deliver))),
        });
        for _ in 1..workers {
            let fill = fill.clone();
            self.spawn(move |engine| fill.take_part(engine));
        }
        fill.take_part(self);
    }

    /// A file of `bytes` bytes with its memory, unless open files fill the budget.
    fn make_room(&self, tile: &Tile, bytes: u64, ticket: &Ticket) -> Result<Option<(File, Reservation)>, DatasetError> {
        let Some(tmpfs) = &self.tmpfs else { return Ok(None) };
        let limit = self.cache.limit();
        let for_files = limit - (limit / 2).min(LEAST_FOR_READS.max(limit / 8));
        let rounded = bytes.next_multiple_of(PAGE);
        // Files being filled are about to be pinned.
        let filling = self.filling.fetch_add(rounded, Ordering::AcqRel);
        let room = self
            .cache
            .pinned_bytes()
            .saturating_add(filling)
            .saturating_add(rounded)
            <= for_files;
        let made = match room.then(|| ticket.reserve(rounded)).flatten() {
            Some(reservation) => tmpfs.file(bytes).map(|file| Some((file, reservation))),
            None => Ok(None),
        };
        match made {
            Ok(Some(made)) => return Ok(Some(made)),
            Ok(None) => {}
            // The machine has less memory than the budget: read requests need far less of it at a time.
            Err(error) => log::warn!("{}: no memory to keep an array of {bytes} bytes: {error}", tile.name()),
        }
        self.filling.fetch_sub(rounded, Ordering::AcqRel);
        Ok(None)
    }
}

/// What there is to do when it is full.
type End = (Ticket, Reservation, Deliver);

/// A file being filled, by every thread that takes part.
struct Fill {
    tile: Arc<Tile>,
    array: Array,
    bytes: u64,
    file: File,
    next: AtomicUsize,
    working: AtomicUsize,
    failed: OnceLock<Arc<DatasetError>>,
    end: Mutex<Option<End>>,
}

impl Fill {
    fn take_part(&self, engine: &Arc<Engine>) {
        // A thread that panics has not failed the others: it still counts down, and leaves the fault behind.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work(engine)));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => drop(self.failed.set(Arc::new(error))),
            Err(_) => {
                let source = std::io::Error::other("decoding panicked");
                drop(
                    self.failed.set(Arc::new(
                        StoreError {
                            name: self.tile.name(),
                            source,
                        }
                        .into(),
                    )),
                );
            }
        }
        if self.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(engine);
        }
    }

    fn work(&self, engine: &Arc<Engine>) -> Result<(), DatasetError> {
        engine.view.dataset().verify(&self.tile)?;
        if self.array == Array::Indptr {
            let bytes: Vec<u8> = self
                .tile
                .indptr()
                .iter()
                .flat_map(|entry| entry.to_le_bytes())
                .collect();
            return self.write(0, bytes.len(), |out| {
                out.copy_from_slice(&bytes);
                Ok(())
            });
        }
        let id = self.tile.layout().spec.id;
        while self.failed.get().is_none() {
            let Some(chunk) = self.tile.layout().chunks.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let length = chunk.nnz() as usize * 4;
            let key = Key::Chunk {
                tile: id,
                array: self.array,
                chunk: chunk.index,
            };
            let decoded = engine.cache.peek(key);
            self.write(chunk.nonzeros.start * 4, length, |out| match decoded {
                Some(block) => {
                    out.copy_from_slice(&block);
                    Ok(())
                }
                None => {
                    engine.stats.count_chunk(length as u64);
                    decode_into(&self.tile, self.array, chunk.index, out)
                }
            })?;
        }
        Ok(())
    }

    fn write(
        &self,
        offset: u64,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        if length == 0 {
            return Ok(());
        }
        let mut window = Window::open(&self.file, offset, length).map_err(|source| StoreError {
            name: self.tile.name(),
            source,
        })?;
        fill(window.bytes())
    }

    fn finish(&self, engine: &Arc<Engine>) {
        let Some((ticket, reservation, deliver)) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take()
        else {
            return;
        };
        let block = match self.failed.get() {
            None => self.block(reservation).map_err(Arc::new),
            Some(error) => Err(error.clone()),
        };
        let outcome = ticket.finish(block.map_err(|error| {
            engine.failed(&error);
            // The next reader looks at the file again.
            engine.view.dataset().forget(self.tile.layout().spec.id);
            Failure::Failed(error)
        }));
        if outcome.is_ok() {
            let (tile, array) = (self.tile.layout().spec.id, self.array);
            let chunks = 0..self.tile.layout().chunks.len();
            engine
                .cache
                .discard(chunks.map(|chunk| Key::Chunk { tile, array, chunk }));
        }
        deliver(outcome);
        let rounded = self.bytes.next_multiple_of(PAGE);
        engine.filling.fetch_sub(rounded, Ordering::AcqRel);
    }

    fn block(&self, reservation: Reservation) -> Result<Block, DatasetError> {
        let failed = |source| StoreError {
            name: self.tile.name(),
            source,
        };
        let file = self.file.try_clone().map_err(failed)?;
        let map = if self.bytes == 0 {
            None
        } else {
            Some(map_finished(&file).map_err(failed)?)
        };
        Ok(Block::from_file(file, map, reservation))
    }
}
