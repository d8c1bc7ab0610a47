//! One tile: reading its parts, verifying its checksum, decoding its arrays with as many threads as come.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crc32fast::Hasher;

use super::{DatasetError, lock};
use crate::format::decode::Decoder;
use crate::format::manifest::TileSpec;
use crate::format::tile::{self, CHUNK_ENTRY_BYTES, HEADER_BYTES, Header, Layout, Place, TileError, TileFault};
use crate::store::{Held, Object, StoreError, Version};

/// How much of a tile one thread checks at a time. Small enough to stay in a core's own cache.
const PIECE: u64 = 1 << 20;

/// The arrays a tile decodes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Array {
    /// Row starts: int64, one a cell and one more, from 0.
    Indptr,
    /// Gene indices: int32, one a nonzero.
    Indices,
    /// Counts: int32, one a nonzero.
    Data,
}

impl Array {
    /// All of them, in the order a reader needs them.
    pub const ALL: [Array; 3] = [Array::Indptr, Array::Indices, Array::Data];

    /// Bytes of one entry.
    pub fn width(self) -> u64 {
        match self {
            Array::Indptr => 8,
            Array::Indices | Array::Data => 4,
        }
    }

    /// Entries of the array in a tile.
    pub fn entries(self, spec: &TileSpec) -> u64 {
        match self {
            Array::Indptr => spec.n_cells + 1,
            Array::Indices | Array::Data => spec.nnz,
        }
    }

    /// Bytes of the array in a tile.
    pub fn bytes(self, spec: &TileSpec) -> u64 {
        self.width() * self.entries(spec)
    }
}

/// What there is to fetch of a tile that is in an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of it.
    Whole,
    /// Header, chunk table and indptr.
    Head,
    /// The streams of a chunk.
    Chunk(usize),
}

/// Chunks that a tile is guessed to have at most before its header was read; the rest of a longer table is one more request.
const TYPICAL_CHUNKS: u64 = 64;

/// Bytes that most likely hold header, chunk table and indptr.
pub(super) fn head_bytes(spec: &TileSpec) -> u64 {
    let table = TYPICAL_CHUNKS * CHUNK_ENTRY_BYTES as u64;
    (HEADER_BYTES as u64 + table + Array::Indptr.bytes(spec)).min(spec.bytes)
}

/// An opened tile.
pub struct Tile {
    object: Arc<dyn Object>,
    layout: Layout,
    indptr: Vec<i64>,
    version: Version,
    checksum: Checksum,
    /// Fetched other than with all of the tile.
    in_parts: AtomicU64,
}

impl Tile {
    /// Reads header, chunk table and indptr.
    pub(super) fn open(object: Arc<dyn Object>, spec: TileSpec) -> Result<Self, DatasetError> {
        let name = object.name();
        let io_failed = |source| {
            DatasetError::Store(StoreError {
                name: name.clone(),
                source,
            })
        };
        let refused = |source| DatasetError::Tile {
            name: name.clone(),
            source,
        };
        let mut head = vec![0; HEADER_BYTES.min(object.size() as usize)];
        object.read_at(&mut head, 0).map_err(io_failed)?;
        let header = Header::parse(&head, object.size(), spec).map_err(refused)?;
        let part = |range: Range<u64>| -> Result<Vec<u8>, DatasetError> {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            object.read_at(&mut bytes, range.start).map_err(io_failed)?;
            Ok(bytes)
        };
        let layout = Layout::parse(&header, &part(header.table())?).map_err(refused)?;
        let indptr = tile::parse_indptr(&layout, &part(header.indptr())?).map_err(refused)?;
        let version = object.version().map_err(io_failed)?;
        let checksum = Checksum::new(HEADER_BYTES as u64..spec.bytes, &layout);
        Ok(Self {
            object,
            layout,
            indptr,
            version,
            checksum,
            in_parts: AtomicU64::new(0),
        })
    }

    /// Header and chunk table.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Row starts: one entry more than cells, from 0 to the tile's nonzeros.
    pub fn indptr(&self) -> &[i64] {
        &self.indptr
    }

    /// The state of the file when it was opened.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Full name of the file, for messages.
    pub fn name(&self) -> String {
        self.object.name()
    }

    /// Where a part is in the file: for a chunk, all from the first of its streams to the last.
    fn range(&self, part: Part) -> Range<u64> {
        match part {
            Part::Whole => 0..self.object.size(),
            Part::Head => 0..head_bytes(&self.layout.spec),
            Part::Chunk(chunk) => {
                let chunk = &self.layout.chunks[chunk];
                let exceptions = [&chunk.gap_exceptions, &chunk.value_exceptions];
                let exceptions = exceptions.into_iter().flatten();
                exceptions.fold(
                    chunk.gaps.start.min(chunk.values.start)..chunk.gaps.end.max(chunk.values.end),
                    |all, stream| all.start.min(stream.start)..all.end.max(stream.end),
                )
            }
        }
    }

