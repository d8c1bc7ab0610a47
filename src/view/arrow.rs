//! Obs columns as Arrow IPC files whose every byte has a known place before any value is known.
//!
//! A file is a literal head (magic, schema, vocabularies), one message per tile, and a literal tail (the footer).
//! A message always carries validity bitmaps, whether or not anything is missing, so its size is a function of the
//! tile's cells and, for string columns, of the tile's bytes of text. Every buffer starts at a multiple of 64 bytes
//! and nothing is compressed, so a mapped file is an Arrow table without a copy.
//!
//! Knows columns and counts of cells. It knows no FUSE and no store: values are handed in to be laid out.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, DictionaryArray, Int8Array, Int16Array, Int32Array, RecordBatch, StringArray};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{ArrowDictionaryKeyType, DataType, Field, Int8Type, Int16Type, Int32Type, Schema};
use arrow::error::ArrowError;
use arrow::ipc::convert::IpcSchemaEncoder;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow::ipc::{self, Block};
use flatbuffers::FlatBufferBuilder;
use thiserror::Error;

use crate::format::manifest::Manifest;
use crate::format::obs::{ColumnKind, NumericType, ObsColumn};

/// What every buffer and every message starts at a multiple of.
const ALIGNMENT: u64 = 64;
const MAGIC: [u8; 6] = *b"ARROW1";
/// A message of no length: the end of the batches.
const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// Continuation marker and length before a message's metadata.
const MESSAGE_PREFIX: usize = 8;
const BLOCK_BYTES: u64 = size_of::<Block>() as u64;
/// The largest text that an Arrow string array can hold.
const MAX_TEXT_BYTES: u64 = i32::MAX as u64;
/// How much of a tail is made at a time.
const TAIL_PIECE: u64 = 64 << 10;

/// Why columns cannot be laid out as a file.
#[derive(Debug, Error)]
pub enum LayoutError {
    /// More text than an Arrow string array can hold.
    #[error("the categories of column {column:?} have {found} bytes of text, expected at most {MAX_TEXT_BYTES}")]
    Vocabulary { column: String, found: u64 },
    /// A size that no file can have.
    #[error("an Arrow file of {batches} batches would be too large to address")]
    FileTooLarge { batches: u64 },
    /// The Arrow library refused the schema.
    #[error("cannot describe the columns in Arrow: {0}")]
    Arrow(#[from] ArrowError),
}

/// Why values cannot be laid out as a message.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// Not one array per column.
    #[error("{found} arrays were given, expected {expected}, one per column")]
    Columns { found: usize, expected: usize },
    /// An array is of another type than its column is stored with.
    #[error("column {column:?} was given values of type {found}, expected {expected}")]
    Type {
        column: String,
        found: DataType,
        expected: DataType,
    },
    /// Arrays of different lengths.
    #[error("column {column:?} has {found} cells, expected {expected}, as the first column has")]
    Cells {
        column: String,
        found: usize,
        expected: usize,
    },
    /// A code that means no category.
    #[error("column {column:?} has the code {found} at cell {cell}, expected -1 to {most}")]
    Code {
        column: String,
        cell: usize,
        found: String,
        most: i64,
    },
}

/// The Arrow type a column is shown with: labels, dictionary-encoded, for a category column.
pub fn shown_type(kind: &ColumnKind) -> DataType {
    match kind {
        ColumnKind::Category { codes, .. } => {
            DataType::Dictionary(Box::new(codes.arrow_type()), Box::new(DataType::Utf8))
        }
        other => other.stored_type(),
    }
}

/// How many cells each tile has: all but the last have `tile_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Cells of the dataset.
    pub n_cells: u64,
    /// Cells of every tile but the last, at least 1.
    pub tile_size: u64,
}

impl From<&Manifest> for Tiling {
    fn from(manifest: &Manifest) -> Self {
        Self {
            n_cells: manifest.n_cells,
            tile_size: manifest.tile_size,
        }
    }
}

