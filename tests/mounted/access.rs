//! Who may read what.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::data::{MadeUp, assert_shows, made_up};
use crate::harness::{Folder, Io, Mount, can_mount, in_every_mode, is_root, run, skip_without, text};
use crate::ordinary_user::{self, NOBODY};

in_every_mode!(
    without_allow_other_nobody_else_gets_in,
    owner_and_mode_are_replaced_on_demand;
    on_folders:
    others_read_what_they_may_read_of_the_dataset_and_no_more,
    a_private_folder_around_the_dataset_keeps_others_out,
    owners_and_modes_are_those_of_the_dataset,
    a_link_out_of_the_dataset_shows_nothing_to_others,
    a_file_that_becomes_another_is_not_read_on,
    a_private_tile_that_is_gone_stays_private,
    labels_are_for_those_who_may_read_the_schema,
    a_tile_kept_more_closely_than_the_first_is_not_read_through_files_of_all_tiles,
    what_somebody_read_of_a_tile_does_not_outlive_the_right_to_read_it,
    who_may_not_read_the_first_tile_reads_no_file_of_all_tiles,
);

/// Whether a test that needs another user can run.
fn has_another_user() -> bool {
    if !is_root() {
        return false;
    }
    let there = Command::new("setpriv").arg("--version").output().is_ok();
    if !there {
        skip_without("setpriv", "util-linux");
    }
    there
}

/// What `program` says when somebody runs it who owns nothing and is in no group.
fn as_nobody(program: &str, path: &Path) -> Result<Vec<u8>, String> {
    let output = Command::new("setpriv")
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
        .args(["--clear-groups", "--", program])
        .arg(path)
        .current_dir("/")
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(text(&output.stderr)),
    }
}

fn assert_forbidden(result: Result<Vec<u8>, String>) {
    assert!(
        result
            .as_ref()
            .is_err_and(|reason| reason.contains("Permission denied")),
        "{result:?}"
    );
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn public(dataset: &MadeUp) {
    let mut folders = vec![dataset.path.clone()];
    while let Some(folder) = folders.pop() {
        set_mode(&folder, 0o755);
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => set_mode(&entry.path(), 0o644),
            }
        }
    }
}

fn without_allow_other_nobody_else_gets_in(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    let mount = Mount::new(&dataset.path, io);
    assert_forbidden(as_nobody("ls", mount.path()));
    assert_forbidden(as_nobody("cat", &mount.join("README.txt")));
    assert_forbidden(as_nobody("cat", &mount.join("tile_000000/data.i32")));
}

fn others_read_what_they_may_read_of_the_dataset_and_no_more(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    set_mode(&dataset.path.join("tiles/tile_000001.dct"), 0o600);
    set_mode(&dataset.path.join("obs/obs_0001.parquet"), 0o640);
    set_mode(&dataset.path.join("var.parquet"), 0o600);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    let cat = |file: &str| as_nobody("cat", &mount.join(file));
    assert_eq!(
        cat("tile_000000/data.i32").unwrap(),
        fs::read(mount.join("tile_000000/data.i32")).unwrap()
    );
    for file in ["indptr.i64", "indices.i32", "data.i32"] {
        assert_forbidden(cat(&format!("tile_000001/{file}")));
    }
    // Decoded and open for somebody who may is not decoded for all.
    let held = fs::File::open(mount.join("tile_000001/data.i32")).unwrap();
    assert_forbidden(cat("tile_000001/data.i32"));
    drop(held);
    // Tiles 3 and 4 have their obs in the second shard, and so has the column of all cells.
    assert!(cat("tile_000002/obs/cell_type.arrow").is_ok());
    assert_forbidden(cat("tile_000003/obs/cell_type.arrow"));
    assert_forbidden(cat("obs/cell_type.arrow"));
    assert_forbidden(cat("var.parquet"));
    assert!(cat("var_names.txt").is_ok() && cat("README.txt").is_ok() && cat(".dcfs/stats.json").is_ok());
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));
}

fn a_link_out_of_the_dataset_shows_nothing_to_others(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    let secret = dataset.folder.join("secret");
    fs::copy(dataset.path.join("tiles/tile_000001.dct"), &secret).unwrap();
    set_mode(&secret, 0o644);
    let tile = dataset.path.join("tiles/tile_000001.dct");
    fs::remove_file(&tile).unwrap();
    std::os::unix::fs::symlink(&secret, &tile).unwrap();
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    assert!(as_nobody("cat", &mount.join("tile_000001/data.i32")).is_err());
    assert!(fs::read(mount.join("tile_000001/data.i32")).is_err());
    assert!(as_nobody("cat", &mount.join("tile_000000/data.i32")).is_ok());
    // Without others to show it to, links lead where they lead.
    let mount = Mount::new(&dataset.path, io);
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));
}

