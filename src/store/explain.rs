//! What a store's failures mean, in one line for a person.
//!
//! `object_store` tells what happened as a chain of errors, each of which repeats the next, and keeps some of their types to
//! itself: what is not in a type is taken from their texts.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::iter::successors;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};
use serde_json::Value;
use url::{Position, Url};

use super::bucket::changed;
use super::client::{Followed, NotKnown, Redirected};
use super::credentials::NoCredentials;

/// What is said of a refusal for which the store gives no other reason.
pub(crate) const NOT_ALLOWED: &str = "who asks may not read it";
/// What is said where it gives none at all, as in answers to HEAD.
pub(crate) const NO_REASON: &str = "credentials are missing, wrong or expired, or have no permission";
/// The longest part of a server's own words that is shown.
const MOST_CHARACTERS: usize = 300;

/// What happened, as the kind of error that the same would be of a file.
pub(super) fn explain(error: Error) -> io::Error {
    if matches!(error, Error::Precondition { .. }) {
        return changed();
    }
    if let Some(reason) = find::<NoCredentials>(&error) {
        return io::Error::new(io::ErrorKind::PermissionDenied, one_line(&reason.to_string()));
    }
    let effort = causes(&error).find_map(|cause| Effort::parse(&cause.to_string()));
    let answer = causes(&error).find_map(|cause| Answer::parse(&cause.to_string()));
    let followed = find::<Followed>(&error);
    let host = match followed {
        Some(followed) => Some(followed.host()),
        None => effort.as_ref().and_then(|effort| effort.host.as_deref()),
    };
    let (kind, mut text) = if let Some(redirected) = find::<Redirected>(&error) {
        (io::ErrorKind::Other, redirected.to_string())
    } else if let Some(answer) = &answer {
        (answer.kind(&error), answer.to_string())
    } else if let Some(failure) = find::<HttpError>(&error) {
        no_answer(failure, host.unwrap_or("the store"))
    } else {
        bad_answer(&error)
    };
    if let Some(effort) = &effort {
        text += &effort.to_string();
    }
    for more in [
        answer.as_ref().and_then(Answer::advice).map(str::to_owned),
        followed.map(ToString::to_string),
    ] {
        text.extend(more.iter().flat_map(|more| ["; ", more]));
    }
    io::Error::new(kind, one_line(&text))
}

/// An error and what it came from. What is inside of an [`io::Error`] is one of them, other than for [`StdError::source`].
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(Some(error), |&cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match inner {
            Some(inner) => Some(inner as _),
            None => cause.source(),
        }
    })
}

pub(super) fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Without what would move a terminal's cursor.
fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// How long a request was tried.
#[derive(Debug, PartialEq)]
struct Effort {
    host: Option<String>,
    tries: u64,
    seconds: f64,
}

impl Effort {
    /// From `Error performing GET http://host/path in 3.4s, after 7 retries, max_retries: ..`.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("Error performing ")?.split(' ').skip(1);
        let url = words.next()?;
        let url = Url::parse(url).ok();
        let host = url.map(|url| url[Position::BeforeHost..Position::AfterPort].to_owned());
        let seconds = words.nth(1).and_then(seconds)?;
        let retries = match words.next() {
            Some("after") => words.next()?.parse().ok()?,
            _ => 0,
        };
        Some(Self {
            host,
            tries: retries + 1,
            seconds,
        })
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tries {
            1 => Ok(()),
            tries => write!(f, " ({tries} tries in {:.1} s)", self.seconds),
        }
    }
}

