//! What every reader gives: cells in order, their genes, what is known of each. Knows no file format.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayRef, StringArray};

use super::error::{BadCount, ConvertError, CountFault, Result};
use super::genes::Genes;
use crate::format::obs::NumericType;

/// One input: a count matrix of cells by genes, with what is known of its cells and genes.
///
/// A source reads in windows and holds no more than a few of them at a time; it can be read any number of times.
pub trait Source: Send + Sync {
    /// The file or folder.
    fn path(&self) -> &Path;

    /// What it is, in a word: `h5ad`, `10x_h5` or `mtx`.
    fn format(&self) -> &'static str;

    /// Size of what is read, in bytes.
    fn bytes(&self) -> u64;

    /// Cells (rows).
    fn n_cells(&self) -> u64;

    /// Stored entries of the matrix, where that is known without reading it.
    fn entries(&self) -> Option<u64>;

    /// Genes (columns).
    fn genes(&self) -> &Genes;

    /// The columns that describe cells, without the cells' names.
    fn columns(&self) -> &[SourceColumn];

    /// The values of column `column` for a range of cells.
    ///
    /// The array's type follows from the column's kind: Int32 codes for categories (null is missing), the numeric
    /// type, Boolean, or Utf8.
    ///
    /// # Errors
    /// When they cannot be read, or the column is of a kind that is not supported.
    fn column(&self, column: usize, cells: Range<u64>) -> Result<ArrayRef>;

    /// The names of a range of cells.
    ///
    /// # Errors
    /// When they cannot be read.
    fn cell_names(&self, cells: Range<u64>) -> Result<StringArray>;

    /// Reads every entry once: is each a count, and how large are the genes' totals?
    ///
    /// # Errors
    /// The first entry that is not a count, with its cell and gene; or what else is wrong with the matrix.
    fn scan(&self, reading: &Reading) -> Result<Scan>;

    /// The counts, in cell order, each cell exactly once.
    ///
    /// # Errors
    /// When reading cannot begin. Blocks are errors of their own.
    fn rows<'a>(&'a self, reading: &Reading) -> Result<RowStream<'a>>;

    /// Bytes of temporary files that [`Source::rows`] is reckoned to need; known after a scan.
    fn spilled_bytes(&self) -> u64 {
        0
    }

    /// The gene tables it holds, so that tables of several inputs can share what is the same.
    fn gene_tables(&mut self) -> Vec<&mut Genes>;

    /// What the user should know of how the input was understood.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Blocks of consecutive cells.
pub type RowStream<'a> = Box<dyn Iterator<Item = Result<RowBlock>> + Send + 'a>;

/// How to read.
#[derive(Clone)]
pub struct Reading {
    /// Threads that decompress.
    pub threads: usize,
    /// A folder for temporary files; they have no name there, and need no cleaning.
    pub scratch: PathBuf,
    /// Set when the user wants to stop.
    pub stop: Arc<AtomicBool>,
    /// Is told how many entries were read since it was last told.
    pub progress: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Reading {
    /// With no progress to tell and nothing to stop it.
    pub fn new(threads: usize, scratch: &Path) -> Self {
        Self {
            threads,
            scratch: scratch.to_path_buf(),
            stop: Arc::default(),
            progress: Arc::new(|_| ()),
        }
    }

    /// Tells of progress.
    ///
    /// # Errors
    /// When it is time to stop.
    pub(crate) fn tick(&self, entries: u64) -> Result<()> {
        (self.progress)(entries);
        match self.stop.load(Ordering::Relaxed) {
            true => Err(ConvertError::Interrupted),
            false => Ok(()),
        }
    }
}

/// A column that describes cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceColumn {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: SourceKind,
}

/// What a column of an input holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// Codes into this vocabulary, which is in the order that the input declares.
    Category(Vec<String>),
    /// Numbers.
    Numeric(NumericType),
    /// Truth values.
    Bool,
    /// Text.
    String,
    /// Something that the format cannot hold, described.
    Unsupported(String),
}

