use std::sync::Mutex;

use arrow::array::{Array, Int8Array, Int64Array};
use arrow::ipc::reader::FileReader;
use tempfile::TempDir;

use super::*;
use crate::store::{Attributes, Directory, Links, Object, Store, StoreError, Version};
use crate::testdata;
use crate::write::synthetic::{Synthetic, SyntheticOptions};

/// A dataset in a folder, a cache beside it, and what was read of its files.
struct Node {
    folder: TempDir,
    cache: ObsCache,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SyntheticOptions {
            n_cells: 700,
            n_genes: 300,
            tile_size: 100,
            mean_nnz_per_cell: 10,
            level: 1,
            threads: 1,
            obs_tiles_per_file: 3,
            ..SyntheticOptions::default()
        };
        Synthetic::new(options)
            .unwrap()
            .write(&folder.path().join("made-up.dc"))
            .unwrap();
        let cache = ObsCache::at(folder.path().join("cache"));
        Self { folder, cache }
    }

    fn dataset(&self) -> Dataset {
        open(&self.folder.path().join("made-up.dc"))
    }

    /// The file of a column.
    fn file(&self, column: usize) -> PathBuf {
        let dataset = self.dataset();
        let (obs, columns) = obs_of(&dataset).unwrap();
        self.cache.path(obs, &columns[column]).unwrap()
    }
}

fn open(root: &Path) -> Dataset {
    Dataset::open(Arc::new(Directory::open(root, Links::Anywhere).unwrap())).unwrap()
}

static NEVER: AtomicBool = AtomicBool::new(false);

fn work() -> Work<'static> {
    Work {
        threads: NonZeroUsize::new(3).unwrap(),
        done: &|| (),
        stop: &NEVER,
        patience: Duration::from_secs(60),
    }
}

fn assert_holds(cache: &ObsCache, dataset: &Dataset, column: usize) {
    let cached = cache.column(dataset, column).unwrap().expect("it is in the cache");
    for tile in 0..dataset.manifest().n_tiles() {
        let stored = dataset.stored_column(tile, column).unwrap();
        assert_eq!(&cached.read(tile).unwrap(), &stored, "column {column} of tile {tile}");
    }
}

#[test]
fn columns_in_the_cache_are_those_of_the_dataset() {
    let node = Node::new();
    let mut datasets = vec![node.dataset()];
    datasets.extend(testdata::datasets().iter().map(|root| open(root)));
    for dataset in datasets {
        let (_, columns) = obs_of(&dataset).unwrap();
        let fits = |column: &usize| whole_column_file_name(&columns[*column].name, ".arrow").is_some();
        let all: Vec<usize> = (0..columns.len()).filter(fits).collect();
        assert_eq!(node.cache.localize(&dataset, &all, work()).unwrap(), all.len());
        for &column in &all {
            assert_holds(&node.cache, &dataset, column);
        }
        assert_eq!(
            node.cache.localize(&dataset, &all, work()).unwrap(),
            0,
            "they are there"
        );
    }
}

#[test]
fn files_are_what_other_programs_expect() {
    let node = Node::new();
    let dataset = node.dataset();
    let (obs, columns) = obs_of(&dataset).unwrap();
    let all: Vec<usize> = (0..columns.len()).collect();
    node.cache.localize(&dataset, &all, work()).unwrap();
    let folder = node.cache.root().join(&obs.fingerprint);
    assert!(folder.join(".lock").exists());
    for column in columns {
        let name = whole_column_file_name(&column.name, ".arrow").unwrap();
        let reader = FileReader::try_new(File::open(folder.join("obs").join(name)).unwrap(), None).unwrap();
        let schema = reader.schema();
        assert_eq!(schema.fields().len(), 1);
        assert_eq!(schema.field(0).name(), &column.name);
        assert_eq!(schema.field(0).data_type(), &column.kind.stored_type());
        let rows: Vec<usize> = reader.map(|batch| batch.unwrap().num_rows()).collect();
        assert_eq!(rows, [100; 7]);
    }
    assert_eq!(
        fs::read_dir(folder.join("obs")).unwrap().count(),
        columns.len(),
        "and nothing else"
    );
}

