//! The fixed parts of a tile: header, chunk table, indptr.
//!
//! [`Layout`] is the result of holding every offset and length of a tile against its file size and its manifest;
//! whoever has one can slice the file with it.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

use super::manifest::TileSpec;

/// First bytes of every tile.
pub const MAGIC: [u8; 8] = *b"DELTACEL";
/// The tile version this crate reads and writes.
pub const VERSION: u32 = 2;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a chunk table entry.
pub const CHUNK_ENTRY_BYTES: usize = 96;
/// Every stream starts on a multiple of this.
pub const ALIGNMENT: u64 = 8;
/// No zstd frame that states its content size is smaller: magic, header, size and one empty block.
const MIN_FRAME_BYTES: u64 = 9;
/// zstd spends at least four bytes on a block, and a block holds at most 128 KiB: a frame of `n` bytes cannot
/// hold more than this many times `n / 4 + 1`.
const MAX_ZSTD_BLOCK: u64 = 128 << 10;

/// One of the four compressed streams of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Differences between gene indices.
    Gaps,
    /// Counts.
    Values,
    /// Counts above 65535.
    ValueExceptions,
    /// Gaps above 65535.
    GapExceptions,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Gaps => "gaps",
            Stream::Values => "vals",
            Stream::ValueExceptions => "vexc",
            Stream::GapExceptions => "gexc",
        })
    }
}

/// Where in a tile something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// The first 64 bytes.
    Header,
    /// The row starts.
    Indptr,
    /// A chunk: its table entry.
    Chunk(usize),
    /// A stream of a chunk.
    Stream(usize, Stream),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File => f.write_str("file"),
            Place::Header => f.write_str("header"),
            Place::Indptr => f.write_str("indptr"),
            Place::Chunk(chunk) => write!(f, "chunk {chunk}"),
            Place::Stream(chunk, stream) => write!(f, "chunk {chunk}, {stream}"),
        }
    }
}

/// What is wrong with a tile, and where. The file's name is added by whoever read it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {fault}")]
pub struct TileError {
    /// Where.
    pub place: Place,
    /// What.
    pub fault: TileFault,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TileFault {
    /// Not a tile at all.
    #[error("magic is {found:02x?}, expected \"DELTACEL\"")]
    Magic { found: [u8; 8] },
    /// Another version of the format.
    #[error("version {0} is the format of an alpha release, which is not supported; expected {VERSION}")]
    VersionOne(u32),
    /// Another version of the format.
    #[error("version {0} is not supported, expected {VERSION}")]
    Version(u32),
    /// A number that must have one value has another.
    #[error("{field} is {found}, expected {expected} ({source_of_truth})")]
    Mismatch {
        field: &'static str,
        found: u64,
        expected: u64,
        source_of_truth: &'static str,
    },
    /// A number outside its range.
    #[error("{field} is {found}, expected {expected}")]
    Range {
        field: &'static str,
        found: u64,
        expected: String,
    },
    /// A part does not lie where the file has room for it.
    #[error("{what} at {offset} + {length} lies outside {low}..{high}")]
    Outside {
        what: &'static str,
        offset: u64,
        length: u64,
        low: u64,
        high: u64,
    },
    /// The checksum of the bytes after the header.
    #[error("CRC-32 is {found:08x}, expected {expected:08x}")]
    Crc { found: u32, expected: u32 },
    /// zstd refused a frame.
    #[error("not a valid zstd frame: {0}")]
    Zstd(&'static str),
    /// The chunk is larger than the memory of the machine.
    #[error("no memory for {bytes} bytes")]
    NoMemory {
        /// How many were needed at once.
        bytes: u64,
    },
    /// The stream is not exactly one frame.
    #[error("the stream has {stream} bytes but its zstd frame {frame}")]
    NotOneFrame { stream: u64, frame: u64 },
    /// A frame without content size, which the format requires.
    #[error("the zstd frame does not state its content size")]
    NoContentSize,
    /// A frame states a size that its compressed bytes cannot decompress to.
    #[error("{compressed} compressed bytes cannot hold {content}")]
    Implausible { compressed: u64, content: u64 },
    /// Two neighbours are not in increasing order.
    #[error("{field}[{index}] is {found}, expected {expected}")]
    Entry {
        field: &'static str,
        index: u64,
        found: u64,
        expected: String,
    },
    /// A gene index that the dataset does not have.
    #[error("cell {cell} of the tile has gene {gene}, but there are {n_genes} genes")]
    Gene { cell: u64, gene: u64, n_genes: u32 },
    /// A cell names the same gene twice.
    #[error("cell {cell} of the tile names the same gene twice")]
    RepeatedGene { cell: u64 },
    /// A stored zero, which the format does not have.
    #[error("nonzero {index} of the chunk is stored as 0")]
    StoredZero { index: u64 },
}

impl TileFault {
    /// This fault, at `place`.
    pub fn at(self, place: Place) -> TileError {
        TileError { place, fault: self }
    }
}

/// A stream's bytes in the file.
pub type ByteRange = Range<u64>;

/// One chunk: the cells and nonzeros it covers, and where its streams are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Position in the chunk table.
    pub index: usize,
    /// Cells of the tile.
    pub cells: Range<u64>,
    /// Nonzeros of the tile.
    pub nonzeros: Range<u64>,
    /// Gap stream.
    pub gaps: ByteRange,
    /// Value stream.
    pub values: ByteRange,
    /// Exceptions of the values, when there are any.
    pub value_exceptions: Option<ByteRange>,
    /// Exceptions of the gaps, when there are any.
    pub gap_exceptions: Option<ByteRange>,
}

impl Chunk {
    /// Nonzeros in the chunk.
    pub fn nnz(&self) -> u64 {
        self.nonzeros.end - self.nonzeros.start
    }