/// A duration as `Debug` writes it.
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim_end_matches(',');
    let units = [("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    units
        .into_iter()
        .find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}

/// A status without a number.
const TO_NOWHERE: &str = "a redirect that does not say where to";

/// An answer that is not what was asked for.
#[derive(Debug, PartialEq)]
struct Answer {
    /// `403 Forbidden`
    status: String,
    /// The store's own name of what is wrong.
    code: Option<String>,
    message: Option<String>,
}

impl Answer {
    /// From `Server returned non-2xx status code: 403 Forbidden: <Error>..`.
    fn parse(text: &str) -> Option<Self> {
        if text.starts_with("Received redirect without LOCATION") {
            return Some(Self {
                status: TO_NOWHERE.into(),
                code: None,
                message: None,
            });
        }
        let rest = text.strip_prefix("Server returned non-2xx status code: ");
        let rest = rest.or_else(|| text.strip_prefix("Server returned error response: "))?;
        let (status, body) = rest.split_once(": ").unwrap_or((rest, ""));
        let (status, body) = match status.starts_with(|c: char| c.is_ascii_digit()) {
            true => (status, body),
            false => ("an error", rest),
        };
        let (code, message) = in_xml(body).or_else(|| in_json(body)).unwrap_or_else(|| {
            let is_text = !body.trim_start().starts_with(['<', '{']) && !body.trim().is_empty();
            (None, is_text.then(|| body.to_owned()))
        });
        Some(Self {
            status: status.trim().trim_end_matches(" <unknown status code>").to_owned(),
            code,
            message: message.map(|message| shortened(&message).trim_end_matches('.').to_owned()),
        })
    }

    /// Stores say with several statuses that they do not take who is asking.
    fn kind(&self, error: &Error) -> io::ErrorKind {
        match (error, self.code.as_deref()) {
            (_, Some(code)) if is_about_credentials(code) => io::ErrorKind::PermissionDenied,
            (Error::NotFound { .. }, _) => io::ErrorKind::NotFound,
            _ if self.status.starts_with("429") || self.status.starts_with('5') => io::ErrorKind::ResourceBusy,
            (Error::PermissionDenied { .. } | Error::Unauthenticated { .. }, _) => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        }
    }

    /// What to do about it, where that is known.
    fn advice(&self) -> Option<&'static str> {
        Some(match self.code.as_deref() {
            Some("ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "RequestExpired") => {
                "the session of these credentials is over: log in again"
            }
            Some("InvalidToken") => "AWS_SESSION_TOKEN must be there, and of the same session as the key",
            Some("InvalidAccessKeyId") => {
                "this store does not know the access key: is it the right one, and of this store (--endpoint)?"
            }
            Some("SignatureDoesNotMatch") => "the secret is not the one of the access key",
            Some("RequestTimeTooSkewed" | "RequestInTheFuture") => "set this machine's clock",
            Some("AuthenticationFailed" | "InvalidAuthenticationInfo") => {
                "the account's key or the token is wrong or has expired, or this machine's clock is wrong"
            }
            Some("AuthorizationPermissionMismatch") => "who asks needs the role Storage Blob Data Reader",
            Some("NoAuthenticationInformation" | "AuthenticationRequired") => "the store wants credentials",
            Some("invalid_grant" | "invalid_client" | "unauthorized_client") => "log in again",
            Some("PermanentRedirect" | "AuthorizationHeaderMalformed") => {
                "the bucket is in another region: --region names it"
            }
            _ if self.status == TO_NOWHERE => "the bucket may be in another region: --region names it",
            _ if self.status.starts_with("401") => "the login is wrong or has expired",
            Some("AccessDenied") => NOT_ALLOWED,
            None if self.status.starts_with("403") => NO_REASON,
            _ => return None,
        })
    }
}

fn is_about_credentials(code: &str) -> bool {
    [
        "AccessDenied",
        "AccountProblem",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "AuthorizationPermissionMismatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidAuthenticationInfo",
        "InvalidSecurity",
        "InvalidToken",
        "KeyBasedAuthenticationNotPermitted",
        "NoAuthenticationInformation",
        "PublicAccessNotPermitted",
        "RequestExpired",
        "RequestInTheFuture",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
    ]
    .contains(&code)
}

/// Whether a request was tried more than once, and given up because that took too long: it was worth trying.
pub(super) fn was_given_up(error: &Error) -> bool {
    let effort = causes(error).find_map(|cause| Effort::parse(&cause.to_string()));
    effort.is_some_and(|effort| effort.tries > 1)
}

/// Whether a store did not take the credentials that a request came with, others than which might do.
pub(super) fn refuses_credentials(error: &Error) -> bool {
    let answer = causes(error).find_map(|cause| Answer::parse(&cause.to_string()));
    answer.is_some_and(|answer| match answer.code.as_deref() {
        // HEAD has no body that could say more.
        None => {
            matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
                || answer.status.starts_with("400")
        }
        Some("AccessDenied") => false,
        Some(code) => is_about_credentials(code) || answer.status.starts_with("401"),
    })
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.code, &self.message) {
            (None, None) => write!(f, "{}", self.status),
            (None, Some(message)) => write!(f, "{}: {message}", self.status),
            (Some(code), None) => write!(f, "{}, {code}", self.status),
            (Some(code), Some(message)) => write!(f, "{}, {code}: {message}", self.status),
        }
    }
}

