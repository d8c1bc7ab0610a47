//! Collecting the pieces of one read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::chunk::Found;
use super::whole::ints_to_floats;
use super::{Engine, ReadError};
use crate::cache::Block;
use crate::dataset::{DatasetError, Tile};
use crate::format::TileId;
use crate::store::StoreError;
use crate::view::{Elements, Extent, Node, Rows};

/// A piece that is there.
enum Part {
    Block(Arc<Block>, Range<usize>),
    Literal(Arc<[u8]>, Range<usize>),
    Owned(Vec<u8>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Block(block, range) => &block[range.clone()],
            Part::Literal(bytes, range) => &bytes[range.clone()],
            Part::Owned(bytes) => bytes,
        }
    }
}

/// What becomes of the bytes.
pub(super) type Done = Box<dyn FnOnce(Result<&[u8], ReadError>) + Send>;

/// A read on its way.
pub(super) struct Gather {
    /// What is still to be collected, last piece first.
    missing: Vec<Extent>,
    parts: Vec<Part>,
    done: Done,
    /// Whether the file is made of all tiles.
    spans_tiles: bool,
}

/// What [`Engine::resolve`] found.
enum Resolved {
    /// The first bytes of the extent, and the extent of the rest.
    Part(Part, Option<Extent>),
    /// Somebody is making them.
    Wait(crate::cache::Pending),
    /// They would have to be made, and the caller must not.
    Later,
}

impl Engine {
    /// Hands the bytes `range` of a file to `done`: all of them, or an error. The range ends within the file.
    ///
    /// `done` runs on the calling thread when the bytes are there, and on a thread of the pool otherwise.
    pub fn read(
        self: &Arc<Self>,
        node: Node,
        range: Range<u64>,
        done: impl FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    ) {
        let mut missing = self.view.extents(node, range);
        for extent in &missing {
            if let Extent::Array { tile, elements, bytes } = extent
                && *elements != Elements::Indptr
            {
                self.note_read(*tile, elements.array(), bytes);
            }
        }
        missing.reverse();
        let gather = Gather {
            missing,
            parts: Vec::new(),
            done: Box::new(done),
            spans_tiles: self.view.spans_tiles(node),
        };
        self.gather(gather, false);
    }

    /// Goes on with a read until it is done or has to wait. `may_work` says whether this thread is one of the pool's.
    fn gather(self: &Arc<Self>, mut gather: Gather, may_work: bool) {
        while let Some(extent) = gather.missing.pop() {
            match self.resolve(&extent, may_work, gather.spans_tiles) {
                Ok(Resolved::Part(part, rest)) => {
                    gather.parts.push(part);
                    gather.missing.extend(rest);
                }
                Ok(Resolved::Wait(pending)) => {
                    gather.missing.push(extent);
                    let engine = self.clone();
                    pending.subscribe(move |outcome| match outcome {
                        // The block is taken now: it may be evicted, or was never kept, by the time a thread is free.
                        Ok(block) => engine.clone().pool.spawn(move || engine.take(gather, block)),
                        Err(failure) => (gather.done)(Err(failure.into())),
                    });
                    return;
                }
                Ok(Resolved::Later) => {
                    gather.missing.push(extent);
                    self.share(&gather);
                    self.spawn(move |engine| engine.gather(gather, true));
                    return;
                }
                Err(error) => return (gather.done)(Err(error)),
            }
        }
        gather.finish();
    }

    /// Has other threads make what a read needs after its next piece, so that its pieces are not made one after another.
    fn share(self: &Arc<Self>, gather: &Gather) {
        let made = |extent: &&Extent| matches!(extent, Extent::Rows { .. } | Extent::Array { .. });
        let later = gather.missing.iter().rev().skip(1).filter(made);
        let later: Arc<[Extent]> = later.cloned().collect();
        let spans_tiles = gather.spans_tiles;
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 1..self.threads.min(later.len() + 1) {
            let (later, next) = (later.clone(), next.clone());
            self.spawn(move |engine| {
                while let Some(extent) = later.get(next.fetch_add(1, Ordering::Relaxed)) {
                    engine.make(extent.clone(), spans_tiles);
                }
            });
        }
    }

    /// Makes what `extent` needs, unless somebody does. What goes wrong is told to whoever reads it.
    fn make(self: &Arc<Self>, mut extent: Extent, spans_tiles: bool) {
        while let Ok(Resolved::Part(_, Some(rest))) = self.resolve(&extent, true, spans_tiles) {
            extent = rest;
        }
    }

    /// Goes on with a read that waited for `block`.
    fn take(self: Arc<Self>, mut gather: Gather, block: Arc<Block>) {
        let Some(extent) = gather.missing.pop() else {
            return gather.finish();
        };
        match self.cut(&extent, block) {
            Ok((part, rest)) => {
                gather.parts.push(part);
                gather.missing.extend(rest);
                self.gather(gather, true);
            }
            Err(error) => (gather.done)(Err(error)),
        }
    }

