//! The node's cache of obs columns: the command that fills it, mounts that use it, and other programs that share it.

use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::ipc::reader::FileReader;
use dcfs::write::{DatasetWriter, WriterOptions};
use serde_json::Value;

use crate::data::{MadeUp, made_up, shared};
use crate::harness::{Folder, Io, Mount, dcfs, failed_with, in_every_mode, refused, run, text};
use crate::python;

in_every_mode!(
    a_mount_keeps_a_copy_of_what_is_read_of_obs,
    a_mount_shows_what_another_program_has_in_the_cache,
);

/// An int64 column of made-up cells.
const NUMBERS: &str = "total_counts";

/// What the manifest says of obs, and the folder of its columns in a cache.
fn columns_folder(dataset: &Path, cache: &Path) -> PathBuf {
    let manifest: Value = serde_json::from_slice(&fs::read(dataset.join("manifest.json")).unwrap()).unwrap();
    cache.join(manifest["obs_fingerprint"].as_str().unwrap()).join("obs")
}

fn info(dataset: &Path, cache: &Path) -> Value {
    let text = run(dcfs()
        .args(["obs", "info", "--json", "--cache-dir"])
        .arg(cache)
        .arg(dataset));
    serde_json::from_str(&text).unwrap()
}

fn local_columns(info: &Value) -> Vec<&str> {
    let columns = info["columns"].as_array().unwrap().iter();
    let local = columns.filter(|column| column["local"].as_bool().unwrap());
    local.map(|column| column["name"].as_str().unwrap()).collect()
}

