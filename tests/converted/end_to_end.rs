//! `dcfs convert` from end to end: real data, several inputs, interruptions, and a reader in another language.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use dcfs::dataset::Dataset;
use dcfs::store::{Directory, Links};

use crate::python;
use crate::skip::skip;

/// A new, empty folder for one test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("convert_{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The shared real data, or nothing, which is said.
fn real() -> Option<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data");
    let real = std::env::var_os("DCFS_SHARED_DATA")
        .map_or_else(|| beside.into(), PathBuf::from)
        .join("real");
    if real.is_dir() {
        return Some(real);
    }
    skip(format_args!(
        "no shared data at {} (set DCFS_SHARED_DATA)",
        real.display()
    ));
    None
}

fn dcfs(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dcfs"))
        .args(arguments.iter().map(|a| a.as_ref()))
        .output()
        .unwrap()
}

#[track_caller]
fn succeeds(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> String {
    let output = dcfs(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> String {
    let output = dcfs(arguments);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8(output.stderr).unwrap()
}

/// Every file of a dataset.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    found.insert(path.strip_prefix(root).unwrap().to_path_buf(), fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

/// A MatrixMarket folder of made-up counts, with a feature type for each gene.
fn write_mtx(folder: &Path, genes: &[String], cells: usize, seed: u64) {
    fs::create_dir_all(folder).unwrap();
    let mut random = seed | 1;
    let mut entries = Vec::new();
    for cell in 1..=cells {
        for gene in 1..=genes.len() {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random.is_multiple_of(5) {
                entries.push(format!("{gene} {cell} {}", 1 + random / 5 % (1 + 300 / gene as u64)));
            }
        }
    }
    let head = format!(
        "%%MatrixMarket matrix coordinate integer general\n{} {cells} {}\n",
        genes.len(),
        entries.len()
    );
    fs::write(folder.join("matrix.mtx"), head + &entries.join("\n") + "\n").unwrap();
    let features: String = genes
        .iter()
        .map(|gene| format!("id_{gene}\t{gene}\tGene Expression\n"))
        .collect();
    fs::write(folder.join("features.tsv"), features).unwrap();
    let barcodes: String = (0..cells).map(|cell| format!("cell{seed}_{cell}\n")).collect();
    fs::write(folder.join("barcodes.tsv"), barcodes).unwrap();
}

fn genes(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|gene| format!("gene{gene}")).collect()
}

#[test]
fn real_inputs_become_the_datasets_that_another_program_made_of_them() {
    let Some(real) = real() else { return };
    let scratch = scratch("real");
    for (name, tile_size) in [("pbmc3k", "500"), ("pbmc_facs", "1000"), ("celseq2", "100")] {
        let input = real.join(format!("{name}.h5ad"));
        let expected = real.join(format!("{name}.dc"));
        let output = scratch.join(name);
        succeeds(&[&"convert", &output, &input, &"--tile-size", &tile_size]);
        let (found, wanted) = (files(&output), files(&expected));
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| -> Vec<PathBuf> {
            files
                .keys()
                .filter(|path| !path.starts_with("obs/") || path.ends_with("schema.json"))
                .cloned()
                .collect()
        };
        assert_eq!(names(&found), names(&wanted));
        for (path, bytes) in &wanted {
            let same = ["gene_order.npy", "var_names.txt", "obs/schema.json"]
                .iter()
                .any(|name| path.ends_with(name));
            assert!(!same || found[path] == *bytes, "{}", path.display());
            if path.starts_with("tiles") {
                let most = bytes.len() + bytes.len() / 200;
                assert!(
                    found[path].len() <= most,
                    "{}: {} bytes, expected {most}",
                    path.display(),
                    found[path].len()
                );
            }
        }
        // Every count and every value of obs, of both.
        for dataset in [&output, &expected] {
            let told = succeeds(&[&"verify", dataset, &"--against", &input]);
            assert!(told.contains("no differences against the input"), "{told}");
        }
    }
}

#[test]
fn an_independent_reader_finds_what_scanpy_reads_from_the_inputs() {
    let Some(real) = real() else { return };
    let scratch = scratch("independent");
    for (input, kind, options) in [
        ("pbmc_facs.h5ad", "h5ad", vec!["--level", "3", "--tile-size", "1000"]),
        ("celseq2.h5ad", "h5ad", vec!["--level", "3", "--tile-size", "100"]),
        ("pbmc_native.h5ad", "h5ad", vec!["--level", "3"]),
        ("10x_v3.h5", "10x_h5", vec!["--level", "3", "--chunks", "1"]),
        ("10x_mtx", "mtx", vec!["--level", "1", "--tile-size", "999"]),
    ] {
        let (input, output) = (real.join(input), scratch.join(kind.to_owned() + input));
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"convert", &output, &input];
        arguments.extend(options.iter().map(|option| option as &dyn AsRef<std::ffi::OsStr>));
        succeeds(&arguments);
        let Some(mut reader) = python::script("independent_reader.py") else {
            return;
        };
        let read = reader.arg(&output).arg(kind).arg(&input).output().unwrap();
        assert!(
            read.status.success(),
            "{}: {}",
            input.display(),
            String::from_utf8_lossy(&read.stderr)
        );
    }
}

#[test]
fn several_inputs_become_one_dataset_whose_tiles_run_across_them() {
    let scratch = scratch("several");
    let (a, b, c) = (scratch.join("a"), scratch.join("b"), scratch.join("c"));
    write_mtx(&a, &genes(0..80), 130, 3);
    write_mtx(&b, &genes(0..80), 1, 5);
    write_mtx(&c, &genes(0..80), 217, 9);
    let output = scratch.join("out");
    succeeds(&[
        &"convert",
        &output,
        &a,
        &b,
        &c,
        &"--tile-size",
        &"100",
        &"--obs-source",
        &"file",
        &"--level",
        &"3",
    ]);
    let told = succeeds(&[&"verify", &output, &"--against", &a, &"--against", &b, &"--against", &c]);
    assert!(
        told.contains("no faults in 4 tiles") && told.contains("no differences"),
        "{told}"
    );
    let schema = fs::read_to_string(output.join("obs/schema.json")).unwrap();
    assert!(
        schema.contains(&format!("\"categories\": [\"{}\"", a.join("matrix.mtx").display())),
        "{schema}"
    );
    // In another order they are another dataset.
    let swapped = dcfs(&[&"verify", &output, &"--against", &c, &"--against", &b, &"--against", &a]);
    assert_eq!(swapped.status.code(), Some(1));
}

#[test]
fn genes_that_not_every_input_has_are_joined_as_told_or_refused_by_name() {
    let scratch = scratch("join");
    let (a, b) = (scratch.join("a"), scratch.join("b"));
    write_mtx(&a, &genes(0..50), 40, 3);
    let mut others = genes(30..70);
    others.reverse();
    write_mtx(&b, &others, 40, 5);
    let output = scratch.join("out");
    let refused = fails(&[&"convert", &output, &a, &b]);
    assert!(
        refused.contains("choose --join inner or --join outer") && refused.contains("\"gene0\""),
        "{refused}"
    );
    assert!(!output.exists(), "nothing is written before everything is checked");
    for (join, n_genes) in [("inner", 20), ("outer", 70)] {
        let output = scratch.join(join);
        succeeds(&[
            &"convert",
            &output,
            &a,
            &b,
            &"--join",
            &join,
            &"--level",
            &"3",
            &"--gene-key",
            &"gene_ids",
        ]);
        let told = succeeds(&[&"verify", &output, &"--against", &a, &"--against", &b]);
        assert!(told.contains("no differences"), "{told}");
        let manifest = fs::read_to_string(output.join("manifest.json")).unwrap();
        assert!(manifest.contains(&format!("\"n_genes\": {n_genes}")), "{manifest}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads_nor_on_an_interruption() {
    let scratch = scratch("resume");
    let input = scratch.join("in");
    write_mtx(&input, &genes(0..200), 900, 3);
    let base = ["--tile-size", "50", "--level", "19"];
    for shuffle in [None, Some("7")] {
        let convert = |output: &Path, more: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_dcfs"));
            command.arg("convert").arg(output).arg(&input).args(base).args(more);
            if let Some(seed) = shuffle {
                command.args(["--shuffle", seed]);
            }
            command
        };
        let (one, many, cut) = (scratch.join("one"), scratch.join("many"), scratch.join("cut"));
        for folder in [&one, &many, &cut] {
            let _ = fs::remove_dir_all(folder);
        }
        assert!(convert(&one, &["--threads", "1"]).output().unwrap().status.success());
        assert!(convert(&many, &["--threads", "5"]).output().unwrap().status.success());
        assert!(files(&one) == files(&many), "one thread or five");
        // Killed while it writes.
        let mut child = convert(&cut, &["--threads", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while !cut.join("tiles/tile_000003.dct").exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if cut.join("manifest.json").exists() {
            eprintln!("the conversion was done before it could be killed");
            continue;
        }
        assert!(dcfs(&[&"info", &cut]).status.code() != Some(0), "it is no dataset");
        fs::write(cut.join("tiles/.tile_000009.dct.tmp"), b"half").unwrap();
        let kept = fs::metadata(cut.join("tiles/tile_000000.dct"))
            .unwrap()
            .modified()
            .unwrap();
        let other = convert(&cut, &["--resume", "--chunks", "3"]).output().unwrap();
        assert!(
            String::from_utf8_lossy(&other.stderr).contains("cannot be resumed"),
            "other options"
        );
        let resumed = convert(&cut, &["--resume"]).output().unwrap();
        assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
        assert!(files(&cut) == files(&one), "resumed or not");
        assert_eq!(
            fs::metadata(cut.join("tiles/tile_000000.dct"))
                .unwrap()
                .modified()
                .unwrap(),
            kept
        );
    }
}

#[test]
fn an_interrupted_conversion_says_how_to_go_on_and_leaves_no_dataset() {
    let scratch = scratch("interrupt");
    let (input, output) = (scratch.join("in"), scratch.join("out"));
    write_mtx(&input, &genes(0..200), 3000, 3);
    let mut child = Command::new(env!("CARGO_BIN_EXE_dcfs"))
        .args(["convert".as_ref(), output.as_os_str(), input.as_os_str()])
        .args(["--tile-size", "20", "--threads", "1", "--level", "22"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !output.join("tiles/tile_000001.dct").exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    if ended.status.success() {
        eprintln!("the conversion was done before it could be interrupted");
        return;
    }
    assert_eq!(ended.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("--resume continues it"));
    assert!(!output.join("manifest.json").exists());
}

#[test]
fn a_shuffle_keeps_every_cell_with_its_name() {
    let Some(mut reader) = python::script("same_cells.py") else {
        return;
    };
    let scratch = scratch("shuffle");
    let input = scratch.join("in");
    write_mtx(&input, &genes(0..60), 500, 3);
    let (plain, shuffled) = (scratch.join("plain"), scratch.join("shuffled"));
    succeeds(&[&"convert", &plain, &input, &"--level", &"3", &"--tile-size", &"128"]);
    succeeds(&[
        &"convert",
        &shuffled,
        &input,
        &"--level",
        &"3",
        &"--tile-size",
        &"128",
        &"--shuffle",
        &"1",
    ]);
    let told = succeeds(&[&"verify", &shuffled, &"--against", &input]);
    assert!(
        told.contains("no differences against the input: 500 cells") && told.contains(", 500 values of obs"),
        "{told}"
    );
    let other = scratch.join("other");
    write_mtx(&other, &genes(0..60), 500, 5);
    let differs = fails(&[&"verify", &shuffled, &"--against", &other]);
    assert!(differs.contains("cell 0 (cell5_"), "{differs}");
    // Rows by cell name, with no reader of ours.
    let read = reader.arg(&plain).arg(&shuffled).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
}

#[test]
fn an_output_that_exists_is_replaced_only_when_told_and_nothing_else_in_it_is_touched() {
    let scratch = scratch("overwrite");
    let (input, output) = (scratch.join("in"), scratch.join("out"));
    write_mtx(&input, &genes(0..20), 10, 3);
    let dry = succeeds(&[&"convert", &output, &input, &"--dry-run"]);
    assert!(dry.contains("10 cells x 20 genes") && !output.exists(), "{dry}");
    succeeds(&[&"convert", &output, &input]);
    let refused = fails(&[&"convert", &output, &input]);
    assert!(refused.contains("--overwrite replaces"), "{refused}");
    let refused = fails(&[&"convert", &output, &input, &"--resume"]);
    assert!(refused.contains("nothing to resume"), "{refused}");
    succeeds(&[&"convert", &output, &input, &"--overwrite", &"--tile-size", &"3"]);
    assert!(output.join("tiles/tile_000003.dct").exists());
    fs::write(output.join("notes.txt"), "mine").unwrap();
    let refused = fails(&[&"convert", &output, &input, &"--overwrite"]);
    assert!(
        refused.contains("\"notes.txt\", which is no part of a dataset"),
        "{refused}"
    );
    assert!(output.join("manifest.json").exists());
    assert_eq!(fs::read_to_string(output.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn bad_counts_are_refused_before_anything_is_written() {
    let scratch = scratch("bad");
    let (good, bad, output) = (scratch.join("good"), scratch.join("bad"), scratch.join("out"));
    write_mtx(&good, &genes(0..20), 10, 3);
    write_mtx(&bad, &genes(0..20), 10, 5);
    let text = fs::read_to_string(bad.join("matrix.mtx")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let last = lines.pop().unwrap();
    let place = last.rsplit_once(' ').unwrap().0;
    let negative = format!("{place} -4");
    lines.push(&negative);
    fs::write(bad.join("matrix.mtx"), lines.join("\n")).unwrap();
    let refused = fails(&[&"convert", &output, &good, &bad]);
    assert!(
        refused.contains("-4 is negative") && refused.contains("cell 9 (cell5_9)"),
        "{refused}"
    );
    assert!(!output.exists());
}

/// Files whose obs is odd or bad, written by Python.
fn odd_obs(scratch: &Path) -> bool {
    let Some(mut write) = python::script("odd_obs.py") else {
        return false;
    };
    let output = write.arg(scratch).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    true
}

#[test]
fn what_is_wrong_with_obs_is_found_before_an_output_is_touched() {
    let scratch = scratch("odd-obs");
    if !odd_obs(&scratch) {
        return;
    }
    let (input, output) = (scratch.join("mtx"), scratch.join("out.dc"));
    write_mtx(&input, &genes(0..20), 10, 1);
    succeeds(&[&"convert", &output, &input]);
    let before = files(&output);
    for (bad, fault) in [("bad_code", "obs/stage"), ("bad_text", "not UTF-8")] {
        let bad = scratch.join(format!("{bad}.h5ad"));
        let refused = fails(&[&"convert", &output, &bad, &"--overwrite"]);
        assert!(refused.contains(fault), "{refused}");
        assert_eq!(files(&output), before, "the old dataset is as it was");
        fails(&[&"convert", &scratch.join("new.dc"), &bad, &"--dry-run"]);
        fails(&[&"convert", &scratch.join("new.dc"), &bad]);
        assert!(!scratch.join("new.dc").exists());
    }
}

#[test]
fn what_categories_lose_is_said_and_columns_that_are_missing_are_differences() {
    let scratch = scratch("lost-obs");
    if !odd_obs(&scratch) {
        return;
    }
    let (input, output) = (scratch.join("odd.h5ad"), scratch.join("out.dc"));
    let converted = dcfs(&[&"convert", &output, &input, &"--obs-exclude", &"score"]);
    let notes = String::from_utf8_lossy(&converted.stderr);
    assert!(
        notes.contains("categories that are no text become text: \"cluster\""),
        "{notes}"
    );
    assert!(
        notes.contains("categories have no order any more: \"stage\""),
        "{notes}"
    );
    let differs = fails(&[&"verify", &output, &"--against", &input]);
    assert!(differs.contains("the dataset has no column \"score\""), "{differs}");
    succeeds(&[&"verify", &output, &"--against", &input, &"--obs-exclude", &"score"]);
}

#[test]
fn a_matrix_of_alevin_has_cells_as_rows_also_where_there_are_as_many_genes() {
    let scratch = scratch("alevin");
    let (input, output) = (scratch.join("alevin"), scratch.join("out.dc"));
    fs::create_dir_all(&input).unwrap();
    // The first cell has three nonzeros, the others none and one.
    let matrix = "%%MatrixMarket matrix coordinate integer general\n3 3 4\n1 1 5\n1 2 6\n1 3 7\n3 1 8\n";
    fs::write(input.join("quants_mat.mtx"), matrix).unwrap();
    fs::write(input.join("quants_mat_cols.txt"), "g1\ng2\ng3\n").unwrap();
    fs::write(input.join("quants_mat_rows.txt"), "c1\nc2\nc3\n").unwrap();
    succeeds(&[&"convert", &output, &input]);
    let dataset = Dataset::open(Arc::new(Directory::open(&output, Links::Anywhere).unwrap())).unwrap();
    assert_eq!(dataset.tile(0).unwrap().indptr(), [0, 3, 3, 4]);
}