impl Tiling {
    /// Number of tiles.
    pub fn n_tiles(self) -> u64 {
        self.n_cells.div_ceil(self.tile_size)
    }

    /// Cells before tile `tile`; all of them from the number of tiles on.
    pub(super) fn cells_before(self, tile: u64) -> u64 {
        tile.saturating_mul(self.tile_size).min(self.n_cells)
    }

    /// The tile that starts at cell `cell`, where one does; the number of tiles for the number of cells.
    pub(super) fn tile_at(self, cell: u64) -> u64 {
        cell.div_ceil(self.tile_size)
    }

    fn last_cells(self) -> u64 {
        self.n_cells - self.n_tiles().saturating_sub(1) * self.tile_size
    }
}

/// One column, as far as its place in a message goes.
#[derive(Debug)]
struct ColumnShape {
    name: String,
    stored: DataType,
    values: Values,
}

#[derive(Debug, Clone, Copy)]
enum Values {
    /// Bytes per value.
    Fixed(u64),
    Bits,
    Text,
    /// Bytes per code, and how many categories there are.
    Codes(u64, i64),
}

impl ColumnShape {
    fn new(column: &ObsColumn) -> Self {
        Self {
            name: column.name.clone(),
            stored: column.kind.stored_type(),
            values: match &column.kind {
                ColumnKind::Category { codes, categories } => {
                    Values::Codes(codes.width() as u64, categories.len() as i64)
                }
                ColumnKind::Numeric(number) => Values::Fixed(number.width() as u64),
                ColumnKind::Bool => Values::Bits,
                ColumnKind::String => Values::Text,
            },
        }
    }

    /// Lengths of the column's buffers in a message, in order, without padding; `None` beyond 64 bits.
    fn buffers(&self, cells: u64, text_bytes: u64) -> Option<Buffers> {
        let bits = cells.div_ceil(8);
        Some(match self.values {
            Values::Fixed(width) | Values::Codes(width, _) => Buffers::two(bits, cells.checked_mul(width)?),
            Values::Bits => Buffers::two(bits, bits),
            Values::Text => Buffers {
                lengths: [bits, cells.checked_add(1)?.checked_mul(4)?, text_bytes],
                count: 3,
            },
        })
    }
}

/// The validity bitmap of a column and the one or two buffers of its values.
struct Buffers {
    lengths: [u64; 3],
    count: usize,
}

impl Buffers {
    fn two(validity: u64, values: u64) -> Self {
        Self {
            lengths: [validity, values, 0],
            count: 2,
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.lengths[..self.count].iter().copied()
    }
}

/// What all files of the same columns have in common: their head, the shape of a message, and the start of their tail.
///
/// It holds the columns' vocabularies, encoded, and nothing per tile.
#[derive(Debug)]
pub struct BatchLayout {
    columns: Vec<ColumnShape>,
    /// Magic, schema and dictionary messages.
    head: Vec<u8>,
    /// The footer up to the count of its record batch blocks, which are its end.
    footer_start: Vec<u8>,
    /// Bytes of a message before its body; the same for every tile.
    metadata_len: u64,
}

impl BatchLayout {
    /// Lays out batches of these columns, in order.
    ///
    /// # Errors
    /// When a vocabulary has more text than Arrow can hold.
    pub fn new(columns: &[ObsColumn]) -> Result<Self, LayoutError> {
        let schema = shown_schema(columns);
        let (head, dictionary_blocks) = head(columns, &schema)?;
        let footer_start = footer_start(&schema, &dictionary_blocks);
        let columns: Vec<_> = columns.iter().map(ColumnShape::new).collect();
        let placeholder = columns
            .iter()
            .map(|column| (0, column.buffers(0, 0).expect("no cells take few bytes")))
            .collect::<Vec<_>>();
        let metadata_len = message_metadata(0, &placeholder).len() as u64;
        Ok(Self {
            columns,
            head,
            footer_start,
            metadata_len,
        })
    }

