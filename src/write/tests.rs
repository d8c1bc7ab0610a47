//! Whole datasets, written and read back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int8Array, Int16Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::synthetic::{Csr, Synthetic, SyntheticOptions, synthetic_tile};
use super::*;
use crate::format::encode::{CsrRows, EncodeError, EntryFault};
use crate::format::fingerprint::{fingerprint, hex};
use crate::format::manifest::{Manifest, shard_path, tile_path};
use crate::format::obs::{ColumnKind, NumericType, ObsColumn, ObsSchema};
use crate::format::plain;

fn small() -> SyntheticOptions {
    SyntheticOptions {
        n_cells: 230,
        n_genes: 300,
        tile_size: 50,
        mean_nnz_per_cell: 40,
        clusters: 3,
        seed: 7,
        n_chunks: 4,
        level: 3,
        threads: 2,
        obs_tiles_per_file: 2,
    }
}

/// Every file below a folder, by its path from there.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(path).unwrap());
            }
        }
    }
    found
}

/// The same files, with a short message where they are not.
fn assert_same_files(found: &Path, expected: &Path) {
    let (found, expected) = (files(found), files(expected));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &expected {
        assert!(found[name] == *bytes, "{name} differs");
    }
}

fn read_manifest(root: &Path) -> Manifest {
    Manifest::parse(&fs::read(root.join("manifest.json")).unwrap()).unwrap()
}

/// The row groups of a Parquet file.
fn batches(path: &Path) -> Vec<RecordBatch> {
    let builder = || ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    (0..builder().metadata().num_row_groups())
        .map(|group| {
            let builder = builder().with_row_groups(vec![group]);
            let rows = builder.metadata().row_group(group).num_rows() as usize;
            // The reader's batches have lost the metadata of the schema.
            let schema = builder.schema().clone();
            let mut reader = builder.with_batch_size(rows).build().unwrap();
            RecordBatch::try_new(schema, reader.next().unwrap().unwrap().columns().to_vec()).unwrap()
        })
        .collect()
}

fn options(n_genes: u32) -> WriterOptions {
    WriterOptions {
        tile_size: 4,
        level: 1,
        threads: 2,
        ..WriterOptions::new(n_genes)
    }
}

/// Cells of one nonzero each: gene 1, this count.
fn cells(counts: &[i64]) -> (Vec<i64>, Vec<i64>) {
    ((0..=counts.len() as i64).collect(), vec![1; counts.len()])
}

fn push(writer: &mut DatasetWriter, counts: &[i64]) -> Result<(), WriteError> {
    let (indptr, genes) = cells(counts);
    writer.push(CsrRows::new(3, &indptr, &genes, counts).unwrap(), None)
}

fn assert_no_dataset(root: &Path) {
    let left = files(root);
    let unwanted: Vec<_> = left
        .keys()
        .filter(|name| name.contains("manifest") || name.contains(".tmp"))
        .collect();
    assert!(unwanted.is_empty(), "{unwanted:?}");
}

#[test]
fn a_written_dataset_holds_the_cells_that_were_made() {
    let folder = TempDir::new().unwrap();
    let finished = Synthetic::new(small()).unwrap().write(folder.path()).unwrap();
    let manifest = read_manifest(folder.path());
    assert_eq!(manifest.to_json(), finished.manifest.to_json());
    assert_eq!((manifest.n_cells, manifest.n_genes, manifest.n_tiles()), (230, 300, 5));
    for tile in 0..manifest.n_tiles() {
        let expected = synthetic_tile(&small(), tile).unwrap();
        let bytes = fs::read(folder.path().join(tile_path(tile))).unwrap();
        let spec = manifest.tile(tile);
        assert_eq!(spec.bytes, bytes.len() as u64);
        let found = plain::read(&bytes);
        assert_eq!(spec.n_cells + 1, found.indptr.len() as u64);
        assert_eq!(found.indptr, expected.indptr);
        assert_eq!(
            found.indices,
            expected.indices.iter().map(|&g| g.into()).collect::<Vec<i64>>()
        );
        assert_eq!(
            found.counts,
            expected.counts.iter().map(|&c| c.into()).collect::<Vec<i64>>()
        );
    }
}

