//! The files about genes: `var.parquet` and `var_names.txt`.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::shard::guarded;
use super::{Dataset, DatasetError, TableFault};
use crate::store::read_whole;

/// The most bytes of a file about genes that is read whole.
pub(super) const GENES_LIMIT: u64 = 64 << 30;

impl Dataset {
    /// The gene table, one row a gene in column order, with the metadata of its schema (format, "var.parquet");
    /// `None` when the dataset has none.
    ///
    /// # Errors
    /// When it cannot be read, or has not one row a gene.
    pub fn gene_table(&self) -> Result<Option<RecordBatch>, DatasetError> {
        let path = "var.parquet";
        if !self.manifest.has_var_table {
            return Ok(None);
        }
        let bytes = read_whole(&*self.store, path, GENES_LIMIT)?;
        let table = read_table(bytes).map_err(|fault| self.table(path, fault))?;
        self.one_row_a_gene(path, table.num_rows())?;
        Ok(Some(table))
    }

    /// The genes' names in column order (format, "var_names.txt"); `None` when the dataset has none.
    ///
    /// # Errors
    /// When they cannot be read, or are not one a gene.
    pub fn gene_names(&self) -> Result<Option<Vec<String>>, DatasetError> {
        let path = "var_names.txt";
        if !self.manifest.has_var_names {
            return Ok(None);
        }
        let bytes = read_whole(&*self.store, path, GENES_LIMIT)?;
        let text = String::from_utf8(bytes)
            .map_err(|error| self.table(path, TableFault::Utf8(error.utf8_error().valid_up_to())))?;
        let names: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
        self.one_row_a_gene(path, names.len())?;
        Ok(Some(names))
    }

    fn one_row_a_gene(&self, path: &str, found: usize) -> Result<(), DatasetError> {
        let (found, expected) = (found as u64, self.manifest.n_genes);
        if found == u64::from(expected) {
            return Ok(());
        }
        Err(self.table(path, TableFault::Genes { found, expected }))
    }

    /// A fault of one of the files about genes or obs as a whole.
    pub(super) fn table(&self, path: &str, source: TableFault) -> DatasetError {
        DatasetError::Table {
            name: super::name(&*self.store, path),
            source,
        }
    }
}

fn read_table(bytes: Vec<u8>) -> Result<RecordBatch, TableFault> {
    let table = guarded(|| {
        let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes))?;
        let schema = reader.schema().clone();
        let batches = reader.build()?.collect::<Result<Vec<_>, _>>()?;
        Ok(concat_batches(&schema, &batches)?)
    });
    table.map_err(TableFault::Parquet)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::{Directory, Links};
    use crate::testdata;

    #[test]
    fn the_gene_table_has_a_row_a_gene_and_its_index() {
        for path in testdata::datasets() {
            let dataset = Dataset::open(Arc::new(Directory::open(&path, Links::Anywhere).unwrap())).unwrap();
            let genes = dataset.manifest().n_genes as usize;
            if let Some(table) = dataset.gene_table().unwrap() {
                assert_eq!(table.num_rows(), genes);
                assert!(table.schema().metadata().contains_key("pandas"), "{}", path.display());
            }
            if let Some(names) = dataset.gene_names().unwrap() {
                assert_eq!(names.len(), genes);
            }
        }
    }
}
