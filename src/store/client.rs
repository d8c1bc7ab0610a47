//! The HTTP client of all stores: how long it waits, and what it does about names, redirects and regions.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::StatusCode;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Action, Attempt, Policy};
use thiserror::Error;
use url::{Position, Url};

use super::explain::find;

/// Redirects of one request that are followed.
const MOST_REDIRECTS: usize = 10;
/// A server that was never reached is tried for so long.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// Where S3 says in which region a bucket is.
const REGION: &str = "x-amz-bucket-region";

/// `object_store` asks services of the machine with this time to connect.
const SERVICE_CONNECT: &str = "1s";
/// They are near.
const SERVICE_TIMES: Times = Times {
    connect: Duration::from_secs(1),
    silence: Duration::from_secs(2),
    total: Duration::from_secs(2),
};

/// How long a client waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes.
    pub silence: Duration,
    /// For a whole answer.
    pub total: Duration,
}

/// What was sent to a store, each try by itself.
#[derive(Debug, Default)]
pub(super) struct Tries {
    pub sent: AtomicU64,
    /// Those without an answer, or with one that says to try again.
    pub failed: AtomicU64,
}

impl Tries {
    fn count(&self, answer: Result<StatusCode, &HttpError>) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let has_failed = answer.map_or(true, |status| {
            status.is_server_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
        });
        self.failed.fetch_add(has_failed.into(), Ordering::Relaxed);
    }
}

/// Makes clients for `object_store`.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub times: Times,
    /// Of all its clients.
    pub tries: Arc<Tries>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let connect = options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let times = match connect.as_deref() {
            Some(SERVICE_CONNECT) => SERVICE_TIMES,
            _ => self.times,
        };
        let redirects = Redirects::default();
        let seen = redirects.clone();
        let client = reqwest::Client::builder()
            .user_agent(concat!("dcfs/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(times.connect)
            .read_timeout(times.silence)
            .timeout(times.total)
            .https_only(allow_http.is_none_or(|allowed| allowed != "true"))
            .http1_only()
            // Objects are wanted as they are, and sizes are those of objects.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .dns_resolver(Arc::new(Spread))
            .redirect(Policy::custom(move |attempt| redirect(attempt, &seen)))
            .build()
            .map_err(|source| object_store::Error::Generic {
                store: "HTTP",
                source: source.into(),
            })?;
        let tries = self.tries.clone();
        Ok(HttpClient::new(Client::new(HttpClient::new(client), redirects, tries)))
    }
}

/// A redirect that is not followed.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum Redirected {
    #[error("it redirects to {0}, which has no encryption; if that is wanted, give that URL")]
    Unencrypted(String),
    #[error("it redirects on and on, last to {0}")]
    OnAndOn(String),
    #[error("the bucket is in region {0}: --region {0}")]
    Region(String),
}

/// A URL without what may be secret in it, as signatures of requests are.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// Where the last redirect that was followed led to.
type Redirects = Arc<Mutex<Option<Url>>>;

fn redirect(attempt: Attempt<'_>, redirects: &Redirects) -> Action {
    let target = attempt.url().clone();
    let Some(from) = attempt.previous().last() else {
        return attempt.follow();
    };
    if from.scheme() == "https" && target.scheme() == "http" {
        return attempt.error(Redirected::Unencrypted(shown(&target)));
    }
    if attempt.previous().len() > MOST_REDIRECTS {
        return attempt.error(Redirected::OnAndOn(shown(&target)));
    }
    let before = redirects
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .replace(target.clone());
    if before.is_none() {
        let (from, to) = (shown(from), shown(&target));
        log::warn!("{from} redirects to {to}: give the URL that it leads to, so that each request is one");
    }
    attempt.follow()
}

/// What happened after a redirect.
#[derive(Debug, Error)]
#[error("it redirects to {}: give the URL that it leads to", shown(to))]
pub(super) struct Followed {
    to: Url,
    source: HttpError,
}

impl Followed {
    /// Whom it led to.
    pub(super) fn host(&self) -> &str {
        &self.to[Position::BeforeHost..Position::AfterPort]
    }
}

/// Knows better than the client that it is made of which failures are worth another try.
#[derive(Debug)]
struct Client {
    inner: HttpClient,
    redirects: Redirects,
    tries: Arc<Tries>,
    made: Instant,
    has_connected: AtomicBool,
}

