//! Whole `dataset.h5ad` files and `dataset.zarr` stores, written to disk through their extents and read by other programs.
//!
//! No mount: what is tested is that every byte has the right place.

#[path = "common/ci.rs"]
mod ci;
#[path = "common/data.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "other tests use the rest")]
mod data;
#[path = "common/harness.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "other tests use the rest")]
mod harness;
#[path = "common/python.rs"]
mod python;
#[path = "common/server.rs"]
#[allow(dead_code, reason = "nothing is mounted")]
mod server;
#[path = "common/skip.rs"]
mod skip;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, DictionaryArray, Float32Array, Int8Array, Int16Array, RecordBatch,
    StringArray, UInt64Array,
};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Int8Type};
use dcfs::dataset::{Array, Dataset};
use dcfs::format::obs::{ColumnKind, NumericType, ObsColumn, ObsSchema};
use dcfs::store::{Directory, Links};
use dcfs::view::anndata::{ColumnFacts, Container, Contents, TileFacts, encode, pad, tree};
use dcfs::view::arrow::Tiling;
use dcfs::view::hdf5::FileLayout;
use dcfs::view::hierarchy::{Extent, Part};
use dcfs::view::zarr::Store;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value, json};

use data::shared;
use skip::skip;

const CHUNK: u64 = 1 << 12;
/// How much is asked for at a time: no power of two, so that pieces begin and end anywhere.
const REQUEST: u64 = 99_991;

/// A dataset, all of it decoded.
struct Decoded {
    tiling: Tiling,
    n_genes: u32,
    nnz: u64,
    metadata: Map<String, Value>,
    schema: Option<ObsSchema>,
    /// Bytes of indptr, indices and data of the whole matrix.
    x: [Vec<u8>; 3],
    /// For each column, the rows of each tile.
    columns: Vec<Vec<ArrayRef>>,
    genes: Option<RecordBatch>,
    gene_names: Option<Vec<String>>,
}

impl Decoded {
    fn open(path: &Path) -> Self {
        let dataset = Dataset::open(Arc::new(Directory::open(path, Links::Anywhere).unwrap())).unwrap();
        let manifest = dataset.manifest();
        let n_columns = dataset.schema().map_or(0, |schema| schema.columns.len());
        let rows = |column| (0..manifest.n_tiles()).map(move |tile| (tile, column));
        let rows = |column| rows(column).map(|(tile, column)| dataset.column(tile, column).unwrap());
        let gene_names = manifest.has_var_names.then(|| {
            let names = fs::read_to_string(path.join("var_names.txt")).unwrap();
            names.lines().map(str::to_owned).collect()
        });
        Self {
            tiling: manifest.into(),
            n_genes: manifest.n_genes,
            nnz: manifest.nnz(),
            metadata: manifest.metadata.clone(),
            schema: dataset.schema().cloned(),
            x: matrix(&dataset),
            columns: (0..n_columns).map(|column| rows(column).collect()).collect(),
            genes: manifest.has_var_table.then(|| table(&path.join("var.parquet"))),
            gene_names,
        }
    }

    fn facts(&self) -> Vec<ColumnFacts> {
        let facts = |tiles: &Vec<ArrayRef>| tiles.iter().map(|rows| TileFacts::of(&**rows)).collect();
        self.columns.iter().map(facts).collect()
    }

    fn write(&self, extents: Vec<Extent>, out: &mut impl Write) {
        for extent in extents {
            match extent {
                Extent::Literal(bytes, range) => out.write_all(&bytes[range]),
                Extent::X { array, bytes } => {
                    out.write_all(&self.x[array as usize][bytes.start as usize..bytes.end as usize])
                }
                Extent::RowStarts { width, bytes } => {
                    let starts = self.x[Array::Indptr as usize].as_chunks::<8>().0.iter();
                    let starts: Vec<u8> = starts.flat_map(|start| &start[..width as usize]).copied().collect();
                    out.write_all(&starts[bytes.start as usize..bytes.end as usize])
                }
                Extent::Obs {
                    tile,
                    column,
                    part,
                    bytes,
                } => {
                    let description = &self.schema.as_ref().unwrap().columns[column];
                    let encoded = |part| encode(description, part, &self.columns[column][tile]).unwrap();
                    match part {
                        Part::FixedText { width } => {
                            out.write_all(&pad(&description.name, &encoded(Part::CountedText), width, bytes).unwrap())
                        }
                        part => out.write_all(&encoded(part)[bytes.start as usize..bytes.end as usize]),
                    }
                }
            }
            .unwrap();
        }
    }

