//! What the user types and sees, one file per command.

pub mod cache_size;
