use std::collections::HashMap;
use std::io;
use std::path::Path;

use arrow::array::{
    BooleanArray, DictionaryArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array,
    LargeStringArray, RecordBatch, StringArray, UInt8Array,
};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::Value;

use super::*;
use crate::format::manifest::{NewManifest, shard_path};
use crate::format::obs::NumericType;
use crate::store::Version;
use crate::testdata;

/// A shard in memory.
struct InMemory(Vec<u8>);

impl Object for InMemory {
    fn name(&self) -> String {
        "obs/obs_0000.parquet".into()
    }

    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let source = self.0.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn version(&self) -> io::Result<Version> {
        Ok(Version::File {
            device: 0,
            inode: 0,
            size: self.size(),
            modified: 0,
        })
    }
}

/// A dataset's manifest and schema.
struct Dataset {
    manifest: Manifest,
    schema: ObsSchema,
}

impl Dataset {
    fn read(root: &Path) -> Self {
        let read = |path: &str| std::fs::read(root.join(path)).unwrap();
        Self {
            manifest: Manifest::parse(&read("manifest.json")).unwrap(),
            schema: ObsSchema::parse(&read("obs/schema.json")).unwrap(),
        }
    }

    fn obs(&self) -> &ObsManifest {
        self.manifest.obs.as_ref().unwrap()
    }

    fn open(&self, bytes: Vec<u8>, shard: usize) -> Result<ObsShard, ShardError> {
        ObsShard::open(
            Arc::new(InMemory(bytes)),
            &self.manifest,
            self.obs(),
            shard,
            &self.schema,
        )
    }

    fn verify(&self, bytes: Vec<u8>, shard: usize) -> Vec<ShardError> {
        verify_shard(
            Arc::new(InMemory(bytes)),
            &self.manifest,
            self.obs(),
            shard,
            &self.schema,
        )
    }

    /// Opens the shard and reads everything in it; how many columns of tiles could be read.
    fn read_all(&self, bytes: Vec<u8>, shard: usize) -> usize {
        let Ok(opened) = self.open(bytes, shard) else {
            return 0;
        };
        let columns = 0..self.schema.columns.len();
        let all = opened
            .tiles()
            .flat_map(|tile| columns.clone().map(move |column| (tile, column)));
        all.filter(|&(tile, column)| opened.read_column(tile, column).is_ok())
            .count()
    }
}

/// A value as the expectations have it: labels for codes, `null` for what is missing.
fn as_json(values: &ArrayRef, kind: &ColumnKind, cell: usize) -> Value {
    if let ColumnKind::Category { categories, .. } = kind {
        let codes = arrow::compute::cast(values, &DataType::Int64).unwrap();
        let code = codes.as_primitive::<arrow::datatypes::Int64Type>().value(cell);
        return usize::try_from(code).map_or(Value::Null, |code| categories[code].clone().into());
    }
    if values.is_null(cell) {
        return Value::Null;
    }
    match values.data_type() {
        DataType::Boolean => values.as_boolean().value(cell).into(),
        DataType::Utf8 => values.as_string::<i32>().value(cell).into(),
        DataType::Float32 => f64::from(values.as_primitive::<arrow::datatypes::Float32Type>().value(cell)).into(),
        DataType::Float64 => values
            .as_primitive::<arrow::datatypes::Float64Type>()
            .value(cell)
            .into(),
        _ => {
            let values = arrow::compute::cast(values, &DataType::Int64).unwrap();
            values.as_primitive::<arrow::datatypes::Int64Type>().value(cell).into()
        }
    }
}

