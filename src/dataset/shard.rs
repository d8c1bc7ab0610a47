//! One obs shard: a Parquet file with a row group per tile.
//!
//! Opening reads its footer, and reading a column of a tile reads that column chunk and nothing else. What a
//! footer says is held against the file's size, the manifest and the schema before it is followed.

mod levels;

use std::io::Cursor;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::compute::concat;
use arrow::datatypes::{ArrowNativeType, DataType, Int8Type, Int16Type, Int32Type};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaDataOptions, ParquetMetaDataReader, ParquetStatisticsPolicy,
};
use parquet::file::reader::{ChunkReader, Length};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::format::TileId;
use crate::format::fingerprint::hex;
use crate::format::manifest::{Manifest, ObsManifest};
use crate::format::obs::{ColumnKind, ObsColumn, ObsSchema};
use crate::store::{Object, Version};

/// The last bytes of a Parquet file: length of the footer, and magic.
const TRAILER_BYTES: u64 = 8;
const MAGIC: &[u8; 4] = b"PAR1";
/// Rows decoded at a time, so that memory grows with what the file holds and not with what it says.
const BATCH_ROWS: usize = 1 << 16;
/// How much of a shard is hashed at a time.
const PIECE: u64 = 1 << 20;

/// What is wrong with a shard, and which one it is.
#[derive(Debug, Error)]
#[error("{name}: {fault}")]
pub struct ShardError {
    /// Full name of the file.
    pub name: String,
    /// What is wrong with it.
    pub fault: Box<ShardFault>,
}

/// What is wrong with a shard.
#[derive(Debug, Error)]
pub enum ShardFault {
    /// The store could not read it.
    #[error("cannot read it: {0}")]
    Io(#[from] std::io::Error),
    /// Another size than the manifest's.
    #[error("{found} bytes, expected {expected}, as the manifest says")]
    Size { found: u64, expected: u64 },
    /// Other content than the manifest's.
    #[error("SHA-256 is {found}, expected {expected}, as the manifest says")]
    Sha256 { found: String, expected: String },
    /// The end of the file is not that of a Parquet file.
    #[error("ends in {found}, expected the end of a Parquet file, {MAGIC:?}")]
    Magic { found: String },
    /// The footer would be larger than the file.
    #[error("its footer has {found} bytes, expected at most {most}, which the file has before its end")]
    FooterLength { found: u64, most: u64 },
    /// The Parquet library could not make sense of the footer.
    #[error("the footer is damaged: {0}")]
    Footer(String),
    /// Not one row group per tile.
    #[error("{found} row groups, expected {expected}, one per tile")]
    RowGroups { found: usize, expected: usize },
    /// A row group with other rows than its tile has cells.
    #[error("row group {row_group} has {found} rows, expected {expected}, the cells of tile {tile}")]
    Rows {
        row_group: usize,
        tile: TileId,
        found: i64,
        expected: u64,
    },
    /// A row group without the columns that the file itself says it has.
    #[error("row group {row_group} has {found} columns, expected {expected}, as the footer says")]
    RowGroupColumns {
        row_group: usize,
        found: usize,
        expected: usize,
    },
    /// Not the schema's columns.
    #[error("{found} columns, expected {expected}, as obs/schema.json says")]
    Columns { found: usize, expected: usize },
    /// A column of another name or type than the schema's, or at another place.
    #[error(
        "column {index} is {found_name:?} of type {found_type}, expected {expected_name:?} of type {expected_type}"
    )]
    Column {
        index: usize,
        found_name: String,
        found_type: DataType,
        expected_name: String,
        expected_type: DataType,
    },
    /// A column chunk that does not lie in the file.
    #[error(
        "column {column:?} of tile {tile} has {length} bytes at {start}, expected them before the footer, at {end}"
    )]
    ChunkOutside {
        column: String,
        tile: TileId,
        start: i64,
        length: i64,
        end: u64,
    },
    /// The Parquet library could not decode a column chunk.
    #[error("column {column:?} of tile {tile} is damaged: {reason}")]
    Chunk {
        column: String,
        tile: TileId,
        reason: String,
    },
    /// A column chunk decodes to another number of values than the tile has cells.
    #[error("column {column:?} of tile {tile} has {found} values, expected {expected}, one per cell")]
    Values {
        column: String,
        tile: TileId,
        found: usize,
        expected: u64,
    },
    /// A code that means no category.
    #[error("column {column:?} of tile {tile} has the code {found} at cell {cell}, expected -1 to {most}")]
    Code {
        column: String,
        tile: TileId,
        cell: usize,
        found: String,
        most: i64,
    },
}