    /// Number of columns that are text, whose sizes need [`text_bytes`] of each tile.
    pub fn n_text_columns(&self) -> usize {
        self.columns
            .iter()
            .filter(|column| matches!(column.values, Values::Text))
            .count()
    }

    /// Bytes of the message of a tile of `cells` cells; `text_bytes` has one entry per text column.
    /// `None` when the number does not fit.
    fn message_len(&self, cells: u64, mut text_bytes: impl Iterator<Item = u64>) -> Option<u64> {
        self.columns.iter().try_fold(self.metadata_len, |sum, column| {
            let text = match column.values {
                Values::Text => text_bytes.next().expect("text bytes were given for every text column"),
                _ => 0,
            };
            let mut buffers = column.buffers(cells, text)?.lengths.into_iter();
            buffers.try_fold(sum, |sum, length| sum.checked_add(padded(length)?))
        })
    }

    /// The message of one tile: the same bytes in the tile's own file and in the file of all tiles.
    ///
    /// `arrays` has one array per column, of [`ColumnKind::stored_type`], all of the tile's cells. Codes of -1 become nulls.
    /// The result is as long as the layout of a file says it is, for these cells and these [`text_bytes`].
    ///
    /// # Errors
    /// [`EncodeError`] when the arrays are not of the columns' types, or a code means no category.
    pub fn encode_message(&self, arrays: &[ArrayRef]) -> Result<Vec<u8>, EncodeError> {
        if arrays.len() != self.columns.len() {
            return Err(EncodeError::Columns {
                found: arrays.len(),
                expected: self.columns.len(),
            });
        }
        let cells = arrays.first().map_or(0, |array| array.len());
        let mut parts = Vec::with_capacity(arrays.len());
        for (column, array) in self.columns.iter().zip(arrays) {
            parts.push(column_parts(column, array, cells)?);
        }
        let described: Vec<_> = parts.iter().map(|part| (part.null_count, part.buffers())).collect();
        let mut message = message_metadata(cells as u64, &described);
        debug_assert_eq!(message.len() as u64, self.metadata_len);
        let body: u64 = described
            .iter()
            .flat_map(|(_, buffers)| buffers.iter())
            .map(|length| length.next_multiple_of(ALIGNMENT))
            .sum();
        message.reserve_exact(body as usize);
        for part in &parts {
            for buffer in [&part.validity[..], &part.first[..], &part.second[..]] {
                message.extend_from_slice(buffer);
                message.resize(message.len().next_multiple_of(ALIGNMENT as usize), 0);
            }
        }
        Ok(message)
    }
}

/// Bytes of text in a string array; what [`FileLayout`] needs to know of a tile's string column.
pub fn text_bytes(array: &StringArray) -> u64 {
    let offsets = array.value_offsets();
    (offsets[array.len()] - offsets[0]) as u64
}

fn padded(length: u64) -> Option<u64> {
    length.checked_next_multiple_of(ALIGNMENT)
}

/// The buffers of a column in one message, in order. `second` is a string column's text.
struct Parts<'a> {
    null_count: u64,
    validity: Vec<u8>,
    first: Cow<'a, [u8]>,
    second: Cow<'a, [u8]>,
    has_second: bool,
}

impl Parts<'_> {
    fn buffers(&self) -> Buffers {
        Buffers {
            lengths: [&*self.validity, &*self.first, &*self.second].map(|buffer| buffer.len() as u64),
            count: if self.has_second { 3 } else { 2 },
        }
    }
}

