//! The text of `obs/schema.json`.

use dcfs::format::manifest::{Manifest, NewManifest, ObsManifest};
use dcfs::format::obs::{ColumnKind, NumericType, ObsColumn, ObsSchema};

use crate::memory::Memory;
use crate::tree;

/// A schema with a column of each kind.
pub fn every_kind() -> ObsSchema {
    let column = |name: &str, kind| ObsColumn {
        name: name.into(),
        kind,
    };
    let categories = vec!["B cell".into(), "γδ T cell".into(), "a \"quoted\" one".into()];
    let codes = NumericType::Int8;
    let columns = vec![
        column("cell_type", ColumnKind::Category { codes, categories }),
        column("total counts", ColumnKind::Numeric(NumericType::Int64)),
        column("score", ColumnKind::Numeric(NumericType::Float32)),
        column("is_doublet", ColumnKind::Bool),
        column("obs_names", ColumnKind::String),
    ];
    ObsSchema::new(columns).expect("a good schema")
}

/// The manifest of a dataset with obs and two small tiles.
pub fn two_tiles(shard_bytes: u64) -> Manifest {
    Manifest::new(NewManifest {
        n_genes: 10,
        tile_size: TILE_CELLS[0],
        tile_cells: TILE_CELLS.to_vec(),
        tile_nnz: vec![0, 0],
        tile_bytes: vec![1000, 1000],
        obs: Some(ObsManifest {
            tiles_per_file: 2,
            shard_bytes: vec![shard_bytes],
            shard_sha256: vec!["0".repeat(64)],
            fingerprint: "0".repeat(24),
        }),
        ..NewManifest::default()
    })
    .expect("a good manifest")
}

/// Cells of the tiles of [`two_tiles`].
pub const TILE_CELLS: [u64; 2] = [7, 3];

/// The target: a schema is refused, or means what it says and can be shown.
pub fn run(text: &[u8]) {
    let Ok(schema) = ObsSchema::parse(text) else { return };
    assert_eq!(schema.text.as_bytes(), text);
    for (position, column) in schema.columns.iter().enumerate() {
        assert_eq!(schema.position(&column.name), Some(position), "names are unique");
    }
    let written = ObsSchema::new(schema.columns.clone()).expect("what was read can be written");
    let again = ObsSchema::parse(written.text.as_bytes()).expect("what is written can be read");
    assert_eq!(again.columns, schema.columns);
    let manifest = two_tiles(0).to_json().into_bytes();
    tree::walk(
        Memory::default()
            .with("manifest.json", manifest)
            .with("obs/schema.json", text),
    );
}
