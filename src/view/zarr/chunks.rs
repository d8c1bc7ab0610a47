//! Chunks of an array: how large each is and what its bytes are.
//!
//! A chunk holds the elements themselves (codec `bytes`, little-endian), or for text their number and each with its length
//! before it (codec `vlen-utf8`). All chunks have the same number of elements, so the last one is padded. Chunks of obs columns
//! begin with a tile.

use std::ops::Range;

use crate::view::arrow::Tiling;
use crate::view::hierarchy::{ArrayNode, Dtype, Extent, Pieces, Shape, Source};

/// Bytes of the number of texts in a chunk, and of the length of each.
const COUNT: u64 = 4;

/// An array in chunks.
#[derive(Debug, Clone)]
pub(super) struct Chunks {
    pub(super) array: ArrayNode,
    tiling: Tiling,
    /// Elements of a chunk, at least 1.
    length: u64,
}

impl Chunks {
    /// Chunks of about `length` elements, but no longer than the array; those of obs are whole tiles. `None` when a chunk would have more
    /// bytes or texts than can be counted.
    pub(super) fn new(array: &ArrayNode, tiling: Tiling, length: u64) -> Option<Self> {
        let wanted = match array.source {
            Source::Obs { .. } | Source::ObsText { .. } => {
                let tiles = (length / tiling.tile_size).max(1);
                tiles.checked_mul(tiling.tile_size)?
            }
            Source::X(_) | Source::RowNumbers | Source::Bytes(_) | Source::Text(_) => length,
        };
        let chunks = Self {
            array: array.clone(),
            tiling,
            length: wanted.min(array.shape.elements()).max(1),
        };
        let width = if chunks.is_text() { COUNT } else { array.dtype.width() };
        let countable = !chunks.is_text() || u32::try_from(chunks.length).is_ok();
        let bytes = chunks.length.checked_mul(width)?;
        (countable && bytes < i64::MAX as u64 / 2).then_some(chunks)
    }

    fn is_text(&self) -> bool {
        matches!(self.array.dtype, Dtype::Text { .. })
    }

    /// Elements of a chunk for each dimension of the array.
    pub(super) fn shape(&self) -> Option<u64> {
        match self.array.shape {
            Shape::Scalar => None,
            Shape::Vector(_) => Some(self.length),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.array.shape.elements().div_ceil(self.length)
    }

    fn elements(&self, chunk: u64) -> Range<u64> {
        let start = chunk * self.length;
        start..start.saturating_add(self.length).min(self.array.shape.elements())
    }

    /// Bytes of chunk `chunk`.
    pub(super) fn bytes(&self, chunk: u64) -> u64 {
        if !self.is_text() {
            return self.length * self.array.dtype.width();
        }
        let elements = self.elements(chunk);
        let padding = self.length - (elements.end - elements.start);
        COUNT + self.array.counted_bytes(self.tiling, &elements) + COUNT * padding
    }

    /// What the bytes `range` of chunk `chunk` are, in order; the range ends within the chunk.
    pub(super) fn extents(&self, chunk: u64, range: Range<u64>) -> Vec<Extent> {
        let elements = self.elements(chunk);
        let mut pieces = Pieces::new(range, 0);
        if self.is_text() {
            pieces.literal(&(self.length as u32).to_le_bytes().as_slice().into());
            let bytes = self.array.counted_bytes(self.tiling, &elements);
            pieces.stretch(bytes, |range, pieces| {
                self.array.counted_extents(self.tiling, elements, range, pieces);
            });
        } else {
            let width = self.array.dtype.width();
            let first = elements.start * width;
            pieces.stretch((elements.end - elements.start) * width, |range, pieces| {
                let range = first + range.start..first + range.end;
                self.array.fixed_extents(self.tiling, range, pieces);
            });
        }
        // The number 0, and the length of an empty text.
        pieces.zeros_to(self.bytes(chunk));
        pieces.done()
    }
}