    /// The chunk's table entry as it is stored; what [`Layout::parse`] reads.
    pub fn to_bytes(&self) -> [u8; CHUNK_ENTRY_BYTES] {
        let placed = |range: &ByteRange| [range.start, range.end - range.start];
        let optional = |range: &Option<ByteRange>| range.as_ref().map_or([0, 0], placed);
        let fields = [
            [self.cells.start, self.cells.end],
            [self.nonzeros.start, self.nonzeros.end],
            placed(&self.gaps),
            placed(&self.values),
            optional(&self.value_exceptions),
            optional(&self.gap_exceptions),
        ];
        let mut bytes = [0; CHUNK_ENTRY_BYTES];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields.as_flattened()) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// A tile's validated header and chunk table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// What the manifest says of the tile, and the header agrees to.
    pub spec: TileSpec,
    /// CRC-32 of every byte after the header.
    pub crc32: u32,
    /// Offset of the indptr.
    pub indptr_offset: u64,
    /// The chunks, in order; contiguous in cells and nonzeros.
    pub chunks: Vec<Chunk>,
}

/// The header's fields that the rest of the file is read with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The spec it was held against.
    pub spec: TileSpec,
    /// CRC-32 of every byte after the header.
    pub crc32: u32,
    /// Entries of the chunk table.
    pub n_chunks: usize,
    /// Offset of the indptr.
    pub indptr_offset: u64,
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

fn expect(field: &'static str, found: u64, expected: u64, source_of_truth: &'static str) -> Result<(), TileError> {
    if found == expected {
        return Ok(());
    }
    Err(TileFault::Mismatch {
        field,
        found,
        expected,
        source_of_truth,
    }
    .at(Place::Header))
}

impl Header {
    /// Reads the first bytes of a tile of `file_size` bytes and holds them against its manifest entry.
    ///
    /// # Errors
    /// When a field is not what the format or the manifest says.
    pub fn parse(bytes: &[u8], file_size: u64, spec: TileSpec) -> Result<Self, TileError> {
        expect_file("file size", file_size, spec.bytes, "the manifest's tile_bytes")?;
        if bytes.len() < HEADER_BYTES {
            return Err(TileFault::Range {
                field: "file size",
                found: bytes.len() as u64,
                expected: format!("at least {HEADER_BYTES}, the header"),
            }
            .at(Place::File));
        }
        let magic: [u8; 8] = bytes[..8].try_into().expect("eight bytes");
        if magic != MAGIC {
            return Err(TileFault::Magic { found: magic }.at(Place::Header));
        }
        match u32_at(bytes, 8) {
            VERSION => {}
            version @ 1 => return Err(TileFault::VersionOne(version).at(Place::Header)),
            version => return Err(TileFault::Version(version).at(Place::Header)),
        }
        expect("flags", u32_at(bytes, 12).into(), 0, "no flags are defined")?;
        expect("reserved", u32_at(bytes, 60).into(), 0, "reserved")?;
        expect("n_cells", u64_at(bytes, 16), spec.n_cells, "the manifest's tile_cells")?;
        expect("nnz", u64_at(bytes, 24), spec.nnz, "the manifest's tile_nnz")?;
        expect(
            "n_genes",
            u32_at(bytes, 32).into(),
            spec.n_genes.into(),
            "the manifest's n_genes",
        )?;
        expect("total_size", u64_at(bytes, 48), file_size, "the file's size")?;
        let n_chunks = u64::from(u32_at(bytes, 36));
        let indptr_offset = u64_at(bytes, 40);
        let table_end = HEADER_BYTES as u64 + n_chunks * CHUNK_ENTRY_BYTES as u64;
        if table_end > file_size {
            let room = (file_size - HEADER_BYTES as u64) / CHUNK_ENTRY_BYTES as u64;
            let expected = format!("at most {room}, for which the file has room");
            return Err(TileFault::Range {
                field: "n_chunks",
                found: n_chunks,
                expected,
            }
            .at(Place::Header));
        }
        let indptr_bytes = (spec.n_cells + 1) * 8;
        let aligned = indptr_offset.is_multiple_of(ALIGNMENT);
        if !aligned || indptr_offset < table_end || !fits(indptr_offset, indptr_bytes, file_size) {
            return Err(TileFault::Range {
                field: "indptr_off",
                found: indptr_offset,
                expected: format!(
                    "a multiple of {ALIGNMENT} from {table_end} to {}",
                    file_size.saturating_sub(indptr_bytes)
                ),
            }
            .at(Place::Header));
        }
        Ok(Self {
            spec,
            crc32: u32_at(bytes, 56),
            n_chunks: n_chunks as usize,
            indptr_offset,
        })
    }

