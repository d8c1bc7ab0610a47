use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::dataset::Dataset;
use crate::format::manifest::tile_path;
use crate::store::Directory;
use crate::testdata;

/// `edge.dc` without obs, with another file for its tile 1.
fn edge_with(root: &Path, tile: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut manifest: Value = serde_json::from_slice(&fs::read(root.join("edge.dc/manifest.json")).unwrap()).unwrap();
    manifest["tile_bytes"][1] = fs::metadata(tile).unwrap().len().into();
    manifest["has_obs"] = false.into();
    fs::write(folder.path().join("manifest.json"), manifest.to_string()).unwrap();
    fs::create_dir(folder.path().join("tiles")).unwrap();
    fs::copy(tile, folder.path().join(tile_path(1))).unwrap();
    folder
}

fn read(root: &Path) -> Result<(), DatasetError> {
    let dataset = Dataset::open(Arc::new(Directory::open(root).unwrap()))?;
    let tile = dataset.tile(1)?;
    dataset.verify(&tile)?;
    for chunk in &tile.layout().chunks {
        let mut out = vec![0; chunk.nnz() as usize];
        tile.decode_chunk(Array::Indices, chunk.index, &mut out)?;
        tile.decode_chunk(Array::Data, chunk.index, &mut out)?;
    }
    Ok(())
}

#[test]
fn every_malformed_tile_is_refused_with_a_message_that_names_file_and_place() {
    let Some(root) = testdata::root() else { return };
    let mut entries: Vec<_> = fs::read_dir(root.join("bad/tiles"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let folder = edge_with(&root, &path);
        match read(folder.path()) {
            Err(e) => eprintln!("{name}: {e}"),
            Ok(()) => eprintln!("{name} OK?"),
        }
    }
}
