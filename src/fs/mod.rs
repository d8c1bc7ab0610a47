//! The FUSE file system: inodes, handlers, open modes. It knows what a view is and nothing of the format behind it.

mod attributes;
mod deadline;
mod handlers;
pub mod mount;
mod open_files;
mod passthrough;

pub use attributes::Ownership;
pub use handlers::{DatasetFs, Serve};
pub use passthrough::{Passthrough, takes_backing_files};