/// A store that counts what is read of shards.
struct Counting {
    directory: Directory,
    shard_bytes: Arc<Mutex<u64>>,
}

struct CountingObject(Arc<dyn Object>, Option<Arc<Mutex<u64>>>);

impl Store for Counting {
    fn location(&self) -> String {
        self.directory.location()
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Object>, StoreError> {
        let count = path.ends_with(".parquet").then(|| self.shard_bytes.clone());
        Ok(Arc::new(CountingObject(self.directory.open(path)?, count)))
    }

    fn attributes(&self, path: &str) -> Result<Attributes, StoreError> {
        self.directory.attributes(path)
    }
}

impl Object for CountingObject {
    fn name(&self) -> String {
        self.0.name()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if let Some(count) = &self.1 {
            *count.lock().unwrap() += buffer.len() as u64;
        }
        self.0.read_at(buffer, offset)
    }

    fn version(&self) -> io::Result<Version> {
        self.0.version()
    }
}

fn counting(root: &Path) -> (Dataset, Arc<Mutex<u64>>) {
    let shard_bytes = Arc::new(Mutex::new(0));
    let store = Counting {
        directory: Directory::open(root, Links::Anywhere).unwrap(),
        shard_bytes: shard_bytes.clone(),
    };
    (Dataset::open(Arc::new(store)).unwrap(), shard_bytes)
}

#[test]
fn ten_who_want_a_column_at_once_read_it_once() {
    let node = Node::new();
    let root = node.folder.path().join("made-up.dc");
    let datasets: Vec<_> = (0..10).map(|_| counting(&root)).collect();
    let added: Vec<usize> = thread::scope(|scope| {
        let threads: Vec<_> = datasets
            .iter()
            .map(|(dataset, _)| scope.spawn(|| node.cache.localize(dataset, &[1, 2], work()).unwrap()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(added.iter().sum::<usize>(), 2);
    let readers = datasets.iter().filter(|(_, bytes)| *bytes.lock().unwrap() > 0);
    assert_eq!(readers.count(), 1);
}

#[test]
fn a_dataset_with_a_cache_reads_shards_once_and_then_no_more() {
    let node = Node::new();
    let root = node.folder.path().join("made-up.dc");
    let plain = node.dataset();
    for (round, reads) in [true, false].into_iter().enumerate() {
        let (dataset, shard_bytes) = counting(&root);
        let dataset = dataset.with_obs_cache(node.cache.clone());
        for column in 0..3 {
            for tile in 0..7 {
                let expected = plain.stored_column(tile, column).unwrap();
                assert_eq!(&dataset.column(tile, column).unwrap(), &expected);
            }
        }
        assert_eq!(*shard_bytes.lock().unwrap() > 0, reads, "round {round}");
    }
}

#[test]
fn what_disagrees_with_the_dataset_is_deleted_and_made_again() {
    let node = Node::new();
    let dataset = node.dataset();
    let (_, columns) = obs_of(&dataset).unwrap();
    let column = columns
        .iter()
        .position(|c| c.kind.stored_type() == arrow::datatypes::DataType::Int64);
    let column = column.unwrap_or_else(|| panic!("an int64 column among {columns:?}"));
    let file = node.file(column);
    node.cache.localize(&dataset, &[column], work()).unwrap();
    let good = fs::read(&file).unwrap();
    let batches = |name: &str, cells: &[i64]| {
        let field = Field::new(name, arrow::datatypes::DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field]));
        let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
        for &cells in cells {
            let values = Arc::new(Int64Array::from_iter_values(0..cells));
            writer
                .write(&RecordBatch::try_new(schema.clone(), vec![values]).unwrap())
                .unwrap();
        }
        writer.into_inner().unwrap()
    };
    let codes = || {
        let schema = Arc::new(Schema::new(vec![Field::new(
            &columns[column].name,
            arrow::datatypes::DataType::Int8,
            true,
        )]));
        let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
        for _ in 0..7 {
            let values = Arc::new(Int8Array::from(vec![0; 100]));
            writer
                .write(&RecordBatch::try_new(schema.clone(), vec![values]).unwrap())
                .unwrap();
        }
        writer.into_inner().unwrap()
    };
    let name = &columns[column].name;
    let mut bad = vec![
        ("another number of batches", batches(name, &[100; 6])),
        ("other rows", batches(name, &[100, 100, 100, 99, 101, 100, 100])),
        ("another name", batches("other", &[100; 7])),
        ("another type", codes()),
        ("nothing", Vec::new()),
        ("no Arrow", b"PAR1 and so on and on PAR1".to_vec()),
    ];
    for length in (0..good.len()).step_by(97) {
        bad.push(("cut short", good[..length].to_vec()));
    }
    for (what, bytes) in bad {
        fs::write(&file, bytes).unwrap();
        assert!(node.cache.column(&dataset, column).unwrap().is_none(), "{what}");
        assert!(!file.exists(), "{what}: it is deleted");
        assert_eq!(node.cache.localize(&dataset, &[column], work()).unwrap(), 1, "{what}");
        assert_eq!(fs::read(&file).unwrap(), good, "{what}");
    }
}

#[test]
fn flipped_bits_are_refused_or_leave_a_value_a_cell() {
    let node = Node::new();
    let dataset = node.dataset();
    let (_, columns) = obs_of(&dataset).unwrap();
    for column in 0..columns.len() {
        node.cache.localize(&dataset, &[column], work()).unwrap();
        let file = node.file(column);
        let good = fs::read(&file).unwrap();
        for at in (0..good.len()).step_by(41) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&file, bytes).unwrap();
            if let Some(cached) = node.cache.column(&dataset, column).unwrap() {
                for tile in 0..7 {
                    let Ok(values) = cached.read(tile) else { continue };
                    assert_eq!(values.len(), 100, "a value a cell");
                }
            }
        }
    }
}

#[test]
fn what_others_may_write_is_not_used() {
    let node = Node::new();
    let dataset = node.dataset();
    node.cache.localize(&dataset, &[0], work()).unwrap();
    let file = node.file(0);
    let folder = file.parent().unwrap();
    for path in [&*file, folder, folder.parent().unwrap(), node.cache.root()] {
        let mode = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = node.cache.column(&dataset, 0).unwrap_err();
        assert!(
            matches!(&refused, CacheError::Distrust(Distrust::Writable { path: found, .. }) if found == path),
            "{refused}"
        );
        let dataset = node.dataset().with_obs_cache(node.cache.clone());
        let expected = dataset.stored_column(0, 0).unwrap();
        assert_eq!(
            &dataset.column(0, 0).unwrap(),
            &expected,
            "it is read from the shard all the same"
        );
        fs::set_permissions(path, mode).unwrap();
    }
    assert_holds(&node.cache, &dataset, 0);
}

#[test]
fn a_private_dataset_has_a_private_copy() {
    for (mode, files, folders) in [(0o600, 0o600, 0o700), (0o644, 0o644, 0o755)] {
        let node = Node::new();
        let schema = node.folder.path().join("made-up.dc/obs/schema.json");
        // Whoever wants to read the schema has to come through the folders.
        for folder in node
            .folder
            .path()
            .ancestors()
            .take_while(|f| f.starts_with(node.folder.path()))
        {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::set_permissions(schema, fs::Permissions::from_mode(mode)).unwrap();
        node.cache.localize(&node.dataset(), &[0], work()).unwrap();
        let file = node.file(0);
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode_of(&file), files);
        assert_eq!(mode_of(file.parent().unwrap()), folders);
    }
}

#[test]
fn an_interrupted_start_leaves_nothing_and_leftovers_are_removed() {
    let node = Node::new();
    let dataset = node.dataset();
    let stop = AtomicBool::new(false);
    let interrupting = Work {
        done: &|| stop.store(true, Ordering::Relaxed),
        stop: &stop,
        ..work()
    };
    let interrupted = node.cache.localize(&dataset, &[0], interrupting);
    assert!(matches!(interrupted, Err(CacheError::Interrupted)), "{interrupted:?}");
    let file = node.file(0);
    let folder = file.parent().unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    fs::write(folder.join(".dcfs-1-0"), "half").unwrap();
    fs::write(folder.join("others.tmp"), "of another program").unwrap();
    assert_eq!(node.cache.localize(&dataset, &[0], work()).unwrap(), 1);
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, [file.file_name().unwrap(), "others.tmp".as_ref()]);
}

