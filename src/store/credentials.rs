//! Credentials that are had anew while a dataset is mounted, and what to say where there are none.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, CredentialProvider, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use thiserror::Error;

use super::explain::{explain, refuses_credentials};

/// Sources that failed are asked again after so long, and those whose credentials a store refused no more often.
const PAUSE: Duration = Duration::from_secs(10);

/// There are no credentials, with the reason, where they were looked for, and what to do.
#[derive(Debug, Error)]
#[error("{0}")]
pub(super) struct NoCredentials(String);

impl NoCredentials {
    /// As the error of a request.
    pub(super) fn error(reason: String) -> object_store::Error {
        object_store::Error::Unauthenticated {
            path: String::new(),
            source: Self(reason).into(),
        }
    }
}

/// Gives credentials, of which it keeps some for a while.
pub(super) trait Source<C>: CredentialProvider<Credential = C> {
    /// Gives no more what it kept: the store did not take it.
    fn forget(&self);
}

type Provider<C> = Arc<dyn CredentialProvider<Credential = C>>;

/// The sources of `object_store`: files of the cloud's tools, services of the machine.
pub(super) struct Services<C> {
    make: Box<dyn Fn() -> Result<Provider<C>> + Send + Sync>,
    /// Where they were looked for, and what to do when there are none.
    sought: String,
    state: Mutex<State<C>>,
}

struct State<C> {
    provider: Provider<C>,
    last: Option<Arc<C>>,
    /// When renewal failed.
    failed: Option<Instant>,
}

impl<C> Services<C> {
    /// What `make` gives keeps its credentials until they expire; made anew, it has none.
    ///
    /// # Errors
    /// When files of credentials cannot be read.
    pub(super) fn new(sought: String, make: impl Fn() -> Result<Provider<C>> + Send + Sync + 'static) -> Result<Self> {
        let state = Mutex::new(State {
            provider: make()?,
            last: None,
            failed: None,
        });
        Ok(Self {
            make: Box::new(make),
            sought,
            state,
        })
    }
}

impl<C> fmt::Debug for Services<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").finish_non_exhaustive()
    }
}

#[async_trait]
impl<C: Send + Sync + fmt::Debug> CredentialProvider for Services<C> {
    type Credential = C;

    async fn get_credential(&self) -> Result<Arc<C>> {
        let provider = {
            let state = lock(&self.state);
            match (&state.last, state.failed) {
                (Some(last), Some(failed)) if failed.elapsed() < PAUSE => return Ok(last.clone()),
                _ => state.provider.clone(),
            }
        };
        let given = provider.get_credential().await;
        let mut state = lock(&self.state);
        match given {
            Ok(credentials) => {
                state.last = Some(credentials.clone());
                state.failed = None;
                Ok(credentials)
            }
            Err(error) => match state.last.clone() {
                // They are renewed some minutes before they expire.
                Some(last) => {
                    state.failed = Some(Instant::now());
                    log::warn!(
                        "credentials cannot be renewed, the last ones are used: {}",
                        explain(error)
                    );
                    Ok(last)
                }
                None => Err(NoCredentials::error(format!(
                    "no credentials: {}; {}",
                    explain(error),
                    self.sought
                ))),
            },
        }
    }
}

impl<C: Send + Sync + fmt::Debug> Source<C> for Services<C> {
    fn forget(&self) {
        match (self.make)() {
            Ok(provider) => lock(&self.state).provider = provider,
            Err(error) => log::warn!("credentials cannot be renewed: {}", explain(error)),
        }
    }
}

/// A store that is asked once more, with new credentials, when it does not take those that a request came with.
pub(super) struct AskedAgain<C> {
    store: Arc<dyn ObjectStore>,
    source: Arc<dyn Source<C>>,
    /// How often they were had anew, and when last.
    renewed: Mutex<(u64, Option<Instant>)>,
}

impl<C> AskedAgain<C> {
    /// `store` gets its credentials from `source`.
    pub(super) fn new(store: Arc<dyn ObjectStore>, source: Arc<dyn Source<C>>) -> Self {
        Self {
            store,
            source,
            renewed: Mutex::default(),
        }
    }

    /// Whether there may be others by now than those of a request that was sent when they had been renewed `times`.
    fn renew(&self, times: u64) -> bool {
        let mut renewed = lock(&self.renewed);
        if renewed.0 == times {
            if renewed.1.is_some_and(|last| last.elapsed() < PAUSE) {
                return false;
            }
            self.source.forget();
            *renewed = (times + 1, Some(Instant::now()));
        }
        true
    }
}

impl<C> fmt::Debug for AskedAgain<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl<C> fmt::Display for AskedAgain<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.store, f)
    }
}

#[async_trait]
impl<C: Send + Sync + 'static> ObjectStore for AskedAgain<C> {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let times = lock(&self.renewed).0;
        match self.store.get_opts(location, options.clone()).await {
            Err(error) if refuses_credentials(&error) && self.renew(times) => {
                self.store.get_opts(location, options).await
            }
            answer => answer,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.store.get_ranges(location, ranges).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
