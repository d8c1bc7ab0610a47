//! `dcfs demo`: a dataset out of nothing, mounted, for somebody who wants to see what this is.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::HumanBytes;
use log::LevelFilter;
use thiserror::Error;

use super::grouped;
use super::logging::{self, Destination, LogError};
use super::mount::{MountFlags, Refusal, Running, mount_dataset};
use super::serve::{Hangup, ServeError};
use super::source::{OpenError, StoreFlags, open_dataset};
use crate::write::WriteError;
use crate::write::synthetic::{Synthetic, SyntheticOptions};

/// Make up a dataset, mount it and say what to try
///
/// Writes a realistic dataset of made-up cells (always the same), mounts it and reads through the mount. Stays until
/// Ctrl-C, then removes what it made.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder to work in; it and what is made in it stay afterwards [default: a new one, removed at the end]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Leave as soon as reading through the mount has worked
    #[arg(long)]
    exit: bool,
    /// Made-up cells
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    cells: u64,
    /// Made-up genes
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    genes: u32,
    #[command(flatten)]
    options: MountFlags,
}

#[derive(Debug, Error)]
pub(super) enum DemoError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot make a folder to work in: {0}")]
    Folder(io::Error),
    #[error("cannot read through the mount: {0}")]
    Read(io::Error),
    #[error(
        "the mount shows other numbers than were written: the counts of tile 0 add up to {found}, expected {expected}"
    )]
    Wrong { found: u64, expected: u64 },
}

pub(super) fn run(args: &DemoArgs) -> Result<(), DemoError> {
    let folder = Folder::new(args.folder.as_deref()).map_err(DemoError::Folder)?;
    let dataset = folder.path.join("demo.dc");
    let mountpoint = folder.path.join("mount");
    fs::create_dir_all(&mountpoint).map_err(DemoError::Folder)?;
    logging::init(Destination::Stderr, LevelFilter::Warn)?;

    let options = SyntheticOptions {
        n_cells: args.cells,
        n_genes: args.genes,
        mean_nnz_per_cell: (args.genes / 7).max(1),
        ..SyntheticOptions::default()
    };
    let synthetic = Synthetic::new(options)?;
    if !dataset.join("manifest.json").exists() {
        say(&format!(
            "Making up {} cells of {} genes ...",
            grouped(args.cells),
            grouped(args.genes.into())
        ));
        synthetic.write(&dataset)?;
    }
    let opened = open_dataset(&dataset, &StoreFlags::default())?;
    let stored: u64 = opened.manifest().tile_bytes.iter().sum();
    let decoded = opened.manifest().nnz() * 8;
    let running = mount_dataset(
        &dataset,
        &StoreFlags::default(),
        &mountpoint,
        &args.options,
        Hangup::Stop,
    )?;
    say(&format!(
        "Mounted {} ({}, decoded {}) at\n\n  {}\n",
        dataset.display(),
        HumanBytes(stored),
        HumanBytes(decoded),
        running.path().display()
    ));
    let shown = show(running.path(), &synthetic);
    match shown {
        Ok(()) if args.exit => Ok(running.stop()?),
        Ok(()) => {
            say(&what_to_try(&running));
            Ok(running.until_stopped()?)
        }
        Err(error) => {
            running.stop()?;
            Err(error)
        }
    }
}

/// Reads a tile through the mount, as any program would, and holds it against what was made up.
fn show(mount: &Path, synthetic: &Synthetic) -> Result<(), DemoError> {
    let tile = mount.join("tile_000000");
    let read = |name: &str| -> Result<Vec<u8>, DemoError> {
        let mut bytes = Vec::new();
        File::open(tile.join(name))
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(DemoError::Read)?;
        Ok(bytes)
    };
    let ints = |bytes: Vec<u8>| -> Vec<i32> {
        bytes
            .chunks_exact(4)
            .map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect()
    };
    let data = ints(read("data.i32")?);
    let indices = ints(read("indices.i32")?);
    let sum = |counts: &[i32]| counts.iter().map(|&count| count as u64).sum::<u64>();
    let (found, expected) = (sum(&data), sum(&synthetic.tile(0).counts));
    if found != expected || indices.len() != data.len() {
        return Err(DemoError::Wrong { found, expected });
    }
    let first: Vec<String> = indices
        .iter()
        .zip(&data)
        .take(8)
        .map(|(gene, count)| format!("{gene}:{count}"))
        .collect();
    say(&format!(
        "Read through it: tile_000000 has {} nonzeros; cell 0 begins with (gene:count) {}\n",
        grouped(data.len() as u64),
        first.join(" ")
    ));
    Ok(())
}

fn what_to_try(running: &Running) -> String {
    let mount = running.path().display();
    format!(
        "\
Try, in another terminal:

  ls -l {mount}/tile_000000
  cat {mount}/README.txt
  python3 -c \"import numpy as np; print(np.fromfile('{mount}/tile_000000/data.i32', '<i4')[:10])\"
  python3 -c \"import pandas as pd; print(pd.read_feather('{mount}/obs/cell_type.arrow').value_counts())\"
  cat {mount}/.dcfs/stats.json

Ctrl-C ends the demo and removes what it made."
    )
}

/// Says something on standard output, which may be closed.
fn say(text: &str) {
    let mut out = BufWriter::new(io::stdout());
    let _ = writeln!(out, "{text}");
}

/// The folder the demo works in; one of its own is removed at the end.
struct Folder {
    path: PathBuf,
    own: bool,
}

impl Folder {
    fn new(wanted: Option<&Path>) -> io::Result<Self> {
        match wanted {
            Some(path) => {
                fs::create_dir_all(path)?;
                Ok(Self {
                    path: path.canonicalize()?,
                    own: false,
                })
            }
            None => {
                let path = std::env::temp_dir().join(format!("dcfs-demo-{}", std::process::id()));
                // Only a folder that was not there before is this program's to remove.
                fs::create_dir(&path)?;
                Ok(Self {
                    path: path.canonicalize()?,
                    own: true,
                })
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.own {
            // The mountpoint by itself first: should a mount still be there, nothing below it is touched.
            let _ = fs::remove_dir(self.path.join("mount"));
            let _ = fs::remove_dir_all(self.path.join("demo.dc"));
            let _ = fs::remove_dir(&self.path);
        }
    }
}
