//! A Python with the packages that tests compare with, in a virtual environment below `target/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What is installed; the file that says so is named after it, so that another list is installed anew.
const PACKAGES: &[&str] = &[
    "anndata",
    "h5py",
    "hdf5plugin",
    "numpy",
    "pandas",
    "pyarrow",
    "scanpy",
    "scipy",
];

/// The interpreter, made ready by the first test that asks for it.
///
/// Nothing when this machine cannot make one: that is said on stderr, and under `CI=true` it is a failure.
pub fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| match prepare() {
        Ok(python) => Some(python),
        Err(why) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => panic!("no Python for the tests: {why}"),
        Err(why) => {
            eprintln!("SKIPPED: tests that compare with Python: {why} (on Debian: apt install python3-venv)");
            None
        }
    });
    python.as_deref()
}

fn prepare() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap_or(Path::new("target"));
    let venv = target.join("venv");
    let python = venv.join("bin/python");
    let imports = PACKAGES.join(", ");
    if runs(&python, &["-c", &format!("import {imports}")]).is_ok() {
        return Ok(python);
    }
    runs(Path::new("python3"), &["-m", "venv", &venv.to_string_lossy()])?;
    let mut install = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    install.extend(PACKAGES);
    runs(&python, &install)?;
    Ok(python)
}

fn runs(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let shown = format!("{} {}", program.display(), arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{shown}: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        )),
    }
}