/// What a pass over a matrix found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// The sum of each gene's counts.
    pub totals: Vec<u64>,
    /// Each gene's entries that are not zero; duplicates count as often as they are there.
    pub nonzeros: Vec<u64>,
}

/// Counts of consecutive cells as compressed rows: genes strictly increasing in each row, no zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowBlock {
    /// The first cell.
    pub first: u64,
    /// Where each cell's entries begin, and where the last cell's end; starts with 0.
    pub indptr: Vec<usize>,
    /// The gene of each entry.
    pub genes: Vec<u32>,
    /// The count of each entry.
    pub counts: Vec<u32>,
    /// Entries that were added to another of the same cell and gene.
    pub duplicates: u64,
}

/// What is wrong with a matrix; a bad count is known by its numbers until its source adds the names.
#[derive(Debug)]
pub(crate) enum MatrixError {
    Count {
        cell: u64,
        gene: u32,
        value: String,
        why: CountFault,
    },
    Other(ConvertError),
}

impl From<ConvertError> for MatrixError {
    fn from(error: ConvertError) -> Self {
        Self::Other(error)
    }
}

impl MatrixError {
    /// The error with the names of the cell and the gene, where they are known.
    ///
    /// `genes` are those that the error counts, which are not all of a source's when it leaves some out.
    pub(crate) fn named(self, source: &dyn Source, genes: &Genes, matrix: &str, hint: Option<String>) -> ConvertError {
        let (cell, gene, value, why) = match self {
            Self::Other(error) => return error,
            Self::Count { cell, gene, value, why } => (cell, gene, value, why),
        };
        let name = source.cell_names(cell..cell + 1).ok();
        let name = name
            .filter(|names| !names.is_empty())
            .map(|names| names.value(0).to_owned());
        let bad = BadCount {
            path: source.path().to_path_buf(),
            matrix: matrix.to_owned(),
            cell,
            cell_name: name,
            gene: gene.into(),
            gene_name: genes.names.get(gene as usize).cloned(),
            value,
            why,
            hint,
        };
        bad.into()
    }
}