fn column_parts<'a>(column: &ColumnShape, array: &'a ArrayRef, cells: usize) -> Result<Parts<'a>, EncodeError> {
    if array.data_type() != &column.stored {
        return Err(EncodeError::Type {
            column: column.name.clone(),
            found: array.data_type().clone(),
            expected: column.stored.clone(),
        });
    }
    if array.len() != cells {
        return Err(EncodeError::Cells {
            column: column.name.clone(),
            found: array.len(),
            expected: cells,
        });
    }
    let (validity, first, second) = match column.values {
        Values::Codes(_, n_categories) => {
            let (validity, codes) = code_parts(&column.name, array, n_categories)?;
            (validity, Cow::Owned(codes), None)
        }
        Values::Fixed(width) => (
            validity_of(array),
            Cow::Borrowed(fixed_values(array, width as usize)),
            None,
        ),
        Values::Bits => {
            let bits = array.as_any().downcast_ref::<arrow::array::BooleanArray>();
            let values = bits.expect("the type was checked").values();
            (validity_of(array), Cow::Owned(bitmap(values)), None)
        }
        Values::Text => {
            let (offsets, text) = text_parts(array.as_any().downcast_ref().expect("the type was checked"));
            (validity_of(array), Cow::Owned(offsets), Some(Cow::Borrowed(text)))
        }
    };
    let valid: u64 = validity.iter().map(|byte| u64::from(byte.count_ones())).sum();
    Ok(Parts {
        null_count: cells as u64 - valid,
        validity,
        first,
        has_second: second.is_some(),
        second: second.unwrap_or_default(),
    })
}

fn validity_of(array: &ArrayRef) -> Vec<u8> {
    match array.nulls() {
        Some(nulls) => bitmap(nulls.inner()),
        None => bitmap(&BooleanBuffer::new_set(array.len())),
    }
}

/// The bits from the first on, and zeros after the last.
fn bitmap(bits: &BooleanBuffer) -> Vec<u8> {
    let mut bytes = bits.sliced().as_slice()[..bits.len().div_ceil(8)].to_vec();
    if let (Some(last), tail @ 1..) = (bytes.last_mut(), bits.len() % 8) {
        *last &= (1 << tail) - 1;
    }
    bytes
}

/// The values of a numeric array of `width` bytes each, whatever is where they are missing.
pub(super) fn fixed_values(array: &ArrayRef, width: usize) -> &[u8] {
    use arrow::array::AsArray;
    use arrow::datatypes::*;
    macro_rules! bytes {
        ($($variant:ident => $type:ty),*) => {
            match array.data_type() {
                $(DataType::$variant => array.as_primitive::<$type>().values().inner().as_slice(),)*
                other => unreachable!("{other} is no type of a numeric column"),
            }
        };
    }
    let bytes = bytes!(
        Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
        UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type,
        Float16 => Float16Type, Float32 => Float32Type, Float64 => Float64Type
    );
    &bytes[..array.len() * width]
}

/// Offsets that start at 0, and the text they point into.
fn text_parts(array: &StringArray) -> (Vec<u8>, &[u8]) {
    let offsets = array.value_offsets();
    let start = offsets[0];
    let rebased = offsets
        .iter()
        .flat_map(|offset| (offset - start).to_le_bytes())
        .collect();
    let text = &array.value_data()[start as usize..offsets[array.len()] as usize];
    (rebased, text)
}