impl Client {
    fn new(inner: HttpClient, redirects: Redirects, tries: Arc<Tries>) -> Self {
        Self {
            inner,
            redirects,
            tries,
            made: Instant::now(),
            has_connected: AtomicBool::new(false),
        }
    }

    fn failed(&self, error: HttpError) -> HttpError {
        let is_for_good = match find::<rustls::Error>(&error) {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::InvalidMessage(_)) => true,
            // Who was never there is hardly so for a moment only.
            _ => {
                find::<reqwest::Error>(&error).is_some_and(reqwest::Error::is_connect)
                    && !self.has_connected.load(Ordering::Relaxed)
                    && self.made.elapsed() > FIRST_PATIENCE
            }
        };
        let kind = match is_for_good {
            true => HttpErrorKind::Unknown,
            false => error.kind(),
        };
        match &*self.redirects.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(to) => {
                let to = to.clone();
                HttpError::new(kind, Followed { to, source: error })
            }
            None => HttpError::new(kind, error),
        }
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.inner.execute(request).await;
        self.tries.count(answer.as_ref().map(HttpResponse::status));
        let response = answer.map_err(|error| self.failed(error))?;
        self.has_connected.store(true, Ordering::Relaxed);
        // S3 says that a bucket is in another region by a redirect to nowhere.
        let region = response.headers().get(REGION).and_then(|region| region.to_str().ok());
        match region {
            Some(region) if response.status().is_redirection() => Err(HttpError::new(
                HttpErrorKind::Unknown,
                Redirected::Region(region.to_owned()),
            )),
            _ => Ok(response),
        }
    }
}

/// A name that has no addresses.
#[derive(Debug)]
pub(super) struct NotKnown {
    host: String,
    source: io::Error,
}

impl fmt::Display for NotKnown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.source.to_string();
        let reason = reason.strip_prefix("failed to lookup address information: ");
        match reason {
            Some(reason) => write!(f, "the name {} is not known: {reason}", self.host),
            None => write!(f, "the name {} is not known: {}", self.host, self.source),
        }
    }
}

impl std::error::Error for NotKnown {}

/// Asks the system for a host's addresses, and begins with any of them: large stores have many servers behind a name.
#[derive(Debug)]
struct Spread;

impl Resolve for Spread {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        Box::pin(async move {
            let asked = host.clone();
            let addresses = aside(move || (&*asked, 0).to_socket_addrs()).await?;
            let addresses = addresses.map_err(|source| NotKnown { host, source })?;
            let mut addresses: Vec<SocketAddr> = addresses.collect();
            let any = RandomState::new().hash_one(0) as usize;
            let first = any % addresses.len().max(1);
            addresses.rotate_left(first);
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Does in a thread of its own what may block for long. Tasks of the runtime would have to end before it does.
///
/// # Errors
/// When there is no thread, or no result since it panicked.
pub(super) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (send, done) = tokio::sync::oneshot::channel();
    thread::Builder::new().name("dcfs aside".into()).spawn(move || {
        // Nobody may be waiting any more.
        let _ = send.send(work());
    })?;
    done.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A store that has the bucket in another region.
    #[derive(Debug)]
    struct Elsewhere;

    #[async_trait]
    impl HttpService for Elsewhere {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let response = http::Response::builder().status(301).header(REGION, "eu-west-3");
            Ok(response.body(String::new().into()).unwrap())
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(work)
    }

    #[test]
    fn a_bucket_elsewhere_is_an_error_that_names_the_region() {
        let client = Client::new(HttpClient::new(Elsewhere), Redirects::default(), Arc::default());
        let request = http::Request::new(Vec::new().into());
        let error = block_on(client.call(request)).unwrap_err();
        assert_eq!(find(&error), Some(&Redirected::Region("eu-west-3".into())));
        assert_eq!(error.kind(), HttpErrorKind::Unknown, "not worth another try");
    }

    #[test]
    fn what_is_done_aside_is_not_waited_for_at_the_end() {
        let (send, hang) = std::sync::mpsc::channel::<()>();
        assert_eq!(block_on(aside(|| 7)).unwrap(), 7);
        let given_up = block_on(async { aside(move || hang.recv()).now_or_never() });
        assert!(given_up.is_none());
        drop(send);
        assert!(block_on(aside(|| panic!("as it must"))).is_err());
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let url = Url::parse("https://host/x?X-Amz-Signature=s#part").unwrap();
        assert_eq!(shown(&url), "https://host/x");
    }
}
