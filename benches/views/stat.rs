//! Looking at `dataset.h5ad` of a hundred million cells, which takes finding out what is missing in their columns.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int64Array, RecordBatch};
use dcfs::format::encode::CsrRows;
use dcfs::format::fingerprint::fingerprint;
use dcfs::format::manifest::{Manifest, NewManifest, ObsManifest, shard_path, tile_path};
use dcfs::format::obs::{ColumnKind, NumericType, ObsColumn};
use dcfs::write::{DatasetWriter, WriterOptions};

use crate::Result;
use crate::daemon::Mount;
use crate::folder::Folder;
use crate::table::{Line, Table, Target, median};
use crate::wanted::Wanted;

const LINE: &str = "stat of dataset.h5ad, 10^8 cells";
const MEMORY: &str = "memory of the daemon after that";
const TILE_CELLS: u64 = 10_000;
/// Tiles of a shard, and how many links there are to the one shard.
const TILES_PER_FILE: usize = 1_000;
const SHARDS: usize = 10;

pub fn measure(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    if !wanted.has(LINE) && !wanted.has(MEMORY) {
        return Ok(());
    }
    let dataset = folder.made("hundred-million", make)?;
    let (mut seconds, mut resident) = (Vec::new(), Vec::new());
    for round in 0..=wanted.rounds {
        wanted.go_on()?;
        let mount = Mount::start(&dataset, &[])?;
        let started = Instant::now();
        let size = fs::metadata(mount.path().join("dataset.h5ad"))?.len();
        let took = started.elapsed().as_secs_f64();
        assert!(size > 8 * 47_000_000 * (SHARDS * TILES_PER_FILE) as u64, "{size} bytes");
        let status = fs::read_to_string(mount.process().join("status"))?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: f64 = kib.ok_or("no VmRSS")?.trim().trim_end_matches(" kB").parse()?;
        mount.stop()?;
        if round > 0 {
            seconds.push(took);
            resident.push(kib / 1024.0);
        }
    }
    for (measure, found, unit, most) in [
        (LINE, median(seconds), " s", 1.0),
        (MEMORY, median(resident), " MiB", 100.0),
    ] {
        table.add(Line {
            measure: measure.into(),
            against: "-".into(),
            found,
            unit,
            target: Target::AtMost(most),
            details: String::new(),
        });
    }
    Ok(())
}

/// A dataset of tiles that are not there, whose shards are links to one.
fn make(root: &Path) -> Result<()> {
    let numbers = |number| ColumnKind::Numeric(number);
    let columns = [
        ("type", category()),
        ("donor", numbers(NumericType::Int64)),
        ("total", numbers(NumericType::Float32)),
        ("score", numbers(NumericType::Float64)),
        ("doublet", ColumnKind::Bool),
    ];
    let columns = columns.map(|(name, kind)| ObsColumn {
        name: name.into(),
        kind,
    });
    let options = WriterOptions {
        obs: Some(columns.to_vec()),
        obs_tiles_per_file: TILES_PER_FILE as u64,
        level: 1,
        ..WriterOptions::new(38_094)
    };
    let mut writer = DatasetWriter::create(root, options)?;
    let indptr = vec![0_i64; TILE_CELLS as usize + 1];
    for tile in 0..TILES_PER_FILE as u64 {
        let rows = CsrRows::<i32, i32>::new(38_094, &indptr, &[], &[])?;
        writer.push(rows, Some(&obs(tile)?))?;
    }
    writer.finish()?;
    let tiles = SHARDS * TILES_PER_FILE;
    let one = Manifest::parse(&fs::read(root.join("manifest.json"))?)?;
    let one = one.obs.ok_or("the dataset has no obs")?;
    for shard in 1..SHARDS {
        std::os::unix::fs::symlink("obs_0000.parquet", root.join(shard_path(shard)))?;
    }
    for tile in 0..TILES_PER_FILE {
        fs::remove_file(root.join(tile_path(tile)))?;
    }
    let sha256 = vec![one.shard_sha256[0].clone(); SHARDS];
    let schema = fs::read_to_string(root.join("obs/schema.json"))?;
    let obs = ObsManifest {
        tiles_per_file: TILES_PER_FILE as u64,
        shard_bytes: vec![one.shard_bytes[0]; SHARDS],
        fingerprint: fingerprint(&schema, std::iter::repeat_n(TILE_CELLS, tiles), &sha256),
        shard_sha256: sha256,
    };
    let manifest = Manifest::new(NewManifest {
        n_genes: 38_094,
        tile_size: TILE_CELLS,
        tile_cells: vec![TILE_CELLS; tiles],
        tile_nnz: vec![47_000_000; tiles],
        tile_bytes: vec![32_000_000; tiles],
        obs: Some(obs),
        ..NewManifest::default()
    })?;
    Ok(fs::write(root.join("manifest.json"), manifest.to_json())?)
}

fn category() -> ColumnKind {
    ColumnKind::Category {
        codes: NumericType::Int8,
        categories: (0..12).map(|label| format!("type {label}")).collect(),
    }
}

/// Rows that compress about as well as those of real cells.
fn obs(tile: u64) -> Result<RecordBatch> {
    let cell = |i: u64| (tile * TILE_CELLS + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let cells = || (0..TILE_CELLS).map(cell);
    let arrays: [(&str, ArrayRef); 5] = [
        (
            "type",
            Arc::new(Int8Array::from_iter_values(cells().map(|c| (c % 12) as i8))),
        ),
        (
            "donor",
            Arc::new(Int64Array::from_iter_values(cells().map(|c| (c % 4_000) as i64))),
        ),
        (
            "total",
            Arc::new(Float32Array::from_iter_values(cells().map(|c| (c % 20_000) as f32))),
        ),
        (
            "score",
            Arc::new(Float64Array::from_iter_values(cells().map(|c| c as f64 / 1e6))),
        ),
        (
            "doublet",
            Arc::new(BooleanArray::from_iter(cells().map(|c| Some(c % 17 == 0)))),
        ),
    ];
    Ok(RecordBatch::try_from_iter(arrays)?)
}
