//! Cells to tile bytes: the inverse of decoding, one chunk at a time.
//!
//! A tile is cut with [`chunk_cells`], each chunk is encoded by a [`ChunkEncoder`], and [`assemble`] puts the chunks
//! into one tile. The steps are apart so that a caller may encode the chunks of a tile on several threads;
//! [`encode_tile`] does them in order. Nothing here knows of files, datasets or threads, and the bytes depend on
//! nothing but the rows, the number of chunks and the compression level.

use std::ops::Range;

use thiserror::Error;
use zstd_safe::{CCtx, CParameter, ResetDirective};

use super::manifest::TileSpec;
use super::tile::{ALIGNMENT, CHUNK_ENTRY_BYTES, Chunk, HEADER_BYTES, Header, Stream};
use super::{MAX_COUNT, MAX_GENES};

/// The largest gap or count that a stream holds itself; what is above is an exception (format, Streams).
const MAX_STORED: u32 = u16::MAX as u32;

/// The level existing writers use: higher ones are smaller and decode no slower.
pub const DEFAULT_LEVEL: i32 = 19;
/// The chunks existing writers cut a tile into.
pub const DEFAULT_CHUNKS: u32 = 8;

/// Why rows cannot be stored as a tile. Cells are counted from the first of the rows that were handed over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The arrays of the CSR matrix do not fit each other.
    #[error("{array} has {found} entries, expected {expected}")]
    Length {
        array: &'static str,
        found: u64,
        expected: String,
    },
    /// The row starts are not what a CSR matrix has.
    #[error("indptr[{index}] is {found}, expected {expected}")]
    Indptr { index: u64, found: i64, expected: String },
    /// A number of genes that no tile can have.
    #[error("n_genes is {0}, expected 1 to {MAX_GENES}")]
    Genes(u32),
    /// One entry that the format cannot hold.
    #[error("cell {cell}, gene {gene}: {fault}")]
    Entry { cell: u64, gene: i64, fault: EntryFault },
    /// So many exceptions that the data is not raw counts, or would decode slowly (format, Exceptions).
    #[error(
        "cell {cell}, gene {gene} has the first of {found} {what} above {MAX_STORED} in a tile of {nnz} nonzeros, \
         which may have at most {most}; the format is for raw counts, where they are rare"
    )]
    TooManyExceptions {
        cell: u64,
        gene: i64,
        what: &'static str,
        found: u64,
        nnz: u64,
        most: u64,
    },
    /// A chunk with more nonzeros than exception positions can name.
    #[error("cells {} to {} have {nnz} nonzeros in one chunk, expected less than 2^32; use more chunks", cells.start, cells.end)]
    ChunkTooLarge { cells: Range<u64>, nnz: u64 },
    /// zstd refused to compress, for want of memory or because it does not know the level.
    #[error("zstd: {0}")]
    Zstd(&'static str),
}

/// What is wrong with one entry of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EntryFault {
    /// A gene that the dataset does not have.
    #[error("there is no such gene, expected 0 to {}", n_genes - 1)]
    NoSuchGene { n_genes: u32 },
    /// The genes of a cell are not in increasing order.
    #[error("the genes of a cell must increase, but it follows gene {previous}")]
    Unsorted { previous: i64 },
    /// A cell names a gene twice.
    #[error("the cell names this gene twice")]
    Repeated,
    /// A zero, which is stored by leaving it out.
    #[error("the count is 0, and zeros are not stored: leave them out")]
    Zero,
    /// A number that is not a count.
    #[error("the count is {0}, expected 1 to {MAX_COUNT}")]
    Count(i64),
}

impl EncodeError {
    /// The same fault with cells counted from `first` cells earlier: from the start of the dataset, say.
    pub fn counted_from(mut self, first: u64) -> Self {
        match &mut self {
            Self::Entry { cell, .. } | Self::TooManyExceptions { cell, .. } => *cell += first,
            Self::ChunkTooLarge { cells, .. } => *cells = cells.start + first..cells.end + first,
            Self::Length { .. } | Self::Indptr { .. } | Self::Genes(_) | Self::Zstd(_) => {}
        }
        self
    }
}

/// Rows (cells) of a count matrix in CSR form, borrowed: the nonzeros of row `r` are `indptr[r]..indptr[r + 1]` of
/// `indices` (genes) and `counts`.
///
/// `I` and `C` are any integers that convert to `i64`: `i32` and `u32` take the least memory, `i64` can show
/// what a careless conversion would have wrapped.
#[derive(Debug, Clone, Copy)]
pub struct CsrRows<'a, I, C> {
    n_genes: u32,
    indptr: &'a [i64],
    indices: &'a [I],
    counts: &'a [C],
}