    /// Bytes of a part.
    ///
    /// # Panics
    /// When there is no such chunk.
    pub fn part_bytes(&self, part: Part) -> u64 {
        let range = self.range(part);
        range.end - range.start
    }

    /// Takes hold of a part; `None` when reading it would take a request to a server.
    ///
    /// # Panics
    /// When there is no such chunk.
    pub fn hold(&self, part: Part) -> Option<Held> {
        self.object.hold(&self.range(part))
    }

    /// Has a part fetched with one request.
    pub(super) fn fetch(&self, part: Part) -> Result<Held, DatasetError> {
        if part != Part::Whole {
            self.in_parts.fetch_add(self.part_bytes(part), Ordering::Relaxed);
        }
        self.object
            .fetch(&self.range(part))
            .map_err(|source| self.io_failed(source))
    }

    /// Whether its parts in memory have the bytes that all of it has there.
    pub fn parts_agree(&self) -> bool {
        self.object.parts_agree()
    }

    /// Bytes that were fetched as parts, but for the head that it was opened with.
    pub fn bytes_in_parts(&self) -> u64 {
        self.in_parts.load(Ordering::Relaxed)
    }

    /// Marks the checksum as known to be right.
    pub(super) fn trust(&self) {
        self.checksum.trusted.store(true, Ordering::Release);
    }

    /// Whether the checksum is known to be right.
    pub fn is_verified(&self) -> bool {
        self.checksum.trusted.load(Ordering::Acquire)
    }

    /// Takes part in computing the checksum until it is known. Returns whether this call found it right first.
    pub(super) fn verify(&self) -> Result<bool, DatasetError> {
        if self.is_verified() {
            return Ok(false);
        }
        let found = self
            .checksum
            .join(&*self.object)
            .map_err(|source| self.io_failed(source))?;
        let expected = self.layout.crc32;
        if found != expected {
            return Err(self.refused(TileFault::Crc { found, expected }.at(Place::File)));
        }
        self.check_unchanged()?;
        Ok(!self.checksum.trusted.swap(true, Ordering::AcqRel))
    }

    /// Decodes `array` of one chunk into `out`, which has one entry a nonzero of the chunk.
    ///
    /// The checksum is another matter: see [`super::Dataset::verify`].
    ///
    /// # Errors
    /// When the chunk cannot be read or decoded, or the file was written to since it was opened.
    ///
    /// # Panics
    /// When `out` has another length, or `array` is the indptr, which is not stored in chunks.
    pub fn decode_chunk(&self, array: Array, chunk: usize, out: &mut [i32]) -> Result<(), DatasetError> {
        let decoded = self.decode_as_it_is(array, chunk, out);
        // What was read of a file that changed was no fault of its own, nor is it to be believed.
        self.check_unchanged()?;
        decoded
    }

    fn check_unchanged(&self) -> Result<(), DatasetError> {
        match self.object.version() {
            Ok(version) if version == self.version => Ok(()),
            Ok(_) => Err(DatasetError::Changed { name: self.name() }),
            Err(source) => Err(self.io_failed(source)),
        }
    }

    fn decode_as_it_is(&self, array: Array, chunk: usize, out: &mut [i32]) -> Result<(), DatasetError> {
        let chunk = &self.layout.chunks[chunk];
        let ranges = match array {
            Array::Indices => [Some(&chunk.gaps), chunk.gap_exceptions.as_ref()],
            Array::Data => [Some(&chunk.values), chunk.value_exceptions.as_ref()],
            Array::Indptr => panic!("the indptr is not stored in chunks"),
        };
        // The checksum is that of the whole tile, of which parts may have come otherwise.
        let whole = self.hold(Part::Whole);
        WORKSPACE.with_borrow_mut(|Workspace { decoder, streams }| {
            let (stream, exceptions) = streams
                .read(&*self.object, &ranges)
                .map_err(|source| self.io_failed(source))?;
            if whole.is_some() && !self.is_verified() {
                for (range, bytes) in ranges.into_iter().zip([Some(stream), exceptions]) {
                    if let (Some(range), Some(bytes)) = (range, bytes) {
                        self.checksum.see(range, bytes);
                    }
                }
            }
            let decoded = match array {
                Array::Indices => {
                    decoder.indices(chunk, self.layout.spec.n_genes, &self.indptr, stream, exceptions, out)
                }
                _ => decoder.values(chunk, stream, exceptions, out),
            };
            decoded.map_err(|source| self.refused(source))
        })
    }

    fn io_failed(&self, source: io::Error) -> DatasetError {
        DatasetError::Store(StoreError {
            name: self.name(),
            source,
        })
    }