    /// The header as it is stored; what [`Header::parse`] reads.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        for (offset, field) in [
            (8, VERSION),
            (32, self.spec.n_genes),
            (36, self.n_chunks as u32),
            (56, self.crc32),
        ] {
            bytes[offset..offset + 4].copy_from_slice(&field.to_le_bytes());
        }
        for (offset, field) in [
            (16, self.spec.n_cells),
            (24, self.spec.nnz),
            (40, self.indptr_offset),
            (48, self.spec.bytes),
        ] {
            bytes[offset..offset + 8].copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The chunk table's bytes in the file.
    pub fn table(&self) -> ByteRange {
        let start = HEADER_BYTES as u64;
        start..start + (self.n_chunks * CHUNK_ENTRY_BYTES) as u64
    }

    /// The indptr's bytes in the file.
    pub fn indptr(&self) -> ByteRange {
        self.indptr_offset..self.indptr_offset + (self.spec.n_cells + 1) * 8
    }
}

fn expect_file(field: &'static str, found: u64, expected: u64, source_of_truth: &'static str) -> Result<(), TileError> {
    expect(field, found, expected, source_of_truth).map_err(|e| e.fault.at(Place::File))
}

fn fits(offset: u64, length: u64, end: u64) -> bool {
    offset.checked_add(length).is_some_and(|last| last <= end)
}

impl Layout {
    /// Reads the chunk table `table` (the bytes of [`Header::table`]).
    ///
    /// # Errors
    /// When chunks are not contiguous, do not cover the tile, or a stream is outside the file, overlaps the
    /// fixed parts, is not aligned or cannot hold what it should.
    pub fn parse(header: &Header, table: &[u8]) -> Result<Self, TileError> {
        assert_eq!(
            table.len(),
            header.n_chunks * CHUNK_ENTRY_BYTES,
            "the caller read Header::table"
        );
        let spec = header.spec;
        let mut chunks = Vec::with_capacity(header.n_chunks);
        let (mut cell, mut nonzero) = (0, 0);
        for (index, entry) in table.chunks_exact(CHUNK_ENTRY_BYTES).enumerate() {
            let chunk = parse_chunk(index, entry, header)?;
            contiguous(index, "cell_lo", chunk.cells.start, cell)?;
            contiguous(index, "nnz_lo", chunk.nonzeros.start, nonzero)?;
            (cell, nonzero) = (chunk.cells.end, chunk.nonzeros.end);
            chunks.push(chunk);
        }
        let last = Place::Chunk(header.n_chunks.saturating_sub(1));
        for (field, found, expected) in [
            ("cells covered by chunks", cell, spec.n_cells),
            ("nonzeros covered by chunks", nonzero, spec.nnz),
        ] {
            if found != expected {
                let source_of_truth = "the header";
                return Err(TileFault::Mismatch {
                    field,
                    found,
                    expected,
                    source_of_truth,
                }
                .at(last));
            }
        }
        Ok(Self {
            spec,
            crc32: header.crc32,
            indptr_offset: header.indptr_offset,
            chunks,
        })
    }