#[test]
fn obs_shards_have_a_row_group_for_each_tile_and_no_statistics() {
    let folder = TempDir::new().unwrap();
    let synthetic = Synthetic::new(small()).unwrap();
    synthetic.write(folder.path()).unwrap();
    let manifest = read_manifest(folder.path());
    let obs = manifest.obs.as_ref().unwrap();
    let text = fs::read(folder.path().join("obs/schema.json")).unwrap();
    let schema = ObsSchema::parse(&text).unwrap();
    assert_eq!(schema.columns, synthetic.obs_columns());
    assert_eq!(obs.shard_bytes.len(), 3);
    let mut tile = 0;
    for shard in 0..3 {
        let path = folder.path().join(shard_path(shard));
        let bytes = fs::read(&path).unwrap();
        assert_eq!(obs.shard_bytes[shard], bytes.len() as u64);
        assert_eq!(obs.shard_sha256[shard], hex(&Sha256::digest(&bytes)));
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        for group in builder.metadata().row_groups() {
            assert!(group.columns().iter().all(|column| column.statistics().is_none()));
        }
        for found in batches(&path) {
            let first = manifest.cells_before(tile);
            let range = first..first + manifest.tile_cells(tile);
            assert_eq!(found.columns(), synthetic.obs(range, &synthetic.tile(tile)).columns());
            tile += 1;
        }
    }
    assert_eq!(tile, manifest.n_tiles());
    let cells = (0..manifest.n_tiles()).map(|tile| manifest.tile_cells(tile));
    let text = String::from_utf8(text).unwrap();
    assert_eq!(obs.fingerprint, fingerprint(&text, cells, &obs.shard_sha256));
}

#[test]
fn neither_threads_nor_the_size_of_pushes_change_a_byte() {
    let synthetic = Synthetic::new(small()).unwrap();
    let reference = TempDir::new().unwrap();
    synthetic.write(reference.path()).unwrap();
    for (threads, step) in [(1, 230), (2, 7), (5, 50), (3, 1)] {
        let folder = TempDir::new().unwrap();
        let options = WriterOptions {
            tile_size: 50,
            n_chunks: 4,
            level: 3,
            threads,
            genes: synthetic.genes(),
            obs: Some(synthetic.obs_columns()),
            obs_tiles_per_file: 2,
            metadata: read_manifest(reference.path()).metadata,
            ..WriterOptions::new(300)
        };
        let mut writer = DatasetWriter::create(folder.path(), options).unwrap();
        for start in (0..230).step_by(step) {
            assert_eq!(writer.n_cells(), start);
            let range = start..230.min(start + step as u64);
            let counts = synthetic.cells(range.clone());
            writer
                .push(counts.rows().unwrap(), Some(&synthetic.obs(range, &counts)))
                .unwrap();
        }
        writer.finish().unwrap();
        assert_same_files(folder.path(), reference.path());
    }
}

/// Reads a stored dataset and writes it again.
fn rewrite(stored: &Path, root: &Path) {
    let manifest = read_manifest(stored);
    let text = fs::read(stored.join("obs/schema.json")).unwrap();
    let var = batches(&stored.join("var.parquet"));
    let names = fs::read_to_string(stored.join("var_names.txt")).unwrap();
    let npy = fs::read(stored.join("gene_order.npy")).unwrap();
    let order = npy[npy.len() - 4 * manifest.n_genes as usize..].chunks_exact(4);
    let options = WriterOptions {
        tile_size: manifest.tile_size,
        n_chunks: manifest.n_chunks as u32,
        level: manifest.zstd_level as i32,
        genes: Genes {
            order: Some(order.map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()),
            names: Some(names.lines().map(str::to_owned).collect()),
            table: Some(arrow::compute::concat_batches(&var[0].schema(), &var).unwrap()),
        },
        obs: Some(ObsSchema::parse(&text).unwrap().columns),
        obs_tiles_per_file: manifest.obs.as_ref().unwrap().tiles_per_file,
        metadata: manifest.metadata.clone(),
        ..WriterOptions::new(manifest.n_genes)
    };
    let shards = manifest.obs.as_ref().unwrap().shard_bytes.len();
    let obs = (0..shards).flat_map(|shard| batches(&stored.join(shard_path(shard))));
    let mut writer = DatasetWriter::create(root, options).unwrap();
    for (tile, obs) in obs.enumerate() {
        let cells = plain::read(&fs::read(stored.join(tile_path(tile))).unwrap());
        let rows = CsrRows::new(cells.n_genes, &cells.indptr, &cells.indices, &cells.counts).unwrap();
        writer.push(rows, Some(&obs)).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn stored_datasets_written_again_say_the_same() {
    for stored in crate::testdata::datasets() {
        let folder = TempDir::new().unwrap();
        rewrite(&stored, folder.path());
        let (old, new) = (read_manifest(&stored), read_manifest(folder.path()));
        assert_eq!((new.n_cells, &new.tile_nnz), (old.n_cells, &old.tile_nnz));
        assert_eq!(new.metadata, old.metadata);
        for same in ["obs/schema.json", "gene_order.npy", "var_names.txt"] {
            let (found, expected) = (fs::read(folder.path().join(same)), fs::read(stored.join(same)));
            assert!(found.unwrap() == expected.unwrap(), "{same} of {}", stored.display());
        }
        for tile in 0..old.n_tiles() {
            let read = |root: &Path| plain::read(&fs::read(root.join(tile_path(tile))).unwrap());
            let (found, expected) = (read(folder.path()), read(&stored));
            assert_eq!(
                (found.indptr, found.indices, found.counts),
                (expected.indptr, expected.indices, expected.counts)
            );
        }
        let shards = (0..old.obs.as_ref().unwrap().shard_bytes.len()).map(shard_path);
        for path in shards.chain(["var.parquet".to_owned()]) {
            let (found, expected) = (batches(&folder.path().join(&path)), batches(&stored.join(&path)));
            assert_eq!(found.len(), expected.len(), "row groups of {path}");
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.columns(), expected.columns(), "{path} of {}", stored.display());
            }
            let pandas = |batches: &[RecordBatch]| batches[0].schema().metadata().get("pandas").cloned();
            if path == "var.parquet" {
                assert!(pandas(&found).is_some());
                assert_eq!(pandas(&found), pandas(&expected));
            }
        }
    }
}

