//! Collecting the pieces of one read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Engine, ReadError};
use crate::cache::Block;
use crate::dataset::{Array, DatasetError, Tile};
use crate::format::TileId;
use crate::store::StoreError;
use crate::view::{Extent, Node};

/// What a reader of one open file did last, to tell those who read on from those who jump.
#[derive(Debug, Default)]
pub struct Cursor {
    end: AtomicU64,
    run: AtomicU64,
}

/// From this many bytes in a row on, a reader is taken to go on.
const RUN: u64 = 2 << 20;
/// The kernel sends the requests of its read-ahead in any order; so far apart they still belong together.
const NEAR: u64 = 4 << 20;

impl Cursor {
    /// Notes a read; says whether it continues the ones before it.
    fn note(&self, offset: u64, length: u64) -> bool {
        let end = self.end.swap(offset + length, Ordering::Relaxed);
        if offset.abs_diff(end) > NEAR {
            self.run.store(0, Ordering::Relaxed);
            return false;
        }
        self.run.fetch_add(length, Ordering::Relaxed) + length >= RUN
    }
}

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
    sequential: bool,
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
        cursor: &Cursor,
        done: impl FnOnce(Result<&[u8], ReadError>) + Send + 'static,
    ) {
        let sequential = cursor.note(range.start, range.end - range.start);
        let mut missing = self.view.extents(node, range);
        missing.reverse();
        let gather = Gather {
            missing,
            parts: Vec::new(),
            done: Box::new(done),
            sequential,
        };
        self.gather(gather, false);
    }

    /// Goes on with a read until it is done or has to wait. `may_work` says whether this thread is one of the pool's.
    fn gather(self: &Arc<Self>, mut gather: Gather, may_work: bool) {
        while let Some(extent) = gather.missing.pop() {
            match self.resolve(&extent, may_work, gather.sequential) {
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
                    self.spawn(move |engine| engine.gather(gather, true));
                    return;
                }
                Err(error) => return (gather.done)(Err(error)),
            }
        }
        gather.finish();
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

    fn resolve(self: &Arc<Self>, extent: &Extent, may_work: bool, sequential: bool) -> Result<Resolved, ReadError> {
        match extent {
            Extent::Literal(bytes, range) => Ok(Resolved::Part(Part::Literal(bytes.clone(), range.clone()), None)),
            Extent::Stored { file, bytes } if may_work => {
                let part = self.read_stored(*file, bytes.clone())?;
                Ok(Resolved::Part(Part::Owned(part), None))
            }
            Extent::Stored { .. } => Ok(Resolved::Later),
            Extent::Array { tile, array, bytes } => self.resolve_array(*tile, *array, bytes, may_work, sequential),
            Extent::Column { tile, column, .. } => Ok(match self.column_block(*tile, *column, may_work)? {
                super::chunk::Found::Block(block) => {
                    let (part, rest) = self.cut(extent, block)?;
                    Resolved::Part(part, rest)
                }
                super::chunk::Found::Busy(pending) => Resolved::Wait(pending),
                super::chunk::Found::Later => Resolved::Later,
            }),
        }
    }

    fn resolve_array(
        self: &Arc<Self>,
        tile: TileId,
        array: Array,
        bytes: &Range<u64>,
        may_work: bool,
        sequential: bool,
    ) -> Result<Resolved, ReadError> {
        if let Some(whole) = self.whole_block(tile, array) {
            return Ok(Resolved::Part(
                Part::Block(whole, bytes.start as usize..bytes.end as usize),
                None,
            ));
        }
        let dataset = self.view.dataset();
        let opened = match dataset.opened(tile) {
            Some(opened) => opened,
            None if !may_work => return Ok(Resolved::Later),
            None => self.tile(tile)?,
        };
        if array == Array::Indptr {
            if !opened.is_verified() {
                if !may_work {
                    return Ok(Resolved::Later);
                }
                self.verify(&opened)?;
            }
            return Ok(Resolved::Part(Part::Owned(indptr_bytes(&opened, bytes.clone())), None));
        }
        let Some(chunk) = opened.layout().chunk_of_nonzero(bytes.start / 4) else {
            return Ok(Resolved::Part(Part::Owned(Vec::new()), None));
        };
        let found = self.chunk_block(&opened, array, chunk, may_work)?;
        if sequential {
            self.prefetch(&opened, array, chunk, bytes.start / 4);
        }
        Ok(match found {
            super::chunk::Found::Block(block) => {
                let (part, rest) = cut_array(&opened, tile, array, chunk, bytes, block);
                Resolved::Part(part, rest)
            }
            super::chunk::Found::Busy(pending) => Resolved::Wait(pending),
            super::chunk::Found::Later => Resolved::Later,
        })
    }

    /// The first bytes of `extent`, which are in `block`, and what is left of it.
    fn cut(self: &Arc<Self>, extent: &Extent, block: Arc<Block>) -> Result<(Part, Option<Extent>), ReadError> {
        match extent {
            Extent::Array { tile, array, bytes } => {
                let opened = self.tile(*tile)?;
                let chunk = opened
                    .layout()
                    .chunk_of_nonzero(bytes.start / 4)
                    .ok_or(ReadError::Abandoned)?;
                Ok(cut_array(&opened, *tile, *array, chunk, bytes, block))
            }
            Extent::Column { tile, bytes, .. } => {
                let range = bytes.start as usize..bytes.end as usize;
                // The size that was promised is that of the layout; a message of another size is a fault of the file.
                if block.len() < range.end {
                    let name = format!("the shard of tile {tile}");
                    return Err(self.tell(DatasetError::Changed { name }));
                }
                Ok((Part::Block(block, range), None))
            }
            Extent::Literal(..) | Extent::Stored { .. } => unreachable!("these are not kept in blocks"),
        }
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
                let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes()).copied().collect();
                (self.done)(Ok(&bytes));
            }
        }
    }
}

fn cut_array(
    opened: &Tile,
    tile: TileId,
    array: Array,
    chunk: usize,
    bytes: &Range<u64>,
    block: Arc<Block>,
) -> (Part, Option<Extent>) {
    let nonzeros = &opened.layout().chunks[chunk].nonzeros;
    let end = bytes.end.min(nonzeros.end * 4);
    let start = nonzeros.start * 4;
    let part = Part::Block(block, (bytes.start - start) as usize..(end - start) as usize);
    let rest = (end < bytes.end).then_some(Extent::Array {
        tile,
        array,
        bytes: end..bytes.end,
    });
    (part, rest)
}

/// Bytes of the indptr as they are in its file.
fn indptr_bytes(tile: &Tile, bytes: Range<u64>) -> Vec<u8> {
    let entries = (bytes.start / 8) as usize..bytes.end.div_ceil(8) as usize;
    let skip = (bytes.start % 8) as usize;
    let whole: Vec<u8> = tile.indptr()[entries]
        .iter()
        .flat_map(|entry| entry.to_le_bytes())
        .collect();
    whole[skip..skip + (bytes.end - bytes.start) as usize].to_vec()
}
