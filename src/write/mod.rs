//! Making datasets: what `dcfs convert` and `dcfs demo` write with.
//!
//! [`DatasetWriter`] takes cells in order, cuts them into tiles, encodes the tiles on several threads and writes a
//! whole dataset folder, manifest last. [`synthetic`] makes up realistic cells. What the bytes of a tile are is
//! [`crate::format`]'s; nothing here knows where cells come from, nor of mounts.

mod dataset;
mod encoders;
mod error;
mod file;
mod genes;
mod obs;
pub mod synthetic;

pub use dataset::{DatasetWriter, Finished, WriterOptions};
pub use encoders::{Encoded, Watch};
pub use error::WriteError;
pub use genes::Genes;
pub(crate) use obs::{number_type, stored_type};

#[cfg(test)]
mod tests;
