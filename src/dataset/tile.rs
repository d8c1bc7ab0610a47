//! One tile: reading its parts, verifying its checksum, decoding its arrays with as many threads as come.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crc32fast::Hasher;

use super::{DatasetError, lock};
use crate::format::decode::Decoder;
use crate::format::manifest::TileSpec;
use crate::format::tile::{self, HEADER_BYTES, Header, Layout, Place, TileError, TileFault};
use crate::store::{Object, Store, StoreError, Version};

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

/// An opened tile.
pub struct Tile {
    object: Arc<dyn Object>,
    layout: Layout,
    indptr: Vec<i64>,
    version: Version,
    checksum: Checksum,
}

impl Tile {
    /// Reads header, chunk table and indptr.
    pub(super) fn open(store: &dyn Store, spec: TileSpec) -> Result<Self, DatasetError> {
        let object = store.open(&spec.path())?;
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
        let checksum = Checksum::new(HEADER_BYTES as u64..spec.bytes);
        Ok(Self {
            object,
            layout,
            indptr,
            version,
            checksum,
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
        WORKSPACE.with_borrow_mut(|workspace| match array {
            Array::Indices => {
                let gaps = workspace
                    .streams
                    .read(&*self.object, &[Some(&chunk.gaps), chunk.gap_exceptions.as_ref()]);
                let (gaps, exceptions) = gaps.map_err(|source| self.io_failed(source))?;
                let n_genes = self.layout.spec.n_genes;
                workspace
                    .decoder
                    .indices(chunk, n_genes, &self.indptr, gaps, exceptions, out)
                    .map_err(|source| self.refused(source))
            }
            Array::Data => {
                let values = workspace
                    .streams
                    .read(&*self.object, &[Some(&chunk.values), chunk.value_exceptions.as_ref()]);
                let (values, exceptions) = values.map_err(|source| self.io_failed(source))?;
                workspace
                    .decoder
                    .values(chunk, values, exceptions, out)
                    .map_err(|source| self.refused(source))
            }
            Array::Indptr => panic!("the indptr is not stored in chunks"),
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
/// A thread that finds no piece left waits for those that are still computing one, and for nothing else.
struct Checksum {
    range: Range<u64>,
    trusted: AtomicBool,
    next: AtomicUsize,
    pieces: Mutex<Pieces>,
    finished: Condvar,
}

#[derive(Default)]
struct Pieces {
    hashers: Vec<Option<Hasher>>,
    missing: usize,
    failed: Option<io::Error>,
}

impl Checksum {
    fn new(range: Range<u64>) -> Self {
        let pieces = (range.end - range.start).div_ceil(PIECE) as usize;
        Self {
            range,
            trusted: AtomicBool::new(false),
            next: AtomicUsize::new(0),
            pieces: Mutex::new(Pieces {
                hashers: vec![None; pieces],
                missing: pieces,
                failed: None,
            }),
            finished: Condvar::new(),
        }
    }

    fn join(&self, object: &dyn Object) -> io::Result<u32> {
        let mut buffer = vec![0; PIECE.min(self.range.end - self.range.start) as usize];
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            let start = self.range.start + piece as u64 * PIECE;
            if start >= self.range.end {
                break;
            }
            let buffer = &mut buffer[..PIECE.min(self.range.end - start) as usize];
            let result = object.read_at(buffer, start).map(|()| {
                let mut hasher = Hasher::new();
                hasher.update(buffer);
                hasher
            });
            let mut pieces = lock(&self.pieces);
            match result {
                Ok(hasher) => pieces.hashers[piece] = Some(hasher),
                Err(error) => pieces.failed = Some(error),
            }
            pieces.missing -= 1;
            if pieces.missing == 0 {
                self.finished.notify_all();
            }
        }
        let mut pieces = lock(&self.pieces);
        while pieces.missing > 0 {
            pieces = self
                .finished
                .wait(pieces)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if let Some(error) = &pieces.failed {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let mut whole = Hasher::new();
        for piece in pieces.hashers.iter().flatten() {
            whole.combine(piece);
        }
        Ok(whole.finalize())
    }
}

#[cfg(test)]
mod tests;
