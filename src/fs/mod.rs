//! FUSE: what the kernel asks and how it is answered. Knows no format.

pub mod mount;