#[test]
fn the_gene_table_keeps_its_pandas_index() {
    let folder = TempDir::new().unwrap();
    Synthetic::new(small()).unwrap().write(folder.path()).unwrap();
    let file = File::open(folder.path().join("var.parquet")).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let beside = builder.metadata().file_metadata().key_value_metadata().unwrap();
    let pandas = beside.iter().find(|entry| entry.key == "pandas").unwrap();
    assert!(
        pandas
            .value
            .as_ref()
            .unwrap()
            .contains(r#""index_columns":["gene_name"]"#)
    );
    assert_eq!(builder.schema().metadata().get("pandas"), pandas.value.as_ref());
}

#[test]
fn a_folder_that_is_not_empty_is_left_alone() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("precious"), "data").unwrap();
    let refused = DatasetWriter::create(folder.path(), options(3));
    assert!(matches!(refused, Err(WriteError::NotEmpty(_))));
    assert_eq!(files(folder.path()).len(), 1);
    let refused = DatasetWriter::create(&folder.path().join("precious"), options(3));
    assert!(matches!(refused, Err(WriteError::Io { .. })));
}

#[test]
fn a_dropped_writer_leaves_no_manifest_and_no_temporary_file() {
    let folder = TempDir::new().unwrap();
    let synthetic = Synthetic::new(small()).unwrap();
    let options = WriterOptions {
        obs: Some(synthetic.obs_columns()),
        tile_size: 50,
        ..options(300)
    };
    let mut writer = DatasetWriter::create(folder.path(), options).unwrap();
    let counts = synthetic.cells(0..120);
    writer
        .push(counts.rows().unwrap(), Some(&synthetic.obs(0..120, &counts)))
        .unwrap();
    drop(writer);
    assert_no_dataset(folder.path());
}

#[test]
fn an_entry_that_cannot_be_stored_is_named_by_its_cell_of_the_dataset() {
    let folder = TempDir::new().unwrap();
    let mut writer = DatasetWriter::create(folder.path(), options(3)).unwrap();
    push(&mut writer, &[1; 9]).unwrap();
    let error = push(&mut writer, &[1, 1, 1, 0]).unwrap_err();
    let expected = EncodeError::Entry {
        cell: 12,
        gene: 1,
        fault: EntryFault::Zero,
    };
    assert!(
        matches!(&error, WriteError::Tile { tile: 3, source } if *source == expected),
        "{error}"
    );
    assert!(matches!(push(&mut writer, &[1]), Err(WriteError::FailedBefore(_))));
    assert!(matches!(writer.finish(), Err(WriteError::FailedBefore(_))));
    assert_no_dataset(folder.path());
}

