//! Collecting the pieces of one read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::chunk::Found;
use super::fetch::{Fetched, Needed};
use super::whole::ints_to_floats;
use super::{Engine, ReadError};
use crate::cache::Block;
use crate::dataset::{DatasetError, Part as TilePart, Tile};
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
    manner: Manner,
    /// What was fetched for the next piece.
    fetched: Option<Fetched>,
    /// Which part that was, and how often in a row.
    part: Option<(TileId, TilePart, usize)>,
}

/// Others who find a tile wrong may take away what was fetched of it, but not again and again.
const MOST_FETCHES: usize = 5;

/// How a file is read.
#[derive(Debug, Clone, Copy)]
struct Manner {
    /// Whether the file is made of all tiles.
    spans_tiles: bool,
    needed: Needed,
    /// Whether whoever makes pieces now may wait for a server.
    may_wait: bool,
}

/// What [`Engine::resolve`] found.
enum Resolved {
    /// The first bytes of the extent, and the extent of the rest.
    Part(Part, Option<Extent>),
    /// Somebody is making them.
    Wait(crate::cache::Pending),
    /// They would have to be made, and the caller must not.
    Later,
    /// They can be made once this is fetched.
    Fetch(TileId, TilePart),
}

/// Whether making it means reading from the store as it goes.
fn waits(extent: &Extent) -> bool {
    matches!(extent, Extent::Rows { .. } | Extent::Stored { .. })
}