impl ShardFault {
    fn of(self, name: String) -> ShardError {
        let fault = Box::new(self);
        ShardError { name, fault }
    }
}

/// An opened shard.
pub struct ObsShard {
    object: Arc<dyn Object>,
    metadata: ArrowReaderMetadata,
    tiles: Range<TileId>,
    /// Cells of each tile of the shard.
    cells: Vec<u64>,
    columns: Vec<Column>,
    /// Where the footer starts, and so where column chunks end.
    data_end: u64,
}

/// What is needed of a schema's column to read it.
struct Column {
    name: String,
    /// Of a category column.
    n_categories: Option<i64>,
}

impl Column {
    fn new(column: &ObsColumn) -> Self {
        let n_categories = match &column.kind {
            ColumnKind::Category { categories, .. } => Some(categories.len() as i64),
            _ => None,
        };
        Self {
            name: column.name.clone(),
            n_categories,
        }
    }
}

impl ObsShard {
    /// Reads the footer of shard `shard` and holds it against the manifest and the schema (format, "Shards", "Schema").
    ///
    /// The columns must be the schema's, in order, of exactly the Arrow types it names: a `large_string` or a
    /// dictionary is another type than `string`.
    ///
    /// # Errors
    /// The first fault found.
    ///
    /// # Panics
    /// When the manifest has no such shard.
    pub fn open(
        object: Arc<dyn Object>,
        manifest: &Manifest,
        obs: &ObsManifest,
        shard: usize,
        schema: &ObsSchema,
    ) -> Result<Self, ShardError> {
        let name = object.name();
        let opened = open_footer(object, manifest, obs, shard, schema).and_then(|(opened, faults)| {
            let first = faults.into_iter().next();
            first.map_or(Ok(opened), Err)
        });
        opened.map_err(|fault| fault.of(name))
    }

    /// The state of the file now.
    pub(super) fn version(&self) -> Result<Version, ShardError> {
        version(&*self.object)
    }

    /// The tiles whose cells it describes.
    pub fn tiles(&self) -> Range<TileId> {
        self.tiles.clone()
    }

    /// Bytes of the chunks of column `column` (its place in the schema), which are what reading it takes beyond the footer.
    ///
    /// # Errors
    /// When the footer says of a chunk that it lies outside the file.
    ///
    /// # Panics
    /// When the schema has no such column.
    pub fn column_bytes(&self, column: usize) -> Result<u64, ShardError> {
        let row_groups = self.metadata.metadata().row_groups().iter().zip(self.tiles());
        let bytes = row_groups.map(|(row_group, tile)| {
            let range = self.chunk_range(row_group.column(column), &self.columns[column].name, tile)?;
            Ok(range.end - range.start)
        });
        bytes
            .sum::<Result<u64, ShardFault>>()
            .map_err(|fault| fault.of(self.object.name()))
    }

    /// Values of column `column` (its place in the schema) for the cells of tile `tile`, of the type they are stored
    /// with ([`ColumnKind::stored_type`]). Codes of a category column have been checked.
    ///
    /// # Errors
    /// When the column chunk cannot be read or decoded, has not one value per cell, or has a code that means no category.
    ///
    /// # Panics
    /// When the shard has no such tile, or the schema no such column.
    pub fn read_column(&self, tile: TileId, column: usize) -> Result<ArrayRef, ShardError> {
        self.column(tile, column).map_err(|fault| fault.of(self.object.name()))
    }

    /// Whether a value of column `column` is missing for a cell of tile `tile`. Values are decoded only where that cannot be
    /// seen without.
    ///
    /// # Errors
    /// When the column chunk cannot be read, or has not one value per cell.
    ///
    /// # Panics
    /// When the shard has no such tile, or the schema no such column.
    pub fn has_missing(&self, tile: TileId, column: usize) -> Result<bool, ShardError> {
        self.missing(tile, column).map_err(|fault| fault.of(self.object.name()))
    }