#[test]
fn too_many_exceptions_are_refused_in_the_end_with_their_cell_of_the_dataset() {
    let folder = TempDir::new().unwrap();
    let options = WriterOptions {
        tile_size: 2_000,
        ..options(3)
    };
    let mut writer = DatasetWriter::create(folder.path(), options).unwrap();
    push(&mut writer, &[1; 2_300]).unwrap();
    push(&mut writer, &[70_000; 1_025]).unwrap();
    let error = writer.finish().unwrap_err();
    let WriteError::Tile { tile: 1, source } = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(
            source,
            EncodeError::TooManyExceptions {
                cell: 2_300,
                gene: 1,
                found: 1_025,
                ..
            }
        ),
        "{error}"
    );
    assert_no_dataset(folder.path());
}

#[test]
fn a_tile_that_cannot_be_written_fails_the_dataset() {
    let folder = TempDir::new().unwrap();
    let mut writer = DatasetWriter::create(folder.path(), options(3)).unwrap();
    fs::remove_dir(folder.path().join("tiles")).unwrap();
    let mut outcome = Ok(());
    for _ in 0..20 {
        outcome = outcome.and_then(|()| push(&mut writer, &[1; 4]));
    }
    let outcome = outcome.and_then(|()| writer.finish().map(|_| ()));
    assert!(matches!(outcome, Err(WriteError::Io { .. })), "{outcome:?}");
    assert_no_dataset(folder.path());
}

#[test]
fn a_dataset_without_cells_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut writer = DatasetWriter::create(folder.path(), options(3)).unwrap();
    push(&mut writer, &[]).unwrap();
    assert!(matches!(writer.finish(), Err(WriteError::NoCells)));
    assert_no_dataset(folder.path());
}

#[test]
fn another_number_of_genes_is_refused() {
    let folder = TempDir::new().unwrap();
    let mut writer = DatasetWriter::create(folder.path(), options(4)).unwrap();
    let refused = push(&mut writer, &[1]);
    assert!(matches!(
        refused,
        Err(WriteError::Genes {
            found: 3,
            expected: 4,
            ..
        })
    ));
}

#[test]
fn options_outside_their_range_are_refused() {
    let with = |change: fn(&mut WriterOptions)| {
        let mut options = options(3);
        change(&mut options);
        let folder = TempDir::new().unwrap();
        match DatasetWriter::create(folder.path(), options) {
            Err(WriteError::Option { option, .. }) => option,
            Err(error) => panic!("{error}"),
            Ok(_) => "accepted",
        }
    };
    assert_eq!(with(|_| {}), "accepted");
    assert_eq!(with(|options| options.n_genes = 0), "n_genes");
    assert_eq!(with(|options| options.n_genes = (1 << 31) + 1), "n_genes");
    assert_eq!(with(|options| options.tile_size = 0), "tile_size");
    assert_eq!(with(|options| options.tile_size = u64::MAX), "tile_size");
    assert_eq!(with(|options| options.n_chunks = 0), "n_chunks");
    assert_eq!(with(|options| options.level = 23), "level");
    assert_eq!(with(|options| options.obs_tiles_per_file = 0), "obs_tiles_per_file");
    assert_eq!(
        with(|options| options.obs_tiles_per_file = u64::MAX),
        "obs_tiles_per_file"
    );
}

#[test]
fn what_is_said_of_genes_must_fit_them() {
    let names = |names: [&str; 3]| Some(names.map(str::to_owned).to_vec());
    let refused = |genes: Genes| genes.check(3).unwrap_err().to_string();
    let order = |order: &[i32]| Genes {
        order: Some(order.to_vec()),
        ..Genes::default()
    };
    assert!(order(&[2, 0, 1]).check(3).is_ok());
    assert_eq!(
        refused(order(&[0, 1])),
        "gene_order has 2 genes, expected 3, the dataset's"
    );
    assert_eq!(
        refused(order(&[0, 1, 1])),
        "gene_order[2] is 1, expected each of 0 to 2 once"
    );
    assert_eq!(
        refused(order(&[0, 3, 1])),
        "gene_order[1] is 3, expected each of 0 to 2 once"
    );
    assert_eq!(
        refused(order(&[0, -1, 1])),
        "gene_order[1] is -1, expected each of 0 to 2 once"
    );
    let broken = Genes {
        names: names(["a", "b\nc", "d"]),
        ..Genes::default()
    };
    assert!(matches!(broken.check(3), Err(WriteError::GeneName { gene: 1, .. })));
    let table = RecordBatch::try_from_iter([("id", Arc::new(Int8Array::from(vec![1])) as ArrayRef)]).unwrap();
    let short = Genes {
        table: Some(table),
        ..Genes::default()
    };
    assert_eq!(refused(short), "the gene table has 1 genes, expected 3, the dataset's");
}

