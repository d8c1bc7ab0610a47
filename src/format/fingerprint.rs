//! What identifies the content of obs: a hash over its schema, its tiles and its shards.
//!
//! Knows no files: the shards' own hashes are handed in.

use sha2::{Digest, Sha256};

use super::json;

/// The `obs_fingerprint` of a dataset: 24 lower-case hex characters (format, "Fingerprint").
///
/// `schema_text` is `obs/schema.json` exactly as stored, `tile_cells` the cells of each tile, `shard_sha256` the
/// SHA-256 of each shard in lower-case hex.
pub fn fingerprint(schema_text: &str, tile_cells: impl Iterator<Item = u64>, shard_sha256: &[String]) -> String {
    let mut text = String::from("{\"schema\": ");
    json::push_string(&mut text, schema_text);
    text.push_str(", \"shards\": ");
    json::push_list(&mut text, shard_sha256, |text, sha| json::push_string(text, sha));
    text.push_str(", \"tile_cells\": ");
    json::push_list(&mut text, tile_cells, |text, cells| text.push_str(&cells.to_string()));
    text.push('}');
    let mut fingerprint = hex(&Sha256::digest(&text));
    fingerprint.truncate(24);
    fingerprint
}

/// Bytes as lower-case hex, the way hashes stand in a manifest.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::manifest::Manifest;

    #[test]
    fn fingerprints_of_stored_datasets_are_those_in_their_manifests() {
        for dataset in crate::testdata::datasets() {
            let manifest = Manifest::parse(&std::fs::read(dataset.join("manifest.json")).unwrap()).unwrap();
            let schema = std::fs::read_to_string(dataset.join("obs/schema.json")).unwrap();
            let obs = manifest.obs.as_ref().unwrap();
            let cells = (0..manifest.n_tiles()).map(|tile| manifest.tile_cells(tile));
            let found = fingerprint(&schema, cells, &obs.shard_sha256);
            assert_eq!(found, obs.fingerprint, "{dataset:?}");
        }
    }

    #[test]
    fn a_fingerprint_is_the_hash_of_what_python_writes() {
        // hashlib.sha256(json.dumps({"schema": '{"\u00e9"}', "tile_cells": [3, 1], "shards": ["ab"]}, sort_keys=True).encode()).hexdigest()[:24]
        let found = fingerprint("{\"\u{e9}\"}", [3, 1].into_iter(), &["ab".into()]);
        assert_eq!(found, "e783774b821fb506d25edd08");
    }
}