/// Validity and indices: a code of -1 is a null whose index is 0, so that no index is ever outside the vocabulary
/// (unless there is no vocabulary).
fn code_parts(column: &str, array: &ArrayRef, n_categories: i64) -> Result<(Vec<u8>, Vec<u8>), EncodeError> {
    let codes: Box<dyn Iterator<Item = Option<i64>>> = if let Some(codes) = array.as_any().downcast_ref::<Int8Array>() {
        Box::new(codes.iter().map(|code| code.map(i64::from)))
    } else if let Some(codes) = array.as_any().downcast_ref::<Int16Array>() {
        Box::new(codes.iter().map(|code| code.map(i64::from)))
    } else {
        let codes = array
            .as_any()
            .downcast_ref::<Int32Array>()
            .expect("the type was checked");
        Box::new(codes.iter().map(|code| code.map(i64::from)))
    };
    let width = array.data_type().primitive_width().expect("codes are integers");
    let mut validity = vec![0; array.len().div_ceil(8)];
    let mut indices = Vec::with_capacity(array.len() * width);
    for (cell, code) in codes.enumerate() {
        let index = match code {
            Some(-1) => 0,
            Some(code) if (0..n_categories).contains(&code) => {
                validity[cell / 8] |= 1 << (cell % 8);
                code
            }
            wrong => {
                return Err(EncodeError::Code {
                    column: column.to_owned(),
                    cell,
                    found: wrong.map_or_else(|| "null".into(), |code| code.to_string()),
                    most: n_categories - 1,
                });
            }
        };
        indices.extend_from_slice(&index.to_le_bytes()[..width]);
    }
    Ok((validity, indices))
}

fn shown_schema(columns: &[ObsColumn]) -> Schema {
    let field = |column: &ObsColumn| Field::new(&column.name, shown_type(&column.kind), true);
    Schema::new(columns.iter().map(field).collect::<Vec<_>>())
}

fn write_options() -> IpcWriteOptions {
    IpcWriteOptions::try_new(ALIGNMENT as usize, false, ipc::MetadataVersion::V5).expect("64 is an alignment Arrow has")
}

/// Magic, schema and one dictionary message per category column, with the places of the latter.
fn head(columns: &[ObsColumn], schema: &Schema) -> Result<(Vec<u8>, Vec<Block>), LayoutError> {
    let (generator, options) = (IpcDataGenerator::default(), write_options());
    let mut tracker = DictionaryTracker::new(true);
    let mut head = MAGIC.to_vec();
    head.resize(ALIGNMENT as usize, 0);
    let message = generator.schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &options);
    write_message(&mut head, message, &options)?;
    let mut blocks = Vec::new();
    let arrays = columns.iter().map(empty_array).collect::<Result<Vec<_>, _>>()?;
    if columns.is_empty() {
        return Ok((head, blocks));
    }
    let batch = RecordBatch::try_new(Arc::new(schema.clone()), arrays)?;
    let (dictionaries, _) = generator.encode(&batch, &mut tracker, &options, &mut Default::default())?;
    for dictionary in dictionaries {
        let offset = head.len() as i64;
        let (metadata, body) = write_message(&mut head, dictionary, &options)?;
        blocks.push(Block::new(offset, metadata as i32, body as i64));
    }
    Ok((head, blocks))
}

/// No cells of the column, with the whole of its vocabulary.
fn empty_array(column: &ObsColumn) -> Result<ArrayRef, LayoutError> {
    let ColumnKind::Category { codes, categories } = &column.kind else {
        return Ok(arrow::array::new_empty_array(&column.kind.stored_type()));
    };
    let found: u64 = categories.iter().map(|label| label.len() as u64).sum();
    if found > MAX_TEXT_BYTES {
        return Err(LayoutError::Vocabulary {
            column: column.name.clone(),
            found,
        });
    }
    let labels: ArrayRef = Arc::new(StringArray::from_iter_values(categories));
    Ok(match codes {
        NumericType::Int8 => empty_dictionary::<Int8Type>(labels)?,
        NumericType::Int16 => empty_dictionary::<Int16Type>(labels)?,
        _ => empty_dictionary::<Int32Type>(labels)?,
    })
}

fn empty_dictionary<K: ArrowDictionaryKeyType>(labels: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let codes = arrow::array::PrimitiveArray::<K>::from_iter_values([]);
    Ok(Arc::new(DictionaryArray::try_new(codes, labels)?))
}