    fn missing(&self, tile: TileId, column: usize) -> Result<bool, ShardFault> {
        let (window, cells) = self.window(tile, column)?;
        let row_group = tile - self.tiles.start;
        let chunk = self.metadata.metadata().row_group(row_group).column(column);
        let levels = guarded(|| levels::read(window, chunk, cells));
        match levels.map_err(|reason| self.damaged(tile, column, reason))? {
            Some(levels) if levels.values != cells => Err(ShardFault::Values {
                column: self.columns[column].name.clone(),
                tile,
                found: levels.values as usize,
                expected: cells,
            }),
            Some(levels) => Ok(levels.has_missing),
            None => Ok(self.column(tile, column)?.null_count() > 0),
        }
    }

    /// The bytes of a column chunk, and how many cells it describes.
    fn window(&self, tile: TileId, column: usize) -> Result<(Window, u64), ShardFault> {
        assert!(self.tiles.contains(&tile), "the shard does not hold tile {tile}");
        let row_group = tile - self.tiles.start;
        let chunk = self.metadata.metadata().row_group(row_group).column(column);
        let range = self.chunk_range(chunk, &self.columns[column].name, tile)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.object.read_at(&mut bytes, range.start)?;
        let window = Window {
            start: range.start,
            bytes: bytes.into(),
            file_len: self.object.size(),
        };
        Ok((window, self.cells[row_group]))
    }

    fn damaged(&self, tile: TileId, column: usize, reason: String) -> ShardFault {
        let column = self.columns[column].name.clone();
        ShardFault::Chunk { column, tile, reason }
    }

    fn column(&self, tile: TileId, column: usize) -> Result<ArrayRef, ShardFault> {
        let (window, cells) = self.window(tile, column)?;
        let row_group = tile - self.tiles.start;
        let Column { name, n_categories } = &self.columns[column];
        let values = guarded(|| decode(window, self.metadata.clone(), row_group, column, cells));
        let values = values.map_err(|reason| self.damaged(tile, column, reason))?;
        if values.len() as u64 != cells {
            return Err(ShardFault::Values {
                column: name.clone(),
                tile,
                found: values.len(),
                expected: cells,
            });
        }
        if let Some(n_categories) = *n_categories
            && let Some((cell, found)) = wrong_code(&values, n_categories)
        {
            return Err(ShardFault::Code {
                column: name.clone(),
                tile,
                cell,
                found,
                most: n_categories - 1,
            });
        }
        Ok(values)
    }

    /// Where a column chunk is, which is before the footer.
    fn chunk_range(&self, chunk: &ColumnChunkMetaData, column: &str, tile: TileId) -> Result<Range<u64>, ShardFault> {
        let (data, length) = (chunk.data_page_offset(), chunk.compressed_size());
        // As the library does it: a dictionary comes first.
        let start = chunk.dictionary_page_offset().unwrap_or(data);
        let outside = || ShardFault::ChunkOutside {
            column: column.to_owned(),
            tile,
            start,
            length,
            end: self.data_end,
        };
        let from = u64::try_from(start).map_err(|_| outside())?;
        let to = u64::try_from(length).ok().and_then(|length| from.checked_add(length));
        let to = to.filter(|&to| to <= self.data_end).ok_or_else(outside)?;
        Ok(from..to)
    }
}

/// Checks one shard completely: size, SHA-256, row groups, schema, every value of every column.
///
/// Returns all faults it finds, in that order. What a fault makes unreadable is not reported again: with a damaged
/// footer there are no columns to speak of.
pub fn verify_shard(
    object: Arc<dyn Object>,
    manifest: &Manifest,
    obs: &ObsManifest,
    shard: usize,
    schema: &ObsSchema,
) -> Vec<ShardError> {
    let name = object.name();
    let mut faults = Vec::new();
    match sha256(&*object) {
        Ok(found) if found != obs.shard_sha256[shard] => faults.push(ShardFault::Sha256 {
            found,
            expected: obs.shard_sha256[shard].clone(),
        }),
        Ok(_) => {}
        Err(error) => faults.push(error.into()),
    }
    match open_footer(object, manifest, obs, shard, schema) {
        Ok((opened, found)) => {
            let readable = found.iter().all(|fault| matches!(fault, ShardFault::Size { .. }));
            faults.extend(found);
            if readable {
                let columns = 0..opened.columns.len();
                let all = opened
                    .tiles()
                    .flat_map(|tile| columns.clone().map(move |column| (tile, column)));
                faults.extend(all.filter_map(|(tile, column)| opened.column(tile, column).err()));
            }
        }
        Err(fault) => faults.push(fault),
    }
    // The size is the plainest of the faults, and explains the others.
    faults.sort_by_key(|fault| !matches!(fault, ShardFault::Size { .. }));
    faults.into_iter().map(|fault| fault.of(name.clone())).collect()
}

