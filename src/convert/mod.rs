//! Counts that people have, read: AnnData and 10x Genomics HDF5 files, MatrixMarket folders.

pub mod error;
pub mod genes;
pub mod h5ad;
pub mod mtx;
pub mod open;
pub mod plan;
pub mod source;
pub mod tenx_h5;

mod frame;
mod hdf5;
mod matrix;
mod regroup;
