//! From the URL of a dataset to the object store it is in, with credentials as each cloud's own tools find them.

use std::env;
use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use thiserror::Error;
use url::Url;

use super::aws_profile::{self, KeysOfProcess, KeysOfProfile, Profile, Profiles};
use super::bucket::{Bucket, Limits};
use super::client::{Connector, Times, Tries};
use super::credentials::{AskedAgain, Services, Source};
use super::disk_cache::DiskCache;

/// What to know of a store beyond its URL.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// Send requests without credentials.
    pub anonymous: bool,
    /// Another server than the cloud's own.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: Option<String>,
    /// Talk to servers without encryption.
    pub allow_http: bool,
}

/// Why there is no connection to a store.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The store's library refused URL or configuration.
    #[error("{url}: {reason}")]
    Store { url: String, reason: String },
    /// A file of credentials that cannot be read.
    #[error(transparent)]
    Profile(#[from] aws_profile::ProfileError),
    /// No threads.
    #[error("cannot start threads that fetch: {0}")]
    Start(#[from] std::io::Error),
}

const NO_ACCOUNT: &str =
    "no storage account; write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, or set AZURE_STORAGE_ACCOUNT_NAME";
/// Connecting takes no longer than this, or a quarter of the time that there is; a server that is there answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that sends nothing for so long, or for a quarter of the time that there is, is asked again.
const SILENCE: Duration = Duration::from_secs(15);
/// The longest pause between two tries, or an eighth of the time that there is.
const PAUSE: Duration = Duration::from_secs(5);

/// How requests are sent.
#[derive(Clone)]
struct Sending {
    client: ClientOptions,
    retry: RetryConfig,
    connector: Connector,
}

impl Sending {
    /// For objects. The last try ends before the time is over, so that what is told is why it failed.
    fn objects(limits: &Limits, allow_http: bool) -> Self {
        let patience = limits.patience;
        let times = Times {
            connect: CONNECT_TIMEOUT.min(patience / 4),
            silence: SILENCE.min(patience / 4),
            total: patience,
        };
        let pause = PAUSE.min(patience / 8);
        Self {
            client: ClientOptions::new()
                .with_allow_http(allow_http)
                .with_connect_timeout(times.connect),
            retry: RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(100),
                    max_backoff: pause,
                    // Pauses are drawn from the first up to so many times the last: they double, on the average.
                    base: 4.0,
                },
                // What ends them is the time that may pass.
                max_retries: usize::MAX,
                retry_timeout: patience.saturating_sub(times.silence + pause),
            },
            connector: Connector {
                times,
                tries: Arc::default(),
            },
        }
    }

    /// For credentials. Who has none is to know soon.
    fn credentials(&self) -> Self {
        let mut sending = self.clone();
        sending.retry.max_retries = 2;
        sending.retry.retry_timeout /= 2;
        // They are not asked of the store.
        sending.connector.tries = Arc::default();
        sending
    }
}

/// Prepares requests to the store that `url` names. No request is sent yet. Objects that are fetched whole are kept in
/// `disk`, if there is one.
///
/// # Errors
/// When URL, options and environment do not make a store.
pub fn connect(
    url: &Url,
    connection: &Connection,
    limits: Limits,
    disk: Option<DiskCache>,
) -> Result<Bucket, ConnectError> {
    use_ring();
    let failed = |error: &dyn std::fmt::Display| ConnectError::Store {
        url: url.to_string(),
        reason: error.to_string(),
    };
    let (scheme, prefix) = ObjectStoreScheme::parse(url).map_err(|error| failed(&error))?;
    let allow_http = connection.allow_http || ["AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP"].into_iter().any(is_set);
    if let Some(endpoint) = &connection.endpoint {
        check_endpoint(endpoint, allow_http).map_err(|reason| failed(&reason))?;
    }
    let sending = Sending::objects(&limits, allow_http || url.scheme() == "http");
    let tries: Arc<Tries> = sending.connector.tries.clone();
    let (store, prefix): (Built, Path) = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let (builder, keys) = s3(url, connection, limits.patience)?;
            // Of the environment or a profile.
            if let Some(endpoint) = builder.get_config_value(&AmazonS3ConfigKey::Endpoint) {
                check_endpoint(&endpoint, allow_http).map_err(|reason| failed(&reason))?;
            }
            if let Keys::Nowhere(reason) = &keys {
                return Err(failed(reason));
            }
            (build_s3(builder, keys, &sending), prefix)
        }
        ObjectStoreScheme::GoogleCloudStorage => (gcs(url, connection, &sending), prefix),
        ObjectStoreScheme::MicrosoftAzure => {
            if url.username().is_empty()
                && env::var_os("AZURE_STORAGE_ACCOUNT_NAME").is_none()
                && url.scheme() != "https"
            {
                return Err(failed(&NO_ACCOUNT));
            }
            (azure(url, connection, &sending), prefix)
        }
        _ => {
            let mut origin = url.clone();
            origin.set_path("");
            let built = HttpBuilder::new()
                .with_url(origin)
                .with_client_options(sending.client)
                .with_http_connector(sending.connector)
                .with_retry(sending.retry)
                .build();
            (built.map(|store| Arc::new(store) as _), prefix)
        }
    };
    let store = store.map_err(|error| failed(&error))?;
    let location = url.as_str().trim_end_matches('/').to_owned();
    Ok(Bucket::new(store, tries, prefix, location, limits, disk)?)
}