    fn resolve(self: &Arc<Self>, extent: &Extent, may_work: bool, spans_tiles: bool) -> Result<Resolved, ReadError> {
        match extent {
            Extent::Literal(bytes, range) => Ok(Resolved::Part(Part::Literal(bytes.clone(), range.clone()), None)),
            Extent::Stored { file, bytes } if may_work => {
                let part = self.read_stored(*file, bytes.clone())?;
                Ok(Resolved::Part(Part::Owned(part), None))
            }
            Extent::Stored { .. } => Ok(Resolved::Later),
            Extent::Array { tile, .. } | Extent::RowStarts { tile, .. }
                if spans_tiles && self.may_span(*tile, may_work)?.is_none() =>
            {
                Ok(Resolved::Later)
            }
            Extent::Array {
                tile,
                elements: Elements::Indptr,
                bytes,
            } => self.resolve_indptr(*tile, bytes, may_work),
            Extent::Array { tile, elements, bytes } => self.resolve_array(*tile, *elements, bytes, may_work),
            Extent::RowStarts { tile, width, bytes } => self.resolve_row_starts(*tile, *width, bytes, may_work),
            Extent::Rows { tile, rows, .. } => {
                let found = self.rows_block(*tile, rows.kept(), may_work)?;
                self.resolved(extent, found)
            }
        }
    }

    /// What was found of the first chunk or the rows of `extent`.
    fn resolved(self: &Arc<Self>, extent: &Extent, found: Found) -> Result<Resolved, ReadError> {
        Ok(match found {
            Found::Block(block) => {
                let (part, rest) = self.cut(extent, block)?;
                Resolved::Part(part, rest)
            }
            Found::Busy(pending) => Resolved::Wait(pending),
            Found::Later => Resolved::Later,
        })
    }

    fn resolve_array(
        self: &Arc<Self>,
        tile: TileId,
        elements: Elements,
        bytes: &Range<u64>,
        may_work: bool,
    ) -> Result<Resolved, ReadError> {
        let array = elements.array();
        if let Some((whole, start)) = self.whole_block(tile, array) {
            let range = start + bytes.start as usize..start + bytes.end as usize;
            return Ok(Resolved::Part(converted(elements, whole, range, start), None));
        }
        let opened = match self.view.dataset().opened(tile) {
            Some(opened) => opened,
            None if !may_work => return Ok(Resolved::Later),
            None => self.tile(tile)?,
        };
        let Some(chunk) = opened.layout().chunk_of_nonzero(bytes.start / 4) else {
            return Ok(Resolved::Part(Part::Owned(Vec::new()), None));
        };
        let found = self.chunk_block(&opened, array, chunk, may_work)?;
        let bytes = bytes.clone();
        self.resolved(&Extent::Array { tile, elements, bytes }, found)
    }

    fn resolve_indptr(
        self: &Arc<Self>,
        tile: TileId,
        bytes: &Range<u64>,
        may_work: bool,
    ) -> Result<Resolved, ReadError> {
        let opened = self.view.dataset().opened(tile);
        if !may_work && !opened.is_some_and(|tile| tile.is_verified()) {
            return Ok(Resolved::Later);
        }
        let opened = self.tile(tile)?;
        self.verify(&opened)?;
        Ok(Resolved::Part(
            Part::Owned(indptr_bytes(opened.indptr(), bytes, 8, 0)),
            None,
        ))
    }

    /// The indptr of a tile as part of that of the whole matrix.
    ///
    /// It costs reading the tile's indptr and nothing more: see [`crate::dataset::Dataset::row_starts`].
    fn resolve_row_starts(
        self: &Arc<Self>,
        tile: TileId,
        width: u64,
        bytes: &Range<u64>,
        may_work: bool,
    ) -> Result<Resolved, ReadError> {
        let dataset = self.view.dataset();
        let opened = match dataset.opened(tile) {
            Some(opened) => opened,
            None if !may_work => return Ok(Resolved::Later),
            None => self.tile(tile)?,
        };
        let starts = dataset.row_starts(&opened);
        let before = dataset.manifest().nnz_before(tile) as i64;
        let bytes = indptr_bytes(starts, bytes, width, before);
        Ok(Resolved::Part(Part::Owned(bytes), None))
    }

    /// The first bytes of `extent`, which are in `block`, and what is left of it.
    fn cut(self: &Arc<Self>, extent: &Extent, block: Arc<Block>) -> Result<(Part, Option<Extent>), ReadError> {
        match extent {
            Extent::Array { tile, elements, bytes } => {
                let opened = self.tile(*tile)?;
                let chunk = opened
                    .layout()
                    .chunk_of_nonzero(bytes.start / 4)
                    .ok_or(ReadError::Abandoned)?;
                Ok(cut_array(&opened, *elements, chunk, bytes, block))
            }
            Extent::Rows { tile, rows, bytes } => Ok((self.cut_rows(*tile, *rows, bytes, block)?, None)),
            Extent::Literal(..) | Extent::RowStarts { .. } | Extent::Stored { .. } => {
                unreachable!("these are not kept in blocks")
            }
        }
    }

