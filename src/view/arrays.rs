//! Files that hold one array and nothing else but, at most, NumPy's header: those of a tile, and those of `X`, which are
//! all tiles one after another.
//!
//! Knows how many cells and nonzeros tiles have; everything follows from that.

use std::ops::Range;

use super::Extent;
use crate::dataset::Array;
use crate::format::TileId;
use crate::format::manifest::Manifest;
use crate::format::npy;

/// What the entries of an array are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Elements {
    /// Row starts, int64, from 0.
    Indptr,
    /// Genes, int32.
    Indices,
    /// Counts, int32.
    Counts,
    /// Counts, float32: exact up to 2^24 (format, Limits), the nearest beyond.
    Floats,
}

impl Elements {
    /// The decoded array they are made of.
    pub fn array(self) -> Array {
        match self {
            Self::Indptr => Array::Indptr,
            Self::Indices => Array::Indices,
            Self::Counts | Self::Floats => Array::Data,
        }
    }

    /// Bytes of one; the same as in the decoded array.
    pub fn width(self) -> u64 {
        self.array().width()
    }

    fn descr(self) -> &'static str {
        match self {
            Self::Indptr => "<i8",
            Self::Indices | Self::Counts => "<i4",
            Self::Floats => "<f4",
        }
    }
}

/// What stands around an array in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// Nothing.
    Raw,
    /// NumPy's header before it.
    Npy,
}

/// A file of one array, in a tile's folder and in `X`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArrayFile {
    /// Its content.
    pub elements: Elements,
    /// How it is wrapped.
    pub form: Form,
}

const fn file(elements: Elements, form: Form) -> ArrayFile {
    ArrayFile { elements, form }
}

/// All such files, with their names.
const FILES: [(&str, ArrayFile); 8] = [
    ("indptr.i64", file(Elements::Indptr, Form::Raw)),
    ("indices.i32", file(Elements::Indices, Form::Raw)),
    ("data.i32", file(Elements::Counts, Form::Raw)),
    ("data.f32", file(Elements::Floats, Form::Raw)),
    ("indptr.npy", file(Elements::Indptr, Form::Npy)),
    ("indices.npy", file(Elements::Indices, Form::Npy)),
    ("data.npy", file(Elements::Counts, Form::Npy)),
    ("data_f32.npy", file(Elements::Floats, Form::Npy)),
];

impl ArrayFile {
    /// How many there are in a folder that has all.
    pub const COUNT: usize = FILES.len();

    /// Those whose form is wanted, in order.
    pub fn all(wanted: impl Fn(Form) -> bool) -> impl Iterator<Item = Self> {
        FILES
            .map(|(_, file)| file)
            .into_iter()
            .filter(move |file| wanted(file.form))
    }

    /// File number `number`, if there is one.
    pub fn numbered(number: usize) -> Option<Self> {
        FILES.get(number).map(|&(_, file)| file)
    }

    /// Its number among all.
    pub fn number(self) -> usize {
        let raw = self.elements as usize;
        raw + if self.form == Form::Npy { FILES.len() / 2 } else { 0 }
    }

    /// Its name in its folder.
    pub fn name(self) -> &'static str {
        FILES[self.number()].0
    }

    /// The bytes before an array of `entries` entries.
    pub fn header(self, entries: u64) -> Vec<u8> {
        match self.form {
            Form::Raw => Vec::new(),
            Form::Npy => npy::header(self.elements.descr(), entries),
        }
    }

    /// Size of a file of `entries` entries.
    pub fn bytes(self, entries: u64) -> u64 {
        self.header(entries).len() as u64 + self.elements.width() * entries
    }

    /// Entries of the array of one tile.
    pub fn entries_of_tile(self, manifest: &Manifest, tile: TileId) -> u64 {
        self.elements.array().entries(&manifest.tile(tile))
    }

    /// Entries of the array of the whole matrix.
    pub fn entries_of_matrix(self, manifest: &Manifest) -> u64 {
        match self.elements {
            Elements::Indptr => manifest.n_cells + 1,
            Elements::Indices | Elements::Counts | Elements::Floats => manifest.nnz(),
        }
    }

    /// The bytes `range` of a tile's file.
    pub(super) fn of_tile(self, manifest: &Manifest, tile: TileId, range: Range<u64>) -> Vec<Extent> {
        self.extents(self.entries_of_tile(manifest, tile), range, |bytes, extents| {
            extents.push(Extent::Array {
                tile,
                elements: self.elements,
                bytes,
            });
        })
    }

    /// The bytes `range` of the file of the whole matrix.
    pub(super) fn of_matrix(self, manifest: &Manifest, range: Range<u64>) -> Vec<Extent> {
        self.extents(self.entries_of_matrix(manifest), range, |bytes, extents| {
            of_matrix(manifest, self.elements, bytes, extents);
        })
    }

    fn extents(self, entries: u64, range: Range<u64>, array: impl FnOnce(Range<u64>, &mut Vec<Extent>)) -> Vec<Extent> {
        let header = self.header(entries);
        let start = header.len() as u64;
        let mut extents = Vec::new();
        if range.start < start {
            let end = range.end.min(start) as usize;
            extents.push(Extent::Literal(header.into(), range.start as usize..end));
        }
        if range.end > start {
            array(range.start.max(start) - start..range.end - start, &mut extents);
        }
        extents
    }
}

