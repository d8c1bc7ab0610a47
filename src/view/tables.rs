//! `obs.arrow` and `var.arrow`: all columns of cells, one batch a tile, and the table of genes.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::MetadataVersion;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};

use super::arrow::{BatchLayout, FileLayout, LayoutError, Tiling};
use super::columns::{self, ColumnFiles};
use super::{Extent, Need, Rows, Size};
use crate::format::TileId;
use crate::format::obs::ObsSchema;

/// All columns of cells in one file.
pub(super) struct ObsTable {
    batch: Arc<BatchLayout>,
    tiling: Tiling,
    layout: OnceLock<Result<FileLayout, Arc<LayoutError>>>,
}

impl ObsTable {
    pub(super) fn new(schema: &ObsSchema, tiling: Tiling) -> Result<Self, LayoutError> {
        Ok(Self {
            batch: Arc::new(BatchLayout::new(&schema.columns)?),
            tiling,
            layout: OnceLock::new(),
        })
    }

    /// How a tile's rows are laid out.
    pub(super) fn batch(&self) -> &BatchLayout {
        &self.batch
    }

    /// The file's size, which needs to know how much text there is.
    pub(super) fn size(&self, columns: &[ColumnFiles]) -> Size {
        if self.layout.get().is_none() {
            let texts = columns.iter().enumerate().filter(|(_, column)| column.is_text());
            let unknown: Vec<usize> = texts
                .filter(|(_, column)| column.text_of_tiles().is_none())
                .map(|(at, _)| at)
                .collect();
            if !unknown.is_empty() {
                return Size::Needs(Need::Columns(unknown));
            }
        }
        match self.layout(columns) {
            Ok(layout) => Size::Known(layout.len()),
            Err(error) => Size::Failed(Arc::new(error.clone().into())),
        }
    }

    /// The layout, once all text is known.
    fn layout(&self, columns: &[ColumnFiles]) -> &Result<FileLayout, Arc<LayoutError>> {
        self.layout.get_or_init(|| {
            let texts: Vec<&[u64]> = columns.iter().filter_map(|column| column.text_of_tiles()).collect();
            FileLayout::all_tiles(self.batch.clone(), self.tiling, &texts).map_err(Arc::new)
        })
    }

    /// The bytes `range` of the file, whose size was found.
    pub(super) fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let Some(Ok(layout)) = self.layout.get() else {
            return Vec::new();
        };
        columns::extents(layout, range, Rows::Table, |batch| batch as TileId)
    }
}

/// The table of genes in one file, made once when it is known.
#[derive(Default)]
pub(super) struct VarTable {
    file: OnceLock<Result<Arc<[u8]>, Arc<ArrowError>>>,
}

impl VarTable {
    pub(super) fn size(&self) -> Size {
        match self.file.get() {
            None => Size::Needs(Need::Genes),
            Some(Ok(file)) => Size::Known(file.len() as u64),
            Some(Err(error)) => Size::Failed(Arc::new(error.clone().into())),
        }
    }

    pub(super) fn learn(&self, genes: &RecordBatch) {
        self.file
            .get_or_init(|| arrow_file(genes).map(Arc::from).map_err(Arc::new));
    }

    pub(super) fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let Some(Ok(file)) = self.file.get() else {
            return Vec::new();
        };
        vec![Extent::Literal(file.clone(), range.start as usize..range.end as usize)]
    }
}

/// The table as an Arrow file that can be mapped: nothing compressed, every buffer at a multiple of 64.
/// What pandas left in the schema's metadata stays, and with it which column is the index.
fn arrow_file(table: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5)?;
    let mut writer = FileWriter::try_new_with_options(Vec::new(), table.schema_ref(), options)?;
    writer.write(table)?;
    writer.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use arrow::ipc::reader::FileReader;

    #[test]
    fn the_gene_table_keeps_what_pandas_said_of_it() {
        let metadata: std::collections::HashMap<String, String> =
            [("pandas".to_owned(), "{\"index_columns\": [\"symbol\"]}".to_owned())].into();
        let schema = Schema::new_with_metadata(vec![Field::new("symbol", DataType::Utf8, true)], metadata);
        let symbols: ArrayRef = Arc::new(StringArray::from(vec![Some("A1BG"), None]));
        let table = RecordBatch::try_new(schema.into(), vec![symbols]).unwrap();
        let var = VarTable::default();
        assert!(matches!(var.size(), Size::Needs(Need::Genes)));
        var.learn(&table);
        let Size::Known(bytes) = var.size() else {
            panic!("the table is known")
        };
        let extents = var.extents(0..bytes);
        let [Extent::Literal(file, _)] = &extents[..] else {
            panic!("{extents:?}")
        };
        let mut reader = FileReader::try_new(std::io::Cursor::new(file.to_vec()), None).unwrap();
        assert_eq!(reader.next().unwrap().unwrap(), table);
    }
}
