//! Whole `dataset.h5ad` files and `dataset.zarr` stores, written to disk through their extents and read by other programs.
//!
//! No mount: what is tested is that every byte has the right place. The Python is the one other tests made under
//! `target/`, or what `DCFS_PYTHON` names; where there is none with anndata, that is said and nothing is read back.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use dcfs::dataset::{Array, Dataset};
use dcfs::format::obs::ObsSchema;
use dcfs::store::Directory;
use dcfs::view::anndata::{ColumnFacts, Container, Contents, TileFacts, encode, tree};
use dcfs::view::arrow::Tiling;
use dcfs::view::hdf5::FileLayout;
use dcfs::view::hierarchy::Extent;
use dcfs::view::zarr::Store;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const CHUNK: u64 = 1 << 12;
/// How much is asked for at a time: no power of two, so that pieces begin and end anywhere.
const REQUEST: u64 = 99_991;

/// A dataset, all of it decoded.
struct Decoded {
    dataset: Dataset,
    /// Bytes of indptr, indices and data of the whole matrix.
    x: [Vec<u8>; 3],
    /// For each column, the rows of each tile.
    columns: Vec<Vec<ArrayRef>>,
    genes: Option<RecordBatch>,
    gene_names: Option<Vec<String>>,
}

impl Decoded {
    fn open(path: &Path) -> Self {
        let dataset = Dataset::open(Arc::new(Directory::open(path).unwrap())).unwrap();
        let manifest = dataset.manifest();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let mut x = [0_i64.to_le_bytes().to_vec(), Vec::new(), Vec::new()];
        for id in 0..manifest.n_tiles() {
            let tile = dataset.tile(id).unwrap();
            let nnz = manifest.tile(id).nnz as usize;
            let (mut indices, mut data) = (vec![0; nnz], vec![0; nnz]);
            let outputs = (Some(&mut indices[..]), Some(&mut data[..]));
            dataset.decode(&tile, outputs.0, outputs.1, &pool).unwrap();
            let starts = tile.indptr()[1..]
                .iter()
                .map(|entry| *entry as u64 + manifest.nnz_before(id));
            x[Array::Indptr as usize].extend(starts.flat_map(u64::to_le_bytes));
            x[Array::Indices as usize].extend(indices.into_iter().flat_map(i32::to_le_bytes));
            x[Array::Data as usize].extend(data.into_iter().flat_map(i32::to_le_bytes));
        }
        let n_columns = dataset.schema().map_or(0, |schema| schema.columns.len());
        let rows = |column| (0..manifest.n_tiles()).map(move |tile| (tile, column));
        let rows = |column| rows(column).map(|(tile, column)| dataset.column(tile, column).unwrap());
        let columns = (0..n_columns).map(|column| rows(column).collect()).collect();
        let genes = manifest.has_var_table.then(|| table(&path.join("var.parquet")));
        let gene_names = manifest.has_var_names.then(|| {
            let names = fs::read_to_string(path.join("var_names.txt")).unwrap();
            names.lines().map(str::to_owned).collect()
        });
        Self {
            x,
            columns,
            genes,
            gene_names,
            dataset,
        }
    }

    fn facts(&self) -> Vec<ColumnFacts> {
        let facts = |tiles: &Vec<ArrayRef>| tiles.iter().map(|rows| TileFacts::of(&**rows)).collect();
        self.columns.iter().map(facts).collect()
    }

    fn schema(&self) -> Option<&ObsSchema> {
        self.dataset.schema()
    }

    fn write(&self, extents: Vec<Extent>, out: &mut impl Write) {
        for extent in extents {
            match extent {
                Extent::Literal(bytes, range) => out.write_all(&bytes[range]),
                Extent::X { array, bytes } => {
                    out.write_all(&self.x[array as usize][bytes.start as usize..bytes.end as usize])
                }
                Extent::Obs {
                    tile,
                    column,
                    part,
                    bytes,
                } => {
                    let description = &self.schema().unwrap().columns[column];
                    let rows = encode(description, part, &self.columns[column][tile]).unwrap();
                    out.write_all(&rows[bytes.start as usize..bytes.end as usize])
                }
            }
            .unwrap();
        }
    }

    fn contents<'a>(&'a self, facts: &'a [ColumnFacts]) -> Contents<'a> {
        Contents {
            schema: self.schema(),
            facts,
            genes: self.genes.as_ref(),
            gene_names: self.gene_names.as_deref(),
            ..Contents::new(self.dataset.manifest())
        }
    }

    fn write_h5ad(&self, path: &Path) {
        let facts = self.facts();
        let root = tree(&self.contents(&facts), Container::Hdf5).unwrap();
        let layout = FileLayout::new(&root, self.tiling()).unwrap();
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
        let store = Store::new(&root, self.tiling(), CHUNK).unwrap();
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

    fn tiling(&self) -> Tiling {
        self.dataset.manifest().into()
    }
}

fn table(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = reader.schema().clone();
    let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

fn shared(path: &str) -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data");
    let root = std::env::var_os("DCFS_SHARED_DATA").map_or_else(|| beside.into(), PathBuf::from);
    if root.is_dir() {
        return Some(root.join(path));
    }
    eprintln!("skipped: no shared data at {} (set DCFS_SHARED_DATA)", root.display());
    None
}

/// A Python that has anndata.
fn python() -> Option<PathBuf> {
    let made = fs::read_dir(env!("CARGO_TARGET_TMPDIR"))
        .into_iter()
        .flatten()
        .flatten();
    let made = made
        .map(|entry| entry.path().join("bin/python"))
        .filter(|python| python.exists());
    let candidates = std::env::var_os("DCFS_PYTHON")
        .map(PathBuf::from)
        .into_iter()
        .chain(made);
    let can_read = |python: &PathBuf| {
        let import = Command::new(python).args(["-c", "import anndata"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    let found = candidates.into_iter().find(can_read);
    if found.is_none() {
        eprintln!("skipped: no Python with anndata (set DCFS_PYTHON)");
    }
    found
}

/// Runs `tests/python/read_anndata.py` where there is a Python to run it.
fn read_back(arguments: &[&Path]) {
    let Some(python) = python() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/read_anndata.py");
    let output = Command::new(python).arg(script).args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// Writes a shared dataset both ways and compares it with what it was made of.
fn written_and_read(dataset: &str, expected: &str) {
    let Some(path) = shared(dataset) else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dataset.replace('/', "-"));
    fs::remove_dir_all(&folder).ok();
    fs::create_dir_all(&folder).unwrap();
    let decoded = Decoded::open(&path);
    let (h5ad, zarr) = (folder.join("dataset.h5ad"), folder.join("dataset.zarr"));
    decoded.write_h5ad(&h5ad);
    decoded.write_zarr(&zarr);
    read_back(&[&h5ad, &zarr, &shared(expected).unwrap()]);
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