fn a_file_that_becomes_another_is_not_read_on(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    let names = dataset.path.join("var_names.txt");
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    let mut held = fs::File::open(mount.join("var_names.txt")).unwrap();
    let another = dataset.path.join("another");
    fs::write(&another, vec![b'x'; fs::metadata(&names).unwrap().len() as usize]).unwrap();
    fs::rename(&another, &names).unwrap();
    let mut text = String::new();
    let read = std::io::Read::read_to_string(&mut held, &mut text);
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert_eq!(text, "");
}

fn a_private_tile_that_is_gone_stays_private(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    let tile = dataset.path.join("tiles/tile_000001.dct");
    set_mode(&tile, 0o600);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    let data = mount.join("tile_000001/data.i32");
    fs::read(&data).unwrap();
    fs::rename(&tile, dataset.folder.join("elsewhere")).unwrap();
    // Longer than anybody keeps what a file's mode was.
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert_forbidden(as_nobody("cat", &data));
    assert_eq!(fs::metadata(&data).unwrap().mode() & 0o077, 0);
}

fn labels_are_for_those_who_may_read_the_schema(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    set_mode(&dataset.path.join("obs/schema.json"), 0o600);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    for file in [
        "obs/cell_type.arrow",
        "tile_000000/obs/cell_type.arrow",
        "README.txt",
        "obs/schema.json",
    ] {
        assert_forbidden(as_nobody("cat", &mount.join(file)));
    }
    assert_forbidden(as_nobody("ls", &mount.join("obs")));
    assert!(as_nobody("cat", &mount.join("tile_000000/data.i32")).is_ok());
}

/// The files that are made of all tiles.
const OF_ALL_TILES: [&str; 5] = [
    "X/indptr.i64",
    "X/data.npy",
    "X/data.f32",
    "dataset.h5ad",
    "dataset.zarr/X/indices/c/0",
];

/// Everything is read by root first: what is decoded for one is not decoded for all.
fn a_tile_kept_more_closely_than_the_first_is_not_read_through_files_of_all_tiles(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    set_mode(&dataset.path.join("tiles/tile_000001.dct"), 0o600);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));
    for file in OF_ALL_TILES {
        // The file cannot tell its readers apart, so nobody gets that tile through it.
        let error = fs::read(mount.join(file)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{file}");
        assert_forbidden(as_nobody("cat", &mount.join(file)));
    }
    let complaints = mount.complaints();
    assert!(
        complaints[0].contains("tile_000001.dct: fewer may read this tile"),
        "{complaints:?}"
    );
    // The tiles before and after it are there.
    let read = |nonzero: usize| {
        let file = fs::File::open(mount.join("X/data.i32")).unwrap();
        let mut entry = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut entry, 4 * nonzero as u64).unwrap();
        i32::from_le_bytes(entry)
    };
    let whole = dataset.synthetic.cells(0..900);
    for cell in [0, 450, 899] {
        let nonzero = whole.indptr[cell] as usize;
        assert_eq!(read(nonzero), whole.counts[nonzero]);
    }
    // An administrator who says what everybody may do has said it of every tile.
    let mount = Mount::with(&dataset.path, io, &["--allow-other", "--mode", "444"]);
    assert!(as_nobody("cat", &mount.join("X/data.i32")).is_ok());
    // Without others, whoever mounted it reads what they may read.
    let mount = Mount::new(&dataset.path, io);
    assert!(fs::read(mount.join("X/data.i32")).is_ok());
}

fn what_somebody_read_of_a_tile_does_not_outlive_the_right_to_read_it(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    for file in OF_ALL_TILES {
        // Mapped, so that the kernel remembers it.
        let bytes = crate::data::map(&mount.join(file), true).to_vec();
        assert!(as_nobody("cat", &mount.join(file)).unwrap() == bytes, "{file}");
    }
    set_mode(&dataset.path.join("tiles/tile_000001.dct"), 0o600);
    // Longer than anybody keeps what a file's mode was.
    std::thread::sleep(std::time::Duration::from_secs(11));
    for file in OF_ALL_TILES {
        assert_forbidden(as_nobody("cat", &mount.join(file)));
    }
}

fn who_may_not_read_the_first_tile_reads_no_file_of_all_tiles(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    set_mode(&dataset.path.join("tiles/tile_000000.dct"), 0o600);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    for file in OF_ALL_TILES {
        assert_forbidden(as_nobody("cat", &mount.join(file)));
        assert!(fs::read(mount.join(file)).is_ok(), "{file}");
    }
}

