//! Decoding what a reader will ask for next, for readers that read on.
//!
//! A reader is whoever asks for a stretch of one array of the whole matrix and then for the next one, through
//! whatever file or files: a descriptor is not one, since a reader of `dataset.h5ad` goes through two arrays in turn, and
//! a reader of `dataset.zarr` or of tiles opens one file after another. Those who jump about are never taken for one.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fetch::Fetched;
use super::{Engine, Key};
use crate::cache::Lookup;
use crate::dataset::{Array, Part};
use crate::format::TileId;
use crate::view::ArrayFile;

/// A reader has read this many bytes in a row: more than the kernel reads around a page that somebody touched.
const RUN: u64 = 8 << 20;
/// Where waiting for a tile costs a request to a server, a quarter of a small one is taken for the beginning of a run, but no
/// less than this.
const LEAST_REMOTE_RUN: u64 = 1 << 20;
/// The kernel sends the requests of its own read-ahead in any order; so far apart they still belong together.
const FORTH: u64 = 4 << 20;
const BACK: u64 = 8 << 20;
/// Readers that are told apart. One that jumps takes up another place with each jump.
const READERS: usize = 32;
/// Of the budget, what is decoded ahead takes no more than one part in this many.
const SHARE: u64 = 4;
/// At least so much is decoded ahead, however small chunks are.
const AHEAD: u64 = 4 << 20;
/// What was decoded for a reader stays for others as long as the reader is not this far past it.
const BEHIND: u64 = 64 << 20;
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
    id: u64,
    array: Array,
    start: u64,
    at: u64,
    /// Bytes that were read on the way from `start` to `at`.
    read: u64,
    /// Whether it has come far enough once.
    has_run: bool,
    /// From this place on there is something to do.
    next: u64,
    last_seen: u64,
    /// What was decoded for it, and where that ends.
    decoded: VecDeque<Decoded>,
}

/// A chunk that nobody had asked for when it was decoded, and where in the array of the whole matrix it ends.
type Decoded = (Key, u64);

/// What was decoded for a reader.
#[derive(Debug, Default)]
struct Ahead {
    decoded: Vec<Decoded>,
    /// Where the reader should be when more is to be decoded.
    next: u64,
}

impl Ahead {
    fn nothing_until(next: u64) -> Self {
        Self {
            decoded: Vec::new(),
            next,
        }
    }
}

/// What a read says of its reader.
#[derive(Debug)]
struct Noted {
    /// Whether it reads one stretch after another.
    reads_on: bool,
    /// Bytes from where it began to where it is.
    way: u64,
    /// The reader and its place, if chunks are to be decoded for it; then [`Readers::decoded`] must be called.
    due: Option<(u64, u64)>,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a read of `bytes` of an array of the whole matrix.
    fn note(&self, array: Array, bytes: &Range<u64>, run: u64) -> Noted {
        let mut known = self.lock();
        known.clock += 1;
        let clock = known.clock;
        let reader = known.find(array, bytes.start);
        reader.last_seen = clock;
        reader.read += bytes.end - bytes.start;
        reader.start = reader.start.min(bytes.start);
        reader.at = reader.at.max(bytes.end);
        let way = reader.at - reader.start;
        reader.has_run |= way >= run;
        let reads_on = reader.has_run && reader.read >= way / 4 * 3;
        let is_due = reads_on && reader.at >= reader.next;
        if is_due {
            reader.next = u64::MAX;
        }
        Noted {
            reads_on,
            way,
            due: is_due.then_some((reader.id, reader.at)),
        }
    }

