//! What the bytes of a dataset mean: manifest, tiles, obs schema, fingerprint.
//!
//! Everything here turns untrusted bytes into types that cannot be wrong, or types into bytes. Nothing here
//! opens a file, starts a thread or allocates more than the bytes it was handed can justify.

pub mod decode;
pub mod encode;
pub mod fingerprint;
pub mod json;
mod kernels;
pub mod manifest;
pub mod names;
pub mod npy;
pub mod obs;
#[cfg(test)]
pub(crate) mod plain;
mod planes;
pub mod tile;

/// Position of a tile in the dataset, from 0.
pub type TileId = usize;

/// The most genes a dataset may have, and the most values an `int32` index can name (format, Limits).
pub const MAX_GENES: u64 = 1 << 31;

/// The largest count a tile can hold (format, Streams).
pub const MAX_COUNT: u32 = i32::MAX as u32;