    fn contents<'a>(&'a self, facts: &'a [ColumnFacts]) -> Contents<'a> {
        Contents {
            tiling: self.tiling,
            n_genes: self.n_genes,
            nnz: self.nnz,
            metadata: &self.metadata,
            schema: self.schema.as_ref(),
            facts,
            genes: self.genes.as_ref(),
            gene_names: self.gene_names.as_deref(),
        }
    }

    fn write_h5ad(&self, path: &Path) {
        let facts = self.facts();
        let root = tree(&self.contents(&facts), Container::Hdf5).unwrap();
        let layout = FileLayout::new(&root, self.tiling).unwrap();
        let mut file = BufWriter::new(File::create(path).unwrap());
        for start in (0..layout.len()).step_by(REQUEST as usize) {
            let end = (start + REQUEST).min(layout.len());
            let extents = layout.extents(start..end);
            assert_eq!(extents.iter().map(Extent::len).sum::<u64>(), end - start);
            self.write(extents, &mut file);
        }
    }

    fn write_zarr(&self, path: &Path) {
        let facts = self.facts();
        let root = tree(&self.contents(&facts), Container::Zarr).unwrap();
        let store = Store::new(&root, self.tiling, CHUNK).unwrap();
        let mut written = 0;
        let mut folders = vec![(0, path.to_owned())];
        while let Some((folder, path)) = folders.pop() {
            fs::create_dir(&path).unwrap();
            written += 1;
            for node in (0..).map_while(|position| store.entry(folder, position)) {
                let below = path.join(store.name(node));
                assert_eq!(store.lookup(folder, &store.name(node)), Some(node));
                assert_eq!(store.parent(node), folder);
                if store.is_folder(node) {
                    folders.push((node, below));
                    continue;
                }
                written += 1;
                let mut file = Vec::new();
                for start in (0..store.size(node)).step_by(4099) {
                    self.write(store.extents(node, start..start + 4099), &mut file);
                }
                assert_eq!(file.len() as u64, store.size(node), "{}", below.display());
                fs::write(below, file).unwrap();
            }
        }
        assert_eq!(written, store.nodes());
    }
}

/// Bytes of indptr, indices and data of all tiles.
fn matrix(dataset: &Dataset) -> [Vec<u8>; 3] {
    let manifest = dataset.manifest();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let mut x = [0_i64.to_le_bytes().to_vec(), Vec::new(), Vec::new()];
    for id in 0..manifest.n_tiles() {
        let tile = dataset.tile(id).unwrap();
        let nnz = manifest.tile(id).nnz as usize;
        let (mut indices, mut data) = (vec![0; nnz], vec![0; nnz]);
        dataset
            .decode(&tile, Some(&mut indices), Some(&mut data), &pool)
            .unwrap();
        let starts = tile.indptr()[1..].iter();
        let starts = starts.map(|entry| *entry as u64 + manifest.nnz_before(id));
        x[Array::Indptr as usize].extend(starts.flat_map(u64::to_le_bytes));
        x[Array::Indices as usize].extend(indices.into_iter().flat_map(i32::to_le_bytes));
        x[Array::Data as usize].extend(data.into_iter().flat_map(i32::to_le_bytes));
    }
    x
}

