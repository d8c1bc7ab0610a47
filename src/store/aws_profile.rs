//! Amazon's files of credentials and configuration, as its own tools read them.
//!
//! Of a profile, keys, region and endpoint are used, and `credential_process`, a program that gives keys. Files are read again when
//! they changed, so that keys that somebody renews in them are those of later requests. Profiles that say to get keys in another
//! way (`role_arn`, `sso_session`) are refused by name, rather than passed over for other credentials.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;
use thiserror::Error;

use super::client::aside;
use super::credentials::{NoCredentials, Source};

/// Keys are renewed so long before they expire, or after half of their life.
const BEFORE_EXPIRY: Duration = Duration::from_secs(300);

/// What a profile says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub keys: Option<Keys>,
    /// A command that writes keys.
    pub process: Option<String>,
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

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rest is secret.
        f.debug_struct("Keys")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

impl From<Keys> for AwsCredential {
    fn from(keys: Keys) -> Self {
        Self {
            key_id: keys.access_key_id,
            secret_key: keys.secret_access_key,
            token: keys.session_token,
        }
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
         (aws configure export-credentials --profile {name} --format env), or have dcfs ask for them: a profile with \
         credential_process = aws configure export-credentials --profile {name} --format process"
    )]
    Indirect { name: String, way: &'static str },
}

/// Ways to get keys from elsewhere.
const INDIRECT: [&str; 6] = [
    "role_arn",
    "sso_session",
    "sso_start_url",
    "login_session",
    "web_identity_token_file",
    "credential_source",
];

type Section = HashMap<String, String>;

/// Which profile counts, and the files that it may be in.
#[derive(Debug, Clone)]
pub(super) struct Profiles {
    name: String,
    /// Whether somebody asked for it.
    is_named: bool,
    /// Whether its keys are wanted.
    has_other_keys: bool,
    /// With the names of its sections. What comes later counts.
    files: Vec<(PathBuf, Vec<String>)>,
}

/// Device, number, size and last change of each file that is there.
type Stamps = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl Profiles {
    /// The profile that the environment names, or `default`. `variable` gives environment variables.
    pub(super) fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
        let name = named
            .as_ref()
            .map_or("default".into(), |name| name.to_string_lossy().into_owned());
        let home = variable("HOME").map(PathBuf::from);
        let file = |from: &str, default: &str| {
            let given = variable(from).map(PathBuf::from);
            given.or_else(|| home.as_ref().map(|home| home.join(default)))
        };
        // In the file of configuration, sections of profiles say that they are.
        let in_config = match &*name {
            "default" => vec!["default".to_owned(), "profile default".to_owned()],
            name => vec![format!("profile {name}")],
        };
        let config = file("AWS_CONFIG_FILE", ".aws/config").map(|path| (path, in_config));
        let credentials =
            file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials").map(|path| (path, vec![name.clone()]));
        Self {
            name,
            is_named: named.is_some(),
            has_other_keys: variable("AWS_ACCESS_KEY_ID").is_some(),
            files: config.into_iter().chain(credentials).collect(),
        }
    }

    /// What the profile says now.
    pub(super) fn read(&self) -> Result<Profile, ProfileError> {
        let mut section: Option<Section> = None;
        for (path, sections) in &self.files {
            let text = match fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => {
                    let path = path.clone();
                    return Err(ProfileError::Io { path, source });
                }
            };
            for (_, values) in parse(&text).into_iter().filter(|(name, _)| sections.contains(name)) {
                section.get_or_insert_default().extend(values);
            }
        }
        let Some(mut section) = section else {
            if !self.is_named {
                return Ok(Profile::default());
            }
            return Err(ProfileError::Missing {
                name: self.name.clone(),
                files: self.file_names(),
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
        let process = section.remove("credential_process");
        // With a role, keys beside it are those that take it; others leave keys here when somebody has logged in.
        let indirect = INDIRECT.into_iter().find(|way| section.contains_key(*way));
        let indirect = indirect.filter(|&way| way == "role_arn" || (keys.is_none() && process.is_none()));
        if let Some(way) = indirect
            && !self.has_other_keys
        {
            let name = self.name.clone();
            return Err(ProfileError::Indirect { name, way });
        }
        Ok(Profile {
            keys,
            process,
            region: section.remove("region"),
            endpoint_url: section.remove("endpoint_url"),
        })
    }

    fn file_names(&self) -> String {
        let files: Vec<String> = self.files.iter().map(|(path, _)| path.display().to_string()).collect();
        files.join(" and ")
    }

    /// Profile and files, for messages.
    pub(super) fn place(&self) -> String {
        match self.files.is_empty() {
            true => "no profile (HOME is not set)".into(),
            false => format!("profile {:?} of {}", self.name, self.file_names()),
        }
    }

    fn stamps(&self) -> Stamps {
        let stamp = |file: fs::Metadata| (file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec());
        self.files
            .iter()
            .map(|(path, _)| fs::metadata(path).ok().map(stamp))
            .collect()
    }
}

/// Keys that stand in a profile, as they are there when a request is sent.
pub(super) struct KeysOfProfile(Arc<Mutex<Known>>);

struct Known {
    profiles: Profiles,
    stamps: Stamps,
    keys: Arc<AwsCredential>,
}

impl KeysOfProfile {
    /// `keys` are those that were found in the profile just now.
    pub(super) fn new(profiles: Profiles, keys: Keys) -> Self {
        // Whatever the state of the files was then, they are read once more.
        let stamps = Stamps::new();
        let keys = Arc::new(keys.into());
        Self(Arc::new(Mutex::new(Known { profiles, stamps, keys })))
    }
}

impl Known {
    fn current(&mut self) -> Arc<AwsCredential> {
        let stamps = self.profiles.stamps();
        if stamps != self.stamps {
            let problem = match self.profiles.read() {
                Ok(Profile { keys: Some(keys), .. }) => {
                    self.keys = Arc::new(keys.into());
                    None
                }
                Ok(_) => Some("it has none".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                let place = self.profiles.place();
                log::warn!("no new keys from {place}, the last ones are used: {problem}");
            }
            self.stamps = stamps;
        }
        self.keys.clone()
    }
}

impl fmt::Debug for KeysOfProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeysOfProfile").finish_non_exhaustive()
    }
}