fn a_private_folder_around_the_dataset_keeps_others_out(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    set_mode(dataset.folder.path(), 0o700);
    let mount = Mount::with(&dataset.path, io, &["--allow-other"]);
    assert_forbidden(as_nobody("ls", mount.path()));
    assert_forbidden(as_nobody("cat", &mount.join("tile_000000/data.i32")));
    assert_forbidden(as_nobody("cat", &mount.join("README.txt")));
}

fn owners_and_modes_are_those_of_the_dataset(io: Io) {
    if !is_root() {
        return;
    }
    let dataset = made_up();
    public(&dataset);
    let tile = dataset.path.join("tiles/tile_000002.dct");
    set_mode(&tile, 0o640);
    std::os::unix::fs::chown(&tile, Some(12), Some(34)).unwrap();
    let mount = Mount::new(&dataset.path, io);
    for file in ["indptr.i64", "indices.i32", "data.i32"] {
        let metadata = fs::metadata(mount.join("tile_000002").join(file)).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
            (12, 34, 0o440)
        );
        assert_eq!(metadata.mtime(), fs::metadata(&tile).unwrap().mtime());
    }
    let folder = fs::metadata(mount.join("tile_000002")).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o7777), (0, 0o555));
}

fn owner_and_mode_are_replaced_on_demand(io: Io) {
    if !has_another_user() {
        return;
    }
    let dataset = made_up();
    set_mode(dataset.folder.path(), 0o700);
    let nobody = NOBODY.to_string();
    let options = ["--allow-other", "--uid", &nobody, "--gid", "7", "--mode", "440"];
    let mount = Mount::with(&dataset.path, io, &options);
    for path in ["README.txt", "tile_000000/data.i32", "obs/age.arrow", "var.parquet"] {
        let metadata = fs::metadata(mount.join(path)).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
            (NOBODY, 7, 0o440),
            "{path}"
        );
    }
    let folder = fs::metadata(mount.join("tile_000000")).unwrap();
    assert_eq!((folder.uid(), folder.gid(), folder.mode() & 0o7777), (NOBODY, 7, 0o550));
    assert!(as_nobody("cat", &mount.join("tile_000000/data.i32")).is_ok());
}

/// Through `fusermount3`, and without the capability that passthrough takes.
#[test]
fn an_ordinary_user_mounts_reads_and_unmounts() {
    if !can_mount() || !has_another_user() {
        return;
    }
    let Some(mut command) = ordinary_user::command() else {
        return;
    };
    let dataset = made_up();
    public(&dataset);
    let folder = Folder::new();
    let theirs = folder.subfolder("theirs");
    std::os::unix::fs::chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    // Where cargo puts the program, others may not be let in.
    let program = folder.join("dcfs");
    fs::copy(env!("CARGO_BIN_EXE_dcfs"), &program).unwrap();
    set_mode(&program, 0o755);
    let script = r#"
        set -eu
        dcfs=$1 dataset=$2 point=$3
        trap '"$dcfs" umount --lazy "$point" 2>/dev/null || true' EXIT
        for io in auto fuse; do
            "$dcfs" mount --io $io "$dataset" "$point"
            sha256sum "$point/tile_000001/data.i32" "$point/tile_000004/indices.i32"
            grep -o '"passthrough": *[0-9]*' "$point/.dcfs/stats.json"
            "$dcfs" umount "$point"
        done
        if "$dcfs" mount --io passthrough "$dataset" "$point" 2>&1; then exit 1; fi
        if grep -q "$point" /proc/self/mounts; then echo "the mount stayed"; exit 1; fi
    "#;
    command
        .args(["sh", "-c", script, "sh"])
        .arg(&program)
        .arg(&dataset.path)
        .arg(&theirs);
    let said = run(&mut command);
    let mount = Mount::new(&dataset.path, Io::Fuse);
    let mut hashes = Command::new("sha256sum");
    hashes.args(["tile_000001/data.i32", "tile_000004/indices.i32"].map(|file| mount.join(file)));
    let expected: Vec<String> = run(&mut hashes).lines().map(|line| line[..64].to_owned()).collect();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 7, "{said}");
    for (line, file) in [(0, 0), (1, 1), (3, 0), (4, 1)] {
        assert_eq!(lines[line][..64], expected[file], "{said}");
    }
    assert!(lines[2].ends_with(": 0") && lines[5].ends_with(": 0"), "{said}");
    assert!(lines[6].contains("--io passthrough: "), "{said}");
}
