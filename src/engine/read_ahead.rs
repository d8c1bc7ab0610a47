//! Decoding what a reader will ask for next, for readers that read on.
//!
//! A reader is whoever asks for a stretch of one array of the whole matrix and then for the next one, through
//! whatever file or files: a descriptor is not one, since a reader of `dataset.h5ad` goes through two arrays in turn, and
//! a reader of `dataset.zarr` or of tiles opens one file after another. Those who jump about are never taken for one.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Engine, Key};
use crate::cache::Lookup;
use crate::dataset::Array;
use crate::format::TileId;
use crate::view::ArrayFile;

/// A reader has read this many bytes in a row: more than the kernel reads around a page that somebody touched.
const RUN: u64 = 8 << 20;
/// The kernel sends the requests of its own read-ahead in any order; so far apart they still belong together.
const FORTH: u64 = 4 << 20;
const BACK: u64 = 8 << 20;
/// Readers that are told apart. One that jumps takes up another place with each jump.
const READERS: usize = 32;
/// Of the budget, what is decoded ahead takes no more than one part in this many.
const SHARE: u64 = 4;
/// Tiles that somebody has opened in a row, before the next one is decoded.
const TILES_IN_A_ROW: usize = 3;
/// Programs whose opens are remembered.
const PROGRAMS: usize = 256;

/// Who reads what.
#[derive(Default)]
pub(super) struct Readers(Mutex<Known>);

#[derive(Default)]
struct Known {
    readers: Vec<Reader>,
    /// By process and file, the last tile opened and how many were in a row.
    opens: HashMap<(u32, ArrayFile), (TileId, usize)>,
    clock: u64,
}

/// Somebody at a place of an array of the whole matrix; places are bytes of that array.
#[derive(Debug)]
struct Reader {
    array: Array,
    start: u64,
    at: u64,
    /// Bytes that were read on the way from `start` to `at`.
    read: u64,
    /// From this place on there is something to do.
    next: u64,
    last_seen: u64,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a read of `bytes` of an array of the whole matrix. Returns the reader's place if chunks are to be decoded for it;
    /// then [`Self::done_until`] must be called.
    fn note(&self, array: Array, bytes: &Range<u64>) -> Option<u64> {
        let mut known = self.lock();
        known.clock += 1;
        let clock = known.clock;
        let reader = known.find(array, bytes.start);
        reader.last_seen = clock;
        reader.read += bytes.end - bytes.start;
        reader.start = reader.start.min(bytes.start);
        reader.at = reader.at.max(bytes.end);
        let way = reader.at - reader.start;
        if way < RUN || reader.read < way / 4 * 3 || reader.at < reader.next {
            return None;
        }
        reader.next = u64::MAX;
        Some(reader.at)
    }

    /// Notes from which place on more is to be decoded for the reader that was at `place`.
    fn done_until(&self, array: Array, place: u64, next: u64) {
        let mut known = self.lock();
        let mut same = known.readers.iter_mut().filter(|reader| reader.array == array);
        if let Some(reader) = same.find(|reader| reader.next == u64::MAX && (reader.start..=reader.at).contains(&place))
        {
            reader.next = next;
        }
    }

    /// Notes that a process opened a file of a tile. Returns whether the next tile's is worth decoding.
    fn note_open(&self, process: u32, tile: TileId, file: ArrayFile) -> bool {
        let mut known = self.lock();
        if known.opens.len() >= PROGRAMS {
            known.opens.clear();
        }
        let (last, run) = known.opens.entry((process, file)).or_insert((tile, 0));
        if *last == tile && *run > 0 {
            return false;
        }
        *run = if *last + 1 == tile { *run + 1 } else { 1 };
        *last = tile;
        *run >= TILES_IN_A_ROW
    }
}

impl Known {
    /// The reader who is near `start`, or a new one.
    fn find(&mut self, array: Array, start: u64) -> &mut Reader {
        let near = |reader: &&Reader| {
            reader.array == array && (reader.at.saturating_sub(BACK)..=reader.at + FORTH).contains(&start)
        };
        let found = self
            .readers
            .iter()
            .filter(near)
            .min_by_key(|reader| reader.at.abs_diff(start));
        let found = found.map(|reader| reader.last_seen);
        let at = match found.and_then(|seen| self.readers.iter().position(|reader| reader.last_seen == seen)) {
            Some(at) => at,
            None => self.place_for(Reader {
                array,
                start,
                at: start,
                read: 0,
                next: 0,
                last_seen: 0,
            }),
        };
        &mut self.readers[at]
    }

    fn place_for(&mut self, new: Reader) -> usize {
        if self.readers.len() < READERS {
            self.readers.push(new);
            return self.readers.len() - 1;
        }
        let oldest = self
            .readers
            .iter()
            .enumerate()
            .min_by_key(|(_, reader)| reader.last_seen);
        let at = oldest.map_or(0, |(at, _)| at);
        self.readers[at] = new;
        at
    }
}

impl Engine {
    /// Notes a read of bytes of a tile's array, and has the next chunks decoded if somebody reads on.
    pub(super) fn note_read(self: &Arc<Self>, tile: TileId, array: Array, bytes: &Range<u64>) {
        let start = self.view.dataset().manifest().nnz_before(tile) * array.width();
        let place = self.readers.note(array, &(start + bytes.start..start + bytes.end));
        if let Some(place) = place {
            self.spawn(move |engine| {
                let next = engine.decode_ahead(array, place);
                engine.readers.done_until(array, place, next);
            });
        }
    }