/// What [`Engine::open_for`] found.
enum Opened {
    Tile(Arc<Tile>),
    /// What has to be done first.
    Not(Resolved),
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
        let spans_tiles = self.view.spans_tiles(node);
        let mut reads_on = false;
        for extent in &missing {
            if let Extent::Array { tile, elements, bytes } = extent
                && *elements != Elements::Indptr
            {
                reads_on |= self.note_read(*tile, elements.array(), bytes, spans_tiles);
            }
        }
        missing.reverse();
        // Who opens a tile's own file reads all of it as a rule.
        let needed = match spans_tiles && !reads_on {
            true => Needed::FewCells,
            false => Needed::Much,
        };
        let gather = Gather {
            missing,
            parts: Vec::new(),
            done: Box::new(done),
            manner: Manner {
                spans_tiles,
                needed,
                may_wait: !self.is_remote(),
            },
            fetched: None,
            part: None,
        };
        self.gather(gather, false);
    }

    /// Goes on with a read until it is done or has to wait. `may_work` says whether this thread is one of the pool's.
    fn gather(self: &Arc<Self>, mut gather: Gather, may_work: bool) {
        while let Some(extent) = gather.missing.pop() {
            match self.resolve(&extent, may_work, gather.manner, gather.fetched.as_ref()) {
                Ok(Resolved::Part(part, rest)) => {
                    gather.part = None;
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
                    let waits = waits(&extent);
                    gather.missing.push(extent);
                    self.share(&gather);
                    if waits {
                        gather.manner.may_wait = true;
                        self.spawn_patient(move |engine| engine.gather(gather, true));
                    } else {
                        self.spawn(move |engine| engine.gather(gather, true));
                    }
                    return;
                }
                Ok(Resolved::Fetch(tile, part)) => {
                    let times = match gather.part {
                        Some((last_tile, last, times)) if (last_tile, last) == (tile, part) => times + 1,
                        _ => 1,
                    };
                    if times > MOST_FETCHES {
                        log::error!("tile {tile}: {part:?} was fetched {MOST_FETCHES} times and is not there");
                        return (gather.done)(Err(ReadError::Abandoned));
                    }
                    gather.part = Some((tile, part, times));
                    gather.missing.push(extent);
                    self.fetch(tile, part, move |engine, fetched| match fetched {
                        Ok(fetched) => {
                            gather.fetched = Some(fetched);
                            gather.manner.may_wait = false;
                            engine.gather(gather, true);
                        }
                        Err(error) => {
                            engine.failed(&error);
                            (gather.done)(Err(ReadError::Dataset(error)));
                        }
                    });
                    return;
                }
                Err(error) => return (gather.done)(Err(error)),
            }
        }
        gather.finish();
    }

    /// Has other threads make what a read needs after its next piece, so that its pieces are not made one after another.
    fn share(self: &Arc<Self>, gather: &Gather) {
        let made = |extent: &&Extent| match extent {
            Extent::Rows { .. } | Extent::Array { .. } => true,
            Extent::RowStarts { .. } => self.is_remote(),
            Extent::Literal(..) | Extent::Stored { .. } => false,
        };
        let later = gather.missing.iter().rev().skip(1).filter(made);
        let later: Arc<[Extent]> = later.cloned().collect();
        let wait = later.iter().any(waits);
        let manner = Manner {
            may_wait: wait || !self.is_remote(),
            ..gather.manner
        };
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 1..self.threads.min(later.len() + 1) {
            let (later, next) = (later.clone(), next.clone());
            let work = move |engine: &Arc<Self>| {
                while let Some(extent) = later.get(next.fetch_add(1, Ordering::Relaxed)) {
                    engine.make(extent.clone(), manner, None);
                }
            };
            match wait {
                true => self.spawn_patient(work),
                false => self.spawn(work),
            }
        }
    }

    /// Makes what `extent` needs, unless somebody does. What goes wrong is told to whoever reads it.
    fn make(self: &Arc<Self>, mut extent: Extent, manner: Manner, fetched: Option<&Fetched>) {
        loop {
            match self.resolve(&extent, true, manner, fetched) {
                Ok(Resolved::Part(_, Some(rest))) => extent = rest,
                Ok(Resolved::Fetch(tile, part)) => {
                    let manner = Manner {
                        may_wait: false,
                        ..manner
                    };
                    return self.fetch(tile, part, move |engine, fetched| {
                        if let Ok(fetched) = fetched {
                            engine.make(extent, manner, Some(&fetched));
                        }
                    });
                }
                _ => return,
            }
        }
    }

    /// Goes on with a read that waited for `block`.
    fn take(self: Arc<Self>, mut gather: Gather, block: Arc<Block>) {
        gather.manner.may_wait = !self.is_remote();
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

    fn resolve(
        self: &Arc<Self>,
        extent: &Extent,
        may_work: bool,
        manner: Manner,
        fetched: Option<&Fetched>,
    ) -> Result<Resolved, ReadError> {
        match extent {
            Extent::Literal(bytes, range) => Ok(Resolved::Part(Part::Literal(bytes.clone(), range.clone()), None)),
            Extent::Stored { file, bytes } if may_work && manner.may_wait => {
                let part = self.read_stored(*file, bytes.clone())?;
                Ok(Resolved::Part(Part::Owned(part), None))
            }
            Extent::Stored { .. } => Ok(Resolved::Later),
            Extent::Array { tile, .. } | Extent::RowStarts { tile, .. }
                if manner.spans_tiles && self.may_span(*tile, may_work)?.is_none() =>
            {
                Ok(Resolved::Later)
            }
            Extent::Array {
                tile,
                elements: Elements::Indptr,
                bytes,
            } => self.resolve_indptr(*tile, bytes, may_work),
            Extent::Array { tile, .. } => {
                if let Some(found) = self.resolve_whole(extent) {
                    return Ok(found);
                }
                match self.open_for(*tile, may_work, manner.needed, fetched)? {
                    Opened::Tile(tile) => self.resolve_array(&tile, extent, may_work, manner.needed),
                    Opened::Not(what) => Ok(what),
                }
            }
            // It costs reading the tile's head and nothing more: see [`crate::dataset::Dataset::show_unverified`].
            Extent::RowStarts { tile, width, bytes } => {
                match self.open_for(*tile, may_work, Needed::RowStarts, fetched)? {
                    Opened::Tile(tile) => Ok(self.row_starts(&tile, *width, bytes)),
                    Opened::Not(what) => Ok(what),
                }
            }
            Extent::Rows { tile, rows, .. } => {
                let found = self.rows_block(*tile, rows.kept(), may_work && manner.may_wait)?;
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
            Found::Fetch(part) => match extent {
                Extent::Array { tile, .. } => Resolved::Fetch(*tile, part),
                _ => unreachable!("chunks are those of arrays"),
            },
        })
    }

    /// A tile, opened, or what has to be done first.
    fn open_for(
        &self,
        id: TileId,
        may_work: bool,
        needed: Needed,
        fetched: Option<&Fetched>,
    ) -> Result<Opened, ReadError> {
        let fetched = fetched.map(|fetched| &fetched.tile);
        let fetched = fetched.filter(|tile| tile.layout().spec.id == id).cloned();
        Ok(match fetched.or_else(|| self.view.dataset().opened(id)) {
            Some(tile) => Opened::Tile(tile),
            None if !may_work => Opened::Not(Resolved::Later),
            None if self.is_remote() => Opened::Not(Resolved::Fetch(id, self.first_part(id, needed))),
            None => Opened::Tile(self.tile(id)?),
        })
    }

    /// An array out of a file of the tile that has it decoded.
    fn resolve_whole(&self, extent: &Extent) -> Option<Resolved> {
        let Extent::Array { tile, elements, bytes } = extent else {
            return None;
        };
        let (whole, start) = self.whole_block(*tile, elements.array())?;
        let range = start + bytes.start as usize..start + bytes.end as usize;
        Some(Resolved::Part(converted(*elements, whole, range, start), None))
    }

    fn resolve_array(
        self: &Arc<Self>,
        opened: &Arc<Tile>,
        extent: &Extent,
        may_work: bool,
        needed: Needed,
    ) -> Result<Resolved, ReadError> {
        let Extent::Array { elements, bytes, .. } = extent else {
            unreachable!("the caller has an array");
        };
        let Some(chunk) = opened.layout().chunk_of_nonzero(bytes.start / 4) else {
            return Ok(Resolved::Part(Part::Owned(Vec::new()), None));
        };
        let mut found = self.chunk_block(opened, elements.array(), chunk, may_work, needed)?;
        if let Found::Fetch(part) = &mut found {
            *part = self.fetch_chunks(opened, *part, chunk, bytes, needed);
        }
        self.resolved(extent, found)
    }

    /// Has the chunks fetched as well that a read needs after `chunk`, of which `part` is to be fetched. Returns what is to be
    /// fetched if all of them are considered.
    fn fetch_chunks(
        self: &Arc<Self>,
        tile: &Arc<Tile>,
        part: TilePart,
        chunk: usize,
        bytes: &Range<u64>,
        needed: Needed,
    ) -> TilePart {
        let chunks = &tile.layout().chunks[chunk + 1..];
        let later = chunks.iter().take_while(|chunk| chunk.nonzeros.start * 4 < bytes.end);
        let missing = later.filter(|chunk| tile.hold(TilePart::Chunk(chunk.index)).is_none());
        let parts: Vec<_> = missing
            .map(|chunk| self.part_for_chunk(tile, chunk.index, needed))
            .collect();
        if parts.contains(&TilePart::Whole) {
            return TilePart::Whole;
        }
        if part != TilePart::Whole {
            // What goes wrong is told when it is needed.
            let id = tile.layout().spec.id;
            parts.into_iter().for_each(|part| self.fetch(id, part, |_, _| ()));
        }
        part
    }

    fn resolve_indptr(
        self: &Arc<Self>,
        tile: TileId,
        bytes: &Range<u64>,
        may_work: bool,
    ) -> Result<Resolved, ReadError> {
        let serve = |tile: &Tile| {
            let bytes = indptr_bytes(tile.indptr(), bytes, 8, 0);
            Ok(Resolved::Part(Part::Owned(bytes), None))
        };
        match self.view.dataset().opened(tile) {
            Some(tile) if tile.is_verified() => return serve(&tile),
            _ if !may_work => return Ok(Resolved::Later),
            _ => {}
        }
        match self.reach(tile).map_err(|error| self.tell(error))? {
            Some(fetched) => {
                self.verify(&fetched.tile)?;
                serve(&fetched.tile)
            }
            None => Ok(Resolved::Fetch(tile, TilePart::Whole)),
        }
    }

    /// The indptr of a tile as part of that of the whole matrix.
    fn row_starts(&self, tile: &Tile, width: u64, bytes: &Range<u64>) -> Resolved {
        let dataset = self.view.dataset();
        dataset.show_unverified(tile);
        let before = dataset.manifest().nnz_before(tile.layout().spec.id) as i64;
        let bytes = indptr_bytes(tile.indptr(), bytes, width, before);
        Resolved::Part(Part::Owned(bytes), None)
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
            let object = store.open_whole(path, self.view.stored()[file].bytes)?;
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
