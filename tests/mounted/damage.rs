//! Damaged datasets: what is wrong is said, what is right goes on.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use dcfs::format::encode::CsrRows;
use dcfs::write::{DatasetWriter, WriterOptions};

use crate::data::{assert_shows, edit_manifest, int32s, links_to, made_up, replace, shared};
use crate::harness::{Folder, Io, Mount, Source, failed_with, in_every_mode, not_mounted, refused, text};

in_every_mode!(
    a_damaged_tile_is_an_error_of_its_own_files_alone,
    a_damaged_shard_is_an_error_of_its_own_columns_alone,
    a_manifest_that_is_refused_leaves_no_mount,
    a_missing_part_is_found_at_mounting,
    a_missing_tile_is_an_error_until_it_is_back;
    on_folders:
    one_changed_bit_of_a_shard_is_an_error_of_its_columns,
    a_file_that_is_no_file_is_an_error,
    a_tile_that_is_written_to_under_the_mount_is_an_error_until_it_is_verified_anew,
    a_tile_that_becomes_another_under_the_mount_is_never_mixed_with_it,
);

const ARRAYS: [&str; 3] = ["indptr.i64", "indices.i32", "data.i32"];

/// The whole file or the error number. Reading goes on after nothing: an error is the end.
fn read(path: &Path) -> Result<Vec<u8>, i32> {
    let mut bytes = Vec::new();
    let result = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    result.map(|_| bytes).map_err(|error| error.raw_os_error().unwrap())
}

/// `edge.dc` with another tile 1.
fn with_bad_tile(dataset: &Path, tile: &Path) -> Folder {
    let folder = links_to(dataset);
    let bytes = fs::read(tile).unwrap();
    // A size that no tile can have is refused with the manifest; there, the file is left shorter than the manifest says.
    if bytes.len() >= 128 {
        edit_manifest(folder.path(), |manifest| manifest["tile_bytes"][1] = bytes.len().into());
    }
    replace(&folder.join("tiles/tile_000001.dct"), &bytes);
    folder
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Files that can be read in spite of a fault, which lies in the counts, in the genes, or in one of them, alone.
fn untouched_by(tile: &str) -> &'static [&'static str] {
    match tile.split('_').next().unwrap() {
        "vexc" | "vals" => &["indices.i32", "indptr.i64"],
        "gaps" | "gexc" | "gene" => &["data.i32", "indptr.i64"],
        _ if ["frame_then_garbage", "no_content_size", "two_frames"].contains(&tile) => &ARRAYS,
        _ => &[],
    }
}

fn a_damaged_tile_is_an_error_of_its_own_files_alone(io: Io) {
    let (Some(dataset), Some(bad)) = (shared("edge.dc"), shared("bad/tiles")) else {
        return;
    };
    let good = Mount::new(&dataset, io);
    let good_bytes = |tile: usize, file: &str| read(&good.join(format!("tile_{tile:06}/{file}"))).unwrap();
    for path in files_in(&bad) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let folder = with_bad_tile(&dataset, &path);
        let mount = Mount::new(folder.path(), io);
        let bad_file = |file: &str| mount.join("tile_000001").join(file);
        let sizes = || ARRAYS.map(|file| fs::metadata(bad_file(file)).unwrap().len());
        let before = sizes();
        let mut failed = 0;
        for file in ARRAYS {
            for attempt in 0..3 {
                match read(&bad_file(file)) {
                    Ok(bytes) => {
                        assert!(untouched_by(name).contains(&file), "{name}: {file} was read");
                        assert!(bytes == good_bytes(1, file), "{name}: {file} was read wrong");
                    }
                    Err(error) => {
                        assert_eq!(error, libc::EIO, "{name}: {file}");
                        failed += usize::from(attempt == 0);
                    }
                }
            }
        }
        assert!(failed > 0, "{name}: nothing failed");
        assert_eq!(sizes(), before, "{name}");
        for tile in [0, 2, 3, 4] {
            for file in ARRAYS {
                let shown = read(&mount.join(format!("tile_{tile:06}/{file}")));
                assert!(shown == Ok(good_bytes(tile, file)), "{name}: {file} of tile {tile}");
            }
        }
        assert!(!mount.daemon().has_ended());

        let complaints = mount.complaints();
        let (first, rest) = complaints
            .split_first()
            .unwrap_or_else(|| panic!("{name}: nothing was logged"));
        assert!(first.contains("tiles/tile_000001.dct: "), "{name}: {first}");
        // Genes and counts may each have a fault to tell of.
        assert!(
            rest.iter().all(|line| line != first) && rest.len() < 2,
            "{name}: {complaints:#?}"
        );
        let stats = mount.stats();
        let errors: u64 = stats["errors"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(|count| count.as_u64())
            .sum();
        assert!(errors > 0, "{name}: {stats}");
    }
}