#[test]
fn the_environment_names_the_folder_as_for_other_programs() {
    let of = |set: &[(&str, &str)]| {
        let found = ObsCache::of_environment(|name| {
            let value = set.iter().find(|(key, _)| *key == name);
            value.map(|(_, value)| value.into())
        });
        found.map(|cache| cache.root().to_str().unwrap().to_owned())
    };
    let (own, all, home) = (
        ("DELTACELLS_CACHE", "/own"),
        ("XDG_CACHE_HOME", "/all"),
        ("HOME", "/home/a"),
    );
    assert_eq!(of(&[own, all, home]).unwrap(), "/own");
    assert_eq!(of(&[all, home]).unwrap(), "/all/deltacells");
    assert_eq!(of(&[home]).unwrap(), "/home/a/.cache/deltacells");
    assert_eq!(
        of(&[("DELTACELLS_CACHE", ""), home]).unwrap(),
        "/home/a/.cache/deltacells"
    );
    assert_eq!(of(&[]), None);
}

#[test]
fn a_name_that_makes_too_long_a_file_name_is_refused_by_name() {
    let Some(root) = testdata::root() else { return };
    let node = Node::new();
    let dataset = open(&root.join("edge.dc"));
    let (_, columns) = obs_of(&dataset).unwrap();
    let long = columns.iter().position(|column| column.name.len() > 255).unwrap();
    let refused = node.cache.localize(&dataset, &[0, long], work()).unwrap_err();
    assert!(matches!(refused, CacheError::Name(name) if name == columns[long].name));
}

