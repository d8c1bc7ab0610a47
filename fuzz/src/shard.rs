//! An obs shard: a Parquet file, whose reader is another library's.

use std::sync::Arc;

use dcfs::dataset::{ObsShard, verify_shard};

use crate::memory::InMemory;
use crate::obs_schema::{TILE_CELLS, every_kind, two_tiles};

/// The target: a shard is refused, or has as many values as there are cells in every column.
pub fn run(bytes: &[u8]) {
    let manifest = two_tiles(bytes.len() as u64);
    let obs = manifest.obs.as_ref().expect("it has obs");
    let schema = every_kind();
    let object = Arc::new(InMemory {
        name: "obs/obs_0000.parquet".into(),
        bytes: bytes.into(),
    });
    let faults = verify_shard(object.clone(), &manifest, obs, 0, &schema);
    assert!(!faults.is_empty(), "its SHA-256 is not zero");
    let Ok(shard) = ObsShard::open(object, &manifest, obs, 0, &schema) else {
        return;
    };
    for tile in shard.tiles() {
        for (index, column) in schema.columns.iter().enumerate() {
            if let Ok(values) = shard.read_column(tile, index) {
                assert_eq!(values.len() as u64, TILE_CELLS[tile]);
                assert_eq!(values.data_type(), &column.kind.stored_type());
            }
        }
    }
}
