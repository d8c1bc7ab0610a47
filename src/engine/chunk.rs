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
        let key = Key::Chunk {
            tile: tile.layout().spec.id,
            array,
            chunk,
        };
        if !may_work {
            return Ok(self.cache.join(key).into());
        }
        let in_reach = || tile.hold(Part::Whole).or_else(|| tile.hold(Part::Chunk(chunk)));
        // It stays there while this decodes.
        let Some(_held) = in_reach() else {
            return Ok(match self.cache.join(key) {
                Some(joined) => Some(joined).into(),
                None => Found::Fetch(self.part_for_chunk(tile, chunk, needed)),
            });
        };
        match self.cache.lookup(key) {
            Lookup::Hit(block) => Ok(Found::Block(block)),
            Lookup::Busy(pending) => Ok(Found::Busy(pending)),
            Lookup::Missing(ticket) => {
                self.prepare_memory(tile, chunk);
                self.decode_chunk(tile, array, chunk, ticket).map(Found::Block)
            }
        }
    }

    /// Decodes a chunk that is in reach. Of a tile that is not as a whole, its checksum stays unknown for now.
    pub(super) fn decode_chunk(
        self: &Arc<Self>,
        tile: &Arc<Tile>,
        array: Array,
        chunk: usize,
        ticket: Ticket<Key>,
    ) -> Result<Arc<Block>, ReadError> {
        let whole = tile.hold(Part::Whole);
        if whole.is_some() {
            self.share_verification(tile);
        }
        let bytes = tile.layout().chunks[chunk].nnz() * 4;
        // Without room it is made all the same, for those who wait for it now.
        let reservation = ticket.reserve(bytes);
        let dataset = self.view.dataset();
        let decode = || {
            let out_of_memory = |source| StoreError {
                name: tile.name(),
                source,
            };
            let mut buffer = Buffer::new(bytes as usize, &self.spares).map_err(out_of_memory)?;
            decode_into(tile, array, chunk, buffer.bytes())?;
            match whole {
                Some(_) => dataset.verify(tile)?,
                None => dataset.show_unverified(tile),
            }
            Ok(Block::from_buffer(buffer, reservation))
        };
        let block = decode();
        if block.is_ok() {
            self.stats.count_chunk(bytes);
        }
        self.settle(tile, ticket, block)
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

    /// Has the next reader of a tile look at the file again, and forgets what was decoded before the tile turned out to be
    /// wrong.
    pub(super) fn give_up(&self, tile: &Tile, error: &DatasetError) {
        let id = tile.layout().spec.id;
        self.view.dataset().forget(id);
        if tile.is_verified() {
            return;
        }
        if matches!(error, DatasetError::Tile { .. }) {
            self.fetching.distrust(id);
        }
        let chunks = 0..tile.layout().chunks.len();
        let keys =
            chunks.flat_map(|chunk| [Array::Indices, Array::Data].map(|array| Key::Chunk { tile: id, array, chunk }));
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