#[async_trait]
impl CredentialProvider for KeysOfProfile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let known = self.0.clone();
        let failed = |error: io::Error| NoCredentials::error(format!("no credentials: {error}"));
        // Homes may be on a server that does not answer.
        Ok(aside(move || lock(&known).current()).await.map_err(failed)?)
    }
}

impl Source<AwsCredential> for KeysOfProfile {
    fn forget(&self) {
        lock(&self.0).stamps.clear();
    }
}

/// Keys that a program gives: `credential_process` of a profile.
pub(super) struct KeysOfProcess {
    command: String,
    /// It is ended when it gives no keys within this time.
    patience: Duration,
    /// With the time until which they need no renewal. Whoever has the lock runs the program.
    given: tokio::sync::Mutex<Option<(Arc<AwsCredential>, Option<Instant>)>>,
    refused: Mutex<bool>,
}

/// What it writes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Given {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<DateTime<Utc>>,
}

impl KeysOfProcess {
    /// Runs `command` in a shell, whenever keys are needed.
    pub(super) fn new(command: String, patience: Duration) -> Self {
        Self {
            command,
            patience,
            given: tokio::sync::Mutex::default(),
            refused: Mutex::default(),
        }
    }
}

/// Runs a command to its end; what it wrote, or what is wrong.
fn run(command: &str, patience: Duration) -> Result<Given, String> {
    let mut child = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut text = String::new();
            stream.and_then(|mut stream| stream.read_to_string(&mut text).ok());
            text
        })
    };
    let written = read(stdout.map(|stream| Box::new(stream) as _));
    let complaints = read(stderr.map(|stream| Box::new(stream) as _));
    let started = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if started.elapsed() > patience => {
                // Errors mean that it has ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {} s", patience.as_secs_f32()));
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    if !status.success() {
        let complaints = complaints.join().unwrap_or_default();
        let last = complaints.trim().lines().last().unwrap_or("without a word");
        return Err(format!("{status}: {last}"));
    }
    let given: Given = serde_json::from_str(&written.join().unwrap_or_default())
        // Its text holds nothing of what was written.
        .map_err(|error| format!("it does not write what it should: {:?} error", error.classify()))?;
    match given.version {
        1 => Ok(given),
        version => Err(format!("it writes version {version}, expected 1")),
    }
}

impl fmt::Debug for KeysOfProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeysOfProcess").finish_non_exhaustive()
    }
}

#[async_trait]
impl CredentialProvider for KeysOfProcess {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut given = self.given.lock().await;
        let refused = std::mem::take(&mut *lock(&self.refused));
        if let Some((keys, renewal)) = &*given
            && !refused
            && renewal.is_none_or(|renewal| Instant::now() < renewal)
        {
            return Ok(keys.clone());
        }
        let (command, patience) = (self.command.clone(), self.patience);
        let ended = aside(move || run(&command, patience)).await;
        let told = match ended.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(told) => told,
            Err(reason) => {
                // Commands may hold secrets.
                let reason = format!("credential_process of the profile: {reason}");
                let Some((keys, renewal)) = &mut *given else {
                    return Err(NoCredentials::error(format!("no credentials: {reason}")));
                };
                log::warn!("credentials cannot be renewed, the last ones are used: {reason}");
                *renewal = Some(Instant::now() + Duration::from_secs(10));
                return Ok(keys.clone());
            }
        };
        let left = told
            .expiration
            .map(|end| (end - Utc::now()).to_std().unwrap_or_default());
        let renewal = left.map(|left| Instant::now() + left.saturating_sub(BEFORE_EXPIRY).max(left / 2));
        let keys = Arc::new(AwsCredential {
            key_id: told.access_key_id,
            secret_key: told.secret_access_key,
            token: told.session_token,
        });
        *given = Some((keys.clone(), renewal));
        Ok(keys)
    }
}

impl Source<AwsCredential> for KeysOfProcess {
    fn forget(&self) {
        *lock(&self.refused) = true;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let variable = |name: &str| match name {
            "HOME" => Some(home.path().into()),
            name => set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()),
        };
        Profiles::of_environment(variable).read()
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
    fn keys_that_others_leave_in_a_profile_count_but_not_beside_a_role() {
        let keys = "aws_access_key_id=A\naws_secret_access_key=B\n";
        let sso = profile(&format!("[default]\n{keys}"), "[default]\nsso_session = x\n", &[]);
        assert!(sso.unwrap().keys.is_some());
        let role = profile("", &format!("[default]\nrole_arn = r\n{keys}"), &[]);
        assert!(role.unwrap_err().to_string().contains("role_arn"));
        let process = profile("", "[default]\ncredential_process = give --keys\n", &[]).unwrap();
        assert_eq!((process.keys, process.process.as_deref()), (None, Some("give --keys")));
    }

    #[test]
    fn without_files_there_is_no_profile_and_no_fault() {
        let nowhere = Profiles::of_environment(|_| None).read().unwrap();
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
