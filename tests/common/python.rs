//! A Python with the packages that readers of a mount use, made once under `target/` and shared by all tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::FlockOperation;
use sha2::{Digest, Sha256};

use crate::ci::is_ci;
use crate::skip::skip;

const REQUIREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/requirements.txt");

/// A command that runs a script of `tests/python`; `None`, after a line that says why, where there is no such Python. Under `CI` that is a
/// failure.
pub fn script(name: &str) -> Option<Command> {
    let mut command = python()?;
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name));
    Some(command)
}

/// The Python itself.
pub fn python() -> Option<Command> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PYTHON.get_or_init(make) {
        Ok(python) => {
            let mut command = Command::new(python);
            command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTHONPATH");
            Some(command)
        }
        Err(reason) => {
            assert!(!is_ci(), "{reason}");
            skip(reason);
            None
        }
    }
}

/// Makes it, unless it is there; one process at a time.
fn make() -> Result<PathBuf, String> {
    let requirements = fs::read(REQUIREMENTS).unwrap();
    let version = Sha256::digest(&requirements);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let home = root.join(format!(
        "python-{:02x}{:02x}{:02x}{:02x}",
        version[0], version[1], version[2], version[3]
    ));
    let python = home.join("bin/python");
    let complete = home.join("complete");
    fs::create_dir_all(root).unwrap();
    let lock = File::create(root.join("python.lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    if complete.exists() {
        return Ok(python);
    }
    fs::remove_dir_all(&home).ok();
    attempt(Command::new("python3").args(["-m", "venv"]).arg(&home))
        .map_err(|error| format!("no Python environment ({error}): apt install python3-venv"))?;
    attempt(
        Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--requirement",
                REQUIREMENTS,
            ])
            .env_remove("PYTHONPATH"),
    )
    .map_err(|error| format!("the packages of tests/python/requirements.txt cannot be installed: {error}"))?;
    File::create(complete).unwrap();
    Ok(python)
}

fn attempt(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = [output.stderr, output.stdout].concat();
            let said = String::from_utf8_lossy(&said);
            Err(said
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("no reason given")
                .to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}