    fn cut_rows(&self, tile: TileId, rows: Rows, bytes: &Range<u64>, block: Arc<Block>) -> Result<Part, ReadError> {
        let made = self
            .view
            .cut(rows, &block, bytes.clone())
            .map_err(|error| self.tell(self.bad_rows(tile, rows, &error)))?;
        let part = match made {
            Some(made) => Part::Owned(made),
            None => {
                let range = bytes.start as usize..bytes.end as usize;
                Part::Block(block.clone(), range.start.min(block.len())..range.end.min(block.len()))
            }
        };
        // The size that was promised is that of the layout; rows of another size are a fault of the file.
        if (part.bytes().len() as u64) < bytes.end - bytes.start {
            let name = format!("the shard of tile {tile}");
            return Err(self.tell(DatasetError::Changed { name }));
        }
        Ok(part)
    }

    /// The tile, opened; logs what is wrong with it.
    pub(super) fn tile(&self, tile: TileId) -> Result<Arc<Tile>, ReadError> {
        self.view.dataset().tile(tile).map_err(|error| self.tell(error))
    }

    /// Takes part in checking the tile's checksum; logs what is wrong with it.
    pub(super) fn verify(&self, tile: &Tile) -> Result<(), ReadError> {
        self.view.dataset().verify(tile).map_err(|error| self.tell(error))
    }

    pub(super) fn tell(&self, error: DatasetError) -> ReadError {
        self.failed(&error);
        error.into()
    }

    fn read_stored(&self, file: usize, range: Range<u64>) -> Result<Vec<u8>, ReadError> {
        let path = self.view.stored()[file].path;
        let store = self.view.dataset().store();
        let read = || {
            let object = store.open(path)?;
            let expected = self.view.stored()[file].version;
            let version = || {
                object.version().map_err(|source| StoreError {
                    name: object.name(),
                    source,
                })
            };
            if version()? != expected {
                return Err(DatasetError::Changed { name: object.name() });
            }
            let mut bytes = vec![0; (range.end - range.start) as usize];
            object.read_at(&mut bytes, range.start).map_err(|source| StoreError {
                name: object.name(),
                source,
            })?;
            Ok(bytes)
        };
        read().map_err(|error| self.tell(error))
    }
}

impl Gather {
    fn finish(self) {
        match &self.parts[..] {
            [] => (self.done)(Ok(&[])),
            [part] => (self.done)(Ok(part.bytes())),
            parts => {
                let parts: Vec<&[u8]> = parts.iter().map(Part::bytes).collect();
                (self.done)(Ok(&parts.concat()));
            }
        }
    }
}

fn cut_array(
    opened: &Tile,
    elements: Elements,
    chunk: usize,
    bytes: &Range<u64>,
    block: Arc<Block>,
) -> (Part, Option<Extent>) {
    let nonzeros = &opened.layout().chunks[chunk].nonzeros;
    let end = bytes.end.min(nonzeros.end * 4);
    let start = nonzeros.start * 4;
    let range = (bytes.start - start) as usize..(end - start) as usize;
    let rest = (end < bytes.end).then_some(Extent::Array {
        tile: opened.layout().spec.id,
        elements,
        bytes: end..bytes.end,
    });
    (converted(elements, block, range, 0), rest)
}

/// Bytes of an array as it is decoded, as those of `elements`. The array starts at `start` of the block.
fn converted(elements: Elements, block: Arc<Block>, range: Range<usize>, start: usize) -> Part {
    if elements != Elements::Floats {
        return Part::Block(block, range);
    }
    // Whole entries, whatever bytes of them are wanted.
    let first = range.start - (range.start - start) % 4;
    let last = start + (range.end - start).next_multiple_of(4);
    let mut floats = block[first..last].to_vec();
    ints_to_floats(&mut floats);
    floats.truncate(range.end - first);
    floats.drain(..range.start - first);
    Part::Owned(floats)
}

/// Bytes of the indptr as they are in a file that has `width` bytes for an entry, with `before` added to each entry.
fn indptr_bytes(starts: &[i64], bytes: &Range<u64>, width: u64, before: i64) -> Vec<u8> {
    let entries = (bytes.start / width) as usize..bytes.end.div_ceil(width) as usize;
    let skip = (bytes.start % width) as usize;
    let mut whole = Vec::with_capacity(entries.len() * width as usize);
    for entry in &starts[entries] {
        whole.extend_from_slice(&(entry + before).to_le_bytes()[..width as usize]);
    }
    whole.truncate(skip + (bytes.end - bytes.start) as usize);
    whole.drain(..skip);
    whole
}
