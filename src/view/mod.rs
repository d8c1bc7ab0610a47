//! What files a mount shows, how large they are, and what each byte range of them is.
//!
//! Knows no FUSE and reads nothing: sizes and places follow from the manifest and the obs schema.

pub mod arrow;
pub mod names;