/// The state of a shard's file now.
pub(super) fn version(object: &dyn Object) -> Result<Version, ShardError> {
    object
        .version()
        .map_err(|error| ShardFault::from(error).of(object.name()))
}

/// Reads the file once and holds it against the manifest's SHA-256.
pub(super) fn check_sha256(object: &dyn Object, obs: &ObsManifest, shard: usize) -> Result<(), ShardError> {
    let expected = &obs.shard_sha256[shard];
    let fault = match sha256(object) {
        Ok(found) if found == *expected => return Ok(()),
        Ok(found) => ShardFault::Sha256 {
            found,
            expected: expected.clone(),
        },
        Err(error) => error.into(),
    };
    Err(fault.of(object.name()))
}

fn sha256(object: &dyn Object) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE.min(object.size()) as usize];
    let mut at = 0;
    while at < object.size() {
        let length = PIECE.min(object.size() - at) as usize;
        object.read_at(&mut piece[..length], at)?;
        hash.update(&piece[..length]);
        at += length as u64;
    }
    Ok(hex(&hash.finalize()))
}

/// The shard as its footer describes it, and everything in which that is not what manifest and schema say.
/// Columns may be read when there are no faults but the size.
fn open_footer(
    object: Arc<dyn Object>,
    manifest: &Manifest,
    obs: &ObsManifest,
    shard: usize,
    schema: &ObsSchema,
) -> Result<(ObsShard, Vec<ShardFault>), ShardFault> {
    let mut faults = Vec::new();
    let (found, expected) = (object.size(), obs.shard_bytes[shard]);
    if found != expected {
        faults.push(ShardFault::Size { found, expected });
    }
    let (footer, data_end) = match read_footer(&*object) {
        Ok(read) => read,
        // A file that was cut short has no end: its size says more.
        Err(fault) => return Err(faults.pop().unwrap_or(fault)),
    };
    let metadata = guarded(|| {
        let metadata = ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&without_statistics()))?;
        ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
    })
    .map_err(ShardFault::Footer)?;
    let first = shard * obs.tiles_per_file as usize;
    let tiles = first..manifest.n_tiles().min(first + obs.tiles_per_file as usize);
    let opened = ObsShard {
        cells: tiles.clone().map(|tile| manifest.tile_cells(tile)).collect(),
        columns: schema.columns.iter().map(Column::new).collect(),
        object,
        metadata,
        tiles,
        data_end,
    };
    check_row_groups(&opened, &mut faults);
    check_columns(&opened, schema, &mut faults);
    Ok((opened, faults))
}

/// Statistics would be most of what a footer takes in memory, and nothing here asks for them.
fn without_statistics() -> ParquetMetaDataOptions {
    ParquetMetaDataOptions::new()
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
}

/// The footer, and where it starts.
fn read_footer(object: &dyn Object) -> Result<(Vec<u8>, u64), ShardFault> {
    let size = object.size();
    let mut trailer = [0; TRAILER_BYTES as usize];
    let trailer_at = size.checked_sub(TRAILER_BYTES).ok_or_else(|| ShardFault::Magic {
        found: format!("{size} bytes in all"),
    })?;
    object.read_at(&mut trailer, trailer_at)?;
    let (length, magic) = trailer.split_at(4);
    if magic != MAGIC {
        return Err(ShardFault::Magic {
            found: format!("{magic:?}"),
        });
    }
    let found = u64::from(u32::from_le_bytes(length.try_into().expect("four bytes")));
    let most = trailer_at.saturating_sub(MAGIC.len() as u64);
    if found > most {
        return Err(ShardFault::FooterLength { found, most });
    }
    let mut footer = vec![0; found as usize];
    object.read_at(&mut footer, trailer_at - found)?;
    Ok((footer, trailer_at - found))
}

