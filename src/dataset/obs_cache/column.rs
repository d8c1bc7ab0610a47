//! One column in the cache: an Arrow IPC file that others may have written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::read_record_batch;
use arrow::ipc::{MetadataVersion, root_as_footer, root_as_message};
use thiserror::Error;

use crate::dataset::wrong_code;
use crate::format::TileId;
use crate::format::obs::{ColumnKind, ObsColumn};

const MAGIC: &[u8; 6] = b"ARROW1";
/// The last bytes of an Arrow file: length of the footer, and magic.
const TRAILER_BYTES: u64 = 10;
/// Stands before the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// In what a cached column is not the dataset's, or why that cannot be told.
#[derive(Debug, Error)]
pub enum Disagreement {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Io(#[from] io::Error),
    /// It is no Arrow file.
    #[error("not an Arrow file: {0}")]
    Damaged(String),
    /// It holds something else than the column.
    #[error("has {found}, expected the one field {expected:?} of type {expected_type}")]
    Schema {
        found: String,
        expected: String,
        expected_type: DataType,
    },
    /// Not one record batch per tile.
    #[error("{found} record batches, expected {expected}, one per tile")]
    Batches { found: usize, expected: usize },
    /// A record batch with other rows than its tile has cells.
    #[error("record batch {tile} has {found} rows, expected {expected}, the cells of tile {tile}")]
    Rows { tile: TileId, found: i64, expected: u64 },
    /// Compressed, which cannot be mapped.
    #[error("record batch {tile} is compressed")]
    Compressed { tile: TileId },
    /// A code that means no category.
    #[error("record batch {tile} has the code {found} at cell {cell}, expected -1 to {most}")]
    Code {
        tile: TileId,
        cell: usize,
        found: String,
        most: i64,
    },
}

/// A column that was found to have the tiles, cells, name and type of the dataset's.
#[derive(Debug)]
pub struct CachedColumn {
    file: File,
    schema: SchemaRef,
    batches: Vec<Batch>,
    n_categories: Option<i64>,
}

/// Where a record batch is in the file: a message of `metadata` bytes at `start`, then its `body` bytes.
#[derive(Debug, Clone, Copy)]
struct Batch {
    start: u64,
    metadata: usize,
    body: usize,
}

impl CachedColumn {
    /// Reads the file's footer and the head of each record batch, and holds them against the column and the cells of each
    /// tile.
    pub(super) fn open(
        file: File,
        column: &ObsColumn,
        cells: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Self, Disagreement> {
        let size = file.metadata()?.len();
        let (schema, batches) = read_footer(&file, size)?;
        let (expected, expected_type) = (column.name.clone(), column.kind.stored_type());
        let is_it = |field: &Field| *field.name() == expected && *field.data_type() == expected_type;
        if !matches!(&schema.fields()[..], [field] if is_it(field)) {
            let fields: Vec<String> = schema
                .fields()
                .iter()
                .map(|field| format!("{:?} of type {}", field.name(), field.data_type()))
                .collect();
            let found = if fields.is_empty() {
                "no field".into()
            } else {
                fields.join(", ")
            };
            return Err(Disagreement::Schema {
                found,
                expected,
                expected_type,
            });
        }
        if batches.len() != cells.len() {
            let (found, expected) = (batches.len(), cells.len());
            return Err(Disagreement::Batches { found, expected });
        }
        let n_categories = match &column.kind {
            ColumnKind::Category { categories, .. } => Some(categories.len() as i64),
            _ => None,
        };
        let opened = Self {
            file,
            schema: Arc::new(schema),
            batches,
            n_categories,
        };
        for (tile, expected) in cells.enumerate() {
            let metadata = opened.part(tile, false)?;
            let found = guarded(|| {
                let message = message(&metadata)?;
                let batch = message.header_as_record_batch().ok_or("not a record batch")?;
                Ok((batch.length(), batch.compression().is_some()))
            })?;
            match found {
                (_, true) => return Err(Disagreement::Compressed { tile }),
                (found, false) if found != expected as i64 => {
                    return Err(Disagreement::Rows { tile, found, expected });
                }
                _ => {}
            }
        }
        Ok(opened)
    }

    /// Values for the cells of a tile, of the type that the column is stored with. Codes of a category column have been checked.
    ///
    /// # Errors
    /// When the file cannot be read any more, or the record batch holds nothing of the kind.
    ///
    /// # Panics
    /// When there is no such tile.
    pub fn read(&self, tile: TileId) -> Result<ArrayRef, Disagreement> {
        let whole = self.part(tile, true)?;
        let batch = self.batches[tile];
        let body = Buffer::from_vec(whole[batch.metadata..].to_vec());
        let values = guarded(|| {
            let message = message(&whole[..batch.metadata])?;
            let head = message.header_as_record_batch().ok_or("not a record batch")?;
            let version = MetadataVersion::V5;
            let read = read_record_batch(&body, head, self.schema.clone(), &Default::default(), None, &version);
            let values = read.map_err(|error| error.to_string())?.column(0).clone();
            values.to_data().validate_full().map_err(|error| error.to_string())?;
            Ok(values)
        })?;
        if let Some(n_categories) = self.n_categories
            && let Some((cell, found)) = wrong_code(&values, n_categories)
        {
            let most = n_categories - 1;
            return Err(Disagreement::Code {
                tile,
                cell,
                found,
                most,
            });
        }
        Ok(values)
    }

    /// The message of a tile's record batch, and its body where that is wanted.
    fn part(&self, tile: TileId, with_body: bool) -> io::Result<Vec<u8>> {
        let batch = self.batches[tile];
        let mut bytes = vec![0; batch.metadata + if with_body { batch.body } else { 0 }];
        self.file.read_exact_at(&mut bytes, batch.start)?;
        Ok(bytes)
    }
}

/// The schema and where the record batches are, all within the file.
fn read_footer(file: &File, size: u64) -> Result<(Schema, Vec<Batch>), Disagreement> {
    let mut trailer = [0; TRAILER_BYTES as usize];
    let trailer_at = size
        .checked_sub(TRAILER_BYTES)
        .ok_or_else(|| Disagreement::Damaged(format!("{size} bytes in all")))?;
    file.read_exact_at(&mut trailer, trailer_at)?;
    let (length, magic) = trailer.split_at(4);
    if magic != MAGIC {
        return Err(Disagreement::Damaged(format!("ends in {magic:?}, expected {MAGIC:?}")));
    }
    let length = u64::from(u32::from_le_bytes(length.try_into().expect("four bytes")));
    let footer_at = trailer_at
        .checked_sub(length)
        .ok_or_else(|| Disagreement::Damaged(format!("a footer of {length} bytes in a file of {size}")))?;
    let mut footer = vec![0; length as usize];
    file.read_exact_at(&mut footer, footer_at)?;
    guarded(|| {
        let footer = root_as_footer(&footer).map_err(|error| error.to_string())?;
        let schema = try_fb_to_schema(footer.schema().ok_or("no schema in the footer")?);
        let schema = schema.map_err(|error| error.to_string())?;
        let blocks = footer.recordBatches().ok_or("no record batches in the footer")?;
        let batches = blocks.iter().map(|block| {
            let (start, metadata, body) = (block.offset(), block.metaDataLength(), block.bodyLength());
            let batch = || {
                let (start, body) = (u64::try_from(start).ok()?, u64::try_from(body).ok()?);
                let metadata = u64::try_from(metadata).ok()?;
                let end = start.checked_add(metadata)?.checked_add(body)?;
                (end <= footer_at).then_some(Batch {
                    start,
                    metadata: metadata as usize,
                    body: body as usize,
                })
            };
            batch().ok_or_else(|| {
                format!("a record batch of {metadata} and {body} bytes at {start}, expected it before the footer at {footer_at}")
            })
        });
        Ok((schema, batches.collect::<Result<Vec<_>, _>>()?))
    })
}

/// A message with what stands before it.
fn message(bytes: &[u8]) -> Result<arrow::ipc::Message<'_>, String> {
    let rest = bytes.strip_prefix(&CONTINUATION).unwrap_or(bytes);
    let message = rest.get(4..).ok_or("a message of less than 8 bytes")?;
    root_as_message(message).map_err(|error| error.to_string())
}

/// Runs a part of the Arrow library, which is not free of panics when what it reads is damaged.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, Disagreement> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(reason)) => Err(Disagreement::Damaged(reason)),
        Err(_) => Err(Disagreement::Damaged("the Arrow library gave up on it".into())),
    }
}