/// Whether a variable of the environment says yes, as the clouds' own tools read it.
fn is_set(name: &str) -> bool {
    env::var(name).is_ok_and(|value| ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str()))
}

fn check_endpoint(endpoint: &str, allow_http: bool) -> Result<(), String> {
    match Url::parse(endpoint).as_ref().map(|url| (url.scheme(), url.has_host())) {
        Ok(("https", true)) => Ok(()),
        Ok(("http", true)) if allow_http => Ok(()),
        Ok(("http", true)) => Err(format!(
            "the endpoint {endpoint} has no encryption; --allow-http permits it"
        )),
        _ => Err(format!(
            "the endpoint {endpoint} is no URL, expected https://HOST or http://HOST:PORT"
        )),
    }
}

type Built = Result<Arc<dyn ObjectStore>, object_store::Error>;

/// Where the keys for S3 come from.
enum Keys {
    /// They are known, or none are needed.
    Settled,
    Source(Arc<dyn Source<object_store::aws::AwsCredential>>),
    /// The services that `object_store` knows; with where else was looked for keys.
    Services(String),
    /// There can be none.
    Nowhere(String),
}

fn s3(url: &Url, connection: &Connection, patience: Duration) -> Result<(AmazonS3Builder, Keys), ConnectError> {
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str());
    let set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    let profiles = Profiles::of_environment(|name| env::var_os(name));
    let profile = match connection.anonymous {
        true => Profile::default(),
        false => profiles.read()?,
    };
    if !set(&builder, AmazonS3ConfigKey::Region)
        && let Some(region) = profile.region
    {
        builder = builder.with_region(region);
    }
    if !set(&builder, AmazonS3ConfigKey::Endpoint)
        && let Some(endpoint) = profile.endpoint_url
    {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &connection.region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &connection.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    // As Amazon's own tools name it.
    if let Ok(endpoint) = env::var("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        && !set(&builder, AmazonS3ConfigKey::MetadataEndpoint)
    {
        builder = builder.with_metadata_endpoint(endpoint.trim_end_matches('/'));
    }
    // Keys of the environment come before those of a profile, as in Amazon's own tools.
    let keys = if connection.anonymous || env::var_os("AWS_ACCESS_KEY_ID").is_some() {
        Keys::Settled
    } else if let Some(keys) = profile.keys {
        Keys::Source(Arc::new(KeysOfProfile::new(profiles, keys)))
    } else if let Some(command) = profile.process {
        Keys::Source(Arc::new(KeysOfProcess::new(command, patience / 2)))
    } else {
        let place = profiles.place();
        let sought = |service: &dyn fmt::Display| {
            format!("looked for in AWS_ACCESS_KEY_ID, in {place}, and {service}; public buckets need --anonymous")
        };
        let full_uri = set(&builder, AmazonS3ConfigKey::ContainerCredentialsFullUri);
        if env::var_os("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && env::var_os("AWS_ROLE_ARN").is_some() {
            Keys::Services(sought(&"with AWS_WEB_IDENTITY_TOKEN_FILE"))
        } else if set(&builder, AmazonS3ConfigKey::ContainerCredentialsRelativeUri)
            || full_uri && set(&builder, AmazonS3ConfigKey::ContainerAuthorizationTokenFile)
        {
            Keys::Services(sought(&"at the container's service"))
        } else if full_uri {
            Keys::Nowhere(
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is set and AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE is not: dcfs does not ask \
                 such a service; put keys into the environment (aws configure export-credentials --format env)"
                    .into(),
            )
        } else if is_set("AWS_EC2_METADATA_DISABLED") {
            let sought = sought(&"nowhere else (AWS_EC2_METADATA_DISABLED)");
            Keys::Nowhere(format!("no credentials: {sought}"))
        } else {
            Keys::Services(sought(&"at the instance's metadata service"))
        }
    };
    Ok((builder.with_skip_signature(connection.anonymous), keys))
}

fn build_s3(builder: AmazonS3Builder, keys: Keys, sending: &Sending) -> Built {
    let with = |builder: AmazonS3Builder, sending: &Sending| {
        builder
            .with_client_options(sending.client.clone())
            .with_http_connector(sending.connector.clone())
            .with_retry(sending.retry.clone())
    };
    let source: Arc<dyn Source<_>> = match keys {
        Keys::Settled | Keys::Nowhere(_) => return Ok(Arc::new(with(builder, sending).build()?)),
        Keys::Source(source) => source,
        Keys::Services(sought) => {
            let services = with(builder.clone(), &sending.credentials());
            Arc::new(Services::new(sought, move || {
                Ok(services.clone().build()?.credentials().clone())
            })?)
        }
    };
    with_source(source, |source| with(builder, sending).with_credentials(source).build())
}

/// What `build` makes of credentials that can be had anew.
fn with_source<C, S>(
    source: Arc<dyn Source<C>>,
    build: impl FnOnce(Arc<dyn Source<C>>) -> object_store::Result<S>,
) -> Built
where
    C: Send + Sync + 'static,
    S: ObjectStore,
{
    let store = build(source.clone())?;
    Ok(Arc::new(AskedAgain::new(Arc::new(store), source)))
}

fn gcs(url: &Url, connection: &Connection, sending: &Sending) -> Built {
    let with = |sending: &Sending| {
        let builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str());
        let builder = match &connection.endpoint {
            Some(endpoint) => builder.with_base_url(endpoint),
            None => builder,
        };
        builder
            .with_skip_signature(connection.anonymous)
            .with_client_options(sending.client.clone())
            .with_http_connector(sending.connector.clone())
            .with_retry(sending.retry.clone())
    };
    let builder = with(sending);
    if connection.anonymous {
        return Ok(Arc::new(builder.build()?));
    }
    let sought = "looked for in GOOGLE_APPLICATION_CREDENTIALS, in the file that gcloud auth application-default login \
                  writes, and at the machine's metadata service; public buckets need --anonymous";
    let services = with(&sending.credentials());
    let source = Services::new(sought.into(), move || {
        Ok(services.clone().build()?.credentials().clone())
    })?;
    with_source(Arc::new(source), |source| builder.with_credentials(source).build())
}

fn azure(url: &Url, connection: &Connection, sending: &Sending) -> Built {
    let with = |sending: &Sending| {
        let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str());
        let builder = match &connection.endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint.clone()),
            None => builder,
        };
        builder
            .with_skip_signature(connection.anonymous)
            .with_client_options(sending.client.clone())
            .with_http_connector(sending.connector.clone())
            .with_retry(sending.retry.clone())
    };
    let builder = with(sending);
    if connection.anonymous {
        return Ok(Arc::new(builder.build()?));
    }
    let sought = "looked for in AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN and AZURE_CLIENT_ID with its secret or \
                  token file, and at the machine's managed identity; public containers need --anonymous";
    let services = with(&sending.credentials());
    let source = Services::new(sought.into(), move || {
        Ok(services.clone().build()?.credentials().clone())
    })?;
    with_source(Arc::new(source), |source| builder.with_credentials(source).build())
}

/// The cryptography that TLS uses in this process.
fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody who uses this as a library may have chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