fn table(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = reader.schema().clone();
    let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

/// Runs a script of `tests/python` where there is a Python to run it.
fn read_back(script: &str, arguments: &[&Path]) {
    let Some(mut python) = python::script(script) else {
        return;
    };
    let output = python.args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// An empty folder for what a test writes.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("anndata-{name}"));
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a shared dataset both ways and compares it with what it was made of.
fn written_and_read(dataset: &str, expected: &str) {
    let Some(path) = shared(dataset) else { return };
    let folder = folder(&dataset.replace('/', "-"));
    let (h5ad, zarr) = (folder.join("dataset.h5ad"), folder.join("dataset.zarr"));
    let decoded = Decoded::open(&path);
    decoded.write_h5ad(&h5ad);
    decoded.write_zarr(&zarr);
    read_back("read_anndata.py", &[&h5ad, &zarr, &shared(expected).unwrap()]);
}

#[test]
fn the_hard_dataset_reads_back_from_hdf5_and_zarr() {
    written_and_read("edge.dc", "edge.expected");
}

#[test]
fn real_datasets_read_back_from_hdf5_and_zarr() {
    for name in ["pbmc3k", "pbmc_facs", "celseq2"] {
        written_and_read(&format!("real/{name}.dc"), &format!("real/{name}.h5ad"));
    }
}

fn schema(columns: &[(&str, ColumnKind)]) -> ObsSchema {
    let column = |(name, kind): &(&str, ColumnKind)| ObsColumn {
        name: (*name).to_owned(),
        kind: kind.clone(),
    };
    ObsSchema::new(columns.iter().map(column).collect()).unwrap()
}

/// Five cells in three tiles, three genes, and a column for every case there is.
fn made_up() -> Decoded {
    let tiles = |array: ArrayRef| [0, 2, 4].map(|start| array.slice(start, 2.min(5 - start))).to_vec();
    let numbers = |number| ColumnKind::Numeric(number);
    let category = ColumnKind::Category {
        codes: NumericType::Int8,
        categories: vec!["caf\u{e9}".into(), "".into(), "unused".into()],
    };
    let columns: Vec<(&str, ColumnKind, ArrayRef)> = vec![
        ("half", numbers(NumericType::Float16), {
            let halves = [Some(0.5), None, Some(-2.0), Some(1.0), Some(0.0)];
            let halves = Float32Array::from(halves.to_vec());
            cast(&halves, &DataType::Float16).unwrap()
        }),
        (
            "u64",
            numbers(NumericType::UInt64),
            Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1, 2, 3])),
        ),
        (
            "holes",
            numbers(NumericType::Int16),
            Arc::new(Int16Array::from(vec![Some(-7), Some(1), None, None, Some(5)])),
        ),
        ("kind", category, Arc::new(Int8Array::from(vec![0, 1, -1, 0, 0]))),
        (
            "text",
            ColumnKind::String,
            Arc::new(StringArray::from(vec!["a", "", "\u{1f9ec}\u{1f9ec}", "dd", "e"])),
        ),
        (
            "some text",
            ColumnKind::String,
            Arc::new(StringArray::from(vec![None, Some("x"), None, Some(""), Some("yz")])),
        ),
        (
            "no text",
            ColumnKind::String,
            Arc::new(StringArray::from(vec![None::<&str>; 5])),
        ),
        ("_index", ColumnKind::Bool, Arc::new(BooleanArray::from(vec![true; 5]))),
    ];
    let described: Vec<_> = columns.iter().map(|(name, kind, _)| (*name, kind.clone())).collect();
    let labels: DictionaryArray<Int8Type> = [Some("b"), None, Some("a")].into_iter().collect();
    let genes: Vec<(&str, ArrayRef)> = vec![
        ("labels", Arc::new(labels)),
        ("date", Arc::new(Date32Array::from(vec![0, 1, 2]))),
        (
            "flag",
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        ),
    ];
    let Value::Object(metadata) = json!({
        "text": "\u{e9}", "none": "", "int": -3, "big": u64::MAX, "float": 2.5, "truth": true, "null": null,
        "ints": [1, 2], "mixed": [1, "a"], "texts": ["a", "bc"], "empty": [], "truths": [true, false],
        "deep": {"a/b": {"x": 1}, "": 2},
    }) else {
        unreachable!("an object was written")
    };
    let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let indptr = [0_i64, 2, 2, 3, 3, 4].into_iter().flat_map(i64::to_le_bytes).collect();
    Decoded {
        tiling: Tiling {
            n_cells: 5,
            tile_size: 2,
        },
        n_genes: 3,
        nnz: 4,
        metadata,
        schema: Some(schema(&described)),
        x: [indptr, bytes(&[0, 2, 1, 2]), bytes(&[1, 70_000, 3, i32::MAX])],
        columns: columns.into_iter().map(|(_, _, array)| tiles(array)).collect(),
        genes: Some(RecordBatch::try_from_iter_with_nullable(genes.into_iter().map(|(n, a)| (n, a, true))).unwrap()),
        gene_names: Some(["g0", "g1", "g2"].map(String::from).to_vec()),
    }
}