    /// Has the chunks from `place` on decoded, as many as there are threads and one more, across tiles. Returns where the
    /// reader should be when that is to be done again.
    fn decode_ahead(self: &Arc<Self>, array: Array, place: u64) -> u64 {
        let dataset = self.view.dataset();
        let (manifest, width) = (dataset.manifest(), array.width());
        let mut room = self.cache.limit() / SHARE;
        let mut left = self.threads + 1;
        let mut next = u64::MAX;
        let Some(first) = manifest.tile_of_nonzero(place / width) else {
            return next;
        };
        for id in first..manifest.n_tiles() {
            if manifest.tile_nnz[id] == 0 {
                continue;
            }
            // What is wrong with it is told by whoever reads it.
            let Ok(tile) = dataset.tile(id) else { break };
            let start = manifest.nnz_before(id) * width;
            for chunk in &tile.layout().chunks {
                let end = start + chunk.nonzeros.end * width;
                let bytes = chunk.nnz() * width;
                if chunk.nnz() == 0 || end <= place {
                    continue;
                }
                if bytes > room || left == 0 {
                    return next;
                }
                next = next.min(end);
                room -= bytes;
                left -= 1;
                self.decode_early(&tile, array, chunk.index);
            }
        }
        next
    }

    fn decode_early(self: &Arc<Self>, tile: &Arc<crate::dataset::Tile>, array: Array, chunk: usize) {
        let id = tile.layout().spec.id;
        let key = Key::Chunk { tile: id, array, chunk };
        if self.cache.has(key) || self.whole_block(id, array).is_some() {
            return;
        }
        if let Lookup::Missing(ticket) = self.cache.lookup(key) {
            let tile = tile.clone();
            self.stats.count_prefetch();
            self.spawn(move |engine| drop(engine.decode_chunk(&tile, array, chunk, ticket)));
        }
    }

    /// Notes that a process opened a tile's file, and has that of the next tile made if it opens one after another.
    pub(super) fn note_open(self: &Arc<Self>, process: u32, tile: TileId, file: ArrayFile) {
        let manifest = self.view.dataset().manifest();
        let next = tile + 1;
        if !self.readers.note_open(process, tile, file) || next >= manifest.n_tiles() {
            return;
        }
        let bytes = file.bytes(file.entries_of_tile(manifest, next));
        let key = Key::Whole { tile: next, file };
        if bytes > self.cache.limit() / SHARE || self.cache.has(key) {
            return;
        }
        self.stats.count_prefetch();
        self.spawn(move |engine| engine.make_whole(next, file, Box::new(drop)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Elements, Form};

    const MIB: u64 = 1 << 20;

    fn note(readers: &Readers, array: Array, start: u64, length: u64) -> bool {
        readers.note(array, &(start..start + length)).is_some()
    }

    #[test]
    fn a_reader_who_reads_on_is_noticed_after_a_run() {
        let readers = Readers::default();
        let noticed = (0..20).position(|i| note(&readers, Array::Data, i * MIB, MIB));
        assert_eq!(noticed, Some((RUN / MIB) as usize - 1));
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_reader() {
        let readers = Readers::default();
        let order = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8];
        assert!(order.into_iter().any(|i| note(&readers, Array::Data, i * MIB, MIB)));
    }

    #[test]
    fn one_who_alternates_between_arrays_is_two_readers() {
        let readers = Readers::default();
        let mut noticed = [false; 2];
        for i in 0..20 {
            noticed[0] |= note(&readers, Array::Data, i * MIB / 2, MIB / 2);
            noticed[1] |= note(&readers, Array::Indices, i * MIB / 2, MIB / 2);
        }
        assert_eq!(noticed, [true, true]);
    }

    #[test]
    fn those_who_jump_are_never_noticed() {
        let readers = Readers::default();
        let mut state = 1_u64;
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let place = (state >> 33) % 800 * MIB + (state >> 20) % MIB;
            assert!(!note(&readers, Array::Data, place, 64 << 10));
            assert!(!note(&readers, Array::Indices, place / 4 * 4, 300 << 10));
        }
    }

    #[test]
    fn reading_one_place_again_and_again_is_not_reading_on() {
        let readers = Readers::default();
        assert!((0..1000).all(|_| !note(&readers, Array::Data, 5 * MIB, MIB)));
    }

    #[test]
    fn what_was_asked_for_is_not_asked_for_again_before_its_time() {
        let readers = Readers::default();
        let mut asked = Vec::new();
        for i in 0..40 {
            if let Some(place) = readers.note(Array::Data, &(i * MIB..(i + 1) * MIB)) {
                asked.push(i);
                readers.done_until(Array::Data, place, place + 10 * MIB);
            }
        }
        assert_eq!(asked, [7, 17, 27, 37]);
    }

    #[test]
    fn tiles_opened_in_order_by_one_process_are_noticed_and_others_are_not() {
        let file = ArrayFile {
            elements: Elements::Counts,
            form: Form::Raw,
        };
        let readers = Readers::default();
        let opens: Vec<bool> = (3..8).map(|tile| readers.note_open(1, tile, file)).collect();
        assert_eq!(opens, [false, false, true, true, true]);
        assert!(!readers.note_open(1, 7, file), "the same tile again");
        let jumps = [0, 5, 2, 3, 9, 1, 8, 4, 6, 7];
        assert!(jumps.into_iter().all(|tile| !readers.note_open(2, tile, file)));
    }
}