#[test]
fn verify_finds_every_damaged_tile_and_says_what_is_wrong() {
    let (Some(dataset), Some(bad)) = (shared("edge.dc"), shared("bad/tiles")) else {
        return;
    };
    for path in files_in(&bad) {
        let folder = with_bad_tile(&dataset, &path);
        for source in Source::both(folder.path()) {
            let output = source.command("verify").output().unwrap();
            let faults = failed_with(&output, 1);
            assert!(
                faults.lines().all(|line| line.contains("tiles/tile_000001.dct: ")),
                "{path:?}: {faults}"
            );
            let summary = text(&output.stdout);
            let number = faults.lines().count();
            let expected = if number == 1 {
                "1 fault in ".into()
            } else {
                format!("{number} faults in ")
            };
            assert!(
                number > 0 && summary.starts_with(&expected),
                "{path:?}: {summary}{faults}"
            );
        }
    }
}

#[test]
fn verify_lists_every_fault_there_is() {
    let dataset = made_up();
    let folder = links_to(&dataset.path);
    let damage = |file: &str, at: usize| {
        let mut bytes = fs::read(folder.join(file)).unwrap();
        bytes[at] ^= 1;
        replace(&folder.join(file), &bytes);
    };
    damage("tiles/tile_000001.dct", 700);
    damage("tiles/tile_000003.dct", 0);
    damage("obs/obs_0001.parquet", 100);
    fs::remove_file(folder.join("var_names.txt")).unwrap();
    for source in Source::both(folder.path()) {
        let output = source.command("verify").output().unwrap();
        let faults = failed_with(&output, 1);
        for file in [
            "tile_000001.dct",
            "tile_000003.dct",
            "obs_0001.parquet",
            "var_names.txt",
        ] {
            assert!(faults.contains(file), "{file} is missing from {faults}");
        }
        for file in [
            "tile_000000.dct",
            "tile_000002.dct",
            "tile_000004.dct",
            "obs_0000.parquet",
            "var.parquet",
        ] {
            assert!(!faults.contains(file), "{file} is in {faults}");
        }
    }
}

fn a_missing_tile_is_an_error_until_it_is_back(io: Io) {
    let dataset = made_up();
    let tile = dataset.path.join("tiles/tile_000002.dct");
    let aside = dataset.path.join("aside");
    fs::rename(&tile, &aside).unwrap();
    let mount = Mount::new(&dataset.path, io);
    for file in ARRAYS {
        assert_eq!(read(&mount.join("tile_000002").join(file)), Err(libc::EIO));
    }
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));
    assert_eq!(mount.complaints().len(), 1, "{:?}", mount.complaints());
    fs::rename(&aside, &tile).unwrap();
    assert_shows(&mount.join("tile_000002"), &dataset.synthetic.tile(2));
}

fn a_file_that_is_no_file_is_an_error(io: Io) {
    let dataset = made_up();
    let tile = dataset.path.join("tiles/tile_000002.dct");
    fs::remove_file(&tile).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &tile, 0o644.into()).unwrap();
    let mount = Mount::new(&dataset.path, io);
    assert_eq!(
        read(&mount.join("tile_000002/data.i32")),
        Err(libc::EIO),
        "without waiting for a writer"
    );
    assert!(
        mount.complaints()[0].contains("not a regular file"),
        "{:?}",
        mount.complaints()
    );
}

fn a_tile_that_is_written_to_under_the_mount_is_an_error_until_it_is_verified_anew(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let tile = |tile: usize| dataset.path.join(format!("tiles/tile_{tile:06}.dct"));
    assert!(read(&mount.join("tile_000001/data.i32")).is_ok());
    // The same bytes, so that nothing but the time tells. What the kernel remembers it does not ask for again: another array is read.
    fs::write(tile(1), fs::read(tile(1)).unwrap()).unwrap();
    match read(&mount.join("tile_000001/indices.i32")) {
        // The kernel asks once more when it was reading ahead, or was told of a stale file when it opened one; by then the file was
        // opened and verified anew.
        Ok(bytes) => assert_eq!(bytes.len(), 4 * dataset.synthetic.tile(1).indices.len()),
        Err(error) => assert_eq!(error, libc::ESTALE),
    }
    let complaints = mount.complaints();
    assert!(
        complaints.len() == 1 && complaints[0].contains("tile_000001.dct: the file changed"),
        "{complaints:?}"
    );
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));

    // Shorter than it was, before and after it was opened for the first time.
    for cut in [1, 3] {
        File::options()
            .write(true)
            .open(tile(cut))
            .unwrap()
            .set_len(200)
            .unwrap();
    }
    assert_eq!(read(&mount.join("tile_000003/indices.i32")), Err(libc::EIO));
    assert!(
        read(&mount.join("tile_000001/data.i32")).is_ok_and(|bytes| !bytes.is_empty()),
        "it is in memory"
    );
    assert!(!mount.daemon().has_ended());
    assert_shows(&mount.join("tile_000002"), &dataset.synthetic.tile(2));
}

