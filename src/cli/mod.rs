//! What the user types and sees, one file per command.

pub mod cache_size;
pub mod detach;
pub mod logging;
pub mod serve;
pub mod umount;
