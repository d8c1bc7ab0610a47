//! Where tests find the shared datasets, which are not part of the repository, and how they tell that something is not tested.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

/// The datasets every test may use, relative to [`root`].
pub const DATASETS: [&str; 4] = ["edge.dc", "real/pbmc3k.dc", "real/pbmc_facs.dc", "real/celseq2.dc"];

/// `../shared/data` beside the repository, or what `DCFS_SHARED_DATA` names; says so when there is none.
pub fn root() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data");
    let root = std::env::var_os("DCFS_SHARED_DATA").map_or_else(|| beside.into(), PathBuf::from);
    if root.is_dir() {
        return Some(root);
    }
    skip(format_args!(
        "no shared data at {} (set DCFS_SHARED_DATA)",
        root.display()
    ));
    None
}

/// The folders of [`DATASETS`]; none where there is no shared data.
pub fn datasets() -> Vec<PathBuf> {
    root().map_or_else(Vec::new, |root| {
        DATASETS.iter().map(|dataset| root.join(dataset)).collect()
    })
}

/// Says that a test, or a part of it, is not run, and why.
pub fn skip(why: impl Display) {
    // Not by eprintln: what a test that passes says with it is never shown.
    let _ = writeln!(io::stderr(), "skipped: {why}");
}
