use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::dataset::Dataset;
use crate::format::manifest::tile_path;
use crate::store::{Directory, Links};
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

fn open(root: &Path) -> Result<Dataset, DatasetError> {
    Dataset::open(Arc::new(Directory::open(root, Links::Anywhere).unwrap()))
}

fn read(root: &Path) -> Result<(), DatasetError> {
    let dataset = open(root)?;
    let tile = dataset.tile(1)?;
    dataset.verify(&tile)?;
    for chunk in &tile.layout().chunks {
        let mut out = vec![0; chunk.nnz() as usize];
        tile.decode_chunk(Array::Indices, chunk.index, &mut out)?;
        tile.decode_chunk(Array::Data, chunk.index, &mut out)?;
    }
    Ok(())
}

/// Where each file is wrong, and what is found there; the message goes on with what was expected.
const FAULTS: [(&str, &str); 43] = [
    ("bit_flip_indptr", "indptr: indptr[2] is 103"),
    ("bit_flip_stream", "file: CRC-32 is d31373e5"),
    ("chunk_cells_past_end", "chunk 3: cell_hi is 8"),
    ("chunk_gap_in_cells", "chunk 0: cell_lo is 1"),
    ("chunk_nnz_past_end", "chunk 3: nnz_hi is 231"),
    ("chunk_reversed", "chunk 0: nnz_hi is 0"),
    ("empty_file", "tile_bytes[1] is 0"),
    ("flags", "header: flags is 1"),
    (
        "frame_then_garbage",
        "chunk 0, vals: the stream has 144 bytes but its zstd frame 136",
    ),
    ("gaps_length_zero", "chunk 0, gaps: stream length is 0"),
    ("gaps_too_long", "chunk 0, gaps: frame content size is 278"),
    ("gene_equals_n_genes", "chunk 0, gexc: cell 0"),
    ("gexc_not_increasing", "chunk 0, gexc: position[1] is 0"),
    ("gexc_payload_n_genes", "chunk 0, gexc: payload[0] is 300000"),
    ("gexc_position_past_end", "chunk 0, gexc: position[0] is 138"),
    ("header_only", "tile_bytes[1] is 64"),
    ("indptr_first_not_zero", "indptr: indptr[0] is 1"),
    ("indptr_last_not_nnz", "indptr: indptr[7] is 229"),
    ("indptr_off_in_table", "header: indptr_off is 64"),
    ("indptr_off_past_end", "header: indptr_off is 1640"),
    ("magic", "header: magic is [64, 65, 6c, 74, 61, 63, 65, 6c]"),
    ("n_cells_huge", "header: n_cells is 9223372036854775813"),
    ("n_chunks_huge", "header: n_chunks is 268435456"),
    ("n_chunks_zero", "chunk 0: cells covered by chunks is 0"),
    ("n_genes_too_many", "header: n_genes is 2147483649"),
    ("n_genes_zero", "header: n_genes is 0"),
    ("nnz_off_by_one", "header: nnz is 231"),
    (
        "no_content_size",
        "chunk 0, gaps: the zstd frame does not state its content size",
    ),
    ("reserved", "header: reserved is 1"),
    ("short_header", "tile_bytes[1] is 63"),
    (
        "stream_offset_overflow",
        "chunk 0, vals: stream at 18446744073709551608 + 16",
    ),
    ("stream_past_end", "chunk 0, gaps: stream at 512 + 1633"),
    ("total_size_lies", "header: total_size is 1641"),
    ("trailing_bytes", "header: total_size is 1633"),
    (
        "two_frames",
        "chunk 0, vals: the stream has 169 bytes but its zstd frame 82",
    ),
    (
        "vals_not_zstd",
        "chunk 0, vals: not a valid zstd frame: the zstd magic number is missing",
    ),
    ("version_next", "header: version 3 is not supported"),
    ("version_zero", "header: version 0 is not supported"),
    ("vexc_not_increasing", "chunk 0, vexc: position[1] is 0"),
    ("vexc_odd_size", "chunk 0, vexc: frame content size is 12"),
    ("vexc_payload_small", "chunk 0, vexc: payload[0] is 65535"),
    ("vexc_position_past_end", "chunk 0, vexc: position[1] is 138"),
    ("vexc_too_many", "chunk 0, vexc: frame content size is 1112"),
];

#[test]
fn every_malformed_tile_is_refused_with_a_message_that_names_file_and_place() {
    let Some(root) = testdata::root() else { return };
    let entries = fs::read_dir(root.join("bad/tiles")).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let folder = edge_with(&root, &path);
        let Err(error) = read(folder.path()) else {
            panic!("{name} was not refused")
        };
        let message = error.to_string();
        let in_file = ["manifest.json", &tile_path(1)].iter().find_map(|file| {
            let full = folder.path().join(file);
            message.strip_prefix(full.to_str()?)?.strip_prefix(": ")
        });
        let Some(in_file) = in_file else {
            panic!("{name}: {message:?} names no file")
        };
        let fault = FAULTS.iter().find(|fault| fault.0 == name);
        let expected = fault.map_or("", |fault| fault.1);
        assert!(
            in_file.starts_with(expected),
            "{name}: {in_file:?}, expected {expected:?}"
        );
    }
}

/// Both arrays, or their part that is wanted, without asking for the checksum first.
fn decode_at_once(root: &Path, wanted: [bool; 2]) -> Result<[Option<Vec<i32>>; 2], DatasetError> {
    let dataset = open(root)?;
    let tile = dataset.tile(1)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let nonzeros = tile.layout().spec.nnz as usize;
    let [mut indices, mut data] = wanted.map(|wanted| wanted.then(|| vec![0; nonzeros]));
    dataset.decode(&tile, indices.as_deref_mut(), data.as_deref_mut(), &pool)?;
    assert!(tile.is_verified(), "what is decoded is verified");
    Ok([indices, data])
}

#[test]
fn decoding_at_once_refuses_every_malformed_tile() {
    let Some(root) = testdata::root() else { return };
    let entries = fs::read_dir(root.join("bad/tiles")).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        let folder = edge_with(&root, &path);
        assert!(decode_at_once(folder.path(), [true, true]).is_err(), "{path:?}");
    }
}

#[test]
fn decoding_at_once_finds_a_flipped_bit_wherever_it_is() {
    let Some(root) = testdata::root() else { return };
    let good = fs::read(root.join("edge.dc").join(tile_path(1))).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let damaged = scratch.path().join("damaged");
    for (at, bit) in (HEADER_BYTES..good.len()).step_by(7).zip((0..8).cycle()) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << bit;
        fs::write(&damaged, bytes).unwrap();
        let folder = edge_with(&root, &damaged);
        for wanted in [[true, true], [true, false], [false, true]] {
            assert!(
                decode_at_once(folder.path(), wanted).is_err(),
                "bit {bit} of byte {at}, wanted {wanted:?}"
            );
        }
    }
}

#[test]
fn a_part_of_a_good_tile_decodes_to_the_same_as_the_whole() {
    let Some(root) = testdata::root() else { return };
    let folder = edge_with(&root, &root.join("edge.dc").join(tile_path(1)));
    let [indices, data] = decode_at_once(folder.path(), [true, true]).unwrap();
    assert_eq!(decode_at_once(folder.path(), [true, false]).unwrap(), [indices, None]);
    assert_eq!(decode_at_once(folder.path(), [false, true]).unwrap(), [None, data]);
}
