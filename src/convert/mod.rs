//! Counts that people have, made into datasets.
//!
//! [`open()`](open::open) gives a [`Source`](source::Source) for an AnnData file, a 10x Genomics HDF5 file or a MatrixMarket
//! folder; [`prepare`](run::prepare) checks any number of them and plans their dataset; [`Prepared::write`](run::Prepared::write)
//! writes it with [`crate::write`]. Nothing here knows what the bytes of a dataset mean, nor of mounts.

pub mod compare;
pub mod error;
pub mod genes;
pub mod h5ad;
pub mod mtx;
pub mod open;
pub mod output;
pub mod plan;
pub mod run;
pub mod source;
pub mod tenx_h5;

mod estimate;
mod frame;
mod hdf5;
mod matrix;
mod regroup;
mod renumber;
mod shuffle;
