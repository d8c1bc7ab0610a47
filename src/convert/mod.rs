//! Counts that people have, read: AnnData and 10x Genomics HDF5 files, MatrixMarket folders.

pub mod error;
pub mod source;

mod hdf5;
mod matrix;
mod regroup;
