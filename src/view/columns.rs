//! The files of one obs column: one for each tile and one for all cells.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::anndata::ColumnFacts;
use super::arrow::{self, BatchLayout, FileLayout, LayoutError, Tiling};
use super::{Extent, Rows};
use crate::format::TileId;
use crate::format::manifest::Manifest;
use crate::format::names::column_file_name;
use crate::format::obs::{ColumnKind, ObsColumn, ObsSchema};

/// One obs column as files.
pub struct ColumnFiles {
    file_name: String,
    batch: Arc<BatchLayout>,
    tiling: Tiling,
    text: Option<Text>,
    all: OnceLock<FileLayout>,
    facts: OnceLock<ColumnFacts>,
}

/// Bytes of text of tiles of a string column that were read by themselves.
#[derive(Default)]
struct Text(Mutex<HashMap<TileId, u64>>);

impl ColumnFiles {
    /// The files of every column of `schema`.
    pub(super) fn all(schema: &ObsSchema, manifest: &Manifest) -> Result<Vec<Self>, LayoutError> {
        schema
            .columns
            .iter()
            .map(|column| Self::new(column, manifest.into()))
            .collect()
    }

    fn new(column: &ObsColumn, tiling: Tiling) -> Result<Self, LayoutError> {
        let batch = Arc::new(BatchLayout::new(std::slice::from_ref(column))?);
        let text = (column.kind == ColumnKind::String).then(Text::default);
        let all = OnceLock::new();
        if text.is_none() {
            let _ = all.set(FileLayout::all_tiles(batch.clone(), tiling, &[])?);
        }
        Ok(Self {
            file_name: column_file_name(&column.name, ".arrow"),
            batch,
            tiling,
            text,
            all,
            facts: OnceLock::new(),
        })
    }

    /// The files' name.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// How a tile's rows are laid out.
    pub fn batch(&self) -> &BatchLayout {
        &self.batch
    }

    /// Whether sizes depend on the column's content.
    pub fn is_text(&self) -> bool {
        self.text.is_some()
    }

    /// Takes note of how many bytes of text a tile's rows have. A size that was told once stays.
    pub fn learn_tile(&self, tile: TileId, bytes: u64) {
        if let Some(text) = &self.text {
            text.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(tile)
                .or_insert(bytes);
        }
    }

    /// Takes note of what is in the column.
    ///
    /// # Errors
    /// When the file of all cells would be too large to address.
    pub fn learn_all(&self, facts: ColumnFacts) -> Result<(), LayoutError> {
        if let Some(text) = &self.text {
            let layout = FileLayout::all_tiles(self.batch.clone(), self.tiling, &[&facts.text_bytes])?;
            let _ = self.all.set(layout);
            text.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        let _ = self.facts.set(facts);
        Ok(())
    }

    /// What is in the column, if that is known.
    pub(super) fn facts(&self) -> Option<&ColumnFacts> {
        self.facts.get()
    }

    /// How many bytes of text each tile has, if this is text and that is known.
    pub(super) fn text_of_tiles(&self) -> Option<&[u64]> {
        self.text.as_ref()?;
        Some(&self.facts.get()?.text_bytes)
    }

    /// The layout of the file of all cells, if its size is known.
    pub(super) fn of_all_cells(&self) -> Option<&FileLayout> {
        self.all.get()
    }

    /// The layout of the file of one tile, if its size is known.
    pub(super) fn of_tile(&self, tile: TileId, cells: u64) -> Option<FileLayout> {
        let known = match &self.text {
            None => Vec::new(),
            Some(text) => vec![self.text_of_tile(text, tile)?],
        };
        // A file of all cells that can be addressed has tiles that can.
        FileLayout::one_tile(self.batch.clone(), cells, &known).ok()
    }

    fn text_of_tile(&self, text: &Text, tile: TileId) -> Option<u64> {
        if let Some(all) = self.text_of_tiles() {
            return all.get(tile).copied();
        }
        let tiles = text.0.lock().unwrap_or_else(PoisonError::into_inner);
        tiles.get(&tile).copied()
    }
}

/// The pieces of a range of a file of `rows`; `tile` says which tile a batch is.
pub(super) fn extents(layout: &FileLayout, range: Range<u64>, rows: Rows, tile: impl Fn(u64) -> TileId) -> Vec<Extent> {
    let piece = |extent| match extent {
        arrow::Extent::Literal(bytes) => Extent::literal(bytes.into_owned()),
        arrow::Extent::Message { batch, range } => Extent::Rows {
            tile: tile(batch),
            rows,
            bytes: range,
        },
    };
    layout.extents(range).map(piece).collect()
}
