//! What the blocks in the cache are.

use crate::dataset::Array;
use crate::format::TileId;
use crate::view::{ArrayFile, Rows};

/// Names a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// One chunk of an array, as decoded.
    Chunk {
        /// Tile.
        tile: TileId,
        /// Indices or data.
        array: Array,
        /// Chunk of the tile.
        chunk: usize,
    },
    /// The same of a tile of which parts were fetched, so that its checksum is not known.
    Unverified {
        /// Tile.
        tile: TileId,
        /// Indices or data.
        array: Array,
        /// Chunk of the tile.
        chunk: usize,
    },
    /// A whole file of a tile, in a file that the kernel can serve.
    Whole {
        /// Tile.
        tile: TileId,
        /// Which of its files.
        file: ArrayFile,
    },
    /// The rows of a tile in obs, in the form a file shows them in.
    Rows {
        /// Tile.
        tile: TileId,
        /// Which columns, as what.
        rows: Rows,
    },
}

/// A block that stays until this is dropped.
pub type Pin = crate::cache::Pin<Key>;
