//! Datasets for tests: made-up ones, the shared ones where they are to be had, and what each of them holds.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use dcfs::write::synthetic::{Csr, Synthetic, SyntheticOptions};
use dcfs::write::{DatasetWriter, WriterOptions};
use serde_json::{Value, json};

use crate::harness::{Folder, Io, Mount};
use crate::skip::skip;

/// A file or folder of the shared data: `../shared/data` beside the repository, or what `DCFS_SHARED_DATA` names. Says so when there is none.
pub fn shared(path: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data");
    let root = std::env::var_os("DCFS_SHARED_DATA").map_or_else(|| beside.into(), PathBuf::from);
    if !root.is_dir() {
        skip(format_args!(
            "no shared data at {} (set DCFS_SHARED_DATA)",
            root.display()
        ));
        return None;
    }
    Some(root.join(path).canonicalize().unwrap())
}

/// A small dataset of made-up cells, which goes with its folder.
pub struct MadeUp {
    pub path: PathBuf,
    pub synthetic: Synthetic,
    pub tiles: usize,
    pub folder: Folder,
}

/// Five tiles, the last of them shorter, of five chunks each, and obs in two shards.
pub fn made_up() -> MadeUp {
    let folder = Folder::new();
    let path = folder.join("made-up.dc");
    let options = SyntheticOptions {
        n_cells: 900,
        n_genes: 1_500,
        tile_size: 200,
        mean_nnz_per_cell: 150,
        n_chunks: 5,
        level: 1,
        threads: 1,
        obs_tiles_per_file: 3,
        ..SyntheticOptions::default()
    };
    let synthetic = Synthetic::new(options).unwrap();
    synthetic.write(&path).unwrap();
    MadeUp {
        path,
        synthetic,
        tiles: 5,
        folder,
    }
}

/// A dataset whose tiles all hold the same cells.
pub struct Repeated {
    pub path: PathBuf,
    pub tile: Csr,
    pub chunks: u64,
    _folder: Folder,
}

/// `tiles` tiles of 2,000 cells and about a million nonzeros, 4 MB an array, in 4 chunks.
pub fn repeated(tiles: usize) -> Repeated {
    repeat(tiles, 4_000, 500, 4)
}

/// `tiles` tiles of 2,000 cells and about six million nonzeros, 24 MB an array and more than 4 MiB as stored, in 16 chunks.
pub fn large_tiles(tiles: usize) -> Repeated {
    repeat(tiles, 20_000, 3_000, 16)
}

fn repeat(tiles: usize, n_genes: u32, mean_nnz_per_cell: u32, chunks: u32) -> Repeated {
    let cells = Synthetic::new(SyntheticOptions {
        n_cells: 2_000,
        n_genes,
        mean_nnz_per_cell,
        ..SyntheticOptions::default()
    });
    let tile = cells.unwrap().cells(0..2_000);
    let folder = Folder::new();
    let path = folder.join("repeated.dc");
    let options = WriterOptions {
        tile_size: 2_000,
        n_chunks: chunks,
        level: 1,
        threads: 1,
        ..WriterOptions::new(n_genes)
    };
    let mut writer = DatasetWriter::create(&path, options).unwrap();
    for _ in 0..tiles {
        writer.push(tile.rows().unwrap(), None).unwrap();
    }
    writer.finish().unwrap();
    Repeated {
        path,
        tile,
        chunks: chunks.into(),
        _folder: folder,
    }
}

/// A manifest of tiles that do not exist: 10,000 cells and 47 million nonzeros each.
pub fn manifest_alone(tiles: usize) -> Folder {
    let folder = Folder::new();
    folder.subfolder("tiles");
    let manifest = json!({
        "format": "deltacells-dataset",
        "version": 2,
        "n_cells": tiles * 10_000,
        "n_genes": 38_094,
        "tile_size": 10_000,
        "tile_cells": vec![10_000; tiles],
        "tile_nnz": vec![47_000_000; tiles],
        "tile_bytes": vec![32_000_000; tiles],
        "n_chunks": 8,
        "zstd_level": 19,
        "has_gene_order": false,
        "has_var_names": false,
        "has_var_table": false,
        "has_obs": false,
        "metadata": {},
    });
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    folder
}

/// A dataset of links to the files of another one, in which some can then be replaced.
pub fn links_to(dataset: &Path) -> Folder {
    let folder = Folder::new();
    link_all(dataset, folder.path());
    folder
}

fn link_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            link_all(&entry.path(), &target);
        } else {
            std::os::unix::fs::symlink(entry.path(), target).unwrap();
        }
    }
}

/// Puts other bytes where a file or link is.
pub fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    fs::rename(new, path).unwrap();
}

/// Changes the manifest of a dataset.
pub fn edit_manifest(dataset: &Path, edit: impl FnOnce(&mut Value)) {
    let path = dataset.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    replace(&path, manifest.to_string().as_bytes());
}

/// The values of a `.npy` file, whose entries have `WIDTH` bytes.
pub fn npy<const WIDTH: usize>(path: &Path) -> Vec<[u8; WIDTH]> {
    let file = fs::read(path).unwrap();
    assert_eq!(&file[..8], b"\x93NUMPY\x01\0", "{}", path.display());
    let header = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    entries(&file[header..])
}

/// Entries of a raw array.
pub fn entries<const WIDTH: usize>(bytes: &[u8]) -> Vec<[u8; WIDTH]> {
    let (entries, rest) = bytes.as_chunks();
    assert!(rest.is_empty(), "{} bytes", bytes.len());
    entries.to_vec()
}

pub fn int32s(path: &Path) -> Vec<i32> {
    entries(&fs::read(path).unwrap())
        .into_iter()
        .map(i32::from_le_bytes)
        .collect()
}

pub fn int64s(path: &Path) -> Vec<i64> {
    entries(&fs::read(path).unwrap())
        .into_iter()
        .map(i64::from_le_bytes)
        .collect()
}

/// Asserts that a tile's folder shows `expected`.
pub fn assert_shows(folder: &Path, expected: &Csr) {
    let differs = |file: &str| format!("{}/{file} differs", folder.display());
    // Not assert_eq: nobody reads a million numbers.
    assert!(
        int64s(&folder.join("indptr.i64")) == expected.indptr,
        "{}",
        differs("indptr.i64")
    );
    assert!(
        int32s(&folder.join("indices.i32")) == expected.indices,
        "{}",
        differs("indices.i32")
    );
    assert!(
        int32s(&folder.join("data.i32")) == expected.counts,
        "{}",
        differs("data.i32")
    );
}

/// What a mount complains of, but for what is right on a bucket: a column of `edge.dc` has too long a name for the node's cache.
pub fn complaints_but_of_long_names(mount: &Mount, io: Io) -> Vec<String> {
    let mut complaints = mount.complaints();
    complaints.retain(|line| io != Io::Bucket || !line.contains("takes more than 255 bytes"));
    complaints
}

/// Every file below a folder, in order.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    files
}

/// Maps a file, shared or private.
pub fn map(path: &Path, shared: bool) -> memmap2::Mmap {
    let file = File::open(path).unwrap();
    let options = memmap2::MmapOptions::new();
    // SAFETY: nobody shrinks the files of a mount; that is one of the things these tests show.
    unsafe {
        match shared {
            true => options.map(&file).unwrap(),
            false => options.map_copy_read_only(&file).unwrap(),
        }
    }
}