    /// Notes what was decoded for a reader. Returns what was decoded for it before and is now far
    /// behind it: one who reads on does not come back, and memory that is used again costs less than more of it.
    fn decoded(&self, reader: u64, ahead: Ahead) -> Vec<Key> {
        let mut known = self.lock();
        let Some(reader) = known.readers.iter_mut().find(|known| known.id == reader) else {
            return Vec::new();
        };
        reader.next = ahead.next;
        reader.decoded.extend(ahead.decoded);
        let far = |&(_, end): &Decoded| end + BEHIND <= reader.at;
        let behind = reader.decoded.iter().take_while(|decoded| far(decoded)).count();
        reader.decoded.drain(..behind).map(|(key, _)| key).collect()
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
        let id = self.clock;
        let at = match found.and_then(|seen| self.readers.iter().position(|reader| reader.last_seen == seen)) {
            Some(at) => at,
            None => self.place_for(Reader {
                id,
                array,
                start,
                at: start,
                read: 0,
                has_run: false,
                next: 0,
                last_seen: 0,
                decoded: VecDeque::new(),
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
    /// Notes a read of bytes of a tile's array, and has the next chunks decoded if somebody reads on. Returns whether somebody
    /// does.
    pub(super) fn note_read(
        self: &Arc<Self>,
        tile: TileId,
        array: Array,
        bytes: &Range<u64>,
        spans_tiles: bool,
    ) -> bool {
        let manifest = self.view.dataset().manifest();
        let start = manifest.nnz_before(tile) * array.width();
        let bytes = start + bytes.start..start + bytes.end;
        let run = match self.is_remote() {
            // Who begins at the beginning most likely goes on to the end.
            true if bytes.start < LEAST_REMOTE_RUN => LEAST_REMOTE_RUN / 2,
            true => (manifest.tile_nnz[tile] * array.width() / 4).clamp(LEAST_REMOTE_RUN, RUN),
            false => RUN,
        };
        let noted = self.readers.note(array, &bytes, run);
        if let Some((reader, place)) = noted.due {
            // Who reads files of tiles may want one tile and no other.
            let goes_on = spans_tiles || noted.way >= 2 * array.width() * manifest.tile_nnz[tile];
            self.spawn(move |engine| engine.look_ahead(reader, array, place, goes_on));
        }
        noted.reads_on
    }

    /// Has what is ahead of a reader decoded, as soon as its own tile is there.
    fn look_ahead(self: &Arc<Self>, reader: u64, array: Array, place: u64, goes_on: bool) {
        let manifest = self.view.dataset().manifest();
        let first = manifest.tile_of_nonzero(place / array.width());
        let ahead = match first.map(|tile| (tile, self.reach(tile))) {
            Some((tile, Ok(None))) => {
                // What goes wrong is told to whoever reads it, who may try again.
                self.fetch(tile, Part::Whole, move |engine, fetched| match fetched {
                    Ok(_) => engine.look_ahead(reader, array, place, goes_on),
                    Err(_) => drop(engine.readers.decoded(reader, Ahead::nothing_until(place + AHEAD / 4))),
                });
                return self.fetch_ahead(tile, goes_on);
            }
            Some((tile, Ok(Some(_)))) => {
                self.fetch_ahead(tile, goes_on);
                self.decode_ahead(array, place, tile)
            }
            Some((_, Err(_))) | None => Ahead::nothing_until(u64::MAX),
        };
        let behind = self.readers.decoded(reader, ahead);
        self.cache.discard(behind);
    }

    /// Has the chunks from `place` on decoded, across tiles: two for each thread and one more, or more where they are small.
    fn decode_ahead(self: &Arc<Self>, array: Array, place: u64, first: TileId) -> Ahead {
        let (manifest, width) = (self.view.dataset().manifest(), array.width());
        let most = self.cache.limit() / SHARE;
        let (mut chunks, mut bytes) = (0, 0);
        let mut ahead = Ahead::nothing_until(u64::MAX);
        for id in first..manifest.n_tiles() {
            if manifest.tile_nnz[id] == 0 {
                continue;
            }
            // What is on its way, or wrong, ends it.
            let Ok(Some(fetched)) = self.reach(id) else {
                // There is more to do when it is here.
                ahead.next = ahead.next.min(place + AHEAD / 4);
                break;
            };
            let start = manifest.nnz_before(id) * width;
            for chunk in &fetched.tile.layout().chunks {
                let end = start + chunk.nonzeros.end * width;
                if chunk.nnz() == 0 || end <= place {
                    continue;
                }
                let enough = chunks > 2 * self.threads && bytes >= AHEAD;
                if enough || bytes + chunk.nnz() * width > most {
                    return ahead;
                }
                // Again when the reader comes to the end of the first chunk, or of a part of small ones.
                if ahead.next == u64::MAX || ahead.next < place + AHEAD / 4 {
                    ahead.next = end;
                }
                chunks += 1;
                bytes += chunk.nnz() * width;
                ahead
                    .decoded
                    .extend(self.decode_early(&fetched, array, chunk.index).map(|key| (key, end)));
            }
        }
        ahead
    }

    /// Has the tiles after `tile` fetched, where tiles have to be fetched: twice as many as the store answers at once, so that none
    /// of its connections waits for the reader, but no more than take half of the room that there is for them.
    fn fetch_ahead(self: &Arc<Self>, tile: TileId, goes_on: bool) {
        let (manifest, store) = (self.view.dataset().manifest(), self.view.dataset().store());
        let mut room = store.room() / 2;
        let tiles = if goes_on { 2 * store.requests_at_once() } else { 0 };
        for id in (tile + 1..manifest.n_tiles()).take(tiles) {
            let bytes = manifest.tile_bytes[id];
            if bytes > room && id > tile + 1 {
                break;
            }
            room = room.saturating_sub(bytes);
            if let Ok(None) = self.reach(id) {
                // What goes wrong is told to whoever reads it.
                self.fetch(id, Part::Whole, |_, _| ());
            }
        }
    }

    /// Has a chunk decoded that nobody asked for. Returns its name unless it is there or somebody else sees to it.
    fn decode_early(self: &Arc<Self>, fetched: &Fetched, array: Array, chunk: usize) -> Option<Key> {
        let id = fetched.tile.layout().spec.id;
        let key = Key::Chunk { tile: id, array, chunk };
        if self.cache.has(key) || self.whole_block(id, array).is_some() {
            return None;
        }
        let Lookup::Missing(ticket) = self.cache.lookup(key) else {
            return None;
        };
        let fetched = fetched.clone();
        self.stats.count_prefetch();
        let engine = self.clone();
        // The first one is needed first.
        self.pool
            .spawn_fifo(move || drop(engine.decode_chunk(&fetched.tile, array, chunk, ticket)));
        Some(key)
    }

    /// Notes that a process opened a tile's file, and has that of the next tile made if it opens one after another.
    pub(super) fn note_open(self: &Arc<Self>, process: u32, tile: TileId, file: ArrayFile) {
        let manifest = self.view.dataset().manifest();
        let next = tile + 1;
        if !self.readers.note_open(process, tile, file) || next >= manifest.n_tiles() {
            return;
        }
        self.fetch_ahead(tile, true);
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
        readers.note(array, &(start..start + length), RUN).due.is_some()
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
            if let Some((reader, place)) = readers.note(Array::Data, &(i * MIB..(i + 1) * MIB), RUN).due {
                asked.push(i);
                let (decoded, next) = (Vec::new(), place + 10 * MIB);
                readers.decoded(reader, Ahead { decoded, next });
            }
        }
        assert_eq!(asked, [7, 17, 27, 37]);
    }

    /// Reads 300 MiB from the beginning, with a chunk for each 4 MiB. Returns the chunks and where they end, and what was given up.
    fn read_on(readers: &Readers) -> (Vec<Decoded>, Vec<Key>) {
        let (mut made, mut given_up) = (Vec::<Decoded>::new(), Vec::new());
        for i in 0..300 {
            if let Some((reader, place)) = readers.note(Array::Data, &(i * MIB..(i + 1) * MIB), RUN).due {
                let (tile, array, chunk, next) = (0, Array::Data, made.len(), place + 4 * MIB);
                let decoded = vec![(Key::Chunk { tile, array, chunk }, next)];
                made.extend(&decoded);
                for key in readers.decoded(reader, Ahead { decoded, next }) {
                    assert!(made[given_up.len()].1 + BEHIND <= place, "{key:?}");
                    given_up.push(key);
                }
            }
        }
        (made, given_up)
    }

    #[test]
    fn what_was_decoded_for_a_reader_is_given_up_when_it_is_far_past_it() {
        let (made, given_up) = read_on(&Readers::default());
        let first: Vec<Key> = made.iter().map(|&(key, _)| key).take(given_up.len()).collect();
        assert_eq!(given_up, first);
        assert!(made.len() - given_up.len() <= (BEHIND / MIB / 4) as usize + 2);
    }

    #[test]
    fn one_who_begins_again_is_another_reader() {
        let readers = Readers::default();
        assert_eq!(read_on(&readers), read_on(&readers));
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