fn check_row_groups(shard: &ObsShard, faults: &mut Vec<ShardFault>) {
    let row_groups = shard.metadata.metadata().row_groups();
    let (found, expected) = (row_groups.len(), shard.cells.len());
    if found != expected {
        faults.push(ShardFault::RowGroups { found, expected });
    }
    for (index, (row_group, &cells)) in row_groups.iter().zip(&shard.cells).enumerate() {
        if row_group.num_rows() != cells as i64 {
            faults.push(ShardFault::Rows {
                row_group: index,
                tile: shard.tiles.start + index,
                found: row_group.num_rows(),
                expected: cells,
            });
        }
        let (found, expected) = (row_group.num_columns(), shard.metadata.parquet_schema().num_columns());
        if found != expected {
            faults.push(ShardFault::RowGroupColumns {
                row_group: index,
                found,
                expected,
            });
        }
    }
}

fn check_columns(shard: &ObsShard, schema: &ObsSchema, faults: &mut Vec<ShardFault>) {
    let fields = shard.metadata.schema().fields();
    let (found, expected) = (fields.len(), schema.columns.len());
    if found != expected {
        faults.push(ShardFault::Columns { found, expected });
    }
    for (index, (field, column)) in fields.iter().zip(&schema.columns).enumerate() {
        let expected_type = column.kind.stored_type();
        if field.name() != &column.name || field.data_type() != &expected_type {
            faults.push(ShardFault::Column {
                index,
                found_name: field.name().clone(),
                found_type: field.data_type().clone(),
                expected_name: column.name.clone(),
                expected_type,
            });
        }
    }
}

/// Runs a part of the Parquet library, which is not free of panics when what it reads is damaged.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the Parquet library gave up on it".into()),
    }
}

fn decode(
    window: Window,
    metadata: ArrowReaderMetadata,
    row_group: usize,
    column: usize,
    cells: u64,
) -> Result<ArrayRef, ParquetError> {
    let mask = ProjectionMask::leaves(metadata.parquet_schema(), [column]);
    let field = metadata.schema().field(column).data_type().clone();
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(window, metadata)
        .with_row_groups(vec![row_group])
        .with_projection(mask)
        .with_batch_size(cells.min(BATCH_ROWS as u64) as usize)
        .build()?;
    let mut parts = Vec::new();
    for batch in reader {
        parts.push(batch?.column(0).clone());
    }
    match &parts[..] {
        [] => Ok(arrow::array::new_empty_array(&field)),
        [whole] => Ok(whole.clone()),
        parts => Ok(concat(&parts.iter().map(|part| &**part).collect::<Vec<_>>())?),
    }
}

/// The first cell whose code is no category and not -1, and what it is. A missing code is none: missing values of
/// category columns are -1 (format, "Schema").
pub(crate) fn wrong_code(codes: &ArrayRef, n_categories: i64) -> Option<(usize, String)> {
    fn first<T: ArrowPrimitiveType>(codes: &ArrayRef, n_categories: i64) -> Option<(usize, String)>
    where
        T::Native: Into<i64> + ArrowNativeType,
    {
        let codes = codes.as_primitive::<T>();
        if codes.null_count() > 0 {
            let cell = codes.iter().position(|code| code.is_none())?;
            return Some((cell, "null".into()));
        }
        let wrong = |&code: &T::Native| !(-1..n_categories).contains(&code.into());
        let cell = codes.values().iter().position(wrong)?;
        Some((cell, codes.value(cell).into().to_string()))
    }
    match codes.data_type() {
        DataType::Int8 => first::<Int8Type>(codes, n_categories),
        DataType::Int16 => first::<Int16Type>(codes, n_categories),
        _ => first::<Int32Type>(codes, n_categories),
    }
}

/// The bytes of one column chunk, at their place in the file. There is nothing else for the library to read.
struct Window {
    start: u64,
    bytes: Bytes,
    file_len: u64,
}

impl Window {
    fn slice(&self, start: u64, length: Option<usize>) -> Result<Bytes, ParquetError> {
        let outside = || ParquetError::EOF(format!("a page at {start} lies outside its column chunk"));
        let from = start
            .checked_sub(self.start)
            .and_then(|from| usize::try_from(from).ok())
            .ok_or_else(outside)?;
        let to = length
            .map_or(Some(self.bytes.len()), |length| from.checked_add(length))
            .ok_or_else(outside)?;
        if from > to || to > self.bytes.len() {
            return Err(outside());
        }
        Ok(self.bytes.slice(from..to))
    }
}

impl Length for Window {
    fn len(&self) -> u64 {
        self.file_len
    }
}

impl ChunkReader for Window {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(Cursor::new(self.slice(start, None)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.slice(start, Some(length))
    }
}

#[cfg(test)]
mod tests;
