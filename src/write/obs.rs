//! Obs shards: Parquet files with one row group for each tile (format, "Obs").

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Int8Type, Int16Type, Int32Type, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::WriteError;
use super::file::{NewFile, Written, write_file};
use crate::format::fingerprint::fingerprint;
use crate::format::manifest::{ObsManifest, shard_path};
use crate::format::obs::{ColumnKind, NumericType, ObsSchema};

/// Writes the shards of a dataset, tile after tile.
pub(super) struct ObsWriter {
    root: PathBuf,
    schema: ObsSchema,
    arrow: SchemaRef,
    tiles_per_file: u64,
    /// The shard being written and the tiles it has.
    open: Option<(ArrowWriter<NewFile>, u64)>,
    done: Vec<Written>,
}

/// The Arrow type that a column's values are stored with.
pub(crate) fn stored_type(kind: &ColumnKind) -> DataType {
    match kind {
        ColumnKind::Category { codes: number, .. } | ColumnKind::Numeric(number) => number_type(*number),
        ColumnKind::Bool => DataType::Boolean,
        ColumnKind::String => DataType::Utf8,
    }
}

pub(crate) fn number_type(number: NumericType) -> DataType {
    match number {
        NumericType::Int8 => DataType::Int8,
        NumericType::Int16 => DataType::Int16,
        NumericType::Int32 => DataType::Int32,
        NumericType::Int64 => DataType::Int64,
        NumericType::UInt8 => DataType::UInt8,
        NumericType::UInt16 => DataType::UInt16,
        NumericType::UInt32 => DataType::UInt32,
        NumericType::UInt64 => DataType::UInt64,
        NumericType::Float16 => DataType::Float16,
        NumericType::Float32 => DataType::Float32,
        NumericType::Float64 => DataType::Float64,
    }
}

impl ObsWriter {
    /// Writes `obs/schema.json`; the folder `obs` exists.
    pub fn create(root: &Path, schema: ObsSchema, tiles_per_file: u64) -> Result<Self, WriteError> {
        if schema.columns.is_empty() {
            return Err(WriteError::ObsEmpty);
        }
        write_file(root.join("obs/schema.json"), schema.text.as_bytes())?;
        let fields: Vec<Field> = schema
            .columns
            .iter()
            .map(|column| Field::new(&column.name, stored_type(&column.kind), true))
            .collect();
        Ok(Self {
            root: root.to_owned(),
            schema,
            arrow: Arc::new(Schema::new(fields)),
            tiles_per_file,
            open: None,
            done: Vec::new(),
        })
    }

    /// The rows in the schema's stored types, if that is what they have; `first_cell` is the first of their cells.
    pub fn check(&self, rows: &RecordBatch, n_cells: usize, first_cell: u64) -> Result<RecordBatch, WriteError> {
        let expect = |what: &str, found: String, expected: String| match found == expected {
            true => Ok(()),
            false => Err(WriteError::Obs {
                first_cell,
                what: what.to_owned(),
                found,
                expected,
            }),
        };
        expect("the number of rows", rows.num_rows().to_string(), n_cells.to_string())?;
        let found = rows.schema();
        let expected = self.arrow.fields();
        expect(
            "the number of columns",
            found.fields().len().to_string(),
            expected.len().to_string(),
        )?;
        for (index, (found, expected)) in found.fields().iter().zip(expected).enumerate() {
            expect(
                &format!("the name of column {index}"),
                format!("{:?}", found.name()),
                format!("{:?}", expected.name()),
            )?;
            let what = format!("the type of column {:?}", found.name());
            expect(&what, found.data_type().to_string(), expected.data_type().to_string())?;
        }
        for (column, values) in self.schema.columns.iter().zip(rows.columns()) {
            let ColumnKind::Category { codes, categories } = &column.kind else {
                continue;
            };
            if let Some((row, found)) = wrong_code(*codes, values, categories.len()) {
                return Err(WriteError::ObsCode {
                    column: column.name.clone(),
                    cell: first_cell + row as u64,
                    found,
                    categories: categories.len(),
                });
            }
        }
        // Metadata and nullability of the caller's fields are not the schema's.
        RecordBatch::try_new(self.arrow.clone(), rows.columns().to_vec()).map_err(|source| WriteError::Parquet {
            path: self.root.join(shard_path(self.done.len())),
            source: source.into(),
        })
    }

    /// Adds rows, as [`ObsWriter::check`] gave them, to the tile that is being written.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<(), WriteError> {
        let path = self.root.join(shard_path(self.done.len()));
        if self.open.is_none() {
            let file = NewFile::create(path.clone())?;
            let writer = ArrowWriter::try_new(file, self.arrow.clone(), Some(properties()));
            self.open = Some((writer.map_err(WriteError::parquet(&path))?, 0));
        }
        match &mut self.open {
            Some((writer, _)) => writer.write(rows).map_err(WriteError::parquet(&path)),
            None => Ok(()),
        }
    }

    /// Ends the tile, and the shard when it is full.
    pub fn end_tile(&mut self) -> Result<(), WriteError> {
        let Some((mut writer, tiles)) = self.open.take() else {
            return Ok(());
        };
        let path = self.root.join(shard_path(self.done.len()));
        writer.flush().map_err(WriteError::parquet(&path))?;
        if tiles + 1 < self.tiles_per_file {
            self.open = Some((writer, tiles + 1));
            return Ok(());
        }
        self.end_shard(writer)
    }

    fn end_shard(&mut self, writer: ArrowWriter<NewFile>) -> Result<(), WriteError> {
        let path = self.root.join(shard_path(self.done.len()));
        let file = writer.into_inner().map_err(WriteError::parquet(&path))?;
        self.done.push(file.commit()?);
        Ok(())
    }

    /// Ends the last shard; what the manifest says of obs.
    pub fn finish(mut self, tile_cells: &[u64]) -> Result<ObsManifest, WriteError> {
        if let Some((writer, _)) = self.open.take() {
            self.end_shard(writer)?;
        }
        let shard_sha256: Vec<String> = self.done.iter().map(|shard| shard.sha256.clone()).collect();
        Ok(ObsManifest {
            tiles_per_file: self.tiles_per_file,
            shard_bytes: self.done.iter().map(|shard| shard.bytes).collect(),
            fingerprint: fingerprint(&self.schema.text, tile_cells.iter().copied(), &shard_sha256),
            shard_sha256,
        })
    }
}

/// Row groups end where tiles do, however many rows that is. Statistics would dominate the footer, and no reader
/// uses them (format, "Shards").
fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None)
        .build()
}

/// The first code that names no category and is not -1, or is null, with its row.
fn wrong_code(codes: NumericType, values: &ArrayRef, categories: usize) -> Option<(usize, String)> {
    match codes {
        NumericType::Int8 => wrong_code_of::<Int8Type>(values, categories),
        NumericType::Int16 => wrong_code_of::<Int16Type>(values, categories),
        _ => wrong_code_of::<Int32Type>(values, categories),
    }
}

fn wrong_code_of<T>(values: &ArrayRef, categories: usize) -> Option<(usize, String)>
where
    T: ArrowPrimitiveType,
    T::Native: Into<i64>,
{
    let values = values.as_primitive::<T>();
    values
        .iter()
        .enumerate()
        .find_map(|(row, code)| match code.map(Into::into) {
            Some(code) if (-1..categories as i64).contains(&code) => None,
            Some(code) => Some((row, code.to_string())),
            None => Some((row, "null".to_owned())),
        })
}
