//! What can be wrong with a dataset, with the name of the file it is wrong in.

use std::io::{self, ErrorKind};

use thiserror::Error;

use super::{ShardError, ShardFault, TableFault};
use crate::format::manifest::ManifestError;
use crate::format::obs::ObsSchemaError;
use crate::format::tile::{TileError, TileFault};
use crate::store::StoreError;

/// Why a dataset, or a part of it, could not be read.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// A file is missing or unreadable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `manifest.json` was refused.
    #[error("{name}: {source}")]
    Manifest { name: String, source: ManifestError },
    /// `obs/schema.json` was refused.
    #[error("{name}: {source}")]
    ObsSchema { name: String, source: ObsSchemaError },
    /// A tile was refused.
    #[error("{name}: {source}")]
    Tile { name: String, source: TileError },
    /// An obs shard was refused.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// Values of an obs column cannot be shown as what the schema says they are.
    #[error("column {column:?} of tile {tile}: {reason}")]
    Column {
        column: String,
        tile: usize,
        reason: String,
    },
    /// A file about genes or obs as a whole is not what the manifest says.
    #[error("{name}: {source}")]
    Table { name: String, source: TableFault },
    /// A tile that fewer may read than the file that it would be read through.
    #[error(
        "{name}: fewer may read this tile than the first one, whose access files of the whole matrix show; \
         give all tiles the same owner and mode, or mount with --mode"
    )]
    Restricted { name: String },
    /// A file is not the one it was, so that what is read of it now does not fit what was read before.
    #[error("{name}: the file changed after it was first read; mount the dataset again")]
    Changed { name: String },
}

impl DatasetError {
    /// Whether an object is not the one that it was.
    pub fn is_stale(&self) -> bool {
        let is_changed = matches!(self, Self::Changed { .. });
        is_changed
            || self
                .system()
                .is_some_and(|error| error.kind() == ErrorKind::StaleNetworkFileHandle)
    }

    /// Whether the place that the dataset is in does not answer.
    pub fn is_unreachable(&self) -> bool {
        self.system().is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::TimedOut
                    | ErrorKind::ConnectionRefused
                    | ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::ResourceBusy
            )
        })
    }

    /// The same once more, of an error that says that a store does not answer.
    pub(super) fn again(&self) -> Option<Self> {
        let name = match self {
            Self::Store(error) => &error.name,
            Self::Shard(error) => &error.name,
            _ => return None,
        };
        let source = self.system().filter(|_| self.is_unreachable())?;
        let source = io::Error::new(source.kind(), source.to_string());
        let name = name.clone();
        Some(StoreError { name, source }.into())
    }

    /// What the store said when it could not open or read something.
    fn system(&self) -> Option<&io::Error> {
        match self {
            Self::Store(error) => Some(&error.source),
            Self::Shard(error) => match &*error.fault {
                ShardFault::Io(source) => Some(source),
                _ => None,
            },
            _ => None,
        }
    }

    /// A short name for counters.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Store(_) => "io",
            Self::Manifest { .. } => "manifest",
            Self::ObsSchema { .. } | Self::Shard(_) | Self::Column { .. } => "obs",
            Self::Table { .. } => "table",
            Self::Tile { source, .. } if matches!(source.fault, TileFault::Crc { .. }) => "checksum",
            Self::Tile { .. } => "tile",
            Self::Restricted { .. } => "access",
            Self::Changed { .. } => "changed",
        }
    }
}