/// The metadata of a message, with its length before it and padding after it, so that the body starts aligned.
///
/// Its length depends on the columns alone: counts and lengths are of fixed width in it, and so is what is zero.
fn message_metadata(cells: u64, columns: &[(u64, Buffers)]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    builder.force_defaults(true);
    let mut body = 0;
    let mut buffers = Vec::new();
    for length in columns.iter().flat_map(|(_, buffers)| buffers.iter()) {
        buffers.push(ipc::Buffer::new(body as i64, length as i64));
        body += length.next_multiple_of(ALIGNMENT);
    }
    let node = |(null_count, _): &(u64, Buffers)| ipc::FieldNode::new(cells as i64, *null_count as i64);
    let nodes: Vec<_> = columns.iter().map(node).collect();
    let buffers = builder.create_vector(&buffers);
    let nodes = builder.create_vector(&nodes);
    let mut batch = ipc::RecordBatchBuilder::new(&mut builder);
    batch.add_length(cells as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    let batch = batch.finish();
    let mut message = ipc::MessageBuilder::new(&mut builder);
    message.add_version(ipc::MetadataVersion::V5);
    message.add_header_type(ipc::MessageHeader::RecordBatch);
    message.add_bodyLength(body as i64);
    message.add_header(batch.as_union_value());
    let message = message.finish();
    builder.finish(message, None);
    let metadata = builder.finished_data();
    let length = (MESSAGE_PREFIX + metadata.len()).next_multiple_of(ALIGNMENT as usize);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&END_OF_STREAM[..4]);
    bytes.extend_from_slice(&((length - MESSAGE_PREFIX) as i32).to_le_bytes());
    bytes.extend_from_slice(metadata);
    bytes.resize(length, 0);
    bytes
}