/// The bytes `range` of an array of the whole matrix.
pub(super) fn of_matrix(manifest: &Manifest, elements: Elements, range: Range<u64>, extents: &mut Vec<Extent>) {
    let width = elements.width();
    if elements == Elements::Indptr {
        return row_starts(manifest, width, range, extents);
    }
    let mut at = range.start;
    while at < range.end {
        let Some(tile) = manifest.tile_of_nonzero(at / width) else {
            break;
        };
        let start = manifest.nnz_before(tile) * width;
        let end = range.end.min(manifest.nnz_before(tile + 1) * width);
        extents.push(Extent::Array {
            tile,
            elements,
            bytes: at - start..end - start,
        });
        at = end;
    }
}

/// The bytes `range` of the row starts of the whole matrix, of `width` bytes each.
///
/// Each tile gives the starts of its own rows; the last one also the end.
pub(super) fn row_starts(manifest: &Manifest, width: u64, range: Range<u64>, extents: &mut Vec<Extent>) {
    let tiles = manifest.n_tiles();
    if tiles == 0 {
        let zero = 0_i64.to_le_bytes();
        return extents.push(Extent::Literal(zero.into(), range.start as usize..range.end as usize));
    }
    let mut at = range.start;
    while at < range.end {
        let tile = manifest.tile_of_cell(at / width).unwrap_or(tiles - 1);
        let start = manifest.cells_before(tile) * width;
        let end = match tile + 1 == tiles {
            true => range.end,
            false => range.end.min(manifest.cells_before(tile + 1) * width),
        };
        extents.push(Extent::RowStarts {
            tile,
            width,
            bytes: at - start..end - start,
        });
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::manifest::NewManifest;

    /// Tiles of 3, 3 and 2 cells with 5, 0 and 2^40 nonzeros.
    fn manifest() -> Manifest {
        Manifest::new(NewManifest {
            n_genes: 1 << 30,
            tile_size: 3,
            tile_cells: vec![3, 3, 2],
            tile_nnz: vec![5, 0, 1 << 30],
            tile_bytes: vec![1000, 1000, 1 << 33],
            ..NewManifest::default()
        })
        .unwrap()
    }

    fn array(tile: TileId, elements: Elements, bytes: Range<u64>) -> Extent {
        Extent::Array { tile, elements, bytes }
    }

    #[test]
    fn every_file_has_its_own_number_and_name() {
        for (number, (name, file)) in FILES.into_iter().enumerate() {
            assert_eq!((file.number(), file.name()), (number, name));
            assert_eq!(ArrayFile::numbered(number), Some(file));
        }
        let names: std::collections::HashSet<_> = FILES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), ArrayFile::COUNT);
    }

    #[test]
    fn the_matrix_skips_tiles_without_nonzeros_and_cuts_at_any_byte() {
        let file = file(Elements::Floats, Form::Raw);
        let extents = file.of_matrix(&manifest(), 17..27);
        assert_eq!(
            extents,
            [array(0, Elements::Floats, 17..20), array(2, Elements::Floats, 0..7)]
        );
    }

    #[test]
    fn row_starts_come_from_the_tile_of_the_row_and_the_end_from_the_last() {
        let file = file(Elements::Indptr, Form::Raw);
        let width = 8;
        let starts = |tile, bytes| Extent::RowStarts { tile, width, bytes };
        assert_eq!(file.bytes(file.entries_of_matrix(&manifest())), 72);
        let expected = [starts(0, 4..24), starts(1, 0..24), starts(2, 0..24)];
        assert_eq!(file.of_matrix(&manifest(), 4..72), expected);
        assert_eq!(file.of_matrix(&manifest(), 64..72), [starts(2, 16..24)]);
        let mut narrow = Vec::new();
        row_starts(&manifest(), 4, 10..36, &mut narrow);
        let width = 4;
        let starts = |tile, bytes| Extent::RowStarts { tile, width, bytes };
        assert_eq!(narrow, [starts(0, 10..12), starts(1, 0..12), starts(2, 0..12)]);
    }

    #[test]
    fn npy_files_are_a_header_and_the_raw_file() {
        let file = file(Elements::Indices, Form::Npy);
        let header = file.header(5);
        assert!(header.len().is_multiple_of(64) && header.starts_with(b"\x93NUMPY"));
        let at = header.len() as u64;
        let extents = file.of_tile(&manifest(), 0, at - 2..at + 6);
        let literal = Extent::Literal(header.into(), at as usize - 2..at as usize);
        assert_eq!(extents, [literal, array(0, Elements::Indices, 0..6)]);
        assert_eq!(file.bytes(5), at + 20);
    }

    #[test]
    fn offsets_beyond_four_gibibytes_are_kept() {
        let file = file(Elements::Counts, Form::Raw);
        let end = file.bytes(file.entries_of_matrix(&manifest()));
        assert_eq!(end, 4 * (5 + (1 << 30)));
        let extents = file.of_matrix(&manifest(), end - 4..end);
        assert_eq!(extents, [array(2, Elements::Counts, (1 << 32) - 4..1 << 32)]);
    }
}
