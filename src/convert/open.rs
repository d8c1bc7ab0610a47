//! What an input is, and its reader.

use std::path::Path;

use super::error::{ConvertError, Result};
use super::genes::GenePool;
use super::h5ad::{H5ad, MatrixChoice};
use super::hdf5::{H5File, Node};
use super::mtx::MtxFolder;
use super::source::Source;
use super::tenx_h5::{GENE_EXPRESSION, TenxH5};

/// Which part of an input to read, where it has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputOptions {
    /// The matrix of AnnData files.
    pub matrix: MatrixChoice,
    /// The feature type of 10x Genomics' files and folders.
    pub feature_type: String,
    /// The genome of 10x Genomics' HDF5 files.
    pub genome: Option<String>,
}

impl Default for InputOptions {
    fn default() -> Self {
        Self {
            matrix: MatrixChoice::X,
            feature_type: GENE_EXPRESSION.into(),
            genome: None,
        }
    }
}

/// Opens an input: an AnnData or 10x Genomics HDF5 file, or a MatrixMarket folder. What it is shows in what it holds,
/// not in its name.
///
/// # Errors
/// When it is none of these, or cannot be read.
pub fn open(path: &Path, options: &InputOptions) -> Result<Box<dyn Source>> {
    let metadata = std::fs::metadata(path).map_err(ConvertError::io(path, "open"))?;
    // Nothing may be read twice of a pipe, and opening one may take for ever.
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(ConvertError::input(path, "input", "is neither a file nor a folder"));
    }
    if MtxFolder::is_one(path) {
        return Ok(Box::new(MtxFolder::open(path, &options.feature_type)?));
    }
    let file = H5File::open(path)?;
    if matches!(file.node("obs")?, Node::Absent) {
        if !TenxH5::is_one(&file)? {
            let fault =
                "has neither obs, as AnnData files have, nor a matrix with barcodes, as those of 10x Genomics have";
            return Err(file.fault("HDF5 root", fault));
        }
        return Ok(Box::new(TenxH5::open(
            path,
            &options.feature_type,
            options.genome.as_deref(),
        )?));
    }
    Ok(Box::new(H5ad::open(path, &options.matrix)?))
}

/// Opens several inputs; those with the same genes share their gene tables.
///
/// # Errors
/// As [`open`], of the first that cannot be opened.
pub fn open_all<P: AsRef<Path>>(paths: &[P], options: &InputOptions) -> Result<Vec<Box<dyn Source>>> {
    let mut pool = GenePool::default();
    let mut sources = Vec::with_capacity(paths.len());
    for path in paths {
        let mut source = open(path.as_ref(), options)?;
        source.gene_tables().into_iter().for_each(|genes| pool.share(genes));
        sources.push(source);
    }
    Ok(sources)
}