impl<'a, I, C> CsrRows<'a, I, C>
where
    I: Copy + Into<i64>,
    C: Copy + Into<i64>,
{
    /// Takes the three arrays of a CSR matrix with `n_genes` columns; `indptr` has one entry more than there are cells.
    ///
    /// # Errors
    /// When the arrays do not fit each other. What the entries hold is checked by [`CsrRows::check_entries`] and on encoding.
    pub fn new(n_genes: u32, indptr: &'a [i64], indices: &'a [I], counts: &'a [C]) -> Result<Self, EncodeError> {
        if !(1..=MAX_GENES).contains(&n_genes.into()) {
            return Err(EncodeError::Genes(n_genes));
        }
        let nnz = indices.len();
        length("counts", counts.len(), nnz, "as many as indices")?;
        let Some((&last, &first)) = indptr.last().zip(indptr.first()) else {
            return Err(EncodeError::Length {
                array: "indptr",
                found: 0,
                expected: "one more than cells".into(),
            });
        };
        let wrong = |index: usize, expected: String| EncodeError::Indptr {
            index: index as u64,
            found: indptr[index],
            expected,
        };
        if first != 0 {
            return Err(wrong(0, "0".into()));
        }
        if let Some(cell) = indptr.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(wrong(cell + 1, format!("at least {}, as before it", indptr[cell])));
        }
        if last as u64 != nnz as u64 {
            return Err(wrong(indptr.len() - 1, format!("{nnz}, the number of indices")));
        }
        Ok(Self {
            n_genes,
            indptr,
            indices,
            counts,
        })
    }

    /// Cells (rows).
    pub fn n_cells(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Nonzeros.
    pub fn nnz(&self) -> usize {
        self.indices.len()
    }

    /// Genes (columns).
    pub fn n_genes(&self) -> u32 {
        self.n_genes
    }

    /// The row starts, from 0; one more than cells.
    pub fn indptr(&self) -> &'a [i64] {
        self.indptr
    }

    /// The genes and counts of some cells.
    ///
    /// # Panics
    /// When there are no such cells.
    pub fn entries(&self, cells: Range<usize>) -> (&'a [I], &'a [C]) {
        let nonzeros = self.nonzeros(&cells);
        (&self.indices[nonzeros.clone()], &self.counts[nonzeros])
    }

    /// Whether a tile can hold every entry.
    ///
    /// # Errors
    /// [`EncodeError::Entry`], for the first that it cannot.
    pub fn check_entries(&self) -> Result<(), EncodeError> {
        (0..self.n_cells()).try_for_each(|cell| self.for_each_entry(cell, |_, _, _| {}))
    }

    fn nonzeros(&self, cells: &Range<usize>) -> Range<usize> {
        self.indptr[cells.start] as usize..self.indptr[cells.end] as usize
    }

    /// Calls `visit(gene, gap, count)` for each nonzero of a cell, the gap being the distance from the gene before,
    /// or from gene 0.
    fn for_each_entry(&self, cell: usize, mut visit: impl FnMut(u32, u32, u32)) -> Result<(), EncodeError> {
        let (genes, counts) = self.entries(cell..cell + 1);
        let mut previous = -1_i64;
        for (&gene, &count) in genes.iter().zip(counts) {
            let (gene, count): (i64, i64) = (gene.into(), count.into());
            let in_order = gene > previous && gene < i64::from(self.n_genes);
            if !in_order || count < 1 || count > i64::from(MAX_COUNT) {
                let fault = self.fault(gene, count, previous);
                let cell = cell as u64;
                return Err(EncodeError::Entry { cell, gene, fault });
            }
            visit(gene as u32, (gene - previous.max(0)) as u32, count as u32);
            previous = gene;
        }
        Ok(())
    }

    fn fault(&self, gene: i64, count: i64, previous: i64) -> EntryFault {
        if gene < 0 || gene >= i64::from(self.n_genes) {
            EntryFault::NoSuchGene { n_genes: self.n_genes }
        } else if gene == previous {
            EntryFault::Repeated
        } else if gene < previous {
            EntryFault::Unsorted { previous }
        } else if count == 0 {
            EntryFault::Zero
        } else {
            EntryFault::Count(count)
        }
    }
}

fn length(array: &'static str, found: usize, expected: usize, why: &str) -> Result<(), EncodeError> {
    if found == expected {
        return Ok(());
    }
    Err(EncodeError::Length {
        array,
        found: found as u64,
        expected: format!("{expected}, {why}"),
    })
}

