//! Where the dataset of a command is, and how it is reached.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::fs::statvfs;
use thiserror::Error;

use super::cache_size::{CacheSize, Memory};
use crate::dataset::{Dataset, DatasetError};
use crate::store::{
    ConnectError, Connection, Directory, DiskCache, DiskCacheError, Limits, Links, Location, LocationError, NO_REASON,
    NOT_ALLOWED, Store, connect,
};

/// Requests to a store at once, unless the user says otherwise.
const PARALLEL: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");
/// Memory for objects as fetched, unless the user says otherwise.
const KEPT_BYTES: u64 = 512 << 20;
/// How long commands that mount nothing wait for a store.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How a dataset in an object store is reached. Says nothing about folders.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Datasets in object stores")]
pub(super) struct StoreFlags {
    /// Send requests without credentials, as for public buckets
    #[arg(long)]
    anonymous: bool,
    /// Server to ask instead of the cloud's own
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket [default: that of the environment or the AWS profile]
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
    /// Let --endpoint be a server without encryption
    #[arg(long)]
    allow_http: bool,
    /// Requests at the same time [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    fetch_parallel: Option<u16>,
    /// Memory for tiles as they were fetched: 512M, 2G, 5% [default: 512M]
    #[arg(long, value_name = "SIZE")]
    fetch_memory: Option<CacheSize>,
    /// Keep tiles as they were fetched in this folder, for all mounts of this user on this machine
    #[arg(long, value_name = "DIR")]
    disk_cache: Option<PathBuf>,
    /// Size of the disk cache: 200G, 5% [default: 10% of the disk]; a twentieth of the disk always stays free
    #[arg(long, value_name = "SIZE", requires = "disk_cache")]
    disk_cache_size: Option<CacheSize>,
}

impl StoreFlags {
    /// Requests at the same time.
    pub(super) fn parallel(&self) -> NonZeroUsize {
        let given = self.fetch_parallel.and_then(|n| NonZeroUsize::new(n.into()));
        given.unwrap_or(PARALLEL)
    }

    fn limits(&self, patience: Duration) -> Limits {
        let kept_bytes = self
            .fetch_memory
            .map_or(KEPT_BYTES, |size| size.bytes(&Memory::of_this_process()));
        Limits {
            patience,
            parallel: self.parallel(),
            kept_bytes,
        }
    }

    /// The folder of the disk cache, if there is to be one.
    pub(super) fn disk_cache_folder(&self) -> Option<&Path> {
        self.disk_cache.as_deref()
    }

    fn disk_cache(&self) -> Result<Option<DiskCache>, OpenError> {
        let Some(folder) = &self.disk_cache else {
            return Ok(None);
        };
        let failed = |source| DiskCacheError::Io {
            path: folder.clone(),
            source,
        };
        // The folder itself may not be there yet.
        let absolute = std::path::absolute(folder).map_err(failed)?;
        let there = absolute.ancestors().find(|folder| folder.exists()).unwrap_or(folder);
        let disk = statvfs(there).map_err(|errno| failed(errno.into()))?;
        let capacity = disk.f_blocks * disk.f_frsize;
        let part = |percent: f64| (capacity as f64 * percent / 100.0) as u64;
        let limit = match self.disk_cache_size {
            None => part(10.0),
            Some(CacheSize::Percent(percent)) => part(percent),
            Some(CacheSize::Bytes(bytes)) => bytes,
        };
        Ok(Some(DiskCache::open(folder, limit)?))
    }

    fn connection(&self) -> Connection {
        Connection {
            anonymous: self.anonymous,
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            allow_http: self.allow_http,
        }
    }
}

/// Why a dataset was not opened.
#[derive(Debug, Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Location(#[from] LocationError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    DiskCache(#[from] DiskCacheError),
    #[error("{source}{hint}")]
    Dataset { source: DatasetError, hint: &'static str },
}

impl From<DatasetError> for OpenError {
    fn from(source: DatasetError) -> Self {
        Self::Dataset { source, hint: "" }
    }
}