    fn refused(&self, source: TileError) -> DatasetError {
        DatasetError::Tile {
            name: self.name(),
            source,
        }
    }
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// What a thread keeps from one chunk to the next: two bytes a nonzero, and the compressed streams.
#[derive(Default)]
struct Workspace {
    decoder: Decoder,
    streams: Streams,
}

#[derive(Default)]
struct Streams {
    bytes: Vec<u8>,
}

impl Streams {
    /// Reads one stream and, when it has one, its exceptions. The ranges were held against the file's size.
    fn read(&mut self, object: &dyn Object, ranges: &[Option<&Range<u64>>; 2]) -> io::Result<(&[u8], Option<&[u8]>)> {
        let lengths = ranges.map(|range| range.map_or(0, |r| (r.end - r.start) as usize));
        let total = lengths[0] + lengths[1];
        if self.bytes.len() < total {
            self.bytes.resize(total, 0);
        }
        let (stream, rest) = self.bytes[..total].split_at_mut(lengths[0]);
        if let Some(range) = ranges[0] {
            object.read_at(stream, range.start)?;
        }
        if let Some(range) = ranges[1] {
            object.read_at(rest, range.start)?;
        }
        Ok((stream, ranges[1].map(|_| &*rest)))
    }
}

/// A checksum that any number of threads compute together, piece by piece.
///
/// A thread that finds no piece left waits for those that are still computing one, and for nothing else. Pieces end
/// where streams do, so that whoever has a stream in hand to decode it can hash it without reading it again.
struct Checksum {
    pieces: Vec<Piece>,
    /// Those before it are taken.
    next: AtomicUsize,
    trusted: AtomicBool,
    state: Mutex<State>,
    finished: Condvar,
}

struct Piece {
    range: Range<u64>,
    taken: AtomicBool,
}

impl Piece {
    /// Whether the caller is the one to hash it.
    fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Relaxed)
    }
}

struct State {
    hashers: Vec<Option<Hasher>>,
    missing: usize,
    failed: Option<io::Error>,
    /// What the pieces come to, once somebody has put them together.
    whole: Option<u32>,
}

impl Checksum {
    /// Of the bytes `range` of a tile.
    fn new(range: Range<u64>, layout: &Layout) -> Self {
        let streams = layout.chunks.iter().flat_map(|chunk| {
            let exceptions = [&chunk.gap_exceptions, &chunk.value_exceptions];
            let exceptions = exceptions.into_iter().flatten();
            [&chunk.gaps, &chunk.values].into_iter().chain(exceptions)
        });
        let mut borders: Vec<u64> = streams.flat_map(|stream| [stream.start, stream.end]).collect();
        borders.extend([range.start, range.end]);
        borders.sort_unstable();
        borders.dedup();
        let pieces: Vec<Piece> = borders
            .windows(2)
            .flat_map(|border| {
                let (start, end) = (border[0], border[1]);
                (start..end).step_by(PIECE as usize).map(move |start| Piece {
                    range: start..end.min(start + PIECE),
                    taken: AtomicBool::new(false),
                })
            })
            .collect();
        Self {
            next: AtomicUsize::new(0),
            trusted: AtomicBool::new(false),
            state: Mutex::new(State {
                hashers: vec![None; pieces.len()],
                missing: pieces.len(),
                failed: None,
                whole: None,
            }),
            finished: Condvar::new(),
            pieces,
        }
    }

    /// Hashes the stream at `range`, whose bytes the caller has in hand, but for pieces that others have taken.
    fn see(&self, range: &Range<u64>, bytes: &[u8]) {
        let first = self.pieces.partition_point(|piece| piece.range.start < range.start);
        for (index, piece) in self.pieces.iter().enumerate().skip(first) {
            if piece.range.end > range.end {
                break;
            }
            if piece.take() {
                let at = |offset: u64| (offset - range.start) as usize;
                let bytes = &bytes[at(piece.range.start)..at(piece.range.end)];
                self.put(index, Ok(hashed(bytes)));
            }
        }
    }

    /// Hashes what nobody has taken, waits for what others have, and gives the checksum.
    fn join(&self, object: &dyn Object) -> io::Result<u32> {
        let mut buffer = Vec::new();
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(index) else { break };
            if piece.take() {
                buffer.resize((piece.range.end - piece.range.start) as usize, 0);
                let read = object.read_at(&mut buffer, piece.range.start);
                self.put(index, read.map(|()| hashed(&buffer)));
            }
        }
        let mut state = lock(&self.state);
        while state.missing > 0 {
            state = self
                .finished
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if let Some(error) = &state.failed {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        if let Some(whole) = state.whole {
            return Ok(whole);
        }
        let mut hasher = Hasher::new();
        for piece in std::mem::take(&mut state.hashers).iter().flatten() {
            hasher.combine(piece);
        }
        Ok(*state.whole.insert(hasher.finalize()))
    }

    fn put(&self, index: usize, piece: io::Result<Hasher>) {
        let mut state = lock(&self.state);
        match piece {
            Ok(hasher) => state.hashers[index] = Some(hasher),
            Err(error) => state.failed = Some(error),
        }
        state.missing -= 1;
        if state.missing == 0 {
            self.finished.notify_all();
        }
    }
}

fn hashed(bytes: &[u8]) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher
}

#[cfg(test)]
mod tests;
