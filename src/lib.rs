//! dcfs: single-cell datasets in the *deltacells* format as plain files.
//!
//! The library is layered, and each layer knows only those below it:
//!
//! * [`format`](mod@format) is what the bytes mean. It does no I/O and starts no threads.
//! * [`store`] is where the bytes are: a directory or an object store.
//! * [`dataset`] is an opened dataset: a store with a validated manifest, which answers
//!   "these nonzeros of that array of that tile", and the node's copy of its obs columns, shared with other programs.
//! * [`view`] says which files a mount shows and which bytes of the dataset each of theirs is.
//! * [`engine`] has these bytes made and kept, in the [`cache`], and [`fs`] serves them.
//! * [`write`](mod@write) makes datasets, and [`convert`] makes them of other programs' files.

#[cfg(target_endian = "big")]
compile_error!(
    "deltacells tiles are little-endian and are served without conversion: big-endian hosts are not supported"
);

pub mod cache;
pub mod convert;
pub mod dataset;
pub mod engine;
pub mod format;
pub mod fs;
pub mod store;
pub mod view;
pub mod write;

pub mod cli;
#[cfg(test)]
mod testdata;

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
