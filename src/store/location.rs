//! Where a dataset can be, as a person writes it.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;
use url::Url;

/// A folder of this machine, or a place in an object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A folder; also what a `file://` URL names.
    Folder(PathBuf),
    /// A prefix in a bucket or below a web address.
    Remote(Url),
}

/// What cannot be a location.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LocationError {
    /// It looks like a URL and is none.
    #[error("{text:?} is no URL: {reason}")]
    Malformed { text: String, reason: String },
    /// A URL that lost a slash.
    #[error("{text:?} has one slash after {scheme}:, expected {scheme}://; a folder of that name is ./{text}")]
    OneSlash { text: String, scheme: String },
    /// A URL of a kind that nothing here reads.
    #[error(
        "{scheme}:// is not supported; there are s3://, gs://, az://, abfs://, abfss://, http://, https:// and file://"
    )]
    Scheme { scheme: String },
    /// Passwords in command lines are seen by everybody.
    #[error("the URL of a dataset must not hold a user name or password")]
    Password,
    /// One that would be dropped, and what was meant with it.
    #[error(
        "the URL of a dataset has no {part}: it names a folder of many objects, which a signed URL of one cannot; \
         as a part of a name, {character} is written {code}"
    )]
    Extra {
        part: &'static str,
        character: char,
        code: &'static str,
    },
}

const SCHEMES: [&str; 9] = ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https"];

impl Location {
    /// A text with `://` after a scheme is a URL, everything else a path.
    ///
    /// # Errors
    /// When it is a URL that cannot be one of a dataset, or would be one of an object store with another slash.
    pub fn parse(text: &OsStr) -> Result<Self, LocationError> {
        let path = || Ok(Self::Folder(PathBuf::from(text)));
        let Some((scheme, _)) = text.to_str().and_then(|text| text.split_once("://")) else {
            return match text.to_str().and_then(|text| text.split_once(":/")) {
                Some((scheme, _)) if SCHEMES.contains(&&*scheme.to_ascii_lowercase()) => Err(LocationError::OneSlash {
                    text: text.to_string_lossy().into_owned(),
                    scheme: scheme.to_owned(),
                }),
                _ => path(),
            };
        };
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.chars().all(is_scheme) {
            return path();
        }
        let text = text.to_string_lossy().into_owned();
        let malformed = |reason: String| LocationError::Malformed {
            text: text.clone(),
            reason,
        };
        let url = Url::parse(&text).map_err(|error| malformed(error.to_string()))?;
        let scheme = url.scheme();
        if scheme == "file" {
            let path = url.to_file_path();
            return path
                .map(Self::Folder)
                .map_err(|()| malformed("expected file:///path".into()));
        }
        if !SCHEMES.contains(&scheme) {
            let scheme = scheme.to_owned();
            return Err(LocationError::Scheme { scheme });
        }
        // az://container@account.host/path names an account so, which is no secret.
        let names_account = matches!(scheme, "az" | "azure" | "abfs" | "abfss");
        if url.password().is_some() || (!url.username().is_empty() && !names_account) {
            return Err(LocationError::Password);
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(malformed(format!("expected a name after {scheme}://")));
        }
        let extra = |part, character, code| Err(LocationError::Extra { part, character, code });
        if url.query().is_some() {
            return extra("?query", '?', "%3F");
        }
        if url.fragment().is_some() {
            return extra("#fragment", '#', "%23");
        }
        Ok(Self::Remote(url))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Remote(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, LocationError> {
        Location::parse(OsStr::new(text))
    }

    #[test]
    fn paths_are_folders_whatever_is_in_them() {
        for path in ["atlas.dc", "/data/atlas.dc", "a:b", "C://x/y z", "", "://", "a b://c"] {
            let expected = match path {
                "C://x/y z" => continue,
                path => Location::Folder(path.into()),
            };
            assert_eq!(parse(path), Ok(expected));
        }
        assert_eq!(parse("file:///data/a%20b"), Ok(Location::Folder("/data/a b".into())));
    }

    #[test]
    fn urls_of_object_stores_are_remote() {
        for url in [
            "s3://bucket/a/b",
            "gs://bucket",
            "az://container/x",
            "abfss://container@account.dfs.core.windows.net/x",
            "https://example.org/atlas.dc/",
        ] {
            assert!(matches!(parse(url), Ok(Location::Remote(_))), "{url}");
        }
    }

    #[test]
    fn a_url_with_one_slash_is_no_path() {
        for url in ["s3:/bucket/x", "HTTPS:/host/x", "az:/"] {
            let refused = parse(url).unwrap_err();
            assert!(matches!(refused, LocationError::OneSlash { .. }), "{refused}");
        }
        let refused = parse("s3:/bucket/x").unwrap_err().to_string();
        assert!(refused.contains("expected s3://"), "{refused}");
        for path in ["./s3:/bucket/x", "s3:x", "host:/x", "/s3:/x"] {
            assert_eq!(parse(path), Ok(Location::Folder(path.into())));
        }
    }

    #[test]
    fn other_urls_are_refused_by_name() {
        assert_eq!(
            parse("ftp://host/x"),
            Err(LocationError::Scheme { scheme: "ftp".into() })
        );
        assert_eq!(parse("https://me:secret@host/x"), Err(LocationError::Password));
        assert_eq!(parse("s3://key@bucket/x"), Err(LocationError::Password));
        for url in [
            "https://host/x.dc?X-Amz-Signature=abc",
            "s3://bucket/x?",
            "gs://bucket/x#1",
        ] {
            let refused = parse(url).unwrap_err();
            assert!(matches!(refused, LocationError::Extra { .. }), "{refused}");
            assert!(
                !refused.to_string().contains("abc"),
                "signatures are secrets: {refused}"
            );
        }
        assert!(parse("s3://bucket/what%3F%23.dc").is_ok());
        assert!(matches!(parse("s3://"), Err(LocationError::Malformed { .. })));
        assert!(matches!(parse("file://host/x"), Err(LocationError::Malformed { .. })));
    }
}
