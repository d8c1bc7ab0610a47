//! The text of `manifest.json`.

use dcfs::format::manifest::Manifest;

use crate::memory::Memory;
use crate::obs_schema;
use crate::tree;

/// The target: a manifest is refused, or adds up and can be shown.
pub fn run(text: &[u8]) {
    let Ok(manifest) = Manifest::parse(text) else { return };
    adds_up(&manifest);
    let again = Manifest::parse(manifest.to_json().as_bytes()).expect("what is written can be read");
    assert_eq!(again.to_json(), manifest.to_json());
    let stored = ["gene_order.npy", "var_names.txt", "var.parquet"];
    let store = stored
        .into_iter()
        .fold(Memory::default(), |store, path| store.with(path, *b""));
    let schema = obs_schema::every_kind();
    tree::walk(
        store
            .with("manifest.json", text)
            .with("obs/schema.json", schema.text.into_bytes()),
    );
}

fn adds_up(manifest: &Manifest) {
    let tiles = manifest.n_tiles();
    assert!((1..=1 << 31).contains(&manifest.n_genes));
    assert_eq!(manifest.cells_before(tiles), manifest.n_cells);
    assert_eq!(manifest.nnz_before(tiles), manifest.nnz());
    for tile in 0..tiles {
        let spec = manifest.tile(tile);
        let (cell, nonzero) = (manifest.cells_before(tile), manifest.nnz_before(tile));
        assert!(spec.n_cells >= 1 && spec.bytes >= 72 + 8 * spec.n_cells);
        assert_eq!(cell + spec.n_cells, manifest.cells_before(tile + 1));
        assert_eq!(nonzero + spec.nnz, manifest.nnz_before(tile + 1));
        for cell in [cell, cell + spec.n_cells - 1] {
            assert_eq!(manifest.tile_of_cell(cell), Some(tile));
        }
        if spec.nnz > 0 {
            for nonzero in [nonzero, nonzero + spec.nnz - 1] {
                assert_eq!(manifest.tile_of_nonzero(nonzero), Some(tile));
            }
        }
    }
    assert_eq!(manifest.tile_of_cell(manifest.n_cells), None);
    assert_eq!(manifest.tile_of_nonzero(manifest.nnz()), None);
}
