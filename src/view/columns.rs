//! The files of one obs column: one for each tile and one for all cells.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Extent;
use super::arrow::{self, BatchLayout, FileLayout, LayoutError, Tiling};
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
}

/// What is known of a string column, which is nothing until it was read.
#[derive(Default)]
struct Text {
    /// Bytes of text of tiles that were read by themselves.
    tiles: Mutex<HashMap<TileId, u64>>,
    /// Bytes of text of every tile.
    all: OnceLock<Vec<u64>>,
}

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
            text.tiles
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(tile)
                .or_insert(bytes);
        }
    }

    /// Takes note of how many bytes of text each tile's rows have.
    ///
    /// # Errors
    /// When the file of all cells would be too large to address.
    pub fn learn_all(&self, bytes: Vec<u64>) -> Result<(), LayoutError> {
        let layout = FileLayout::all_tiles(self.batch.clone(), self.tiling, &[&bytes])?;
        let _ = self.all.set(layout);
        if let Some(text) = &self.text {
            let _ = text.all.set(bytes);
            text.tiles.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(())
    }

    /// The layout of the file of all cells, if its size is known.
    pub(super) fn of_all_cells(&self) -> Option<&FileLayout> {
        self.all.get()
    }

    /// The layout of the file of one tile, if its size is known.
    pub(super) fn of_tile(&self, tile: TileId, cells: u64) -> Option<FileLayout> {
        let known = match &self.text {
            None => Vec::new(),
            Some(text) => vec![text.of_tile(tile)?],
        };
        // A file of all cells that can be addressed has tiles that can.
        FileLayout::one_tile(self.batch.clone(), cells, &known).ok()
    }
}

impl Text {
    fn of_tile(&self, tile: TileId) -> Option<u64> {
        if let Some(all) = self.all.get() {
            return all.get(tile).copied();
        }
        self.tiles
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&tile)
            .copied()
    }
}

/// The pieces of a range of a column's file; `tile` says which tile a batch is.
pub(super) fn extents(
    layout: &FileLayout,
    range: Range<u64>,
    column: usize,
    tile: impl Fn(u64) -> TileId,
) -> Vec<Extent> {
    let piece = |extent| match extent {
        arrow::Extent::Literal(bytes) => Extent::literal(bytes.into_owned()),
        arrow::Extent::Message { batch, range } => Extent::Column {
            tile: tile(batch),
            column,
            bytes: range,
        },
    };
    layout.extents(range).map(piece).collect()
}
