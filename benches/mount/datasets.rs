//! The datasets that are measured, kept in the target folder from one run to the next.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use dcfs::format::manifest::{Manifest, NewManifest, tile_path};
use dcfs::write::synthetic::{Synthetic, SyntheticOptions};

use crate::Result;
use crate::folder::Folder;

/// Cells of a tile.
const TILE_CELLS: u64 = 10_000;
const N_GENES: u32 = 38_094;
/// Tiles of the dataset whose tiles are not there.
pub const MANY_TILES: usize = 100_000;
/// Tiles of the dataset that is larger than the cache.
pub const TEN_TILES: usize = 10;

impl Folder {
    /// Two tiles as they are in the wild: 10,000 cells, about 4,700 nonzeros each, level 19, 8 chunks. Made the first time, which takes minutes.
    pub fn two_tiles(&self) -> Result<PathBuf> {
        let root = self.join("two-tiles");
        if root.join("manifest.json").exists() {
            return Ok(root);
        }
        eprintln!("making {} (once; some minutes of all processors)", root.display());
        self.make("two-tiles", |folder| {
            let options = SyntheticOptions {
                n_cells: 2 * TILE_CELLS,
                n_genes: N_GENES,
                tile_size: TILE_CELLS,
                mean_nnz_per_cell: 4_700,
                ..SyntheticOptions::default()
            };
            Synthetic::new(options)?.write(folder)?;
            Ok(())
        })
    }

    /// The two tiles, each five times.
    pub fn ten_tiles(&self) -> Result<PathBuf> {
        self.repeated("ten-tiles", TEN_TILES)
    }

    /// The two tiles again and again.
    pub fn repeated(&self, name: &str, n_tiles: usize) -> Result<PathBuf> {
        let two = self.two_tiles()?;
        let manifest = Manifest::parse(&fs::read(two.join("manifest.json"))?)?;
        self.make(name, |folder| {
            fs::create_dir(folder.join("tiles"))?;
            for tile in 0..n_tiles {
                std::os::unix::fs::symlink(two.join(tile_path(tile % 2)), folder.join(tile_path(tile)))?;
            }
            let specs = |of: fn(&Manifest, usize) -> u64| (0..n_tiles).map(|tile| of(&manifest, tile % 2)).collect();
            let ten = NewManifest {
                tile_cells: vec![TILE_CELLS; n_tiles],
                tile_nnz: specs(|two, tile| two.tile(tile).nnz),
                tile_bytes: specs(|two, tile| two.tile(tile).bytes),
                ..shape()
            };
            Ok(fs::write(folder.join("manifest.json"), Manifest::new(ten)?.to_json())?)
        })
    }

    /// A manifest of 100,000 tiles, 10^9 cells, and not one of the tiles.
    pub fn many_tiles(&self) -> Result<PathBuf> {
        self.make("many-tiles", |folder| {
            let tiles = 0..MANY_TILES as u64;
            let manifest = NewManifest {
                tile_cells: vec![TILE_CELLS; MANY_TILES],
                tile_nnz: tiles.clone().map(|tile| 47_000_000 + tile % 1_000).collect(),
                tile_bytes: tiles.map(|tile| 32_000_000 + tile % 1_000).collect(),
                ..shape()
            };
            Ok(fs::write(
                folder.join("manifest.json"),
                Manifest::new(manifest)?.to_json(),
            )?)
        })
    }

    /// A dataset in place of the one there was.
    fn make(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let (whole, partial) = (self.join(name), self.join(format!("{name}.partial")));
        for old in [&whole, &partial] {
            match fs::remove_dir_all(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        fs::create_dir(&partial)?;
        fill(&partial)?;
        fs::rename(&partial, &whole)?;
        Ok(whole)
    }
}

fn shape() -> NewManifest {
    NewManifest {
        n_genes: N_GENES.into(),
        tile_size: TILE_CELLS,
        n_chunks: 8,
        zstd_level: 19,
        ..NewManifest::default()
    }
}
