//! Why a dataset could not be written.

use std::io;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use thiserror::Error;

use crate::format::TileId;
use crate::format::encode::EncodeError;
use crate::format::manifest::ManifestError;
use crate::format::obs::ObsSchemaError;

/// Why a dataset could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The system refused an operation on a file.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The output is there already; nothing is ever overwritten.
    #[error("{} is not empty; a dataset is written to a new or an empty folder", .0.display())]
    NotEmpty(PathBuf),
    /// An option outside its range.
    #[error("{option} is {found}, expected {expected}")]
    Option {
        option: &'static str,
        found: i64,
        expected: String,
    },
    /// The pushed arrays do not make a CSR matrix.
    #[error("the matrix that starts at cell {first_cell}: {source}")]
    Rows { first_cell: u64, source: EncodeError },
    /// The entries of a tile cannot be stored. Cells are counted from the start of the dataset.
    #[error("tile {tile}: {source}")]
    Tile { tile: TileId, source: EncodeError },
    /// Rows of a matrix with another number of genes.
    #[error("the matrix that starts at cell {first_cell} has {found} genes, expected {expected}, the dataset's")]
    Genes { first_cell: u64, found: u32, expected: u32 },
    /// A gene table or list with another number of genes.
    #[error("{table} has {found} genes, expected {expected}, the dataset's")]
    GeneTable {
        table: &'static str,
        found: u64,
        expected: u32,
    },
    /// `gene_order` is not a permutation.
    #[error("gene_order[{index}] is {found}, expected each of 0 to {last} once", last = n_genes - 1)]
    GeneOrder { index: usize, found: i32, n_genes: u32 },
    /// A gene name that `var_names.txt` cannot hold.
    #[error("the name of gene {gene}, {name:?}, has a line break, which var_names.txt cannot hold")]
    GeneName { gene: usize, name: String },
    /// The obs schema is not one that the format has.
    #[error("obs: {0}")]
    ObsSchema(#[from] ObsSchemaError),
    /// The obs schema has no columns: a table with nothing in it says nothing of its rows.
    #[error("obs has no columns; write the dataset without obs instead")]
    ObsEmpty,
    /// Obs rows that do not fit the schema or the cells.
    #[error("obs of the cells from {first_cell}: {what} is {found}, expected {expected}")]
    Obs {
        first_cell: u64,
        what: String,
        found: String,
        expected: String,
    },
    /// A category code without a category.
    #[error("obs column {column:?}, cell {cell}: code {found}, expected -1 (missing) to {last}", last = *categories as i64 - 1)]
    ObsCode {
        column: String,
        cell: u64,
        found: String,
        categories: usize,
    },
    /// The Parquet writer refused.
    #[error("cannot write {}: {source}", path.display())]
    Parquet { path: PathBuf, source: ParquetError },
    /// The finished dataset would not be one.
    #[error("manifest.json: {0}")]
    Manifest(#[from] ManifestError),
    /// A dataset has at least one cell.
    #[error("no cells were written; a dataset has at least one")]
    NoCells,
    /// The writer failed before and takes no more.
    #[error("the dataset in {} could not be written because of an earlier error", .0.display())]
    FailedBefore(PathBuf),
    /// Somebody who watched the writer stopped it.
    #[error("stopped before the dataset was whole")]
    Stopped,
    /// The threads that encode could not be started.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        threads: usize,
        source: rayon::ThreadPoolBuildError,
    },
}

impl WriteError {
    /// For `map_err` on what was done to `path`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// For `map_err` on what the Parquet writer did to `path`.
    pub(super) fn parquet(path: &Path) -> impl FnOnce(ParquetError) -> Self {
        let path = path.to_owned();
        move |source| Self::Parquet { path, source }
    }
}