fn int64s(file: &Path) -> Vec<i64> {
    let reader = FileReader::try_new(fs::File::open(file).unwrap(), None).unwrap();
    reader
        .flat_map(|batch| batch.unwrap().column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect()
}

fn mount_with_cache(dataset: &MadeUp, io: Io, cache: &Path) -> Mount {
    Mount::with(&dataset.path, io, &["--cache-dir", cache.to_str().unwrap()])
}

fn a_mount_keeps_a_copy_of_what_is_read_of_obs(io: Io) {
    let dataset = made_up();
    let cache = dataset.folder.join("cache");
    let plain = Mount::new(&dataset.path, io);
    let mount = mount_with_cache(&dataset, io, &cache);
    assert!(!cache.exists(), "nothing was read yet");
    let file = format!("obs/{NUMBERS}.arrow");
    assert_eq!(
        fs::read(mount.join(&file)).unwrap(),
        fs::read(plain.join(&file)).unwrap()
    );
    assert_eq!(local_columns(&info(&dataset.path, &cache)), [NUMBERS]);
}

fn a_mount_shows_what_another_program_has_in_the_cache(io: Io) {
    let dataset = made_up();
    let cache = dataset.folder.join("cache");
    let Some(mut fill) = python::script("cached_columns.py") else {
        return;
    };
    fill.arg("fill").arg(columns_folder(&dataset.path, &cache));
    run(fill
        .arg(dataset.path.join("obs/schema.json"))
        .args([NUMBERS, "77", "200", "200", "200", "200", "100"]));
    let mount = mount_with_cache(&dataset, io, &cache);
    assert_eq!(int64s(&mount.join(format!("obs/{NUMBERS}.arrow"))), [77; 900]);
    assert_eq!(
        int64s(&mount.join(format!("tile_000004/obs/{NUMBERS}.arrow"))),
        [77; 100]
    );
}

#[test]
fn localized_columns_are_mapped_by_pyarrow() {
    let (Some(dataset), Some(expected)) = (shared("edge.dc"), shared("edge.expected")) else {
        return;
    };
    let cache = Folder::new();
    let info = info(&dataset, cache.path());
    let columns = info["columns"].as_array().unwrap();
    let mut localize = dcfs();
    localize
        .args(["obs", "localize", "--cache-dir"])
        .arg(cache.path())
        .arg(&dataset);
    for name in columns.iter().filter(|column| column["problem"].is_null()) {
        localize.arg("--column").arg(name["name"].as_str().unwrap());
    }
    run(&mut localize);
    let Some(mut check) = python::script("cached_columns.py") else {
        return;
    };
    check.arg("check").arg(columns_folder(&dataset, cache.path()));
    run(check
        .arg(dataset.join("obs/schema.json"))
        .arg(expected.join("obs.json")));
}

#[test]
fn the_command_says_what_is_there_and_adds_the_rest() {
    let dataset = made_up();
    let cache = dataset.folder.join("cache");
    let before = info(&dataset.path, &cache);
    assert!(local_columns(&before).is_empty());
    assert!(
        before["columns"]
            .as_array()
            .unwrap()
            .iter()
            .all(|column| column["bytes"].as_u64() > Some(0))
    );
    let localize = |options: &[&str]| {
        let mut command = dcfs();
        command
            .args(["obs", "localize"])
            .arg(&dataset.path)
            .args(options)
            .arg("--cache-dir")
            .arg(&cache);
        command
    };
    let said = run(&mut localize(&["--columns", NUMBERS]));
    assert!(said.starts_with("1 columns were added"), "{said}");
    let said = run(&mut localize(&["--all"]));
    assert!(said.ends_with("; 1 were there\n"), "{said}");
    let after = info(&dataset.path, &cache);
    assert_eq!(local_columns(&after).len(), before["columns"].as_array().unwrap().len());
    let text = run(dcfs()
        .args(["obs", "info", "--cache-dir"])
        .arg(&cache)
        .arg(&dataset.path));
    assert!(text.contains("total_counts") && text.contains("yes"), "{text}");

    let refused = failed_with(&localize(&["--columns", "no such"]).output().unwrap(), 1);
    assert!(
        refused.contains("has no column \"no such\"") && refused.contains(NUMBERS),
        "{refused}"
    );
    let nothing = failed_with(&localize(&[]).output().unwrap(), 2);
    for way in ["--columns", "--column <", "--all"] {
        assert!(nothing.contains(way), "{way} is missing from {nothing}");
    }
    run(&mut localize(&["--columns", NUMBERS, "--column", NUMBERS]));
}

/// 900 made-up cells; some of their columns have names of the test's choice.
fn odd_columns(folder: &Folder, names: &[&str]) -> PathBuf {
    let path = folder.join("odd.dc");
    let cells = made_up().synthetic;
    let mut columns = cells.obs_columns();
    for (column, name) in columns.iter_mut().zip(names) {
        (*name).clone_into(&mut column.name);
    }
    let names = columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
    let options = WriterOptions {
        obs: Some(columns),
        threads: 1,
        ..WriterOptions::new(1_500)
    };
    let mut writer = DatasetWriter::create(&path, options).unwrap();
    let counts = cells.cells(0..900);
    let obs = cells.obs(0..900, &counts);
    let obs = RecordBatch::try_from_iter(names.iter().zip(obs.columns().iter().cloned())).unwrap();
    writer.push(counts.rows().unwrap(), Some(&obs)).unwrap();
    writer.finish().unwrap();
    path
}

#[test]
fn a_column_that_cannot_be_kept_is_named_and_keeps_no_other_from_being_kept() {
    let folder = Folder::new();
    let long = "n".repeat(300);
    let dataset = odd_columns(&folder, &["a", &long]);
    let cache = folder.join("cache");
    let localize = |options: &[&str]| {
        let mut command = dcfs();
        command
            .args(["obs", "localize", "--cache-dir"])
            .arg(&cache)
            .arg(&dataset);
        command.args(options).output().unwrap()
    };
    let refused = failed_with(&localize(&["--columns", &format!("a,{long}")]), 1);
    assert!(refused.contains(&format!("{long:?} cannot be cached")), "{refused}");
    assert!(!cache.exists());

    let all = localize(&["--all"]);
    assert!(all.status.success(), "{all:?}");
    let told = text(&all.stderr);
    assert!(told.contains(&format!("{long:?} cannot be cached")), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    let json = info(&dataset, &cache);
    assert_eq!(
        local_columns(&json).len(),
        json["columns"].as_array().unwrap().len() - 1
    );

    let table = run(dcfs().args(["obs", "info", "--cache-dir"]).arg(&cache).arg(&dataset));
    let row = table.lines().find(|line| line.starts_with(&long)).unwrap();
    assert!(row.ends_with("  see below"), "{row}");
    let last = table.lines().last().unwrap();
    assert!(last.contains("cannot be cached"), "{table}");
}

#[test]
fn who_writes_a_name_with_a_comma_is_told_how_to_give_it() {
    let folder = Folder::new();
    let name = "a,b's";
    let dataset = odd_columns(&folder, &["b's", name]);
    let mut localize = dcfs();
    localize
        .args(["obs", "localize", "--cache-dir"])
        .arg(folder.join("cache"))
        .arg(&dataset);
    let refused = failed_with(&localize.args(["--columns", name]).output().unwrap(), 1);
    assert!(refused.contains("has no column \"a\""), "{refused}");
    let advice = r"--column 'a,b'\''s'";
    assert!(refused.contains(advice), "{refused}");
}

#[test]
fn a_cache_that_cannot_be_is_refused_before_anything_is_mounted() {
    let dataset = made_up();
    let point = dataset.folder.subfolder("mnt");
    let file = dataset.path.join("manifest.json");
    for cache in [file.join("cache"), file, "/proc/no/such/folder".into()] {
        let refused = refused(&dataset.path, &point, &["--cache-dir", cache.to_str().unwrap()]);
        let expected = format!("cannot keep obs columns in {}: ", cache.display());
        assert!(refused.contains(&expected), "{refused}");
    }
}

#[test]
fn a_cache_below_the_mountpoint_is_refused() {
    let dataset = made_up();
    let point = dataset.folder.subfolder("mnt");
    let cache = point.join("cache");
    let mut command = dcfs();
    command
        .arg("mount")
        .arg(&dataset.path)
        .arg(&point)
        .arg("--cache-dir")
        .arg(&cache);
    let refused = failed_with(&command.output().unwrap(), 1);
    assert!(refused.contains("is below the mountpoint"), "{refused}");
}