/// The cells of each chunk of a tile with this indptr: `n_chunks` of them with about as many nonzeros each, or fewer
/// where cells are few or large.
///
/// Cut `i` of `k = min(n_chunks, cells)` is the first cell whose indptr reaches `nnz * i / k`, and cuts that fall together
/// are one, as other writers have it: the same rows then make the same chunks everywhere. No cells make no chunks
/// (format, "Chunk table entry").
pub fn chunk_cells(indptr: &[i64], n_chunks: u32) -> Vec<Range<usize>> {
    let n_cells = indptr.len().saturating_sub(1);
    if n_cells == 0 {
        return Vec::new();
    }
    let nnz = indptr[n_cells] as u128;
    let k = u128::from(n_chunks.max(1)).min(n_cells as u128);
    let inner = (1..k).map(|i| indptr.partition_point(|&start| (start as u128) * k < nnz * i));
    let mut cuts: Vec<usize> = std::iter::once(0).chain(inner).chain([n_cells]).collect();
    cuts.dedup();
    cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// One chunk's compressed streams; what [`assemble`] makes tiles of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChunk {
    cells: Range<u64>,
    nonzeros: Range<u64>,
    gaps: Vec<u8>,
    values: Vec<u8>,
    value_exceptions: Exceptions,
    gap_exceptions: Exceptions,
}

impl EncodedChunk {
    /// Its cells.
    pub fn n_cells(&self) -> u64 {
        self.cells.end - self.cells.start
    }

    /// Its nonzeros.
    pub fn nnz(&self) -> u64 {
        self.nonzeros.end - self.nonzeros.start
    }

    /// Bytes of its frames.
    pub fn bytes(&self) -> u64 {
        let frames = [
            &self.gaps,
            &self.values,
            &self.value_exceptions.frame,
            &self.gap_exceptions.frame,
        ];
        frames.iter().map(|frame| frame.len() as u64).sum()
    }
}

/// The exception frame of a stream, empty when there are none, and what messages say of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Exceptions {
    frame: Vec<u8>,
    number: u64,
    /// Cell and gene of the first.
    first: Option<(u64, i64)>,
}

/// Encodes chunks, one after another, with buffers and a zstd context that it keeps: about 100 MB at level 19.
pub struct ChunkEncoder {
    zstd: CCtx<'static>,
    planes: Planes,
    compressed: Vec<u8>,
}

/// A chunk's streams before compression.
#[derive(Default)]
struct Planes {
    gaps: Vec<u8>,
    values: Vec<u8>,
    value_exceptions: Listed,
    gap_exceptions: Listed,
}

/// Exceptions while they are collected.
#[derive(Default)]
struct Listed {
    positions: Vec<u32>,
    payloads: Vec<u32>,
    first: Option<(u64, i64)>,
}

impl Listed {
    fn clear(&mut self) {
        self.positions.clear();
        self.payloads.clear();
        self.first = None;
    }

    fn push(&mut self, position: usize, payload: u32, cell: usize, gene: u32) {
        self.first.get_or_insert((cell as u64, gene.into()));
        self.positions.push(position as u32);
        self.payloads.push(payload);
    }

    fn bytes(&self) -> Vec<u8> {
        let words = self.positions.iter().chain(&self.payloads);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }
}

impl Planes {
    /// Splits the cells' gaps and counts into byte planes: all low bytes, then all high bytes.
    fn fill<I, C>(&mut self, rows: &CsrRows<'_, I, C>, cells: Range<usize>) -> Result<(), EncodeError>
    where
        I: Copy + Into<i64>,
        C: Copy + Into<i64>,
    {
        let nnz = rows.nonzeros(&cells).len();
        for plane in [&mut self.gaps, &mut self.values] {
            plane.clear();
            plane.resize(2 * nnz, 0);
        }
        self.value_exceptions.clear();
        self.gap_exceptions.clear();
        let (gaps_low, gaps_high) = self.gaps.split_at_mut(nnz);
        let (values_low, values_high) = self.values.split_at_mut(nnz);
        let mut position = 0;
        for cell in cells {
            rows.for_each_entry(cell, |gene, gap, count| {
                if gap > MAX_STORED {
                    self.gap_exceptions.push(position, gap - MAX_STORED, cell, gene);
                }
                if count > MAX_STORED {
                    self.value_exceptions.push(position, count, cell, gene);
                }
                [gaps_low[position], gaps_high[position]] = (gap.min(MAX_STORED) as u16).to_le_bytes();
                [values_low[position], values_high[position]] = (count.min(MAX_STORED) as u16).to_le_bytes();
                position += 1;
            })?;
        }
        Ok(())
    }
}

impl ChunkEncoder {
    /// An encoder that compresses at zstd level `level`.
    ///
    /// # Errors
    /// When zstd has no such level, or no memory.
    pub fn new(level: i32) -> Result<Self, EncodeError> {
        // zstd itself takes the nearest level it has; a manifest would then name one that was not used.
        if !(zstd_safe::min_c_level()..=zstd_safe::max_c_level()).contains(&level) {
            return Err(EncodeError::Zstd("no such compression level"));
        }
        let mut zstd = CCtx::try_create().ok_or(EncodeError::Zstd("not enough memory for a context"))?;
        zstd.set_parameter(CParameter::CompressionLevel(level))
            .map_err(zstd_error)?;
        Ok(Self {
            zstd,
            planes: Planes::default(),
            compressed: Vec::new(),
        })
    }