/// A place that may hold a dataset, not looked at yet.
pub(super) enum Source {
    Folder(Directory),
    Remote {
        store: Arc<dyn Store>,
        /// Whether it is asked with credentials, where it could be.
        asked: Asked,
        /// Whether its buckets are in regions.
        is_s3: bool,
    },
}

/// How requests to a store are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    WithCredentials,
    Anonymously,
    /// Web servers take none.
    OverTheWeb,
}

impl Source {
    /// Finds the place that `dataset` names.
    pub(super) fn find(
        dataset: &Path,
        flags: &StoreFlags,
        links: Links,
        patience: Duration,
    ) -> Result<Self, OpenError> {
        Ok(match Location::parse(dataset.as_os_str())? {
            Location::Folder(path) => Self::Folder(Directory::open(&path, links).map_err(DatasetError::from)?),
            Location::Remote(url) => {
                let asked = match url.scheme() {
                    "http" | "https" => Asked::OverTheWeb,
                    _ if flags.anonymous => Asked::Anonymously,
                    _ => Asked::WithCredentials,
                };
                let is_s3 = matches!(url.scheme(), "s3" | "s3a");
                let limits = flags.limits(patience);
                let store = connect(&url, &flags.connection(), limits, flags.disk_cache()?)?;
                let store = Arc::new(store);
                Self::Remote { store, asked, is_s3 }
            }
        })
    }

    /// The folder, if it is one of this machine.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(directory) => Some(directory.root()),
            Self::Remote { .. } => None,
        }
    }

    /// What ends requests to the store, if it is in one.
    pub(super) fn canceller(&self) -> impl FnOnce() + Send + use<> {
        let store = match self {
            Self::Folder(_) => None,
            Self::Remote { store, .. } => Some(store.clone()),
        };
        move || store.into_iter().for_each(|store| store.cancel())
    }

    /// Opens the dataset.
    pub(super) fn open(self) -> Result<Dataset, OpenError> {
        match self {
            Self::Folder(directory) => Ok(Dataset::open(Arc::new(directory))?),
            Self::Remote { store, asked, is_s3 } => Dataset::open(store).map_err(|source| {
                let hint = hint(&source, asked, is_s3);
                OpenError::Dataset { source, hint }
            }),
        }
    }
}

/// What to do about a store that does not give what is wanted, beyond what the error says itself.
fn hint(error: &DatasetError, asked: Asked, is_s3: bool) -> &'static str {
    let DatasetError::Store(error) = error else { return "" };
    let is_plain_refusal = || {
        let told = error.source.to_string();
        told.ends_with(NOT_ALLOWED) || told.ends_with(NO_REASON)
    };
    match (error.source.kind(), asked) {
        (ErrorKind::NotFound, _) if is_s3 => {
            "\ndcfs: the URL must be that of the folder that holds manifest.json; --region or --endpoint may be wrong too"
        }
        (ErrorKind::NotFound, _) => "\ndcfs: the URL must be that of the folder that holds manifest.json",
        (ErrorKind::PermissionDenied, Asked::Anonymously) => {
            "\ndcfs: it was asked for without credentials; leave --anonymous out to use yours"
        }
        (ErrorKind::PermissionDenied, Asked::OverTheWeb) => {
            "\ndcfs: web servers are asked without credentials; a bucket's own URL (s3://, gs://, abfss://) is asked with them"
        }
        (ErrorKind::PermissionDenied, Asked::WithCredentials) if is_plain_refusal() => {
            "\ndcfs: are these credentials the right ones, and is the path? Public buckets need --anonymous"
        }
        (ErrorKind::TimedOut | ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable, _) => {
            "\ndcfs: is the server's address right, and can this machine reach it?"
        }
        _ => "",
    }
}

/// Opens the dataset of a command that mounts nothing.
pub(super) fn open_dataset(dataset: &Path, flags: &StoreFlags) -> Result<Dataset, OpenError> {
    Source::find(dataset, flags, Links::Anywhere, PATIENCE)?.open()
}
