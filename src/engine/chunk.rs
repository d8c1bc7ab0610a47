//! Single chunks of an array, in memory.

use std::sync::Arc;

use zerocopy::FromBytes;

use super::fetch::Needed;
use super::{Engine, Key, ReadError};
use crate::cache::{Block, Buffer, Failure, Joined, Lookup, Pending, Ticket};
use crate::dataset::{Array, DatasetError, Part, Tile};
use crate::store::StoreError;

/// Where a block is.
pub(super) enum Found {
    /// Here.
    Block(Arc<Block>),
    /// Somebody is making it.
    Busy(Pending),
    /// It would have to be made, and the caller must not.
    Later,
    /// It can be made once a part of the tile is fetched.
    Fetch(Part),
}

impl From<Option<Joined>> for Found {
    fn from(joined: Option<Joined>) -> Self {
        match joined {
            Some(Joined::Block(block)) => Self::Block(block),
            Some(Joined::Busy(pending)) => Self::Busy(pending),
            None => Self::Later,
        }
    }
}

impl Engine {
    /// One chunk of an array: from the cache, or decoded now if this thread may. What else is `needed` of
    /// the tile decides what is fetched.
    pub(super) fn chunk_block(
        self: &Arc<Self>,
        tile: &Arc<Tile>,
        array: Array,
        chunk: usize,
        may_work: bool,
        needed: Needed,
    ) -> Result<Found, ReadError> {
        let id = tile.layout().spec.id;
        let key = Key::Chunk { tile: id, array, chunk };
        let unverified = Key::Unverified { tile: id, array, chunk };
        let takes_parts = needed == Needed::FewCells;
        let join = || {
            let part = || takes_parts.then(|| self.cache.join(unverified)).flatten();
            self.cache.join(key).or_else(part)
        };
        if !may_work {
            return Ok(join().into());
        }
        // What is held stays there while this decodes.
        let (whole, part) = match tile.hold(Part::Whole) {
            Some(whole) => (Some(whole), None),
            None => (None, tile.hold(Part::Chunk(chunk)).filter(|_| takes_parts)),
        };
        let lookup = match (&whole, &part) {
            (Some(_), _) => self.cache.lookup(key),
            (None, Some(_)) => match self.cache.join(key) {
                Some(joined) => return Ok(Some(joined).into()),
                None => self.cache.lookup(unverified),
            },
            (None, None) => {
                return Ok(match join() {
                    Some(joined) => Some(joined).into(),
                    None => Found::Fetch(self.part_for_chunk(tile, chunk, needed)),
                });
            }
        };
        match lookup {
            Lookup::Hit(block) => Ok(Found::Block(block)),
            Lookup::Busy(pending) => Ok(Found::Busy(pending)),
            Lookup::Missing(ticket) => {
                self.prepare_memory(tile, chunk);
                let made = match whole {
                    Some(_) => self.decode_chunk(tile, array, chunk, ticket),
                    None => self.decode_unverified(tile, array, chunk, ticket),
                };
                made.map(Found::Block)
            }
        }
    }

    /// Decodes a chunk of a tile that is in reach.
    pub(super) fn decode_chunk(
        self: &Arc<Self>,
        tile: &Arc<Tile>,
        array: Array,
        chunk: usize,
        ticket: Ticket<Key>,
    ) -> Result<Arc<Block>, ReadError> {
        self.share_verification(tile);
        let block = self
            .decode(tile, array, chunk, &ticket)
            .and_then(|block| self.view.dataset().verify(tile).map(|()| block));
        self.settle(tile, ticket, block)
    }

    /// Decodes a chunk that is in reach, of a tile that is not: its checksum stays unknown for now.
    fn decode_unverified(
        &self,
        tile: &Tile,
        array: Array,
        chunk: usize,
        ticket: Ticket<Key>,
    ) -> Result<Arc<Block>, ReadError> {
        let block = self.decode(tile, array, chunk, &ticket);
        self.view.dataset().show_unverified(tile);
        self.settle(tile, ticket, block)
    }

    fn decode(&self, tile: &Tile, array: Array, chunk: usize, ticket: &Ticket<Key>) -> Result<Block, DatasetError> {
        let bytes = tile.layout().chunks[chunk].nnz() * 4;
        // Without room it is made all the same, for those who wait for it now.
        let reservation = ticket.reserve(bytes);
        let out_of_memory = |source| StoreError {
            name: tile.name(),
            source,
        };
        let mut buffer = Buffer::new(bytes as usize, &self.spares).map_err(out_of_memory)?;
        decode_into(tile, array, chunk, buffer.bytes())?;
        self.stats.count_chunk(bytes);
        Ok(Block::from_buffer(buffer, reservation))
    }

    /// Hands in what became of a block of `tile`.
    pub(super) fn settle(
        &self,
        tile: &Tile,
        ticket: Ticket<Key>,
        block: Result<Block, DatasetError>,
    ) -> Result<Arc<Block>, ReadError> {
        let block = block.map_err(|error| {
            self.failed(&error);
            self.give_up(tile, &error);
            Failure::Failed(Arc::new(error))
        });
        Ok(ticket.finish(block)?)
    }

    /// Has the next reader of a tile look at the file again, and forgets what was made of it if it is wrong.
    pub(super) fn give_up(&self, tile: &Tile, error: &DatasetError) {
        let id = tile.layout().spec.id;
        if !matches!(error, DatasetError::Tile { .. }) {
            return self.view.dataset().forget(id);
        }
        self.view.dataset().distrust(id);
        self.fetching.distrust(id);
        self.discard_unverified(tile);
    }

    /// Forgets what was decoded of a tile before its checksum was known.
    pub(super) fn discard_unverified(&self, tile: &Tile) {
        let id = tile.layout().spec.id;
        let chunks = 0..tile.layout().chunks.len();
        let arrays = [Array::Indices, Array::Data];
        let keys = chunks.flat_map(|chunk| arrays.map(|array| Key::Unverified { tile: id, array, chunk }));
        self.cache.discard(keys);
    }

    /// Has memory made for the next chunk while this one is decoded: one who reads here and there waits for both.
    fn prepare_memory(self: &Arc<Self>, tile: &Tile, chunk: usize) {
        if self.threads > 1 {
            let length = tile.layout().chunks[chunk].nnz() as usize * 4;
            self.spawn(move |engine| engine.spares.prepare(length));
        }
    }

    /// Lets idle threads help with a checksum that is about to be computed.
    fn share_verification(self: &Arc<Self>, tile: &Arc<Tile>) {
        if tile.is_verified() {
            return;
        }
        for _ in 1..self.threads {
            let tile = tile.clone();
            // Whether it fails is told by whoever needs the tile.
            self.spawn(move |engine| {
                if let Some(_held) = tile.hold(Part::Whole) {
                    drop(engine.view.dataset().verify(&tile));
                }
            });
        }
    }
}

/// Decodes a chunk into memory that starts at a multiple of four bytes.
pub(super) fn decode_into(tile: &Tile, array: Array, chunk: usize, out: &mut [u8]) -> Result<(), DatasetError> {
    let out = <[i32]>::mut_from_bytes(out).expect("room for whole entries, aligned as they are");
    tile.decode_chunk(array, chunk, out)
}
