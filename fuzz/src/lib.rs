//! What the fuzz targets have in common: a dataset in memory, and what must hold of anything that was accepted.
//!
//! Each module takes bytes as a target gets them. What it panics about is a fault of `dcfs`.

pub mod chunks;
pub mod manifest;
pub mod memory;
pub mod obs_schema;
pub mod shard;
pub mod tile;
pub mod tree;