/// The footer up to the count of record batch blocks.
///
/// A flatbuffer is built from its end, and the list of blocks is put in first: it is the footer's end, everything before
/// it refers to it by distances that do not depend on how long it is, and 24 bytes a block disturb no alignment.
fn footer_start(schema: &Schema, dictionaries: &[Block]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let batches = builder.create_vector(&[Block::new(0, 0, 0)]);
    let dictionaries = builder.create_vector(dictionaries);
    let mut tracker = DictionaryTracker::new(true);
    let schema = IpcSchemaEncoder::new()
        .with_dictionary_tracker(&mut tracker)
        .schema_to_fb_offset(&mut builder, schema);
    let mut footer = ipc::FooterBuilder::new(&mut builder);
    footer.add_version(ipc::MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(batches);
    let footer = footer.finish();
    builder.finish(footer, None);
    let bytes = builder.finished_data();
    bytes[..bytes.len() - BLOCK_BYTES as usize - 4].to_vec()
}

/// A piece of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent<'a> {
    /// These bytes.
    Literal(Cow<'a, [u8]>),
    /// This range of bytes of the message of batch `batch` of the file, as [`BatchLayout::encode_message`] gives it.
    /// In the file of all cells a batch is a tile.
    Message { batch: u64, range: Range<u64> },
}

impl Extent<'_> {
    /// Bytes of the piece.
    pub fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Message { range, .. } => range.end - range.start,
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the messages of a file are, relative to the end of its head.
#[derive(Debug, Clone)]
enum Messages {
    /// All of one length but the last.
    Even { count: u64, full: u64, last: u64 },
    /// As many starts as there are messages, and the end of the last.
    Listed(Vec<u64>),
}

impl Messages {
    fn count(&self) -> u64 {
        match self {
            Self::Even { count, .. } => *count,
            Self::Listed(starts) => starts.len() as u64 - 1,
        }
    }

    /// Where message `message` starts; with the count of messages, where the last one ends.
    fn start(&self, message: u64) -> u64 {
        match self {
            Self::Even { count, full, last } if message == *count && message > 0 => (message - 1) * full + last,
            Self::Even { full, .. } => message * full,
            Self::Listed(starts) => starts[message as usize],
        }
    }

    /// The message that holds byte `at`, which is before the end of the last.
    fn at(&self, at: u64) -> u64 {
        match self {
            Self::Even { count, full, .. } => (at / full).min(count - 1),
            Self::Listed(starts) => starts.partition_point(|&start| start <= at) as u64 - 1,
        }
    }
}

/// One Arrow IPC file: how long it is, and what each of its bytes is.
#[derive(Debug, Clone)]
pub struct FileLayout {
    batch: Arc<BatchLayout>,
    messages: Messages,
}

impl FileLayout {
    /// The file of one tile of `cells` cells. `text_bytes` has one entry per text column: see [`text_bytes`].
    ///
    /// # Errors
    /// When the file would be too large to address.
    ///
    /// # Panics
    /// When there are fewer entries than text columns.
    pub fn one_tile(batch: Arc<BatchLayout>, cells: u64, text_bytes: &[u64]) -> Result<Self, LayoutError> {
        let too_large = LayoutError::FileTooLarge { batches: 1 };
        let last = batch.message_len(cells, text_bytes.iter().copied()).ok_or(too_large)?;
        let (count, full) = (1, last);
        Self::new(batch, Messages::Even { count, full, last })
    }

    /// The file of all tiles, one batch each. `text_bytes` has one list per text column, of one entry per tile.
    ///
    /// # Errors
    /// When the file would be too large to address.
    ///
    /// # Panics
    /// When there are fewer lists than text columns, or entries than tiles.
    pub fn all_tiles(batch: Arc<BatchLayout>, tiling: Tiling, text_bytes: &[&[u64]]) -> Result<Self, LayoutError> {
        let count = tiling.n_tiles();
        let messages = if batch.n_text_columns() == 0 {
            let full = batch.message_len(tiling.tile_size.min(tiling.n_cells), [].into_iter());
            let last = batch.message_len(tiling.last_cells(), [].into_iter());
            full.zip(last).map(|(full, last)| Messages::Even { count, full, last })
        } else {
            listed(&batch, tiling, text_bytes).map(Messages::Listed)
        };
        Self::new(batch, messages.ok_or(LayoutError::FileTooLarge { batches: count })?)
    }

    /// Refuses a file whose offsets or footer length do not fit the types Arrow gives them.
    fn new(batch: Arc<BatchLayout>, messages: Messages) -> Result<Self, LayoutError> {
        let count = messages.count();
        let footer = batch.footer_start.len() as u128 + 4 + u128::from(count) * u128::from(BLOCK_BYTES);
        let bytes = match &messages {
            Messages::Even { count, full, .. } => u128::from(*count) * u128::from(*full),
            Messages::Listed(starts) => u128::from(starts.last().copied().unwrap_or(0)),
        };
        if footer > i32::MAX as u128 || bytes + footer + batch.head.len() as u128 + 64 > i64::MAX as u128 {
            return Err(LayoutError::FileTooLarge { batches: count });
        }
        Ok(Self { batch, messages })
    }

    /// Number of record batches.
    pub fn n_batches(&self) -> u64 {
        self.messages.count()
    }

    /// Bytes of the file.
    #[expect(clippy::len_without_is_empty, reason = "a file always has its magic")]
    pub fn len(&self) -> u64 {
        self.tail_start() + END_OF_STREAM.len() as u64 + self.footer_len() + 4 + MAGIC.len() as u64
    }

    /// Where the message of batch `batch` stands in the file.
    ///
    /// # Panics
    /// When there is no such batch.
    pub fn message(&self, batch: u64) -> Range<u64> {
        assert!(batch < self.n_batches(), "the file has no batch {batch}");
        let head = self.batch.head.len() as u64;
        head + self.messages.start(batch)..head + self.messages.start(batch + 1)
    }

    /// What the bytes of `range` are, in order and without gaps; `range` is cut to the file's length.
    pub fn extents(&self, range: Range<u64>) -> impl Iterator<Item = Extent<'_>> {
        let end = range.end.min(self.len());
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let extent = self.extent(at, end);
            at += extent.len();
            Some(extent)
        })
    }

    /// The piece that starts at `at` and ends at `end` or earlier.
    fn extent(&self, at: u64, end: u64) -> Extent<'_> {
        let head = &self.batch.head;
        if at < head.len() as u64 {
            let end = end.min(head.len() as u64);
            return Extent::Literal(Cow::Borrowed(&head[at as usize..end as usize]));
        }
        if at < self.tail_start() {
            let batch = self.messages.at(at - head.len() as u64);
            let message = self.message(batch);
            let range = at - message.start..end.min(message.end) - message.start;
            return Extent::Message { batch, range };
        }
        Extent::Literal(Cow::Owned(self.tail(at..end.min(at + TAIL_PIECE))))
    }

    fn tail_start(&self) -> u64 {
        self.batch.head.len() as u64 + self.messages.start(self.n_batches())
    }

    fn footer_len(&self) -> u64 {
        self.batch.footer_start.len() as u64 + 4 + self.n_batches() * BLOCK_BYTES
    }

    /// The bytes `range` of the file, all of them in its tail: end of stream, footer, its length, magic.
    fn tail(&self, range: Range<u64>) -> Vec<u8> {
        let count = (self.n_batches() as u32).to_le_bytes();
        let footer_len = (self.footer_len() as i32).to_le_bytes();
        let mut tail = TailWriter {
            at: self.tail_start(),
            range,
            bytes: Vec::new(),
        };
        tail.push(&END_OF_STREAM);
        tail.push(&self.batch.footer_start);
        tail.push(&count);
        let blocks = tail.overlapping(BLOCK_BYTES, self.n_batches());
        tail.at += blocks.start * BLOCK_BYTES;
        for batch in blocks.clone() {
            tail.push(&self.block(batch).0);
        }
        tail.at += (self.n_batches() - blocks.end) * BLOCK_BYTES;
        tail.push(&footer_len);
        tail.push(&MAGIC);
        tail.bytes
    }

    fn block(&self, batch: u64) -> Block {
        let (message, metadata) = (self.message(batch), self.batch.metadata_len);
        let body = message.end - message.start - metadata;
        Block::new(message.start as i64, metadata as i32, body as i64)
    }
}