#[test]
fn a_copy_is_closed_when_the_dataset_is() {
    let node = Node::new();
    let root = node.folder.path().join("made-up.dc");
    for folder in [node.folder.path(), &root, &root.join("obs")] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(root.join("obs/schema.json"), Permissions::from_mode(0o644)).unwrap();
    node.cache.localize(&node.dataset(), &[0], work()).unwrap();
    let mode = || fs::metadata(node.file(0)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o644);
    fs::set_permissions(root.join("obs/schema.json"), Permissions::from_mode(0o600)).unwrap();
    assert_holds(&node.cache, &node.dataset(), 0);
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_lock_that_others_hold_is_waited_for_no_longer_than_told() {
    let node = Node::new();
    let dataset = node.dataset();
    node.cache.localize(&dataset, &[0], work()).unwrap();
    let folder = node.file(0).parent().unwrap().parent().unwrap().to_owned();
    let held = File::open(folder.join(".lock")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let hasty = Work {
        patience: Duration::ZERO,
        ..work()
    };
    let busy = node.cache.localize(&dataset, &[1], hasty).unwrap_err();
    assert!(matches!(busy, CacheError::Busy(_)), "{busy}");
    let stop = AtomicBool::new(true);
    let stopped = node.cache.localize(&dataset, &[1], Work { stop: &stop, ..work() });
    assert!(matches!(stopped, Err(CacheError::Interrupted)), "{stopped:?}");
    // What is there needs no lock.
    assert_eq!(node.cache.localize(&dataset, &[0], work()).unwrap(), 0);
}

#[test]
fn while_others_hold_the_lock_columns_are_read_from_the_dataset() {
    let node = Node::new();
    node.cache.localize(&node.dataset(), &[0], work()).unwrap();
    let folder = node.file(0).parent().unwrap().parent().unwrap().to_owned();
    let held = File::open(folder.join(".lock")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let dataset = node.dataset().with_obs_cache(node.cache.clone());
    for tile in 0..7 {
        let expected = dataset.stored_column(tile, 1).unwrap();
        assert_eq!(&dataset.column(tile, 1).unwrap(), &expected);
    }
    assert!(!node.file(1).exists());
}