    /// The chunk that holds nonzero `nonzero` of the tile.
    pub fn chunk_of_nonzero(&self, nonzero: u64) -> Option<usize> {
        let chunk = self.chunks.partition_point(|c| c.nonzeros.end <= nonzero);
        (chunk < self.chunks.len()).then_some(chunk)
    }
}

fn contiguous(chunk: usize, field: &'static str, found: u64, expected: u64) -> Result<(), TileError> {
    if found == expected {
        return Ok(());
    }
    let source_of_truth = "where the previous chunk ended";
    Err(TileFault::Mismatch {
        field,
        found,
        expected,
        source_of_truth,
    }
    .at(Place::Chunk(chunk)))
}

fn parse_chunk(index: usize, entry: &[u8], header: &Header) -> Result<Chunk, TileError> {
    let field = |i: usize| u64_at(entry, i * 8);
    let spec = header.spec;
    for (name, low, high, most) in [
        ("cell_hi", field(0), field(1), spec.n_cells),
        ("nnz_hi", field(2), field(3), spec.nnz),
    ] {
        if high < low || high > most {
            let expected = format!("{low} to {most}");
            return Err(TileFault::Range {
                field: name,
                found: high,
                expected,
            }
            .at(Place::Chunk(index)));
        }
    }
    let nnz = field(3) - field(2);
    if nnz > u64::from(u32::MAX) {
        let expected = "less than 2^32".to_owned();
        return Err(TileFault::Range {
            field: "nonzeros of the chunk",
            found: nnz,
            expected,
        }
        .at(Place::Chunk(index)));
    }
    let low = header.indptr().end;
    let stream = |which: Stream, i: usize| -> Result<ByteRange, TileError> {
        let (offset, length) = (field(i), field(i + 1));
        let place = Place::Stream(index, which);
        if offset < low || !fits(offset, length, spec.bytes) {
            let what = "stream";
            return Err(TileFault::Outside {
                what,
                offset,
                length,
                low,
                high: spec.bytes,
            }
            .at(place));
        }
        if !offset.is_multiple_of(ALIGNMENT) {
            let expected = format!("a multiple of {ALIGNMENT}");
            return Err(TileFault::Range {
                field: "stream offset",
                found: offset,
                expected,
            }
            .at(place));
        }
        if length < MIN_FRAME_BYTES {
            let expected = format!("at least {MIN_FRAME_BYTES}, a zstd frame");
            return Err(TileFault::Range {
                field: "stream length",
                found: length,
                expected,
            }
            .at(place));
        }
        Ok(offset..offset + length)
    };
    let plane_stream = |which: Stream, i: usize| {
        let range = stream(which, i)?;
        let length = range.end - range.start;
        plausible(length, 2 * nnz).map_err(|fault| fault.at(Place::Stream(index, which)))?;
        Ok(range)
    };
    let optional = |which: Stream, i: usize| {
        if field(i + 1) == 0 {
            Ok(None)
        } else {
            stream(which, i).map(Some)
        }
    };
    Ok(Chunk {
        index,
        cells: field(0)..field(1),
        nonzeros: field(2)..field(3),
        gaps: plane_stream(Stream::Gaps, 4)?,
        values: plane_stream(Stream::Values, 6)?,
        value_exceptions: optional(Stream::ValueExceptions, 8)?,
        gap_exceptions: optional(Stream::GapExceptions, 10)?,
    })
}

/// Whether `compressed` bytes of zstd can hold `content` bytes, so that memory may be set aside for them.
pub fn plausible(compressed: u64, content: u64) -> Result<(), TileFault> {
    if content <= (compressed / 4 + 1).saturating_mul(MAX_ZSTD_BLOCK) {
        return Ok(());
    }
    Err(TileFault::Implausible { compressed, content })
}

/// Reads and validates the indptr (format, "indptr").
///
/// `bytes` are those of [`Header::indptr`]; the result has one entry more than the tile has cells.
///
/// # Errors
/// When it does not start at 0, decreases, ends elsewhere than `nnz`, gives a cell more nonzeros than there are
/// genes, or does not agree with the chunk table.
pub fn parse_indptr(layout: &Layout, bytes: &[u8]) -> Result<Vec<i64>, TileError> {
    let spec = layout.spec;
    assert_eq!(
        bytes.len() as u64,
        (spec.n_cells + 1) * 8,
        "the caller read Header::indptr"
    );
    let entry = |index: u64, found: i64, expected: String| {
        TileFault::Entry {
            field: "indptr",
            index,
            found: found as u64,
            expected,
        }
        .at(Place::Indptr)
    };
    let indptr: Vec<i64> = bytes
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")))
        .collect();
    if indptr[0] != 0 {
        return Err(entry(0, indptr[0], "0".into()));
    }
    for (index, pair) in indptr.windows(2).enumerate() {
        // Starting at 0 and never decreasing, no entry is negative and no difference overflows.
        if pair[1] < pair[0] || pair[1] - pair[0] > i64::from(spec.n_genes) {
            let most = pair[0].saturating_add(spec.n_genes.into());
            return Err(entry(index as u64 + 1, pair[1], format!("{} to {most}", pair[0])));
        }
    }
    let last = indptr[spec.n_cells as usize];
    if last as u64 != spec.nnz {
        return Err(entry(spec.n_cells, last, format!("{}, the nnz", spec.nnz)));
    }
    for chunk in &layout.chunks {
        for (cell, nonzero) in [
            (chunk.cells.start, chunk.nonzeros.start),
            (chunk.cells.end, chunk.nonzeros.end),
        ] {
            let found = indptr[cell as usize];
            if found as u64 != nonzero {
                let expected = format!("{nonzero}, where chunk {} has its border", chunk.index);
                return Err(entry(cell, found, expected));
            }
        }
    }
    Ok(indptr)
}
