//! Whole files of a tile in files of the private tmpfs, for the kernel to serve by itself.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::chunk::decode_into;
use super::fetch::Fetched;
use super::{Engine, Key, Pin, ReadError};
use crate::cache::mapping::{Window, map_finished};
use crate::cache::{Block, Failure, Lookup, Outcome, Reservation, Ticket};
use crate::dataset::{Array, DatasetError, Part, Tile};
use crate::format::TileId;
use crate::store::StoreError;
use crate::view::{ArrayFile, Elements, Form};

/// Of the budget, this much at most stays free of open files, so that reads through FUSE have where to decode to.
const LEAST_FOR_READS: u64 = 256 << 20;
/// Memory comes in pages.
const PAGE: u64 = 4096;

/// What becomes of the file: `None` when there is no room for it.
type Done = Box<dyn FnOnce(Result<Option<Pin>, ReadError>) + Send>;
/// Hands the outcome to whoever asked first.
type Deliver = Box<dyn FnOnce(Outcome) + Send>;

impl Engine {
    /// A whole file of a tile in a file, decoded now if it is not there. `done` gets `None` when files that are open fill
    /// the budget; then it can be read all the same, chunk by chunk.
    ///
    /// `process` is who opens it: one that opens one tile after another finds the next one made.
    pub fn whole(
        self: &Arc<Self>,
        tile: TileId,
        file: ArrayFile,
        process: u32,
        done: impl FnOnce(Result<Option<Pin>, ReadError>) + Send + 'static,
    ) {
        let key = Key::Whole { tile, file };
        if let Some(block) = self.cache.get(key) {
            done(Ok(Some(self.cache.pin(key, block))));
            return self.note_open(process, tile, file);
        }
        let engine = self.clone();
        let done = move |made| {
            done(made);
            // The next one must not take processors from this one.
            engine.note_open(process, tile, file);
        };
        self.spawn(move |engine| engine.make_whole(tile, file, Box::new(done)));
    }

    /// A file of a tile that has the array as decoded, and where in the file the array starts.
    pub(super) fn whole_block(&self, tile: TileId, array: Array) -> Option<(Arc<Block>, usize)> {
        self.tmpfs.as_ref()?;
        let elements = match array {
            Array::Indptr => Elements::Indptr,
            Array::Indices => Elements::Indices,
            Array::Data => Elements::Counts,
        };
        [Form::Raw, Form::Npy].into_iter().find_map(|form| {
            let file = ArrayFile { elements, form };
            let block = self.cache.get(Key::Whole { tile, file })?;
            let manifest = self.view.dataset().manifest();
            Some((block, file.header(file.entries_of_tile(manifest, tile)).len()))
        })
    }