#[test]
fn every_column_of_the_edge_dataset_has_the_expected_values() {
    let Some(root) = testdata::root() else { return };
    let expected: Value = serde_json::from_slice(&std::fs::read(root.join("edge.expected/obs.json")).unwrap()).unwrap();
    let dataset = Dataset::read(&root.join("edge.dc"));
    let mut compared = 0;
    for shard in 0..dataset.obs().shard_bytes.len() {
        let bytes = std::fs::read(root.join("edge.dc").join(shard_path(shard))).unwrap();
        let opened = dataset.open(bytes, shard).unwrap();
        for tile in opened.tiles() {
            for (index, column) in dataset.schema.columns.iter().enumerate() {
                let values = opened.read_column(tile, index).unwrap();
                assert_eq!(values.data_type(), &column.kind.stored_type());
                assert_eq!(opened.has_missing(tile, index).unwrap(), values.null_count() > 0);
                let before = dataset.manifest.cells_before(tile) as usize;
                for cell in 0..values.len() {
                    let found = as_json(&values, &column.kind, cell);
                    let expected = &expected[&column.name]["values"][before + cell];
                    let close = found.as_f64().zip(expected.as_f64()).is_some_and(|(found, expected)| {
                        // Decimals are read to the last bit but one, and those of a float are as short as tell floats apart.
                        let precision = if values.data_type() == &DataType::Float32 {
                            1e-7
                        } else {
                            3e-16
                        };
                        values.data_type().is_floating() && (found - expected).abs() <= precision * expected.abs()
                    });
                    assert!(
                        found == *expected || close,
                        "{} {cell}: {found} {expected}",
                        column.name
                    );
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 30 * dataset.schema.columns.len());
}

#[test]
fn shared_shards_have_no_faults() {
    for root in testdata::datasets() {
        let dataset = Dataset::read(&root);
        for shard in 0..dataset.obs().shard_bytes.len() {
            let bytes = std::fs::read(root.join(shard_path(shard))).unwrap();
            let faults = dataset.verify(bytes, shard);
            assert!(faults.is_empty(), "{root:?}: {faults:?}");
        }
    }
}

#[test]
fn a_damaged_shard_gives_errors_and_never_a_panic() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    for root in testdata::datasets() {
        let dataset = Dataset::read(&root);
        let bytes = std::fs::read(root.join(shard_path(0))).unwrap();
        let whole = dataset.read_all(bytes.clone(), 0);
        assert!(whole > 0);
        let mut harmed = 0;
        for _ in 0..600 {
            let mut damaged = bytes.clone();
            // Half of the damage is done to the footer, which is where sizes and places stand.
            let from = if random.random() {
                damaged.len() - damaged.len() / 8
            } else {
                0
            };
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(from..damaged.len());
                damaged[at] = random.random();
            }
            harmed += usize::from(dataset.read_all(damaged, 0) < whole);
        }
        assert!(harmed > 100, "{harmed} of 600 damaged shards could not be read whole");
    }
}

#[test]
fn a_shard_cut_short_is_refused_and_its_size_is_why() {
    for root in testdata::datasets() {
        let dataset = Dataset::read(&root);
        let bytes = std::fs::read(root.join(shard_path(0))).unwrap();
        for length in (0..12).chain((12..bytes.len()).step_by(101)) {
            let error = dataset.open(bytes[..length].to_vec(), 0).err().unwrap();
            assert!(matches!(*error.fault, ShardFault::Size { .. }), "{error}");
            let first = &dataset.verify(bytes[..length].to_vec(), 0)[0];
            assert!(matches!(*first.fault, ShardFault::Size { .. }), "{first}");
        }
    }
}

#[test]
fn a_byte_that_only_the_hash_covers_is_found_by_verify() {
    let Some(root) = testdata::root() else { return };
    let root = root.join("edge.dc");
    let dataset = Dataset::read(&root);
    let mut bytes = std::fs::read(root.join(shard_path(0))).unwrap();
    bytes[0] ^= 1;
    let faults = dataset.verify(bytes, 0);
    assert_eq!(faults.len(), 1);
    assert!(matches!(*faults[0].fault, ShardFault::Sha256 { .. }), "{faults:?}");
}

/// One shard of a dataset of two tiles, of 3 and 2 cells, with a column of each kind.
fn made() -> (ObsSchema, Vec<ArrayRef>) {
    let column = |name: &str, kind| ObsColumn {
        name: name.into(),
        kind,
    };
    let codes = ColumnKind::Category {
        codes: NumericType::Int8,
        categories: vec!["a".into(), "b".into()],
    };
    let schema = ObsSchema::new(vec![
        column("type", codes),
        column("depth", ColumnKind::Numeric(NumericType::Float64)),
        column("name", ColumnKind::String),
    ]);
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int8Array::from(vec![0, 1, -1, 1, 0])),
        Arc::new(Float64Array::from(vec![Some(0.5), None, Some(1.5), Some(2.5), None])),
        Arc::new(StringArray::from(vec![
            Some("x"),
            None,
            Some(""),
            Some("\u{e9}"),
            Some("z"),
        ])),
    ];
    (schema.unwrap(), arrays)
}