fn obs_columns() -> Vec<ObsColumn> {
    let category = ColumnKind::Category {
        codes: NumericType::Int8,
        categories: vec!["a".into(), "b".into()],
    };
    vec![
        ObsColumn {
            name: "kind".into(),
            kind: category,
        },
        ObsColumn {
            name: "n".into(),
            kind: ColumnKind::Numeric(NumericType::Int64),
        },
    ]
}

fn obs_refusal(columns: Vec<(&str, ArrayRef)>) -> Option<String> {
    let folder = TempDir::new().unwrap();
    let options = WriterOptions {
        obs: Some(obs_columns()),
        ..options(3)
    };
    let mut writer = DatasetWriter::create(folder.path(), options).unwrap();
    let (indptr, genes) = cells(&[1, 1]);
    let batch = (!columns.is_empty()).then(|| RecordBatch::try_from_iter(columns).unwrap());
    let rows = CsrRows::new(3, &indptr, &genes, &[1_i64, 1]).unwrap();
    writer.push(rows, batch.as_ref()).err().map(|error| error.to_string())
}

#[test]
fn obs_that_does_not_fit_is_refused_by_column_and_cell() {
    let codes = |codes: &[i8]| Arc::new(Int8Array::from(codes.to_vec())) as ArrayRef;
    let numbers = || Arc::new(Int64Array::from(vec![Some(5), None])) as ArrayRef;
    assert_eq!(obs_refusal(vec![("kind", codes(&[1, -1])), ("n", numbers())]), None);
    let prefix = "obs of the cells from 0: ";
    for (columns, message) in [
        (
            vec![],
            "the table is absent, expected one with the columns that were announced",
        ),
        (vec![("kind", codes(&[0, 1]))], "the number of columns is 1, expected 2"),
        (
            vec![("n", numbers()), ("kind", codes(&[0, 1]))],
            "the name of column 0 is \"n\", expected \"kind\"",
        ),
        (
            vec![
                ("kind", Arc::new(Int16Array::from(vec![0, 1])) as ArrayRef),
                ("n", numbers()),
            ],
            "the type of column \"kind\" is Int16, expected Int8",
        ),
    ] {
        assert_eq!(obs_refusal(columns), Some(format!("{prefix}{message}")));
    }
    for (wrong, code) in [
        (codes(&[0, 2]), "2"),
        (codes(&[0, -2]), "-2"),
        (Arc::new(Int8Array::from(vec![Some(0), None])) as ArrayRef, "null"),
    ] {
        let message = format!("obs column \"kind\", cell 1: code {code}, expected -1 (missing) to 1");
        assert_eq!(obs_refusal(vec![("kind", wrong), ("n", numbers())]), Some(message));
    }
    let one = Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    assert_eq!(
        obs_refusal(vec![("kind", codes(&[0])), ("n", one)]),
        Some(format!("{prefix}the number of rows is 1, expected 2"))
    );
}

#[test]
fn obs_nobody_announced_and_obs_without_columns_are_refused() {
    let folder = TempDir::new().unwrap();
    let mut writer = DatasetWriter::create(&folder.path().join("a"), options(3)).unwrap();
    let batch = RecordBatch::try_from_iter([("s", Arc::new(StringArray::from(vec!["x"])) as ArrayRef)]).unwrap();
    let (indptr, genes) = cells(&[1]);
    let refused = writer.push(CsrRows::new(3, &indptr, &genes, &[1_i64]).unwrap(), Some(&batch));
    assert!(matches!(refused, Err(WriteError::Obs { .. })));
    let empty = WriterOptions {
        obs: Some(Vec::new()),
        ..options(3)
    };
    let refused = DatasetWriter::create(&folder.path().join("b"), empty);
    assert!(matches!(refused, Err(WriteError::ObsEmpty)));
}

/// A hash over the arrays of a matrix.
fn digest(csr: &Csr) -> String {
    let mut hash = Sha256::new();
    csr.indptr.iter().for_each(|start| hash.update(start.to_le_bytes()));
    csr.indices.iter().for_each(|gene| hash.update(gene.to_le_bytes()));
    csr.counts.iter().for_each(|count| hash.update(count.to_le_bytes()));
    hex(&hash.finalize())[..16].to_owned()
}

