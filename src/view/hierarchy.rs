//! Groups, arrays and attributes: what an HDF5 file and a Zarr store have in common.
//!
//! A tree says what is there and where the elements of each array come from. Nothing is laid out here and no element
//! is held that the dataset can give: of what is known without the dataset (labels, a table of genes) any range of
//! bytes is made when it is asked for. Knows neither format, nor AnnData, nor FUSE.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::LargeStringArray;

use super::arrow::Tiling;
use crate::dataset::Array;
use crate::format::TileId;
use crate::format::obs::NumericType;

/// A group: attributes and named members.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// In the order they are written.
    pub attributes: Vec<Attribute>,
    /// By name, which is one component of a path.
    pub members: BTreeMap<String, Member>,
}

/// What a group holds.
#[derive(Debug, Clone)]
pub enum Member {
    /// A group in the group.
    Group(Group),
    /// An array.
    Array(ArrayNode),
}

/// An array of one dimension or none.
#[derive(Debug, Clone)]
pub struct ArrayNode {
    /// In the order they are written.
    pub attributes: Vec<Attribute>,
    /// Type of an element.
    pub dtype: Dtype,
    /// How many there are.
    pub shape: Shape,
    /// Where they come from.
    pub source: Source,
}

/// The extent of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One element, no dimension.
    Scalar,
    /// One dimension.
    Vector(u64),
}

impl Shape {
    /// Number of elements.
    pub fn elements(self) -> u64 {
        match self {
            Self::Scalar => 1,
            Self::Vector(length) => length,
        }
    }
}

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// A little-endian number.
    Number(NumericType),
    /// A byte, 0 or 1.
    Bool,
    /// UTF-8 text of at most `longest` bytes.
    Text {
        /// Bytes of the longest element.
        longest: u32,
    },
}

impl Dtype {
    /// Bytes of an element where all have one size. Text is padded with zeros, and never takes less than a byte.
    pub fn width(self) -> u64 {
        match self {
            Self::Number(number) => number.width() as u64,
            Self::Bool => 1,
            Self::Text { longest } => u64::from(longest.max(1)),
        }
    }
}

/// A named value of a group or an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One text.
    Text(String),
    /// A vector of texts.
    Texts(Vec<String>),
    /// A vector of int64.
    Integers(Vec<i64>),
    /// One truth value.
    Bool(bool),
}

/// Where the elements of an array come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// An array of the whole matrix: all tiles one after another, indptr from the first cell on.
    X(Array),
    /// An obs column, tile after tile, each as `part` says; see `anndata::encode`.
    Obs {
        /// Position in the schema.
        column: usize,
        /// Which part of it.
        part: Part,
    },
    /// A string column of obs.
    ObsText {
        /// Position in the schema.
        column: usize,
        /// Bytes of text before each tile, and of all of them: one entry more than tiles.
        starts: Arc<[u64]>,
    },
    /// The numbers 0, 1, 2, ... as decimal text.
    RowNumbers,
    /// These numbers or truth values.
    Bytes(Arc<[u8]>),
    /// These texts; a null is the empty text.
    Text(LargeStringArray),
}

/// One view of the rows of a tile in an obs column, as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Codes of a category column; -1 is missing.
    Codes,
    /// Numbers, or truth values of a byte each. Missing is NaN where there is one, else 0.
    Values,
    /// A byte a cell: 1 where the value is missing.
    Mask,
    /// Text of `width` bytes a cell, padded with zeros. Missing is empty.
    FixedText {
        /// Bytes a cell, at least 1.
        width: u32,
    },
    /// Text with its length before it, 4 bytes little-endian. Missing is empty.
    CountedText,
}

/// A piece of a file that shows an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Bytes that are known.
    Literal(Arc<[u8]>, Range<usize>),
    /// Bytes of the indices or the data of the whole matrix.
    X {
        /// Which array.
        array: Array,
        /// Which of its bytes.
        bytes: Range<u64>,
    },
    /// Bytes of the indptr of the whole matrix.
    RowStarts {
        /// Bytes of an entry: 4 or 8.
        width: u64,
        /// Which bytes of all entries.
        bytes: Range<u64>,
    },
    /// Bytes of the rows of a tile in an obs column.
    Obs {
        /// Which tile.
        tile: TileId,
        /// Position in the schema.
        column: usize,
        /// How the rows are written.
        part: Part,
        /// Which bytes of the tile's.
        bytes: Range<u64>,
    },
}