/// Writes columns of these names as row groups of these lengths.
fn write(columns: &[(&str, ArrayRef)], row_groups: &[usize], options: ArrowWriterOptions) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns.iter().map(|(name, array)| (*name, array.clone()))).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new_with_options(&mut bytes, batch.schema(), options).unwrap();
    let mut at = 0;
    for &rows in row_groups {
        writer.write(&batch.slice(at, rows)).unwrap();
        writer.flush().unwrap();
        at += rows;
    }
    writer.close().unwrap();
    bytes
}

fn dataset_of(schema: ObsSchema, shard: &[u8]) -> Dataset {
    let manifest = Manifest::new(NewManifest {
        n_genes: 1,
        tile_size: 3,
        tile_cells: vec![3, 2],
        tile_nnz: vec![0, 0],
        tile_bytes: vec![200, 200],
        obs: Some(ObsManifest {
            tiles_per_file: 2,
            shard_bytes: vec![shard.len() as u64],
            shard_sha256: vec![hex(&Sha256::digest(shard))],
            fingerprint: "0".repeat(24),
        }),
        ..NewManifest::default()
    });
    Dataset {
        manifest: manifest.unwrap(),
        schema,
    }
}

/// What is said of a shard in which these columns stand instead of the good ones.
fn faults_of(change: impl FnOnce(&mut Vec<(&str, ArrayRef)>), row_groups: &[usize]) -> Vec<String> {
    let (schema, arrays) = made();
    let mut columns: Vec<_> = ["type", "depth", "name"].into_iter().zip(arrays).collect();
    change(&mut columns);
    let bytes = write(&columns, row_groups, ArrowWriterOptions::new());
    let dataset = dataset_of(schema, &bytes);
    let faults: Vec<_> = dataset
        .verify(bytes.clone(), 0)
        .iter()
        .map(|error| error.to_string())
        .collect();
    let opened = dataset.open(bytes, 0);
    if let Some(error) = opened.err() {
        assert_eq!(error.to_string(), faults[0]);
    }
    faults
}

#[test]
fn columns_are_read_as_they_were_written() {
    let (schema, arrays) = made();
    let columns: Vec<_> = ["type", "depth", "name"].into_iter().zip(arrays.clone()).collect();
    let bytes = write(&columns, &[3, 2], ArrowWriterOptions::new());
    // Without the hint of Arrow types that some writers leave in a file, the types are those stored.
    let unhinted = write(
        &columns,
        &[3, 2],
        ArrowWriterOptions::new().with_skip_arrow_metadata(true),
    );
    for bytes in [bytes, unhinted] {
        let opened = dataset_of(schema.clone(), &bytes).open(bytes, 0).unwrap();
        assert_eq!(opened.tiles(), 0..2);
        for (column, array) in arrays.iter().enumerate() {
            assert_eq!(&opened.read_column(0, column).unwrap(), &array.slice(0, 3));
            assert_eq!(&opened.read_column(1, column).unwrap(), &array.slice(3, 2));
        }
    }
}