impl RowBlock {
    /// Cells.
    pub fn n_cells(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// Genes and counts of the block's cell `row`.
    ///
    /// # Panics
    /// When there is no such cell.
    pub fn row(&self, row: usize) -> (&[u32], &[u32]) {
        let range = self.indptr[row]..self.indptr[row + 1];
        (&self.genes[range.clone()], &self.counts[range])
    }

    /// Makes rows out of entries in any order within their row: zeros are dropped, and entries of the same cell and
    /// gene are added up, as scipy and every reader built on it do.
    ///
    /// # Errors
    /// A sum that is no count any more.
    pub(crate) fn new(
        first: u64,
        indptr: Vec<usize>,
        genes: Vec<u32>,
        counts: Vec<u32>,
    ) -> std::result::Result<Self, MatrixError> {
        let clean = |range: &[usize]| {
            let (genes, counts) = (&genes[range[0]..range[1]], &counts[range[0]..range[1]]);
            // Without short cuts, so that both vectorise.
            let ordered = genes
                .iter()
                .zip(genes.iter().skip(1))
                .fold(true, |all, (a, b)| all & (a < b));
            ordered & counts.iter().fold(true, |all, &count| all & (count != 0))
        };
        if indptr.windows(2).all(clean) {
            return Ok(Self {
                first,
                indptr,
                genes,
                counts,
                duplicates: 0,
            });
        }
        let mut block = Self {
            first,
            indptr: Vec::with_capacity(indptr.len()),
            genes: Vec::with_capacity(genes.len()),
            counts: Vec::with_capacity(counts.len()),
            duplicates: 0,
        };
        block.indptr.push(0);
        let mut entries = Vec::new();
        for (row, range) in indptr.windows(2).enumerate() {
            entries.clear();
            entries.extend(
                (range[0]..range[1])
                    .filter(|&at| counts[at] != 0)
                    .map(|at| (genes[at], counts[at])),
            );
            entries.sort_by_key(|&(gene, _)| gene);
            block.push_sorted(&entries).map_err(|(gene, sum)| MatrixError::Count {
                cell: first + row as u64,
                gene,
                value: format!("{sum}, the sum of duplicate entries,"),
                why: CountFault::TooLarge,
            })?;
        }
        Ok(block)
    }

    fn push_sorted(&mut self, entries: &[(u32, u32)]) -> std::result::Result<(), (u32, u64)> {
        for same in entries.chunk_by(|a, b| a.0 == b.0) {
            let gene = same[0].0;
            let sum: u64 = same.iter().map(|&(_, count)| u64::from(count)).sum();
            let count = i32::try_from(sum).map_err(|_| (gene, sum))?;
            self.genes.push(gene);
            self.counts.push(count as u32);
            self.duplicates += same.len() as u64 - 1;
        }
        self.indptr.push(self.genes.len());
        Ok(())
    }

    /// Keeps only the genes that `renumber` has a number for, which keep their order.
    pub(crate) fn select(self, renumber: &[Option<u32>]) -> Self {
        let mut block = Self {
            first: self.first,
            indptr: Vec::with_capacity(self.indptr.len()),
            duplicates: self.duplicates,
            ..Self::default()
        };
        block.indptr.push(0);
        for row in 0..self.n_cells() {
            let (genes, counts) = self.row(row);
            for (&gene, &count) in genes.iter().zip(counts) {
                if let Some(gene) = renumber[gene as usize] {
                    block.genes.push(gene);
                    block.counts.push(count);
                }
            }
            block.indptr.push(block.genes.len());
        }
        block
    }
}

impl Scan {
    /// Of no entries yet.
    pub(crate) fn new(n_genes: usize) -> Self {
        Self {
            totals: vec![0; n_genes],
            nonzeros: vec![0; n_genes],
        }
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, gene: u32, count: u32) {
        self.totals[gene as usize] += u64::from(count);
        self.nonzeros[gene as usize] += u64::from(count != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_rows_stay_as_they_are() {
        let block = RowBlock::new(3, vec![0, 2, 2, 3], vec![1, 5, 0], vec![7, 8, 9]).unwrap();
        assert_eq!(
            (block.row(0), block.row(1).0.len(), block.row(2)),
            ((&[1, 5][..], &[7, 8][..]), 0, (&[0][..], &[9][..]))
        );
    }

    #[test]
    fn rows_are_sorted_zeros_dropped_and_duplicates_added_up() {
        let block = RowBlock::new(0, vec![0, 4, 5], vec![5, 1, 5, 3, 2], vec![1, 2, 3, 0, 0]).unwrap();
        assert_eq!(block.indptr, [0, 2, 2]);
        assert_eq!(
            (&block.genes[..], &block.counts[..], block.duplicates),
            (&[1, 5][..], &[2, 4][..], 1)
        );
    }

    #[test]
    fn duplicates_whose_sum_is_no_count_are_refused() {
        let error = RowBlock::new(10, vec![0, 0, 2], vec![4, 4], vec![i32::MAX as u32, 1]).unwrap_err();
        let MatrixError::Count {
            cell: 11,
            gene: 4,
            why: CountFault::TooLarge,
            ..
        } = error
        else {
            panic!("{error:?}");
        };
    }

    #[test]
    fn selecting_genes_renumbers_them() {
        let block = RowBlock::new(0, vec![0, 3], vec![0, 1, 2], vec![7, 8, 9]).unwrap();
        let block = block.select(&[None, Some(0), Some(1)]);
        assert_eq!(
            (block.genes, block.counts, block.indptr),
            (vec![0, 1], vec![8, 9], vec![0, 2])
        );
    }
}
