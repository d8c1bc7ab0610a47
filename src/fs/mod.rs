//! The FUSE file system: inodes, handlers, open modes. It knows what a view is and nothing of the format behind it.

mod attributes;
mod deadline;
mod handlers;
pub mod mount;
mod open_files;
mod passthrough;

use crate::dataset::DatasetError;
use crate::engine::ReadError;

pub use attributes::Ownership;
pub use handlers::{DatasetFs, Serve};
pub use passthrough::{Passthrough, takes_backing_files};

/// What a reader is told of an error; the log has the rest.
fn errno(error: &ReadError) -> fuser::Errno {
    match error {
        ReadError::Dataset(error) if error.is_stale() => fuser::Errno::ESTALE,
        ReadError::Dataset(error) if matches!(**error, DatasetError::Restricted { .. }) => fuser::Errno::EACCES,
        ReadError::Dataset(_) | ReadError::View(_) | ReadError::Abandoned => fuser::Errno::EIO,
    }
}
