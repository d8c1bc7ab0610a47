//! From the URL of a dataset to the object store it is in, with credentials as each cloud's own tools find them.

use std::env;
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

use super::aws_profile::{self, Profile};
use super::bucket::{Bucket, Limits};
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
    let client = ClientOptions::new()
        .with_allow_http(allow_http || url.scheme() == "http")
        .with_connect_timeout(CONNECT_TIMEOUT.min(limits.patience / 4))
        .with_read_timeout(SILENCE.min(limits.patience / 4))
        .with_timeout(limits.patience)
        .with_user_agent(http::HeaderValue::from_static(concat!(
            "dcfs/",
            env!("CARGO_PKG_VERSION")
        )));
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        // What ends them is the time that may pass.
        max_retries: usize::MAX,
        retry_timeout: limits.patience,
    };
    let (store, prefix): (Result<Arc<dyn ObjectStore>, _>, Path) = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let builder = s3(url, connection)?;
            // Of the environment or a profile.
            if let Some(endpoint) = builder.get_config_value(&AmazonS3ConfigKey::Endpoint) {
                check_endpoint(&endpoint, allow_http).map_err(|reason| failed(&reason))?;
            }
            let built = builder.with_client_options(client).with_retry(retry).build();
            (built.map(|store| Arc::new(store) as _), prefix)
        }
        ObjectStoreScheme::GoogleCloudStorage => (gcs(url, connection, client, retry), prefix),
        ObjectStoreScheme::MicrosoftAzure => {
            if url.username().is_empty()
                && env::var_os("AZURE_STORAGE_ACCOUNT_NAME").is_none()
                && url.scheme() != "https"
            {
                return Err(failed(&NO_ACCOUNT));
            }
            (azure(url, connection, client, retry), prefix)
        }
        _ => {
            let mut origin = url.clone();
            origin.set_path("");
            origin.set_query(None);
            let built = HttpBuilder::new()
                .with_url(origin)
                .with_client_options(client)
                .with_retry(retry)
                .build();
            (built.map(|store| Arc::new(store) as _), prefix)
        }
    };
    let store = store.map_err(|error| failed(&error))?;
    let location = url.as_str().trim_end_matches('/').to_owned();
    Ok(Bucket::new(store, prefix, location, limits, disk)?)
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

fn s3(url: &Url, connection: &Connection) -> Result<AmazonS3Builder, ConnectError> {
    let mut builder = AmazonS3Builder::from_env().with_url(url.as_str());
    let profile = match connection.anonymous {
        true => Profile::default(),
        false => aws_profile::of_environment(|name| env::var_os(name))?,
    };
    // Keys of the environment come before those of a profile, as in Amazon's own tools.
    if env::var_os("AWS_ACCESS_KEY_ID").is_none()
        && let Some(keys) = profile.keys
    {
        builder = builder
            .with_access_key_id(keys.access_key_id)
            .with_secret_access_key(keys.secret_access_key);
        if let Some(token) = keys.session_token {
            builder = builder.with_token(token);
        }
    }
    let set = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
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
    Ok(builder.with_skip_signature(connection.anonymous))
}

fn gcs(url: &Url, connection: &Connection, client: ClientOptions, retry: RetryConfig) -> Built {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str());
    if let Some(endpoint) = &connection.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if connection.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let store = builder.with_client_options(client).with_retry(retry).build()?;
    Ok(Arc::new(store))
}

fn azure(url: &Url, connection: &Connection, client: ClientOptions, retry: RetryConfig) -> Built {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str());
    if let Some(endpoint) = &connection.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if connection.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let store = builder.with_client_options(client).with_retry(retry).build()?;
    Ok(Arc::new(store))
}

/// The cryptography that TLS uses in this process.
fn use_ring() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody who uses this as a library may have chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