impl Extent {
    /// Bytes of the piece.
    pub fn len(&self) -> u64 {
        match self {
            Self::Literal(_, range) => (range.end - range.start) as u64,
            Self::X { bytes, .. } | Self::RowStarts { bytes, .. } | Self::Obs { bytes, .. } => bytes.end - bytes.start,
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn owned(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self::Literal(bytes.into(), range)
    }
}

/// The pieces of one range of a file, which is written down from its beginning as far as the range needs it.
///
/// Who writes says for each stretch of the file how long it is and, if some of it is wanted, what it is.
pub(super) struct Pieces {
    at: u64,
    range: Range<u64>,
    pieces: Vec<Extent>,
}

impl Pieces {
    /// For the bytes `range` of a file, of which everything before `at` is left out.
    pub(super) fn new(range: Range<u64>, at: u64) -> Self {
        let pieces = Vec::new();
        Self { at, range, pieces }
    }

    /// The pieces, in order.
    pub(super) fn done(self) -> Vec<Extent> {
        self.pieces
    }

    /// The next `length` bytes of the file; `make` is told which of them are wanted, unless none are.
    pub(super) fn stretch(&mut self, length: u64, make: impl FnOnce(Range<u64>, &mut Vec<Extent>)) {
        let end = self.at + length;
        let wanted = self.range.start.clamp(self.at, end) - self.at..self.range.end.clamp(self.at, end) - self.at;
        if !wanted.is_empty() {
            make(wanted, &mut self.pieces);
        }
        self.at = end;
    }

    /// Bytes that are known.
    pub(super) fn literal(&mut self, bytes: &Arc<[u8]>) {
        let length = bytes.len() as u64;
        self.stretch(length, |range, pieces| pieces.push(shared(bytes, range)));
    }

    /// Zeros as far as byte `end` of the file, if it is not there yet.
    pub(super) fn zeros_to(&mut self, end: u64) {
        self.stretch(end.saturating_sub(self.at), |range, pieces| {
            pieces.push(Extent::owned(vec![0; (range.end - range.start) as usize]));
        });
    }
}

fn shared(bytes: &Arc<[u8]>, range: Range<u64>) -> Extent {
    Extent::Literal(bytes.clone(), range.start as usize..range.end as usize)
}

impl ArrayNode {
    /// Bytes of all elements where each has the width of the type; `None` beyond 64 bits.
    pub(super) fn fixed_bytes(&self) -> Option<u64> {
        self.shape.elements().checked_mul(self.dtype.width())
    }

    /// What the bytes `range` are where each element has the width of the type.
    pub(super) fn fixed_extents(&self, tiling: Tiling, range: Range<u64>, pieces: &mut Vec<Extent>) {
        let width = self.dtype.width();
        let of_obs = |column, part, pieces: &mut Vec<Extent>| {
            let rows = |tile| tiling.cells_before(tile) * width;
            obs_pieces(rows, tiling, column, part, range.clone(), pieces);
        };
        match &self.source {
            Source::X(Array::Indptr) => pieces.push(Extent::RowStarts { width, bytes: range }),
            Source::X(array) => pieces.push(Extent::X {
                array: *array,
                bytes: range,
            }),
            Source::Obs { column, part } => of_obs(*column, *part, pieces),
            Source::ObsText { column, .. } => {
                let part = Part::FixedText { width: width as u32 };
                of_obs(*column, part, pieces);
            }
            Source::Bytes(bytes) => pieces.push(shared(bytes, range)),
            Source::RowNumbers => pieces.push(fixed_texts(width, range, |row| row.to_string().into_bytes())),
            Source::Text(texts) => pieces.push(fixed_texts(width, range, |row| texts.value(row as usize).into())),
        }
    }

    /// Bytes of text in the elements `elements`, which are those of whole tiles if they come from obs.
    ///
    /// # Panics
    /// When the elements are no text.
    fn text_bytes_before(&self, tiling: Tiling, element: u64) -> u64 {
        match &self.source {
            Source::ObsText { starts, .. } => starts[tiling.tile_at(element) as usize],
            Source::RowNumbers => digits_before(element),
            Source::Text(texts) => {
                let offsets = texts.value_offsets();
                (offsets[element as usize] - offsets[0]) as u64
            }
            Source::X(_) | Source::Obs { .. } | Source::Bytes(_) => panic!("numbers have no text"),
        }
    }

    /// Bytes of the elements `elements` where each text has its length before it: 4 bytes and the text each.
    /// Elements of obs begin with a tile and end with one.
    ///
    /// # Panics
    /// When the elements are no text.
    pub(super) fn counted_bytes(&self, tiling: Tiling, elements: &Range<u64>) -> u64 {
        let before = |element| 4 * element + self.text_bytes_before(tiling, element);
        before(elements.end) - before(elements.start)
    }

    /// What the bytes `range` of the elements `elements` are where each text has its length before it.
    /// Elements of obs begin with a tile.
    ///
    /// # Panics
    /// When the elements are no text.
    pub(super) fn counted_extents(
        &self,
        tiling: Tiling,
        elements: Range<u64>,
        range: Range<u64>,
        pieces: &mut Vec<Extent>,
    ) {
        let before = |element| 4 * element + self.text_bytes_before(tiling, element);
        let first = before(elements.start);
        let range = first + range.start..first + range.end;
        if let Source::ObsText { column, starts } = &self.source {
            let tile_start = |tile| 4 * tiling.cells_before(tile) + starts[tile as usize];
            return obs_pieces(tile_start, tiling, *column, Part::CountedText, range, pieces);
        }
        let mut element = last_start(elements, range.start, before);
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let skipped = range.start - before(element);
        while (bytes.len() as u64) < skipped + range.end - range.start {
            let text = self.text(element);
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&text);
            element += 1;
        }
        let end = (skipped + range.end - range.start) as usize;
        pieces.push(Extent::Literal(bytes.into(), skipped as usize..end));
    }

    fn text(&self, element: u64) -> Vec<u8> {
        match &self.source {
            Source::Text(texts) => texts.value(element as usize).into(),
            _ => element.to_string().into_bytes(),
        }
    }
}

/// The last of `among` that starts at `at` or before; starts never decrease.
fn last_start(among: Range<u64>, at: u64, start: impl Fn(u64) -> u64) -> u64 {
    let (mut low, mut high) = (among.start, among.end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if start(middle) <= at {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The pieces of an obs column whose tiles start where `start` says.
fn obs_pieces(
    start: impl Fn(u64) -> u64,
    tiling: Tiling,
    column: usize,
    part: Part,
    range: Range<u64>,
    pieces: &mut Vec<Extent>,
) {
    let mut tile = last_start(0..tiling.n_tiles(), range.start, &start);
    let mut at = range.start;
    while at < range.end {
        let (from, end) = (start(tile), start(tile + 1).min(range.end));
        if at < end {
            let bytes = at - from..end - from;
            let tile = tile as TileId;
            pieces.push(Extent::Obs {
                tile,
                column,
                part,
                bytes,
            });
            at = end;
        }
        tile += 1;
    }
}

/// The bytes `range` of texts that take `width` bytes each.
fn fixed_texts(width: u64, range: Range<u64>, text: impl Fn(u64) -> Vec<u8>) -> Extent {
    let first = range.start / width;
    let mut bytes = Vec::with_capacity((range.end - first * width) as usize);
    for element in first..range.end.div_ceil(width) {
        bytes.extend_from_slice(&text(element));
        bytes.resize(((element - first + 1) * width) as usize, 0);
    }
    let skipped = first * width;
    Extent::Literal(
        bytes.into(),
        (range.start - skipped) as usize..(range.end - skipped) as usize,
    )
}

/// Digits of the decimal numbers 0 to `number - 1`, one after another.
fn digits_before(number: u64) -> u64 {
    // 0 has a digit too; from there on every power of ten adds one to the numbers that reach it.
    let mut digits = number;
    let mut power = 10;
    while power < number {
        digits += number - power;
        power = power.saturating_mul(10);
    }
    digits
}

/// Bytes of the longest of the decimal numbers 0 to `count - 1`.
pub(super) fn longest_number(count: u64) -> u32 {
    count.saturating_sub(1).checked_ilog10().unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(extent: &Extent) -> &[u8] {
        let Extent::Literal(bytes, range) = extent else {
            panic!("{extent:?} is not known")
        };
        &bytes[range.clone()]
    }

    fn texts(source: Source, length: u64, longest: u32) -> ArrayNode {
        ArrayNode {
            attributes: Vec::new(),
            dtype: Dtype::Text { longest },
            shape: Shape::Vector(length),
            source,
        }
    }

    const TILING: Tiling = Tiling {
        n_cells: 25,
        tile_size: 10,
    };

    #[test]
    fn digits_are_counted_as_if_they_were_written() {
        let mut written = 0;
        for number in 0..2345_u64 {
            assert_eq!(digits_before(number), written, "{number}");
            written += number.to_string().len() as u64;
        }
        assert_eq!(longest_number(0), 1);
        assert_eq!(longest_number(10), 1);
        assert_eq!(longest_number(11), 2);
        assert_eq!(longest_number(u64::MAX), 20);
        assert!(digits_before(1 << 50) > 15 << 50);
    }

    #[test]
    fn every_range_of_known_texts_is_cut_from_the_same_whole() {
        let labels = LargeStringArray::from_iter_values(["\u{e9}", "", "long enough", "b"]);
        for (node, rows) in [
            (texts(Source::RowNumbers, 120, 3), 120),
            (texts(Source::Text(labels), 4, 11), 4),
        ] {
            let (mut fixed, mut counted) = (Vec::new(), Vec::new());
            for row in 0..rows {
                let text = node.text(row);
                fixed.extend_from_slice(&text);
                fixed.resize((row as usize + 1) * node.dtype.width() as usize, 0);
                counted.extend_from_slice(&(text.len() as u32).to_le_bytes());
                counted.extend_from_slice(&text);
            }
            assert_eq!(node.fixed_bytes(), Some(fixed.len() as u64));
            assert_eq!(node.counted_bytes(TILING, &(0..rows)), counted.len() as u64);
            for start in 0..fixed.len() {
                for end in [start + 1, start + 7, fixed.len()].map(|end| end.min(fixed.len())) {
                    let mut pieces = Vec::new();
                    node.fixed_extents(TILING, start as u64..end as u64, &mut pieces);
                    assert_eq!(bytes(&pieces[0]), &fixed[start..end]);
                }
            }
            for start in 0..counted.len() {
                for end in [start + 1, start + 9, counted.len()].map(|end| end.min(counted.len())) {
                    let mut pieces = Vec::new();
                    node.counted_extents(TILING, 0..rows, start as u64..end as u64, &mut pieces);
                    assert_eq!(bytes(&pieces[0]), &counted[start..end]);
                }
            }
        }
    }

    #[test]
    fn counted_texts_of_a_part_of_the_rows_start_with_its_first() {
        let node = texts(Source::RowNumbers, 120, 3);
        let mut pieces = Vec::new();
        let length = node.counted_bytes(TILING, &(99..101));
        node.counted_extents(TILING, 99..101, 0..length, &mut pieces);
        assert_eq!(bytes(&pieces[0]), b"\x02\0\0\x0099\x03\0\0\x00100");
    }

    #[test]
    fn a_column_is_cut_at_tiles() {
        let obs = |tile, column, part, bytes| Extent::Obs {
            tile,
            column,
            part,
            bytes,
        };
        let starts: Arc<[u64]> = [0, 7, 7, 30].into();
        let node = texts(Source::ObsText { column: 3, starts }, 25, 6);
        let mut pieces = Vec::new();
        node.fixed_extents(TILING, 59..121, &mut pieces);
        let part = Part::FixedText { width: 6 };
        let expected = [obs(0, 3, part, 59..60), obs(1, 3, part, 0..60), obs(2, 3, part, 0..1)];
        assert_eq!(pieces, expected);
        assert_eq!(node.counted_bytes(TILING, &(10..25)), 15 * 4 + 23);
        let mut pieces = Vec::new();
        node.counted_extents(TILING, 10..25, 1..50, &mut pieces);
        let part = Part::CountedText;
        assert_eq!(pieces, [obs(1, 3, part, 1..40), obs(2, 3, part, 0..10)]);
    }
}