/// The starts of the messages of all tiles, and the end of the last.
fn listed(batch: &BatchLayout, tiling: Tiling, text_bytes: &[&[u64]]) -> Option<Vec<u64>> {
    let mut starts = Vec::with_capacity(tiling.n_tiles() as usize + 1);
    let mut at = 0_u64;
    starts.push(at);
    for tile in 0..tiling.n_tiles() {
        let is_last = tile + 1 == tiling.n_tiles();
        let cells = if is_last { tiling.last_cells() } else { tiling.tile_size };
        let text = text_bytes.iter().map(|column| column[tile as usize]);
        at = at.checked_add(batch.message_len(cells, text)?)?;
        starts.push(at);
    }
    Some(starts)
}

/// Collects those of the bytes pushed to it that lie in a range of the file.
struct TailWriter {
    at: u64,
    range: Range<u64>,
    bytes: Vec<u8>,
}

impl TailWriter {
    fn push(&mut self, bytes: &[u8]) {
        let length = bytes.len() as u64;
        let from = self.range.start.clamp(self.at, self.at + length) - self.at;
        let to = self.range.end.clamp(self.at, self.at + length) - self.at;
        self.bytes.extend_from_slice(&bytes[from as usize..to as usize]);
        self.at += length;
    }

    /// Which of `count` items of `size` bytes, the first of them at the present place, touch the range.
    fn overlapping(&self, size: u64, count: u64) -> Range<u64> {
        let first = (self.range.start.saturating_sub(self.at) / size).min(count);
        let last = self.range.end.saturating_sub(self.at).div_ceil(size).min(count);
        first..last.max(first)
    }
}

#[cfg(test)]
mod tests;