/// Code and message of `<Error><Code>..</Code><Message>..</Message></Error>`, as S3, Google and Azure write it.
fn in_xml(body: &str) -> Option<(Option<String>, Option<String>)> {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (text, _) = rest.split_once(&format!("</{name}>"))?;
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
        Some(text.replace("&apos;", "'").replace("&amp;", "&"))
    };
    let code = element("Code")?;
    // Of Azure's, the first line; the others are numbers for its support.
    let message = element("Message").and_then(|message| message.lines().next().map(str::to_owned));
    let detail = element("AuthenticationErrorDetail").or_else(|| element("Details"));
    let detail = detail.filter(|detail| detail.len() < 160);
    let message = match (message, detail) {
        (Some(message), Some(detail)) => Some(format!("{message} {detail}")),
        (message, detail) => message.or(detail),
    };
    Some((Some(code), message))
}

/// The same of Google's and Azure's JSON: an object with code and message, or those that OAuth has.
fn in_json(body: &str) -> Option<(Option<String>, Option<String>)> {
    let body: Value = serde_json::from_str(body).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let error = body.get("error").unwrap_or(&body);
    if let Some(code) = text(error) {
        let message = body.get("error_description").and_then(text);
        return Some((Some(code), message));
    }
    let code = ["status", "code", "Code"]
        .iter()
        .find_map(|name| text(error.get(name)?));
    let message = ["message", "Message"].iter().find_map(|name| text(error.get(name)?));
    (code.is_some() || message.is_some()).then_some((code, message))
}

fn shortened(text: &str) -> String {
    let text = one_line(text);
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A request without an answer, or without the rest of it.
fn no_answer(failure: &HttpError, host: &str) -> (io::ErrorKind, String) {
    let connecting = find::<reqwest::Error>(failure).is_some_and(reqwest::Error::is_connect);
    let system = causes(failure).filter_map(|cause| cause.downcast_ref::<io::Error>());
    let system = system.map(io::Error::kind).find(|&kind| kind != io::ErrorKind::Other);
    if let Some(unknown) = find::<NotKnown>(failure) {
        return (io::ErrorKind::HostUnreachable, unknown.to_string());
    }
    if let Some(tls) = find::<rustls::Error>(failure) {
        return (io::ErrorKind::Other, tls_problem(tls, host));
    }
    let root = causes(failure).last().map_or_else(String::new, ToString::to_string);
    if root.contains("tls handshake eof") {
        let text = format!("{host} ends encrypted connections; is it a server for http://?");
        return (io::ErrorKind::Other, text);
    }
    let is_timeout = find::<reqwest::Error>(failure).is_some_and(reqwest::Error::is_timeout)
        || failure.kind() == HttpErrorKind::Timeout;
    match (connecting, is_timeout) {
        (true, true) => {
            let text = format!("cannot connect to {host}: it does not answer");
            (io::ErrorKind::TimedOut, text)
        }
        (true, false) => match system {
            Some(kind @ io::ErrorKind::ConnectionRefused) => {
                (kind, format!("cannot connect to {host}: connection refused"))
            }
            kind => (
                kind.unwrap_or(io::ErrorKind::Other),
                format!("cannot connect to {host}: {root}"),
            ),
        },
        (false, true) => (io::ErrorKind::TimedOut, format!("{host} did not answer in time")),
        (false, false) => {
            let text = format!("the connection to {host} broke off: {root}");
            (io::ErrorKind::ConnectionReset, text)
        }
    }
}

fn tls_problem(error: &rustls::Error, host: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(reason) => {
            use rustls::CertificateError::{
                Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer,
            };
            let reason = match reason {
                Expired | ExpiredContext { .. } => "it has expired".into(),
                NotValidForName | NotValidForNameContext { .. } => "it is for another name".into(),
                UnknownIssuer => "its issuer is not known here; SSL_CERT_FILE names a file of those to trust".into(),
                other => other.to_string(),
            };
            format!("the certificate of {host} is not accepted: {reason}")
        }
        rustls::Error::InvalidMessage(_) => format!("{host} does not speak TLS; is it a server for http://?"),
        other => format!("no encrypted connection to {host}: {other}"),
    }
}