#[test]
fn a_seed_gives_the_same_cells_on_every_machine() {
    assert_eq!(digest(&synthetic_tile(&small(), 1).unwrap()), "88388c3ed53ea21d");
}

#[test]
fn another_seed_gives_other_cells() {
    let other = SyntheticOptions { seed: 8, ..small() };
    assert_ne!(synthetic_tile(&other, 0).unwrap(), synthetic_tile(&small(), 0).unwrap());
}

#[test]
fn a_cell_is_the_same_however_it_is_asked_for() {
    let synthetic = Synthetic::new(small()).unwrap();
    let (whole, part) = (synthetic.cells(0..230), synthetic.cells(103..166));
    let nonzeros = whole.indptr[103] as usize..whole.indptr[166] as usize;
    assert_eq!(part.indices, whole.indices[nonzeros.clone()]);
    assert_eq!(part.counts, whole.counts[nonzeros]);
    let tiled = Synthetic::new(SyntheticOptions {
        tile_size: 230,
        ..small()
    })
    .unwrap();
    assert_eq!(tiled.tile(0), whole);
}

#[test]
fn made_up_cells_have_as_many_nonzeros_as_asked_and_genes_fall() {
    let options = SyntheticOptions {
        n_cells: 2_000,
        n_genes: 4_000,
        tile_size: 2_000,
        mean_nnz_per_cell: 500,
        ..SyntheticOptions::default()
    };
    let cells = synthetic_tile(&options, 0).unwrap();
    let mean = cells.indices.len() as f64 / 2_000.0;
    assert!((450.0..550.0).contains(&mean), "{mean}");
    let mut totals = vec![0_i64; 40];
    for (&gene, &count) in cells.indices.iter().zip(&cells.counts) {
        totals[gene as usize / 100] += i64::from(count);
    }
    assert!(totals.windows(2).all(|pair| pair[0] > pair[1]), "{totals:?}");
    let ones = cells.counts.iter().filter(|&&count| count == 1).count();
    let share = ones as f64 / cells.counts.len() as f64;
    assert!((0.4..0.9).contains(&share), "{share}");
}

#[test]
fn made_up_obs_has_missing_values_and_unique_names() {
    let synthetic = Synthetic::new(small()).unwrap();
    let obs = synthetic.obs(0..230, &synthetic.cells(0..230));
    for (index, field) in obs.schema().fields().iter().enumerate() {
        let full = [
            "obs_names",
            "cell_type",
            "donor",
            "total_counts",
            "n_genes_by_counts",
            "pct_counts_mt",
        ];
        let nulls = obs.column(index).null_count();
        assert_eq!(nulls == 0, full.contains(&field.name().as_str()), "{}", field.name());
    }
    let codes = obs.column(1).as_any().downcast_ref::<Int8Array>().unwrap();
    assert!(codes.values().contains(&-1));
    let names = obs.column(0).as_any().downcast_ref::<StringArray>().unwrap();
    let unique: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), 230);
}

#[test]
fn made_up_data_of_extreme_sizes_can_be_written() {
    for (n_genes, mean, clusters) in [(1, 1, 1), (70_000, 3, 200), (20, 18, 2)] {
        let folder = TempDir::new().unwrap();
        let options = SyntheticOptions {
            n_cells: 11,
            n_genes,
            tile_size: 3,
            mean_nnz_per_cell: mean,
            clusters,
            level: 1,
            ..SyntheticOptions::default()
        };
        let finished = Synthetic::new(options).unwrap().write(folder.path()).unwrap();
        assert_eq!(finished.manifest.n_tiles(), 4);
    }
}

#[test]
fn made_up_data_with_options_outside_their_range_is_refused() {
    let refused = |change: fn(&mut SyntheticOptions)| {
        let mut options = small();
        change(&mut options);
        matches!(Synthetic::new(options), Err(WriteError::Option { .. }))
    };
    assert!(!refused(|_| {}));
    assert!(refused(|options| options.n_cells = 0));
    assert!(refused(|options| options.n_genes = 0));
    assert!(refused(|options| options.tile_size = 0));
    assert!(refused(|options| options.clusters = 0));
    assert!(refused(|options| options.mean_nnz_per_cell = 271));
}