fn a_tile_that_becomes_another_under_the_mount_is_never_mixed_with_it(io: Io) {
    let (one, other) = (one_tile(&[5, 1, 7]), one_tile(&[6, 2, 8]));
    let tile = |folder: &Folder| folder.join("small.dc/tiles/tile_000000.dct");
    let (old, new) = (fs::read(tile(&one)).unwrap(), fs::read(tile(&other)).unwrap());
    assert!(
        old.len() == new.len() && old != new,
        "the manifest cannot tell them apart"
    );
    let mount = Mount::new(&one.join("small.dc"), io);
    let counts = |mount: &Mount| int32s(&mount.join("tile_000000/data.i32"));
    assert_eq!(counts(&mount), [5, 1, 7]);
    fs::write(tile(&one), &new).unwrap();
    for _ in 0..3 {
        assert_eq!(read(&mount.join("tile_000000/indices.i32")), Err(libc::ESTALE));
    }
    assert!(
        mount.complaints()[0].contains("mount the dataset again"),
        "{:?}",
        mount.complaints()
    );
    let again = Mount::new(&one.join("small.dc"), io);
    assert_eq!(counts(&again), [6, 2, 8]);
    assert_eq!(int32s(&again.join("tile_000000/indices.i32")), [0, 2, 1]);
}

/// A dataset of two cells and three genes.
fn one_tile(counts: &[i32; 3]) -> Folder {
    let folder = Folder::new();
    let mut writer = DatasetWriter::create(&folder.join("small.dc"), WriterOptions::new(3)).unwrap();
    let rows = CsrRows::new(3, &[0, 2, 3], &[0, 2, 1], counts).unwrap();
    writer.push(rows, None).unwrap();
    writer.finish().unwrap();
    folder
}

fn a_damaged_shard_is_an_error_of_its_own_columns_alone(io: Io) {
    let dataset = made_up();
    let shard = dataset.path.join("obs/obs_0001.parquet");
    let mut bytes = fs::read(&shard).unwrap();
    let half = bytes.len() / 2;
    bytes[4..half].fill(0x5a);
    fs::write(&shard, bytes).unwrap();
    let mount = Mount::new(&dataset.path, io);
    let column = |tile: usize| mount.join(format!("tile_{tile:06}/obs/total_counts.arrow"));
    let size = fs::metadata(mount.join("obs/total_counts.arrow")).unwrap().len();
    for tile in 0..3 {
        assert!(read(&column(tile)).is_ok(), "tile {tile}");
    }
    assert_eq!(read(&column(3)), Err(libc::EIO));
    assert_eq!(read(&mount.join("obs/total_counts.arrow")), Err(libc::EIO));
    assert_eq!(fs::metadata(mount.join("obs/total_counts.arrow")).unwrap().len(), size);
    assert!(
        mount.complaints()[0].contains("obs/obs_0001.parquet"),
        "{:?}",
        mount.complaints()
    );
    assert_shows(&mount.join("tile_000003"), &dataset.synthetic.tile(3));
}

fn one_changed_bit_of_a_shard_is_an_error_of_its_columns(io: Io) {
    let dataset = made_up();
    let shard = dataset.path.join("obs/obs_0000.parquet");
    let good = fs::read(&shard).unwrap();
    for at in [10, good.len() / 3, good.len() / 2, good.len() - 40] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&shard, bytes).unwrap();
        let mount = Mount::new(&dataset.path, io);
        let column = |tile: usize| mount.join(format!("tile_{tile:06}/obs/total_counts.arrow"));
        assert_eq!(read(&column(0)), Err(libc::EIO), "byte {at}");
        assert!(read(&column(3)).is_ok());
        assert!(mount.complaints()[0].contains("SHA-256"), "{:?}", mount.complaints());
    }
}

fn a_manifest_that_is_refused_leaves_no_mount(io: Io) {
    let (Some(dataset), Some(bad)) = (shared("edge.dc"), shared("bad/manifests")) else {
        return;
    };
    for path in files_in(&bad) {
        let folder = links_to(&dataset);
        replace(&folder.join("manifest.json"), &fs::read(&path).unwrap());
        let mountpoint = Folder::new();
        let source = Source::new(folder.path(), io);
        let mount = &mut source.command("mount");
        let reason = not_mounted(mount.args(["--io", io.name()]), mountpoint.path());
        assert!(reason.contains("manifest.json: "), "{path:?}: {reason}");
        assert_eq!(reason.lines().count(), 1, "{reason}");
        for command in ["info", "verify"] {
            let output = source.command(command).output().unwrap();
            assert_eq!(failed_with(&output, 1), reason, "{command} {path:?}");
        }
    }
}

fn a_missing_part_is_found_at_mounting(io: Io) {
    let dataset = made_up();
    for file in [
        "var.parquet",
        "var_names.txt",
        "gene_order.npy",
        "obs/schema.json",
        "manifest.json",
    ] {
        let folder = links_to(&dataset.path);
        fs::remove_file(folder.join(file)).unwrap();
        let source = Source::new(folder.path(), io);
        let reason = not_mounted(source.command("mount").args(["--io", io.name()]), Folder::new().path());
        assert!(reason.contains(file), "{reason}");
    }
    let nowhere = refused(
        Path::new("/nonexistent/dataset"),
        Folder::new().path(),
        &["--io", io.name()],
    );
    assert!(nowhere.contains("/nonexistent/dataset"), "{nowhere}");
}
