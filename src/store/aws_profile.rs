//! Amazon's files of credentials and configuration, as its own tools read them.
//!
//! Of a profile, keys, region and endpoint are used. Profiles that say how to get keys from somewhere else (`role_arn`, `sso_session`,
//! `credential_process`) are refused by name, rather than passed over for other credentials.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// What a profile says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub keys: Option<Keys>,
    pub region: Option<String>,
    pub endpoint_url: Option<String>,
}

/// Long-lived keys, or temporary ones with their token.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The rest is secret.
        f.debug_struct("Keys")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// What is wrong with the profile that was asked for.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// A file that is there and cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// No file has it.
    #[error("there is no profile {name:?} (AWS_PROFILE) in {files}")]
    Missing { name: String, files: String },
    /// It has no keys itself.
    #[error(
        "profile {name:?} gets its keys by {way}, which dcfs does not do; put keys into the environment \
         (aws configure export-credentials --profile {name} --format env)"
    )]
    Indirect { name: String, way: &'static str },
}

/// Ways to get keys from elsewhere.
const INDIRECT: [&str; 5] = [
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "web_identity_token_file",
];

type Section = HashMap<String, String>;

/// The profile that the environment names, or `default`. `variable` gives environment variables.
pub(super) fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Profile, ProfileError> {
    let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
    let name = named.as_ref().map_or("default".into(), |name| name.to_string_lossy());
    let home = variable("HOME").map(PathBuf::from);
    let file = |from: &str, default: &str| {
        let given = variable(from).map(PathBuf::from);
        given.or_else(|| home.as_ref().map(|home| home.join(default)))
    };
    let credentials = file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
    let config = file("AWS_CONFIG_FILE", ".aws/config");
    let mut section: Option<Section> = None;
    // In the file of configuration, sections of profiles say that they are.
    let in_config = match &*name {
        "default" => vec!["default".to_owned(), "profile default".to_owned()],
        name => vec![format!("profile {name}")],
    };
    for (path, sections) in [(&config, in_config), (&credentials, vec![name.to_string()])] {
        let Some(path) = path else { continue };
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => {
                let path = path.clone();
                return Err(ProfileError::Io { path, source });
            }
        };
        let found = parse(&text);
        for (_, values) in found.into_iter().filter(|(name, _)| sections.contains(name)) {
            section.get_or_insert_default().extend(values);
        }
    }
    let Some(mut section) = section else {
        if named.is_none() {
            return Ok(Profile::default());
        }
        let files: Vec<String> = [config, credentials]
            .iter()
            .flatten()
            .map(|path| path.display().to_string())
            .collect();
        return Err(ProfileError::Missing {
            name: name.into_owned(),
            files: files.join(" and "),
        });
    };
    let keys = match (
        section.remove("aws_access_key_id"),
        section.remove("aws_secret_access_key"),
    ) {
        (Some(access_key_id), Some(secret_access_key)) => Some(Keys {
            access_key_id,
            secret_access_key,
            session_token: section.remove("aws_session_token"),
        }),
        _ => None,
    };
    let has_other_keys = variable("AWS_ACCESS_KEY_ID").is_some();
    if keys.is_none()
        && !has_other_keys
        && let Some(way) = INDIRECT.into_iter().find(|way| section.contains_key(*way))
    {
        let name = name.into_owned();
        return Err(ProfileError::Indirect { name, way });
    }
    Ok(Profile {
        keys,
        region: section.remove("region"),
        endpoint_url: section.remove("endpoint_url"),
    })
}

/// Sections of a file, in order. Lines that belong to none, and indented ones, which are parts of a nested value, mean nothing.
fn parse(text: &str) -> Vec<(String, Section)> {
    let mut sections: Vec<(String, Section)> = Vec::new();
    for line in text.lines() {
        if line.starts_with([' ', '\t']) || line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        let line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.split(']').next().unwrap_or(rest);
            let name: Vec<&str> = name.split_whitespace().collect();
            sections.push((name.join(" "), Section::new()));
        } else if let (Some((key, value)), Some((_, section))) = (line.split_once('='), sections.last_mut()) {
            // A comment after a value stands behind a blank.
            let value = value.split(" #").next().unwrap_or(value);
            let value = value.split(" ;").next().unwrap_or(value);
            section.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(credentials: &str, config: &str, set: &[(&str, &str)]) -> Result<Profile, ProfileError> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        fs::write(home.path().join(".aws/config"), config).unwrap();
        of_environment(|name| match name {
            "HOME" => Some(home.path().into()),
            name => set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
        })
    }

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B=C # secret\n\n[lab]\n\
        aws_access_key_id=L\naws_secret_access_key=M\naws_session_token=T\n";
    const CONFIG: &str = "[default]\nregion = eu-west-1\ns3 =\n  region = nested\n[profile lab]\nregion=us-east-2\n\
        endpoint_url = http://127.0.0.1:9000\n[profile sso]\nsso_session = x\n";

    #[test]
    fn the_default_profile_is_read_from_both_files() {
        let found = profile(CREDENTIALS, CONFIG, &[]).unwrap();
        let keys = found.keys.unwrap();
        assert_eq!((&*keys.access_key_id, &*keys.secret_access_key), ("A", "B=C"));
        assert_eq!(keys.session_token, None);
        assert_eq!(found.region.unwrap(), "eu-west-1");
        assert_eq!(found.endpoint_url, None);
    }

    #[test]
    fn a_named_profile_is_the_one_that_counts() {
        let found = profile(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "lab")]).unwrap();
        assert_eq!(found.keys.unwrap().session_token.unwrap(), "T");
        assert_eq!(found.region.unwrap(), "us-east-2");
        assert_eq!(found.endpoint_url.unwrap(), "http://127.0.0.1:9000");
    }

    #[test]
    fn what_cannot_be_followed_is_said() {
        let missing = profile(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "other")]).unwrap_err();
        assert!(missing.to_string().contains("no profile \"other\""), "{missing}");
        let sso = profile(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "sso")]).unwrap_err();
        assert!(sso.to_string().contains("sso_session"), "{sso}");
        let keys = [("AWS_PROFILE", "sso"), ("AWS_ACCESS_KEY_ID", "E")];
        assert_eq!(profile(CREDENTIALS, CONFIG, &keys).unwrap().keys, None);
    }

    #[test]
    fn without_files_there_is_no_profile_and_no_fault() {
        let nowhere = of_environment(|_| None).unwrap();
        assert_eq!(nowhere, Profile::default());
    }

    #[test]
    fn secrets_are_not_printed() {
        let found = profile(CREDENTIALS, CONFIG, &[("AWS_PROFILE", "lab")]).unwrap();
        let text = format!("{found:?}");
        assert!(
            text.contains("\"L\"") && !text.contains("\"M\"") && !text.contains("\"T\""),
            "{text}"
        );
    }
}
