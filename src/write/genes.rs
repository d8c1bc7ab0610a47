//! What is known of the genes: `gene_order.npy`, `var_names.txt`, `var.parquet`.

use std::path::Path;

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::WriteError;
use super::file::{NewFile, write_file};
use crate::format::npy;

/// What is known of the genes, in output (column) order. Each part is optional.
#[derive(Debug, Clone, Default)]
pub struct Genes {
    /// Column `j` of the dataset was column `order[j]` of the source: a permutation of `0..n_genes`.
    pub order: Option<Vec<i32>>,
    /// A name for each gene, without line breaks.
    pub names: Option<Vec<String>>,
    /// The gene table, one row for each gene. The metadata of its schema is kept, and with it, under the key
    /// `pandas`, the index of a data frame. (Batches that come out of a Parquet reader have lost it; the reader's
    /// builder has it.)
    pub table: Option<RecordBatch>,
}

impl Genes {
    /// Whether the parts describe `n_genes` genes and can be stored.
    ///
    /// # Errors
    /// When a part has another length, `order` is no permutation, or a name has a line break.
    pub fn check(&self, n_genes: u32) -> Result<(), WriteError> {
        let parts = [
            ("gene_order", self.order.as_ref().map(Vec::len)),
            ("var_names", self.names.as_ref().map(Vec::len)),
            ("the gene table", self.table.as_ref().map(RecordBatch::num_rows)),
        ];
        for (table, length) in parts {
            if let Some(found) = length
                .map(|length| length as u64)
                .filter(|&found| found != u64::from(n_genes))
            {
                return Err(WriteError::GeneTable {
                    table,
                    found,
                    expected: n_genes,
                });
            }
        }
        check_order(self.order.as_deref().unwrap_or_default(), n_genes)?;
        let names = self.names.as_deref().unwrap_or_default();
        match names.iter().position(|name| name.contains(['\n', '\r'])) {
            None => Ok(()),
            Some(gene) => Err(WriteError::GeneName {
                gene,
                name: names[gene].clone(),
            }),
        }
    }

    /// Writes the parts that are there into the dataset's folder. They have been checked.
    pub(super) fn write(&self, root: &Path) -> Result<(), WriteError> {
        if let Some(order) = &self.order {
            write_file(root.join("gene_order.npy"), &npy::int32_file(order))?;
        }
        if let Some(names) = &self.names {
            let lines: String = names.iter().flat_map(|name| [name, "\n"]).collect();
            write_file(root.join("var_names.txt"), lines.as_bytes())?;
        }
        if let Some(table) = &self.table {
            write_table(NewFile::create(root.join("var.parquet"))?, table)?;
        }
        Ok(())
    }
}

fn check_order(order: &[i32], n_genes: u32) -> Result<(), WriteError> {
    let mut seen = vec![false; order.len()];
    for (index, &found) in order.iter().enumerate() {
        let first = usize::try_from(found)
            .ok()
            .and_then(|gene| seen.get_mut(gene))
            .is_some_and(|seen| !std::mem::replace(seen, true));
        if !first {
            return Err(WriteError::GeneOrder { index, found, n_genes });
        }
    }
    Ok(())
}

fn write_table(file: NewFile, table: &RecordBatch) -> Result<(), WriteError> {
    let path = file.path().to_owned();
    let schema = table.schema();
    // Readers that know no Arrow look for the index of a data frame beside the Arrow schema, not in it.
    let metadata = schema
        .metadata()
        .get("pandas")
        .map(|pandas| vec![KeyValue::new("pandas".to_owned(), pandas.clone())]);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(metadata)
        .build();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).map_err(WriteError::parquet(&path))?;
    writer.write(table).map_err(WriteError::parquet(&path))?;
    writer.into_inner().map_err(WriteError::parquet(&path))?.commit()?;
    Ok(())
}