/// An answer that came and cannot be used.
fn bad_answer(error: &Error) -> (io::ErrorKind, String) {
    // The first says which store it is.
    let text = causes(error).nth(1).unwrap_or(error).to_string();
    let is = |part: &str| text.contains(part);
    if is("non-partial response") || is("Range request not supported") {
        let reason = "the server sends the whole object when a part is asked for: it has no range requests (RFC 9110)";
        return (io::ErrorKind::Unsupported, reason.into());
    }
    if is("Content-Length Header missing") {
        let reason = "the server does not say how large the object is (Content-Length)";
        return (io::ErrorKind::Unsupported, reason.into());
    }
    let kind = match error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    (kind, shortened(&text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpResponse, HttpService};
    use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
    use object_store::http::HttpBuilder;
    use object_store::path::Path;
    use object_store::{ClientOptions, GetOptions, GetRange, ObjectStore, RetryConfig, StaticCredentialProvider};

    use super::*;

    /// A server that says the same to all.
    #[derive(Debug, Clone)]
    struct Server {
        status: u16,
        headers: Vec<(&'static str, &'static str)>,
        body: &'static str,
    }

    #[async_trait]
    impl HttpService for Server {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let mut response = http::Response::builder().status(self.status);
            for (name, value) in &self.headers {
                response = response.header(*name, *value);
            }
            Ok(response.body(self.body.to_owned().into()).unwrap())
        }
    }

    impl HttpConnector for Server {
        fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
            Ok(HttpClient::new(self.clone()))
        }
    }

    fn server(status: u16, body: &'static str) -> Server {
        let headers = Vec::new();
        Server { status, headers, body }
    }

    fn s3(server: Server) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new().with_bucket_name("b");
        let builder = builder.with_access_key_id("K").with_secret_access_key("S");
        Arc::new(builder.with_http_connector(server).with_retry(once()).build().unwrap())
    }

    fn google(server: Server) -> Arc<dyn ObjectStore> {
        let token = GcpCredential { bearer: "T".into() };
        let builder = GoogleCloudStorageBuilder::new().with_bucket_name("b");
        let builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(token)));
        Arc::new(builder.with_http_connector(server).with_retry(once()).build().unwrap())
    }

    fn azure(server: Server) -> Arc<dyn ObjectStore> {
        let builder = MicrosoftAzureBuilder::new().with_account("a").with_container_name("c");
        let builder = builder.with_access_key("a2V5");
        Arc::new(builder.with_http_connector(server).with_retry(once()).build().unwrap())
    }

    fn web(server: Server) -> Arc<dyn ObjectStore> {
        let builder = HttpBuilder::new().with_url("https://web.example");
        Arc::new(builder.with_http_connector(server).with_retry(once()).build().unwrap())
    }

    fn once() -> RetryConfig {
        RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        }
    }

    fn error(store: &dyn ObjectStore, options: GetOptions) -> Error {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let answer = runtime.block_on(store.get_opts(&Path::from("x.dc/manifest.json"), options));
        answer.unwrap_err()
    }

    fn told(store: &dyn ObjectStore) -> (io::ErrorKind, String) {
        let error = explain(error(store, GetOptions::default()));
        (error.kind(), error.to_string())
    }

    #[test]
    fn of_an_answer_status_code_message_and_advice_are_told() {
        let denied = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>Access Denied</Message>\
                      <RequestId>1</RequestId></Error>";
        let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
        let google_denied = "<Error><Code>AccessDenied</Code><Message>Access denied.</Message>\
                             <Details>me@x does not have storage.objects.get access.</Details></Error>";
        let google_json = r#"{"error": {"code": 401, "message": "Invalid Credentials", "status": "UNAUTHENTICATED"}}"#;
        let azure_denied = "\u{feff}<?xml version=\"1.0\"?><Error><Code>AuthenticationFailed</Code>\
                            <Message>Server failed to authenticate.\nRequestId:1\nTime:2</Message>\
                            <AuthenticationErrorDetail>The token is expired.</AuthenticationErrorDetail></Error>";
        let cases = [
            (
                s3(server(403, denied)),
                "403 Forbidden, AccessDenied: Access Denied; who asks may not read it",
            ),
            (
                s3(server(403, skewed)),
                "403 Forbidden, RequestTimeTooSkewed: The difference is too large; set this machine's clock",
            ),
            (
                google(server(403, google_denied)),
                "403 Forbidden, AccessDenied: Access denied. me@x does not have storage.objects.get access; \
                 who asks may not read it",
            ),
            (
                google(server(401, google_json)),
                "401 Unauthorized, UNAUTHENTICATED: Invalid Credentials; the login is wrong or has expired",
            ),
            (
                azure(server(403, azure_denied)),
                "403 Forbidden, AuthenticationFailed: Server failed to authenticate. The token is expired; the account's \
                 key or the token is wrong or has expired, or this machine's clock is wrong",
            ),
            (
                web(server(403, "<html>\n<h1>Forbidden</h1></html>")),
                "403 Forbidden; credentials are missing, wrong or expired, or have no permission",
            ),
        ];
        for (store, expected) in cases {
            assert_eq!(told(&*store), (io::ErrorKind::PermissionDenied, expected.to_owned()));
        }
    }

    #[test]
    fn kinds_are_those_of_files() {
        let expired = "<Error><Code>ExpiredToken</Code><Message>m</Message></Error>";
        let cases = [
            (s3(server(404, "")), io::ErrorKind::NotFound),
            (s3(server(412, "")), io::ErrorKind::StaleNetworkFileHandle),
            (s3(server(400, expired)), io::ErrorKind::PermissionDenied),
            (s3(server(400, "what?")), io::ErrorKind::Other),
            (s3(server(503, "")), io::ErrorKind::ResourceBusy),
            (web(server(405, "")), io::ErrorKind::NotFound),
            (web(server(401, "")), io::ErrorKind::PermissionDenied),
        ];
        for (store, kind) in cases {
            assert_eq!(told(&*store).0, kind, "{store}");
        }
    }

    #[test]
    fn new_credentials_are_worth_a_try_unless_permission_is_what_lacks() {
        let refused = |code| format!("<Error><Code>{code}</Code></Error>").leak() as &'static str;
        for (status, body, expected) in [
            (400, refused("ExpiredToken"), true),
            (403, refused("InvalidAccessKeyId"), true),
            (403, "", true),
            (401, "", true),
            (403, refused("AccessDenied"), false),
            (404, refused("NoSuchKey"), false),
            (503, refused("SlowDown"), false),
        ] {
            let error = error(&*s3(server(status, body)), GetOptions::default());
            assert_eq!(refuses_credentials(&error), expected, "{status} {body}");
        }
    }

    #[test]
    fn what_a_plain_server_lacks_is_named() {
        let whole = Server {
            headers: vec![("content-length", "5")],
            ..server(200, "whole")
        };
        let part = GetOptions {
            range: Some(GetRange::Bounded(1..3)),
            ..GetOptions::default()
        };
        for store in [web(whole.clone()), s3(whole)] {
            let error = explain(error(&*store, part.clone()));
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("no range requests"), "{error}");
        }
        let (kind, text) = told(&*web(server(200, "chunked")));
        assert_eq!(kind, io::ErrorKind::Unsupported);
        assert!(text.contains("(Content-Length)"), "{text}");
    }

    #[test]
    fn servers_words_are_one_line_of_bounded_length() {
        let long = "so\n\u{1b}long ".repeat(1000).leak();
        let (_, text) = told(&*s3(server(400, long)));
        assert!(
            text.starts_with("400 Bad Request: so long so long") && text.len() < 400,
            "{text}"
        );
    }

    #[test]
    fn effort_is_what_the_library_says_of_it() {
        let text = "Error performing GET http://127.0.0.1:80/x in 3.45s, after 7 retries, max_retries: 9, retry_timeout: 60s  - x";
        let effort = Effort::parse(text).unwrap();
        assert_eq!(effort.host.as_deref(), Some("127.0.0.1"));
        assert_eq!(effort.to_string(), " (8 tries in 3.5 s)");
        let once = Effort::parse("Error performing PUT REDACTED in 12.5ms - x").unwrap();
        assert_eq!((once.host, once.tries, once.seconds), (None, 1, 0.0125));
        assert_eq!(Effort::parse("Error performing token request: x"), None);
        let unbounded = seconds(&format!("{:?}", Duration::from_micros(7))).unwrap();
        assert!((unbounded - 7e-6).abs() < 1e-12);
    }
}
