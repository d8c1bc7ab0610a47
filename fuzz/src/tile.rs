//! A tile file, through everything that a mount does with one.

use std::sync::Arc;

use dcfs::dataset::{Array, Dataset, DatasetError};
use dcfs::format::manifest::{Manifest, NewManifest, tile_path};
use dcfs::format::tile::HEADER_BYTES;

use crate::memory::Memory;

/// Nonzeros beyond which a tile is left alone: sixteen bytes of zstd may rightly hold megabytes, and filling them teaches nothing.
const MOST_NONZEROS: u64 = 1 << 18;

/// What a tile decodes to.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    pub indptr: Vec<i64>,
    pub indices: Vec<i32>,
    pub data: Vec<i32>,
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

/// Makes size and checksum right, which no mutation would ever do.
pub fn mend(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let size = (bytes.len() as u64).to_le_bytes();
    bytes[48..56].copy_from_slice(&size);
    let crc32 = crc32fast::hash(&bytes[HEADER_BYTES..]);
    bytes[56..60].copy_from_slice(&crc32.to_le_bytes());
}

/// A manifest that says of the only tile what its header says, if there can be one.
fn manifest_of(bytes: &[u8]) -> Option<Manifest> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let n_cells = u64_at(bytes, 16);
    Manifest::new(NewManifest {
        n_genes: u64_at(bytes, 32) & u64::from(u32::MAX),
        tile_size: n_cells,
        tile_cells: vec![n_cells],
        tile_nnz: vec![u64_at(bytes, 24)],
        tile_bytes: vec![bytes.len() as u64],
        ..NewManifest::default()
    })
    .ok()
}

/// Opens and decodes the only tile of a dataset; `None` when no manifest can have such a tile.
pub fn decode(bytes: &[u8]) -> Option<Result<Decoded, DatasetError>> {
    let manifest = manifest_of(bytes)?;
    if manifest.nnz() > MOST_NONZEROS {
        return None;
    }
    let n_genes = manifest.n_genes;
    let store = Memory::default()
        .with("manifest.json", manifest.to_json().into_bytes())
        .with(tile_path(0), bytes);
    let dataset = Dataset::open(Arc::new(store)).expect("the manifest was accepted before");
    let decoded = all_chunks(&dataset);
    if let Ok(decoded) = &decoded {
        check(decoded, n_genes);
    }
    Some(decoded)
}

fn all_chunks(dataset: &Dataset) -> Result<Decoded, DatasetError> {
    let tile = dataset.tile(0)?;
    dataset.verify(&tile)?;
    let nnz = tile.layout().spec.nnz as usize;
    let mut decoded = Decoded {
        indptr: tile.indptr().to_vec(),
        indices: vec![-1; nnz],
        data: vec![-1; nnz],
    };
    for chunk in &tile.layout().chunks {
        let nonzeros = chunk.nonzeros.start as usize..chunk.nonzeros.end as usize;
        let indices = tile.decode_chunk(Array::Indices, chunk.index, &mut decoded.indices[nonzeros.clone()]);
        // What is wrong with one array says nothing of the other.
        tile.decode_chunk(Array::Data, chunk.index, &mut decoded.data[nonzeros])?;
        indices?;
    }
    Ok(decoded)
}

/// What the format promises of every tile that is not refused.
fn check(decoded: &Decoded, n_genes: u32) {
    let Decoded { indptr, indices, data } = decoded;
    assert!(data.iter().all(|&count| count >= 1));
    for row in indptr.windows(2) {
        let genes = &indices[row[0] as usize..row[1] as usize];
        assert!(genes.windows(2).all(|pair| pair[0] < pair[1]), "genes increase");
        assert!(
            genes.iter().all(|&gene| gene >= 0 && (gene as u32) < n_genes),
            "genes exist"
        );
    }
}