/// No cells, no nonzeros, no columns.
fn nothing() -> Decoded {
    Decoded {
        tiling: Tiling {
            n_cells: 0,
            tile_size: 2,
        },
        nnz: 0,
        metadata: Map::new(),
        schema: None,
        x: [vec![0; 8], Vec::new(), Vec::new()],
        columns: Vec::new(),
        genes: None,
        gene_names: None,
        ..made_up()
    }
}

/// As many columns as a header can hold the names of.
fn wide() -> Decoded {
    let names: Vec<_> = (0..4_000).map(|column| format!("column {column}")).collect();
    let described: Vec<_> = names.iter().map(|name| (name.as_str(), ColumnKind::Bool)).collect();
    let rows: Vec<ArrayRef> = [2, 2, 1]
        .map(|rows| Arc::new(BooleanArray::from(vec![true; rows])) as ArrayRef)
        .to_vec();
    Decoded {
        schema: Some(schema(&described)),
        columns: vec![rows; names.len()],
        ..made_up()
    }
}

#[test]
fn every_kind_of_column_and_metadata_reads_back() {
    let folder = folder("made-up");
    for (name, decoded) in [("made_up", made_up()), ("nothing", nothing()), ("wide", wide())] {
        decoded.write_h5ad(&folder.join(name).with_extension("h5ad"));
        decoded.write_zarr(&folder.join(name).with_extension("zarr"));
    }
    read_back("read_made_up.py", &[&folder]);
}

#[test]
fn a_file_of_a_terabyte_has_its_ends_where_its_header_says() {
    const CELLS: u64 = 100_000_000;
    const NONZEROS: u64 = 100_000_000_000;
    let tiling = Tiling {
        n_cells: CELLS,
        tile_size: 10_000,
    };
    let schema = schema(&[
        ("obs_names", ColumnKind::String),
        ("n", ColumnKind::Numeric(NumericType::Float64)),
    ]);
    let tile = TileFacts {
        has_missing: false,
        longest: 20,
        text_bytes: 200_000,
    };
    let facts = [std::iter::repeat_n(tile, 10_000).collect(), ColumnFacts::default()];
    let metadata = Map::new();
    let contents = Contents {
        tiling,
        n_genes: 40_000,
        nnz: NONZEROS,
        metadata: &metadata,
        schema: Some(&schema),
        facts: &facts,
        genes: None,
        gene_names: None,
    };
    let layout = FileLayout::new(&tree(&contents, Container::Hdf5).unwrap(), tiling).unwrap();
    assert!(layout.metadata_len() < 16 << 10, "{}", layout.metadata_len());
    let path = folder("terabyte").join("dataset.h5ad");
    let file = File::create(&path).unwrap();
    if let Err(error) = file.set_len(layout.len()) {
        return skip(format_args!("no file of {} bytes here: {error}", layout.len()));
    }
    let (mut at, mut ends) = (0, 0);
    for extent in layout.extents(0..layout.len()) {
        at += extent.len();
        // The last eight bytes of every array and of every tile's rows: 1, or text.
        let end = match &extent {
            Extent::Literal(bytes, range) => {
                file.write_all_at(&bytes[range.clone()], at - extent.len()).unwrap();
                continue;
            }
            Extent::RowStarts { .. } => NONZEROS.to_le_bytes(),
            Extent::X { .. } => (7_u64 << 32).to_le_bytes(),
            Extent::Obs {
                tile: 9_999, column: 0, ..
            } => *b"the last",
            Extent::Obs { tile: 9_999, .. } => 2.5_f64.to_le_bytes(),
            Extent::Obs { .. } => continue,
        };
        file.write_all_at(&end, at - 8).unwrap();
        ends += 1;
    }
    assert_eq!((at, ends), (layout.len(), 5));
    read_back("read_terabyte.py", &[&path]);
    fs::remove_file(path).unwrap();
}
