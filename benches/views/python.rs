//! Readers in Python, each a process of its own that times itself without its imports.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;

/// A Python with anndata.
pub struct Python(PathBuf);

impl Python {
    /// What `DCFS_PYTHON` names, or the environment that the tests made; an error that says what to do when there is neither.
    pub fn find() -> Result<Self> {
        if let Some(named) = std::env::var_os("DCFS_PYTHON") {
            return Ok(Self(named.into()));
        }
        let made = std::fs::read_dir(env!("CARGO_TARGET_TMPDIR"))?;
        let complete = made.filter_map(|entry| {
            let home = entry.ok()?.path();
            let since = home.join("complete").metadata().ok()?.modified().ok()?;
            Some((since, home.join("bin/python")))
        });
        // Requirements change; the last one has what is needed now.
        let python = complete.max().map(|(_, python)| python);
        let python = python.ok_or("no Python: run `cargo test --release --test mounted` first, or set DCFS_PYTHON")?;
        Ok(Self(python))
    }

    /// A command that runs `readers.py`.
    pub fn command(&self) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/views/readers.py");
        let mut command = Command::new(&self.0);
        command.arg(script).stdin(Stdio::null()).env_remove("PYTHONPATH");
        command
    }

    /// Runs it; returns the figure it printed, if any.
    pub fn run(&self, mut command: Command) -> Result<f64> {
        let output = command.output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{command:?} failed: {said}").into());
        }
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(said.trim().parse().unwrap_or(0.0))
    }

    /// Seconds that a reader took.
    pub fn seconds(&self, reader: &str, path: &Path, seed: usize) -> Result<f64> {
        let mut command = self.command();
        command.arg(reader).arg(path).arg(seed.to_string());
        self.run(command)
    }
}