/// However pages are written: both versions, with and without dictionaries, several pages a column.
#[test]
fn what_is_missing_is_seen_without_values() {
    let columns = [
        ("number", ColumnKind::Numeric(NumericType::Int64)),
        ("truth", ColumnKind::Bool),
        ("text", ColumnKind::String),
    ];
    let schema = columns.map(|(name, kind)| ObsColumn {
        name: name.into(),
        kind,
    });
    let schema = ObsSchema::new(schema.to_vec()).unwrap();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(9);
    for round in 0..200 {
        let share = [0.0, 0.1, 0.4, 1.0][round % 4];
        let valid: Vec<bool> = (0..5).map(|_| !random.random_bool(share)).collect();
        let some = |cell: usize| valid[cell].then_some(cell);
        let arrays: [ArrayRef; 3] = [
            Arc::new(Int64Array::from_iter(
                (0..5).map(|cell| some(cell).map(|cell| cell as i64 % 2)),
            )),
            Arc::new(BooleanArray::from_iter(
                (0..5).map(|cell| some(cell).map(|cell| cell > 2)),
            )),
            Arc::new(StringArray::from_iter((0..5).map(|cell| some(cell).map(|_| "x")))),
        ];
        let named: Vec<_> = ["number", "truth", "text"].into_iter().zip(arrays.clone()).collect();
        let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][round / 4 % 2];
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_dictionary_enabled(round / 8 % 2 == 0)
            .set_data_page_row_count_limit(1 + round / 16 % 3)
            .set_write_batch_size(1)
            .set_compression(Compression::ZSTD(ZstdLevel::default()));
        let bytes = write(
            &named,
            &[3, 2],
            ArrowWriterOptions::new().with_properties(properties.build()),
        );
        let opened = dataset_of(schema.clone(), &bytes).open(bytes, 0).unwrap();
        for (column, array) in arrays.iter().enumerate() {
            for (tile, rows) in [(0, array.slice(0, 3)), (1, array.slice(3, 2))] {
                let missing = opened.has_missing(tile, column).unwrap();
                assert_eq!(
                    missing,
                    rows.null_count() > 0,
                    "round {round}, column {column}, tile {tile}"
                );
            }
        }
    }
}

#[test]
fn a_good_shard_has_no_faults() {
    assert_eq!(faults_of(|_| {}, &[3, 2]), [""; 0]);
}

#[test]
fn row_groups_must_be_the_tiles() {
    let name = "obs/obs_0000.parquet";
    assert_eq!(
        faults_of(|_| {}, &[2, 3]),
        [
            format!("{name}: row group 0 has 2 rows, expected 3, the cells of tile 0"),
            format!("{name}: row group 1 has 3 rows, expected 2, the cells of tile 1"),
        ]
    );
    assert_eq!(
        faults_of(|_| {}, &[3])[0],
        format!("{name}: 1 row groups, expected 2, one per tile")
    );
    assert_eq!(
        faults_of(|_| {}, &[3, 1, 1])[0],
        format!("{name}: 3 row groups, expected 2, one per tile")
    );
}

#[test]
fn columns_must_be_the_schemas_in_order_and_of_exactly_their_types() {
    let large: ArrayRef = Arc::new(LargeStringArray::from(vec!["x"; 5]));
    let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::from_iter(["x"; 5]));
    let others: [(usize, ArrayRef, &str); 8] = [
        (2, large, "LargeUtf8"),
        (2, dictionary, "Dictionary(Int8, Utf8)"),
        (0, Arc::new(Int16Array::from(vec![0; 5])), "Int16"),
        (0, Arc::new(UInt8Array::from(vec![0; 5])), "UInt8"),
        (1, Arc::new(Float32Array::from(vec![0.0; 5])), "Float32"),
        (1, Arc::new(Int64Array::from(vec![0; 5])), "Int64"),
        (1, Arc::new(Int32Array::from(vec![0; 5])), "Int32"),
        (1, Arc::new(BooleanArray::from(vec![true; 5])), "Boolean"),
    ];
    for (index, array, found) in others {
        let faults = faults_of(|columns| columns[index].1 = array, &[3, 2]);
        let expected = format!("column {index} is ");
        assert!(
            faults.len() == 1 && faults[0].contains(&expected) && faults[0].contains(found),
            "{faults:?}"
        );
    }
    assert_eq!(faults_of(|columns| columns.swap(0, 1), &[3, 2]).len(), 2);
    assert!(faults_of(|columns| columns[1].0 = "Depth", &[3, 2])[0].contains("is \"Depth\""));
    assert_eq!(
        faults_of(|columns| drop(columns.pop()), &[3, 2]),
        ["obs/obs_0000.parquet: 2 columns, expected 3, as obs/schema.json says"]
    );
    let extra: ArrayRef = Arc::new(Int8Array::from(vec![0; 5]));
    assert!(faults_of(|columns| columns.push(("more", extra)), &[3, 2])[0].contains("4 columns, expected 3"));
}

