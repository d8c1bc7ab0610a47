//! Writes inputs to start each target from, into the folder `corpus`, or another that is named.
//!
//! All of them are made here, with `dcfs::write` and `dcfs::format`; they are the same every time.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float32Array, Int8Array, Int64Array, RecordBatch, StringArray};
use dcfs::format::encode::{CsrRows, encode_tile};
use dcfs::format::manifest::{Manifest, NewManifest, ObsManifest};
use dcfs::format::obs::{ColumnKind, NumericType, ObsColumn, ObsSchema};
use dcfs::write::synthetic::{SyntheticOptions, synthetic_tile};
use dcfs::write::{DatasetWriter, WriterOptions};
use dcfs_fuzz::chunks::{Plan, Streams};
use dcfs_fuzz::obs_schema::{TILE_CELLS, every_kind};

fn main() -> Result<(), Box<dyn Error>> {
    let corpus = std::env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from("corpus"), PathBuf::from);
    let add = |target: &str, seeds: Vec<Vec<u8>>| -> Result<(), Box<dyn Error>> {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (index, seed) in seeds.into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{index}")), seed)?;
        }
        Ok(())
    };
    add("tile", tiles()?)?;
    add("chunks", plans().iter().map(Plan::to_input).collect())?;
    add("manifest", manifests()?)?;
    add("obs_schema", schemas()?)?;
    add("shard", vec![shard()?])
}

/// Small tiles: ordinary ones, empty cells, exceptions of both kinds.
fn tiles() -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let options = SyntheticOptions {
        n_cells: 12,
        n_genes: 40,
        tile_size: 12,
        mean_nnz_per_cell: 10,
        ..SyntheticOptions::default()
    };
    let synthetic = synthetic_tile(&options, 0)?;
    let hard = CsrRows::new(
        200_000,
        &[0, 0, 4, 4, 7, 7],
        &[0, 65_535, 131_071, 199_999, 65_536, 65_537, 131_073],
        &[1, 65_535, 65_536, i32::MAX, 2, 70_000, 1],
    )?;
    let nothing: CsrRows<'_, i32, i32> = CsrRows::new(1, &[0, 0, 0], &[], &[])?;
    Ok(vec![
        encode_tile(&synthetic.rows()?, 1, 19)?,
        encode_tile(&synthetic.rows()?, 4, 1)?,
        encode_tile(&hard, 1, 19)?,
        encode_tile(&hard, 3, 19)?,
        encode_tile(&nothing, 2, 3)?,
    ])
}

fn plans() -> Vec<Plan> {
    let one = Streams::default();
    let plain = Plan {
        n_genes: 100,
        other_gaps: 1,
        other_values: 1,
        cells: vec![3, 0, 20],
        cuts: vec![1],
        chunks: vec![one.clone(), one.clone()],
    };
    let exceptions = Plan {
        n_genes: 400_000,
        cells: vec![5, 3],
        cuts: vec![0],
        chunks: vec![
            one.clone(),
            Streams {
                gaps: vec![65_535, 65_535, 1, 65_535, 2, 65_535, 1, 1],
                values: vec![65_535, 1, 65_535, 1, 1, 1, 1, 65_535],
                value_exceptions: vec![(0, 65_536), (2, 100_000), (7, i32::MAX as u32)],
                gap_exceptions: vec![(0, 1), (3, 1000), (5, 70_000)],
            },
        ],
        ..plain.clone()
    };
    // Gaps that add up to a gene below the limit when 32 bits overflow.
    let wrapping = Plan {
        n_genes: 1 << 31,
        other_gaps: 65_535,
        other_values: 7,
        cells: vec![65_535, 2],
        cuts: vec![],
        chunks: vec![Streams {
            gaps: vec![0, 9],
            ..one
        }],
    };
    vec![plain, exceptions, wrapping]
}

fn manifests() -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let new = NewManifest {
        n_genes: 300,
        tile_size: 7,
        tile_cells: vec![7, 7, 2],
        tile_nnz: vec![100, 0, 9],
        tile_bytes: vec![400, 300, 200],
        n_chunks: 8,
        zstd_level: 19,
        has_gene_order: true,
        has_var_names: true,
        has_var_table: true,
        obs: Some(ObsManifest {
            tiles_per_file: 2,
            shard_bytes: vec![100, 200],
            shard_sha256: vec!["0a".repeat(32), "1b".repeat(32)],
            fingerprint: "c2".repeat(12),
        }),
        ..NewManifest::default()
    };
    let without_obs = NewManifest {
        obs: None,
        has_var_table: false,
        ..new.clone()
    };
    let text = |new| Manifest::new(new).map(|manifest| manifest.to_json().into_bytes());
    Ok(vec![text(new)?, text(without_obs)?])
}

fn schemas() -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let names = ["", "..", "a/b", "100 %", "é", "\u{1f9ec}"].map(String::from);
    let columns = names.iter().chain([&"long".repeat(80)]).map(|name| ObsColumn {
        name: name.clone(),
        kind: ColumnKind::Category {
            codes: NumericType::Int16,
            categories: names.to_vec(),
        },
    });
    let odd = ObsSchema::new(columns.collect())?;
    Ok([every_kind(), odd].map(|schema| schema.text.into_bytes()).to_vec())
}

/// The only shard of a dataset of the schema and the tiles that the target expects.
fn shard() -> Result<Vec<u8>, Box<dyn Error>> {
    let root = std::env::temp_dir().join(format!("dcfs-fuzz-seeds-{}", std::process::id()));
    let options = WriterOptions {
        tile_size: TILE_CELLS[0],
        obs: Some(every_kind().columns),
        ..WriterOptions::new(10)
    };
    let mut writer = DatasetWriter::create(&root, options)?;
    let n = TILE_CELLS.iter().sum::<u64>() as usize;
    let missing = |cell: usize| cell % 5 != 3;
    let arrays: [ArrayRef; 5] = [
        Arc::new((0..n).map(|cell| Some((cell % 4) as i8 - 1)).collect::<Int8Array>()),
        Arc::new(
            (0..n)
                .map(|cell| missing(cell).then_some(cell as i64 * 1000))
                .collect::<Int64Array>(),
        ),
        Arc::new(
            (0..n)
                .map(|cell| missing(cell).then_some(cell as f32 / 8.0))
                .collect::<Float32Array>(),
        ),
        Arc::new(
            (0..n)
                .map(|cell| missing(cell).then_some(cell % 2 == 0))
                .collect::<BooleanArray>(),
        ),
        Arc::new(
            (0..n)
                .map(|cell| missing(cell).then_some(format!("cell-{cell}")))
                .collect::<StringArray>(),
        ),
    ];
    let names = every_kind().columns;
    let columns = names
        .iter()
        .zip(arrays)
        .map(|(column, array)| (column.name.as_str(), array, true));
    let obs = RecordBatch::try_from_iter_with_nullable(columns)?;
    let indptr = vec![0; n + 1];
    let rows: CsrRows<'_, i32, i32> = CsrRows::new(10, &indptr, &[], &[])?;
    let written = writer.push(rows, Some(&obs)).and_then(|()| writer.finish());
    let shard = read(&root.join("obs/obs_0000.parquet"));
    fs::remove_dir_all(&root)?;
    written?;
    shard
}

fn read(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    Ok(fs::read(path)?)
}
