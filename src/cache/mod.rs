//! Decoded arrays: budget, eviction, single flight, backing files.

pub mod tmpfs;