    pub(super) fn make_whole(self: &Arc<Self>, tile: TileId, file: ArrayFile, done: Done) {
        let key = Key::Whole { tile, file };
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
                let fill = move |engine: &Arc<Self>, fetched: Result<Fetched, Arc<DatasetError>>| match fetched {
                    Ok(fetched) => engine.fill(fetched, file, ticket, Box::new(deliver)),
                    Err(error) => {
                        engine.failed(&error);
                        deliver(ticket.finish(Err(Failure::Failed(error))));
                    }
                };
                match self.reach(tile) {
                    Ok(Some(fetched)) => fill(self, Ok(fetched)),
                    Ok(None) => self.fetch(tile, Part::Whole, fill),
                    Err(error) => fill(self, Err(Arc::new(error))),
                }
            }
        }
    }

    fn fill(self: &Arc<Self>, fetched: Fetched, kind: ArrayFile, ticket: Ticket<Key>, deliver: Deliver) {
        let tile = &fetched.tile;
        let entries = kind.elements.array().entries(&tile.layout().spec);
        let bytes = kind.bytes(entries);
        let (file, reservation) = match self.make_room(tile, bytes, &ticket) {
            Ok(Some(made)) => made,
            Ok(None) => return deliver(ticket.finish(Err(Failure::NoRoom))),
            Err(error) => {
                self.failed(&error);
                return deliver(ticket.finish(Err(Failure::Failed(Arc::new(error)))));
            }
        };
        let chunks = if kind.elements == Elements::Indptr {
            1
        } else {
            tile.layout().chunks.len()
        };
        let workers = self.threads.min(chunks.max(1));
        let fill = Arc::new(Fill {
            fetched,
            kind,
            header: kind.header(entries),
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
    fn make_room(
        &self,
        tile: &Tile,
        bytes: u64,
        ticket: &Ticket<Key>,
    ) -> Result<Option<(File, Reservation)>, DatasetError> {
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
type End = (Ticket<Key>, Reservation, Deliver);

/// A file being filled, by every thread that takes part.
struct Fill {
    /// The tile, whose bytes stay in reach until all is decoded.
    fetched: Fetched,
    kind: ArrayFile,
    header: Vec<u8>,
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
                            name: self.fetched.tile.name(),
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
        engine.view.dataset().verify(&self.fetched.tile)?;
        let array = self.kind.elements.array();
        let start = self.header.len() as u64;
        if array == Array::Indptr {
            let entries = self.fetched.tile.indptr().iter().flat_map(|entry| entry.to_le_bytes());
            let bytes: Vec<u8> = self.header.iter().copied().chain(entries).collect();
            return self.copy(&bytes);
        }
        let id = self.fetched.tile.layout().spec.id;
        while self.failed.get().is_none() {
            let Some(chunk) = self
                .fetched
                .tile
                .layout()
                .chunks
                .get(self.next.fetch_add(1, Ordering::Relaxed))
            else {
                break;
            };
            let length = chunk.nnz() as usize * 4;
            let key = Key::Chunk {
                tile: id,
                array,
                chunk: chunk.index,
            };
            let decoded = engine.cache.peek(key);
            self.write(start + chunk.nonzeros.start * 4, length, |out| {
                match decoded {
                    Some(block) => out.copy_from_slice(&block),
                    None => {
                        engine.stats.count_chunk(length as u64);
                        decode_into(&self.fetched.tile, array, chunk.index, out)?;
                    }
                }
                if self.kind.elements == Elements::Floats {
                    ints_to_floats(out);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn copy(&self, bytes: &[u8]) -> Result<(), DatasetError> {
        self.write(0, bytes.len(), |out| {
            out.copy_from_slice(bytes);
            Ok(())
        })
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
            name: self.fetched.tile.name(),
            source,
        })?;
        fill(window.bytes())
    }

    fn finish(&self, engine: &Arc<Engine>) {
        let Some((ticket, reservation, deliver)) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take()
        else {
            return;
        };
        let headed = || match self.kind.elements {
            Elements::Indptr => Ok(()),
            Elements::Indices | Elements::Counts | Elements::Floats => self.copy(&self.header),
        };
        let block = match self.failed.get() {
            None => headed().and_then(|()| self.block(reservation)).map_err(Arc::new),
            Some(error) => Err(error.clone()),
        };
        let outcome = ticket.finish(block.map_err(|error| {
            engine.failed(&error);
            engine.give_up(&self.fetched.tile, &error);
            Failure::Failed(error)
        }));
        if outcome.is_ok() {
            self.discard_chunks(engine);
        }
        deliver(outcome);
        let rounded = self.bytes.next_multiple_of(PAGE);
        engine.filling.fetch_sub(rounded, Ordering::AcqRel);
    }

    /// Forgets chunks that are in the file as well.
    fn discard_chunks(&self, engine: &Arc<Engine>) {
        if self.kind.elements == Elements::Floats {
            return;
        }
        let (tile, array) = (self.fetched.tile.layout().spec.id, self.kind.elements.array());
        let chunks = 0..self.fetched.tile.layout().chunks.len();
        engine
            .cache
            .discard(chunks.map(|chunk| Key::Chunk { tile, array, chunk }));
    }

    fn block(&self, reservation: Reservation) -> Result<Block, DatasetError> {
        let failed = |source| StoreError {
            name: self.fetched.tile.name(),
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

/// Makes float32 of int32, in place.
pub(super) fn ints_to_floats(bytes: &mut [u8]) {
    for entry in bytes.as_chunks_mut::<4>().0 {
        *entry = (i32::from_le_bytes(*entry) as f32).to_le_bytes();
    }
}