#[test]
fn every_code_that_means_no_category_is_reported() {
    let codes: ArrayRef = Arc::new(Int8Array::from(vec![Some(0), Some(2), Some(-1), None, Some(0)]));
    assert_eq!(
        faults_of(|columns| columns[0].1 = codes, &[3, 2]),
        [
            "obs/obs_0000.parquet: column \"type\" of tile 0 has the code 2 at cell 1, expected -1 to 1",
            "obs/obs_0000.parquet: column \"type\" of tile 1 has the code null at cell 0, expected -1 to 1",
        ]
    );
}

#[test]
fn a_tile_of_more_rows_than_are_decoded_at_a_time_is_read_whole() {
    let n = 2 * BATCH_ROWS + 7;
    let array: ArrayRef = Arc::new(StringArray::from_iter_values((0..n).map(|i| i.to_string())));
    let bytes = write(&[("name", array.clone())], &[n], ArrowWriterOptions::new());
    let schema = ObsSchema::new(vec![ObsColumn {
        name: "name".into(),
        kind: ColumnKind::String,
    }]);
    let manifest = Manifest::new(NewManifest {
        n_genes: 1,
        tile_size: n as u64,
        tile_cells: vec![n as u64],
        tile_nnz: vec![0],
        tile_bytes: vec![72 + 8 * n as u64],
        obs: Some(ObsManifest {
            tiles_per_file: 1,
            shard_bytes: vec![bytes.len() as u64],
            shard_sha256: vec![hex(&Sha256::digest(&bytes))],
            fingerprint: "0".repeat(24),
        }),
        ..NewManifest::default()
    });
    let dataset = Dataset {
        manifest: manifest.unwrap(),
        schema: schema.unwrap(),
    };
    assert_eq!(&dataset.open(bytes, 0).unwrap().read_column(0, 0).unwrap(), &array);
}

/// Counts what is read of a shard.
struct Counting {
    inner: InMemory,
    read: std::sync::Mutex<HashMap<u64, usize>>,
}

impl Object for Counting {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read.lock().unwrap().insert(offset, buffer.len());
        self.inner.read_at(buffer, offset)
    }

    fn version(&self) -> io::Result<Version> {
        self.inner.version()
    }
}

#[test]
fn reading_a_column_reads_its_column_chunk_and_nothing_else() {
    let (schema, arrays) = made();
    let columns: Vec<_> = ["type", "depth", "name"].into_iter().zip(arrays).collect();
    let bytes = write(&columns, &[3, 2], ArrowWriterOptions::new());
    let dataset = dataset_of(schema, &bytes);
    let object = Arc::new(Counting {
        inner: InMemory(bytes),
        read: Default::default(),
    });
    let opened = ObsShard::open(object.clone(), &dataset.manifest, dataset.obs(), 0, &dataset.schema).unwrap();
    object.read.lock().unwrap().clear();
    opened.read_column(1, 2).unwrap();
    let (start, length) = opened.metadata.metadata().row_group(1).column(2).byte_range();
    assert_eq!(*object.read.lock().unwrap(), HashMap::from([(start, length as usize)]));
}
