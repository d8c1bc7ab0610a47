//! The datasets that are measured, and the same data in files of other programs, kept from one run to the next.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use dcfs::write::synthetic::{Synthetic, SyntheticOptions};

use crate::Result;
use crate::daemon::Mount;
use crate::folder::Folder;
use crate::python::Python;

/// Cells of the dataset, of a tile, and nonzeros of a cell: those of a middling droplet experiment.
const CELLS: u64 = 200_000;
const TILE_CELLS: u64 = 10_000;
const GENES: u32 = 30_000;
const NONZEROS: u32 = 1_000;

impl Folder {
    /// 200,000 cells in 20 tiles, level 19, 8 chunks. Made the first time, which takes minutes.
    pub fn cells(&self) -> Result<PathBuf> {
        let options = SyntheticOptions {
            n_cells: CELLS,
            n_genes: GENES,
            tile_size: TILE_CELLS,
            mean_nnz_per_cell: NONZEROS,
            ..SyntheticOptions::default()
        };
        self.made("whole-matrix", |root| {
            Synthetic::new(options)?.write(root)?;
            Ok(())
        })
    }

    /// A dataset, made unless it is there.
    pub fn made(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let (root, partial) = (self.join(name), self.join(format!("{name}.partial")));
        if root.join("manifest.json").exists() {
            return Ok(root);
        }
        eprintln!("making {} (once; some minutes of all processors)", root.display());
        match fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        make(&partial)?;
        fs::rename(&partial, &root)?;
        Ok(root)
    }

    /// The same as a gzip-compressed h5ad that anndata wrote.
    pub fn gzip(&self, cells: &Path, python: &Python) -> Result<PathBuf> {
        let path = self.join("whole-matrix.gzip.h5ad");
        if !path.exists() {
            eprintln!("making {} (once; about two minutes)", path.display());
            written(cells, python, &path, "gzip")?;
        }
        Ok(path)
    }
}

/// The same as an uncompressed h5ad that anndata wrote, on a tmpfs. Dropped, it is gone.
pub struct OnTmpfs(PathBuf);

impl OnTmpfs {
    pub fn new(cells: &Path, python: &Python) -> Result<Self> {
        let file = Self(PathBuf::from(format!(
            "/dev/shm/dcfs-bench-{}.h5ad",
            std::process::id()
        )));
        written(cells, python, &file.0, "none")?;
        Ok(file)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OnTmpfs {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Has anndata read the dataset through a mount and write it to `path`.
fn written(cells: &Path, python: &Python, path: &Path, compression: &str) -> Result<()> {
    let mount = Mount::start(cells, &[])?;
    let partial = path.with_extension("partial");
    let from = mount.path().join("dataset.h5ad");
    let mut command: Command = python.command();
    command.arg("write").arg(from).arg(&partial).arg(compression);
    python.run(command)?;
    fs::rename(&partial, path)?;
    mount.stop()
}