    /// Encodes the cells `cells` of `rows` as one chunk of the tile that `rows` is.
    ///
    /// # Errors
    /// When an entry cannot be stored or zstd fails. The encoder can be used again afterwards.
    ///
    /// # Panics
    /// When `rows` has no such cells.
    pub fn encode<I, C>(&mut self, rows: &CsrRows<'_, I, C>, cells: Range<usize>) -> Result<EncodedChunk, EncodeError>
    where
        I: Copy + Into<i64>,
        C: Copy + Into<i64>,
    {
        let nonzeros = rows.nonzeros(&cells);
        let (cell_range, nnz) = (cells.start as u64..cells.end as u64, nonzeros.len() as u64);
        if nnz > u64::from(u32::MAX) {
            return Err(EncodeError::ChunkTooLarge { cells: cell_range, nnz });
        }
        self.planes.fill(rows, cells)?;
        let Self {
            zstd,
            planes,
            compressed,
        } = self;
        Ok(EncodedChunk {
            cells: cell_range,
            nonzeros: nonzeros.start as u64..nonzeros.end as u64,
            gaps: frame(zstd, compressed, &planes.gaps)?,
            values: frame(zstd, compressed, &planes.values)?,
            value_exceptions: exceptions(zstd, compressed, &planes.value_exceptions)?,
            gap_exceptions: exceptions(zstd, compressed, &planes.gap_exceptions)?,
        })
    }
}

fn exceptions(zstd: &mut CCtx<'_>, compressed: &mut Vec<u8>, listed: &Listed) -> Result<Exceptions, EncodeError> {
    if listed.positions.is_empty() {
        return Ok(Exceptions::default());
    }
    Ok(Exceptions {
        frame: frame(zstd, compressed, &listed.bytes())?,
        number: listed.positions.len() as u64,
        first: listed.first,
    })
}

/// One zstd frame of `content`, whose size it states: the one-shot call knows it.
fn frame(zstd: &mut CCtx<'_>, compressed: &mut Vec<u8>, content: &[u8]) -> Result<Vec<u8>, EncodeError> {
    compressed.clear();
    compressed.reserve(zstd_safe::compress_bound(content.len()));
    let outcome = zstd.compress2(compressed, content);
    // A context that failed stays in the middle of its frame until it is told otherwise.
    if outcome.is_err() {
        zstd.reset(ResetDirective::SessionOnly).map_err(zstd_error)?;
    }
    outcome.map_err(zstd_error)?;
    Ok(compressed.as_slice().to_vec())
}

fn zstd_error(code: zstd_safe::ErrorCode) -> EncodeError {
    EncodeError::Zstd(zstd_safe::get_error_name(code))
}

/// Puts the chunks of a tile together: header, chunk table, indptr, streams.
///
/// `chunks` are those of [`chunk_cells`], in order, encoded from rows with this `indptr`.
///
/// # Errors
/// When the tile has more exceptions of either kind than the format's writers allow: `max(1024, nnz / 200)`.
///
/// # Panics
/// When the chunks do not cover the tile.
pub fn assemble(n_genes: u32, indptr: &[i64], chunks: &[EncodedChunk]) -> Result<Vec<u8>, EncodeError> {
    let n_cells = indptr.len() as u64 - 1;
    let nnz = indptr[n_cells as usize] as u64;
    let covered = chunks.last().map_or((0, 0), |last| (last.cells.end, last.nonzeros.end));
    assert_eq!(covered, (n_cells, nnz), "the chunks are those of the tile");
    check_exceptions("counts", nnz, chunks.iter().map(|chunk| &chunk.value_exceptions))?;
    check_exceptions("gaps", nnz, chunks.iter().map(|chunk| &chunk.gap_exceptions))?;

    let indptr_offset = (HEADER_BYTES + chunks.len() * CHUNK_ENTRY_BYTES) as u64;
    let mut end = indptr_offset + 8 * (n_cells + 1);
    let table: Vec<Chunk> = chunks
        .iter()
        .enumerate()
        .map(|(index, chunk)| place(index, chunk, &mut end))
        .collect();

    let mut tile = vec![0; HEADER_BYTES];
    tile.reserve_exact(end as usize - HEADER_BYTES);
    for entry in &table {
        tile.extend_from_slice(&entry.to_bytes());
    }
    tile.extend(indptr.iter().flat_map(|start| start.to_le_bytes()));
    for stream in chunks.iter().flat_map(EncodedChunk::streams) {
        tile.resize(tile.len().next_multiple_of(ALIGNMENT as usize), 0);
        tile.extend_from_slice(stream.1);
    }
    assert_eq!(tile.len() as u64, end, "streams are where the chunk table says");
    let header = Header {
        spec: TileSpec {
            id: 0,
            n_cells,
            nnz,
            n_genes,
            bytes: end,
        },
        crc32: crc32fast::hash(&tile[HEADER_BYTES..]),
        n_chunks: chunks.len(),
        indptr_offset,
    };
    tile[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    Ok(tile)
}

impl EncodedChunk {
    /// The streams that are there, in the order in which they are stored.
    fn streams(&self) -> impl Iterator<Item = (Stream, &[u8])> {
        [
            (Stream::Gaps, &self.gaps),
            (Stream::Values, &self.values),
            (Stream::ValueExceptions, &self.value_exceptions.frame),
            (Stream::GapExceptions, &self.gap_exceptions.frame),
        ]
        .into_iter()
        .filter(|(_, bytes)| !bytes.is_empty())
        .map(|(stream, bytes)| (stream, bytes.as_slice()))
    }
}

/// The chunk's table entry when its streams follow `end`, which moves behind them.
fn place(index: usize, chunk: &EncodedChunk, end: &mut u64) -> Chunk {
    let mut entry = Chunk {
        index,
        cells: chunk.cells.clone(),
        nonzeros: chunk.nonzeros.clone(),
        gaps: 0..0,
        values: 0..0,
        value_exceptions: None,
        gap_exceptions: None,
    };
    for (stream, bytes) in chunk.streams() {
        let start = end.next_multiple_of(ALIGNMENT);
        *end = start + bytes.len() as u64;
        let range = start..*end;
        match stream {
            Stream::Gaps => entry.gaps = range,
            Stream::Values => entry.values = range,
            Stream::ValueExceptions => entry.value_exceptions = Some(range),
            Stream::GapExceptions => entry.gap_exceptions = Some(range),
        }
    }
    entry
}

fn check_exceptions<'a>(
    what: &'static str,
    nnz: u64,
    exceptions: impl Iterator<Item = &'a Exceptions> + Clone,
) -> Result<(), EncodeError> {
    let found: u64 = exceptions.clone().map(|e| e.number).sum();
    let most = most_exceptions(nnz);
    let Some((cell, gene)) = exceptions.filter_map(|e| e.first).next().filter(|_| found > most) else {
        return Ok(());
    };
    Err(EncodeError::TooManyExceptions {
        cell,
        gene,
        what,
        found,
        nnz,
        most,
    })
}

/// The most exceptions of either kind that a tile of `nnz` nonzeros is written with (format, Exceptions).
pub fn most_exceptions(nnz: u64) -> u64 {
    (nnz / 200).max(1024)
}

/// Encodes the rows as one tile, on this thread.
///
/// # Errors
/// When an entry cannot be stored, there are too many exceptions, or zstd fails or has no such `level`.
pub fn encode_tile<I, C>(rows: &CsrRows<'_, I, C>, n_chunks: u32, level: i32) -> Result<Vec<u8>, EncodeError>
where
    I: Copy + Into<i64>,
    C: Copy + Into<i64>,
{
    let mut encoder = ChunkEncoder::new(level)?;
    let chunks = chunk_cells(rows.indptr, n_chunks)
        .into_iter()
        .map(|cells| encoder.encode(rows, cells))
        .collect::<Result<Vec<_>, _>>()?;
    assemble(rows.n_genes, rows.indptr, &chunks)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::super::decode::Decoder;
    use super::super::plain::{self, PlainTile};
    use super::super::tile::{Layout, parse_indptr};
    use super::*;

    /// A CSR matrix that owns its arrays.
    #[derive(Debug, Clone)]
    struct Matrix {
        n_genes: u32,
        indptr: Vec<i64>,
        genes: Vec<i64>,
        counts: Vec<i64>,
    }

    impl Matrix {
        fn of_cells(n_genes: u32, cells: &[Vec<(i64, i64)>]) -> Self {
            let mut matrix = Self {
                n_genes,
                indptr: vec![0],
                genes: Vec::new(),
                counts: Vec::new(),
            };
            for cell in cells {
                matrix.genes.extend(cell.iter().map(|entry| entry.0));
                matrix.counts.extend(cell.iter().map(|entry| entry.1));
                matrix.indptr.push(matrix.genes.len() as i64);
            }
            matrix
        }

        fn rows(&self) -> CsrRows<'_, i64, i64> {
            CsrRows::new(self.n_genes, &self.indptr, &self.genes, &self.counts).unwrap()
        }

        fn encode(&self, n_chunks: u32) -> Result<Vec<u8>, EncodeError> {
            encode_tile(&self.rows(), n_chunks, 1)
        }
    }

    /// Distances at which a gap becomes longer than a byte, or an exception.
    fn gap() -> impl Strategy<Value = i64> {
        prop_oneof![
            6 => 1_i64..4,
            2 => 250_i64..260,
            2 => 65_533_i64..65_539,
            1 => 100_000_i64..500_000,
            1 => Just(i64::from(i32::MAX)),
        ]
    }

    fn count() -> impl Strategy<Value = i64> {
        prop_oneof![
            6 => 1_i64..4,
            1 => 254_i64..258,
            1 => 65_534_i64..65_538,
            1 => Just(i64::from(i32::MAX)),
            1 => 1..=i64::from(i32::MAX),
        ]
    }

    fn cell(n_genes: u32) -> impl Strategy<Value = Vec<(i64, i64)>> {
        let entries = prop::collection::vec((gap(), count()), 0..40);
        let empty = Just(Vec::new());
        prop_oneof![4 => entries, 1 => empty].prop_map(move |steps| {
            let genes = steps.iter().scan(-1_i64, |gene, step| {
                *gene += step.0;
                (*gene < n_genes.into()).then_some(*gene)
            });
            genes.zip(steps.iter().map(|step| step.1)).collect()
        })
    }

    fn matrix() -> impl Strategy<Value = Matrix> {
        prop_oneof![
            Just(1_u32),
            Just(2),
            Just(300),
            Just(65_537),
            Just(400_000),
            Just(1 << 31)
        ]
        .prop_flat_map(|n_genes| (Just(n_genes), prop::collection::vec(cell(n_genes), 0..25)))
        .prop_map(|(n_genes, cells)| Matrix::of_cells(n_genes, &cells))
    }

    /// What the crate's own readers make of a tile.
    fn decode(tile: &[u8], matrix: &Matrix) -> (Vec<i64>, Vec<i32>, Vec<i32>) {
        let spec = TileSpec {
            id: 0,
            n_cells: matrix.indptr.len() as u64 - 1,
            nnz: matrix.genes.len() as u64,
            n_genes: matrix.n_genes,
            bytes: tile.len() as u64,
        };
        let slice = |range: Range<u64>| &tile[range.start as usize..range.end as usize];
        let header = Header::parse(&tile[..HEADER_BYTES], spec.bytes, spec).unwrap();
        let layout = Layout::parse(&header, slice(header.table())).unwrap();
        let indptr = parse_indptr(&layout, slice(header.indptr())).unwrap();
        let (mut genes, mut counts) = (vec![0; spec.nnz as usize], vec![0; spec.nnz as usize]);
        let mut decoder = Decoder::default();
        for chunk in &layout.chunks {
            let nonzeros = chunk.nonzeros.start as usize..chunk.nonzeros.end as usize;
            let exceptions = |range: &Option<Range<u64>>| range.clone().map(slice);
            decoder
                .indices(
                    chunk,
                    spec.n_genes,
                    &indptr,
                    slice(chunk.gaps.clone()),
                    exceptions(&chunk.gap_exceptions),
                    &mut genes[nonzeros.clone()],
                )
                .unwrap();
            decoder
                .values(
                    chunk,
                    slice(chunk.values.clone()),
                    exceptions(&chunk.value_exceptions),
                    &mut counts[nonzeros],
                )
                .unwrap();
        }
        (indptr, genes, counts)
    }

    fn widened(values: &[i32]) -> Vec<i64> {
        values.iter().map(|&value| value.into()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

        #[test]
        fn what_is_encoded_is_what_a_plain_reader_and_the_decoder_read(matrix in matrix(), n_chunks in 1_u32..30) {
            let tile = matrix.encode(n_chunks).unwrap();
            let plain = plain::read(&tile);
            let expected = PlainTile {
                n_genes: matrix.n_genes,
                indptr: matrix.indptr.clone(),
                indices: matrix.genes.clone(),
                counts: matrix.counts.clone(),
                chunks: plain.chunks.clone(),
            };
            prop_assert_eq!(plain, expected);
            let (indptr, genes, counts) = decode(&tile, &matrix);
            prop_assert_eq!(&indptr, &matrix.indptr);
            prop_assert_eq!(widened(&genes), matrix.genes.clone());
            prop_assert_eq!(widened(&counts), matrix.counts.clone());
        }

        #[test]
        fn cuts_are_the_first_cells_that_reach_their_share(
            lengths in prop::collection::vec(0_i64..50, 1..40), n_chunks in 1_u32..50,
        ) {
            let indptr: Vec<i64> = std::iter::once(0)
                .chain(lengths.iter().scan(0, |sum, length| { *sum += length; Some(*sum) }))
                .collect();
            let chunks = chunk_cells(&indptr, n_chunks);
            let k = i64::from(n_chunks).min(lengths.len() as i64);
            let nnz = indptr[lengths.len()];
            let mut cuts: Vec<usize> = (1..k)
                .map(|i| indptr.iter().position(|&start| start * k >= nnz * i).unwrap())
                .collect();
            cuts.extend([0, lengths.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            let expected: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            prop_assert_eq!(chunks, expected);
        }
    }

    #[test]
    fn real_tiles_encode_again_to_the_same_bytes() {
        let Some(root) = crate::testdata::root() else { return };
        let mut tiles = 0;
        for dataset in ["pbmc3k", "pbmc_facs", "celseq2"] {
            for entry in fs::read_dir(root.join(format!("real/{dataset}.dc/tiles"))).unwrap() {
                let path = entry.unwrap().path();
                let stored = fs::read(&path).unwrap();
                let tile = plain::read(&stored);
                let rows = CsrRows::new(tile.n_genes, &tile.indptr, &tile.indices, &tile.counts).unwrap();
                assert!(encode_tile(&rows, 8, 19).unwrap() == stored, "{}", path.display());
                tiles += 1;
            }
        }
        assert!(tiles > 10, "{tiles} tiles found");
    }

    #[test]
    fn an_encoder_used_before_gives_the_bytes_of_a_new_one() {
        let matrix = Matrix::of_cells(
            400_000,
            &(0..200_i64)
                .map(|cell| {
                    (0..300)
                        .map(|i| (i * (cell % 7 + 1) * 40, i % 5 + cell % 3 + 1))
                        .collect()
                })
                .collect::<Vec<_>>(),
        );
        let mut used = ChunkEncoder::new(19).unwrap();
        for cells in [0..200, 3..4, 10..150, 0..0] {
            let new = ChunkEncoder::new(19)
                .unwrap()
                .encode(&matrix.rows(), cells.clone())
                .unwrap();
            assert_eq!(used.encode(&matrix.rows(), cells).unwrap(), new);
        }
    }

    #[test]
    fn an_encoder_can_be_used_after_a_refusal() {
        let mut encoder = ChunkEncoder::new(1).unwrap();
        let bad = Matrix::of_cells(10, &[vec![(1, 70_000), (2, 0)]]);
        assert!(encoder.encode(&bad.rows(), 0..1).is_err());
        let good = Matrix::of_cells(10, &[vec![(1, 1)]]);
        let new = ChunkEncoder::new(1).unwrap().encode(&good.rows(), 0..1);
        assert_eq!(encoder.encode(&good.rows(), 0..1), new);
    }

    #[test]
    fn no_cells_make_no_chunks() {
        let tile = plain::read(&Matrix::of_cells(5, &[]).encode(8).unwrap());
        assert_eq!((tile.indptr, tile.chunks), (vec![0], vec![]));
    }

    #[test]
    fn cells_without_nonzeros_are_one_chunk() {
        let tile = plain::read(&Matrix::of_cells(5, &vec![vec![]; 7]).encode(3).unwrap());
        assert_eq!(tile.chunks, [(0, 7)]);
    }

    #[test]
    fn entries_that_cannot_be_stored_are_named() {
        for (cell, message) in [
            (
                vec![(5, 1), (3, 1)],
                "cell 1, gene 3: the genes of a cell must increase, but it follows gene 5",
            ),
            (vec![(5, 1), (5, 1)], "cell 1, gene 5: the cell names this gene twice"),
            (vec![(10, 1)], "cell 1, gene 10: there is no such gene, expected 0 to 9"),
            (vec![(-1, 1)], "cell 1, gene -1: there is no such gene, expected 0 to 9"),
            (
                vec![(1 << 32, 1)],
                "cell 1, gene 4294967296: there is no such gene, expected 0 to 9",
            ),
            (
                vec![(4, 0)],
                "cell 1, gene 4: the count is 0, and zeros are not stored: leave them out",
            ),
            (
                vec![(4, -3)],
                "cell 1, gene 4: the count is -3, expected 1 to 2147483647",
            ),
            (
                vec![(4, 1 << 31)],
                "cell 1, gene 4: the count is 2147483648, expected 1 to 2147483647",
            ),
            (
                vec![(4, 1 << 32)],
                "cell 1, gene 4: the count is 4294967296, expected 1 to 2147483647",
            ),
        ] {
            let matrix = Matrix::of_cells(10, &[vec![(9, 1)], cell]);
            assert_eq!(matrix.encode(8).unwrap_err().to_string(), message);
            assert_eq!(matrix.rows().check_entries().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn arrays_that_are_no_csr_matrix_are_refused() {
        type Arrays<'a> = (u32, &'a [i64], &'a [i64], &'a [i64]);
        let cases: [(Arrays, &str); 7] = [
            ((0, &[0], &[], &[]), "n_genes is 0, expected 1 to 2147483648"),
            (
                ((1 << 31) + 1, &[0], &[], &[]),
                "n_genes is 2147483649, expected 1 to 2147483648",
            ),
            ((9, &[], &[], &[]), "indptr has 0 entries, expected one more than cells"),
            (
                (9, &[0, 1], &[1], &[]),
                "counts has 0 entries, expected 1, as many as indices",
            ),
            ((9, &[1, 1], &[1], &[1]), "indptr[0] is 1, expected 0"),
            (
                (9, &[0, 2, 1], &[1], &[1]),
                "indptr[2] is 1, expected at least 2, as before it",
            ),
            (
                (9, &[0, 2], &[1], &[1]),
                "indptr[1] is 2, expected 1, the number of indices",
            ),
        ];
        for ((n_genes, indptr, genes, counts), message) in cases {
            let error = CsrRows::new(n_genes, indptr, genes, counts).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }

    /// Cells of one nonzero, of which the last `exceptions` have this gene and count.
    fn with_exceptions(cells: usize, exceptions: usize, entry: (i64, i64)) -> Matrix {
        let plain = std::iter::repeat_n(vec![(3, 1)], cells - exceptions);
        let cells: Vec<_> = plain.chain(std::iter::repeat_n(vec![entry], exceptions)).collect();
        Matrix::of_cells(100_000, &cells)
    }

    #[test]
    fn as_many_exceptions_as_other_writers_allow_are_stored_and_no_more() {
        for entry in [(3, 70_000), (70_000, 1)] {
            for (cells, most) in [(2_000, 1_024), (300_000, 1_500)] {
                assert!(with_exceptions(cells, most, entry).encode(8).is_ok());
                let error = with_exceptions(cells, most + 1, entry).encode(8).unwrap_err();
                let what = if entry.0 == 3 { "counts" } else { "gaps" };
                let expected = EncodeError::TooManyExceptions {
                    cell: (cells - most - 1) as u64,
                    gene: entry.0,
                    what,
                    found: most as u64 + 1,
                    nnz: cells as u64,
                    most: most as u64,
                };
                assert_eq!(error, expected);
            }
        }
    }

    #[test]
    fn levels_that_zstd_does_not_have_are_refused() {
        assert!(ChunkEncoder::new(22).is_ok());
        assert!(matches!(ChunkEncoder::new(23), Err(EncodeError::Zstd(_))));
    }

    #[test]
    fn the_width_of_the_integers_does_not_matter() {
        let (indptr, wide) = ([0, 2, 3], [1_i64, 4, 2]);
        let narrow = [1_u32, 4, 2];
        let signed = [1_i32, 4, 2];
        let expected = encode_tile(&CsrRows::new(9, &indptr, &wide, &wide).unwrap(), 2, 1);
        assert_eq!(
            encode_tile(&CsrRows::new(9, &indptr, &signed, &narrow).unwrap(), 2, 1),
            expected
        );
    }
}
