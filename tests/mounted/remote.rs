//! Datasets in object stores: the same files, one request a tile, and what happens when a store does not do as it should.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::data::{MadeUp, edit_manifest, files_below, made_up, repeated, replace, shared};
use crate::harness::{Folder, Io, Mount, dcfs, failed_with, in_both_modes, run, text, wait_until};
use crate::server::{Asked, Fate, Server};

in_both_modes!(
    a_bucket_shows_the_files_of_the_folder,
    a_tile_is_fetched_with_one_request,
    every_second_request_may_fail,
    a_wrong_bit_is_an_error_of_its_tile_alone,
    an_answer_that_is_no_tile_is_not_kept,
    a_store_that_falls_silent_leaves_everything_else,
    requests_that_hang_hold_up_nothing_that_is_here,
    a_column_that_is_here_waits_for_none_that_is_not,
    what_a_silent_store_was_never_asked_is_waited_for_once,
    a_tile_that_was_replaced_is_stale,
    a_dataset_that_was_replaced_is_stale_where_nobody_had_looked_yet,
    tiles_are_fetched_ahead_of_who_reads_on_and_of_nobody_else,
    obs_is_fetched_once_on_a_machine,
    a_second_mount_fetches_nothing_that_is_on_the_disk,
);

/// The made-up dataset behind a server, and a cache of obs columns of its own.
struct Remote {
    dataset: MadeUp,
    server: Server,
    cache: Folder,
}

impl Remote {
    fn new() -> Self {
        let dataset = made_up();
        // Servers tell times in whole seconds; what a test writes is to be newer.
        for file in files_below(&dataset.path) {
            let hour = Duration::from_secs(3600);
            File::open(file)
                .unwrap()
                .set_modified(SystemTime::now() - hour)
                .unwrap();
        }
        let server = Server::new(dataset.folder.path());
        let cache = Folder::new();
        Self { dataset, server, cache }
    }

    fn url(&self) -> PathBuf {
        format!("{}/made-up.dc", self.server.url()).into()
    }

    fn mount(&self, io: Io, options: &[&str]) -> Mount {
        let cache = ["--cache-dir", self.cache.path().to_str().unwrap()];
        let mount = Mount::with(&self.url(), io, &[&cache, options].concat());
        self.server.take_asked();
        mount
    }

    fn tile(&self, tile: usize) -> PathBuf {
        self.dataset.path.join(format!("tiles/tile_{tile:06}.dct"))
    }

    fn local(&self, io: Io) -> Mount {
        Mount::new(&self.dataset.path, io)
    }
}

/// Files that say how a mount does are not the same in two mounts.
pub fn assert_same_files(one: &Path, other: &Path) {
    let names = |root: &Path| -> Vec<PathBuf> {
        let files = files_below(root);
        let names = files.iter().map(|file| file.strip_prefix(root).unwrap().to_owned());
        names
            .filter(|name| !name.starts_with(".dcfs") && !name.starts_with("README.txt"))
            .collect()
    };
    assert_eq!(names(one), names(other));
    for name in names(one) {
        let read = |root: &Path| fs::read(root.join(&name)).unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert!(read(one) == read(other), "{name:?} differs");
    }
}

fn a_bucket_shows_the_files_of_the_folder(io: Io) {
    let remote = Remote::new();
    let local = remote.local(io);
    let server = remote.server.url();
    let bucket = remote.dataset.folder.path().join("bucket/deep");
    fs::create_dir_all(&bucket).unwrap();
    fs::rename(&remote.dataset.path, bucket.join("a b.dc")).unwrap();
    std::os::unix::fs::symlink(bucket.join("a b.dc"), &remote.dataset.path).unwrap();
    let endpoint = ["--anonymous", "--allow-http", "--endpoint", &server];
    let cases: [(String, &[&str]); 4] = [
        (format!("{server}/bucket/deep/a%20b.dc/"), &[]),
        ("s3://bucket/deep/a%20b.dc".into(), &endpoint),
        ("gs://bucket/deep/a%20b.dc".into(), &endpoint),
        (
            "abfss://bucket@account.dfs.core.windows.net/deep/a%20b.dc".into(),
            &["--anonymous", "--allow-http", "--endpoint", &server],
        ),
    ];
    for (url, options) in cases {
        let cache = Folder::new();
        let cache = ["--cache-dir", cache.path().to_str().unwrap()];
        let mount = Mount::with(Path::new(&url), io, &[&cache, options].concat());
        assert_same_files(mount.path(), local.path());
        assert_eq!(mount.complaints(), [""; 0], "{url}");
    }
}

fn tiles_asked(asked: &[Asked]) -> HashMap<&str, usize> {
    let mut tiles = HashMap::new();
    for asked in asked.iter().filter(|asked| asked.path.ends_with(".dct")) {
        *tiles.entry(&*asked.path).or_default() += 1;
    }
    tiles
}

fn a_tile_is_fetched_with_one_request(io: Io) {
    let remote = Remote::new();
    let mount = remote.mount(io, &[]);
    let before = (mount.stat("/store/requests"), mount.stat("/store/bytes"));
    for tile in 0..remote.dataset.tiles {
        for array in ["indptr.i64", "indices.i32", "data.i32"] {
            fs::read(mount.join(format!("tile_{tile:06}/{array}"))).unwrap();
        }
    }
    let asked = remote.server.take_asked();
    let tiles = tiles_asked(&asked);
    assert_eq!(tiles.len(), remote.dataset.tiles);
    let sizes = (0..remote.dataset.tiles).map(|tile| fs::metadata(remote.tile(tile)).unwrap().len());
    let counted = |name: &str| mount.stat(&format!("/store/{name}"));
    assert_eq!(counted("requests") - before.0, asked.len() as u64);
    assert_eq!(counted("bytes") - before.1, sizes.sum::<u64>());
    assert_eq!(counted("failures"), 0);
    assert_eq!(counted("tries"), counted("requests"));
    assert_eq!(counted("failed_tries"), 0);
    assert!(tiles.values().all(|&requests| requests == 1), "{tiles:?}");
    assert!(
        asked.iter().all(|asked| asked.path.ends_with(".dct")),
        "and nothing else: {asked:?}"
    );
    // Looking at a mount asks nobody.
    run(std::process::Command::new("ls")
        .arg("-lR")
        .arg(mount.join("tile_000000")));
    assert_eq!(tiles_asked(&remote.server.take_asked()), HashMap::new());
}

/// In turn for each reason that a network may have.
pub fn every_second_fails() -> impl FnMut(&Asked) -> Fate {
    let mut number = 0;
    move |_| {
        number += 1;
        match number % 6 {
            1 => Fate::Status(503),
            3 => Fate::Reset,
            5 => Fate::Truncate,
            _ => Fate::Answer,
        }
    }
}

fn every_second_request_may_fail(io: Io) {
    let remote = Remote::new();
    let local = remote.local(io);
    let mount = remote.mount(io, &[]);
    remote.server.judge(every_second_fails());
    assert_same_files(mount.path(), local.path());
    assert_eq!(mount.complaints(), [""; 0]);
    // Whoever looks for a flaky store finds it in the tries.
    let counted = |name: &str| mount.stat(&format!("/store/{name}"));
    assert_eq!(counted("failures"), 0);
    assert!(counted("failed_tries") > 0);
    assert!(counted("tries") > counted("requests"));
}

fn a_wrong_bit_is_an_error_of_its_tile_alone(io: Io) {
    let remote = Remote::new();
    let mount = remote.mount(io, &[]);
    remote.server.judge(|asked| match asked.path.contains("tile_000002") {
        true => Fate::WrongBit,
        false => Fate::Answer,
    });
    let local = remote.local(io);
    for tile in 0..remote.dataset.tiles {
        let file = format!("tile_{tile:06}/data.i32");
        let read = fs::read(mount.join(&file));
        match tile {
            2 => assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO)),
            _ => assert!(read.unwrap() == fs::read(local.join(&file)).unwrap(), "{file}"),
        }
    }
    let complaints = mount.complaints();
    assert!(
        complaints
            .iter()
            .all(|line| line.contains("tile_000002.dct") && line.contains("CRC-32")),
        "{complaints:?}"
    );
    assert!(!complaints.is_empty());
    // Fetched anew, it is right.
    remote.server.judge(|_| Fate::Answer);
    let file = "tile_000002/data.i32";
    assert!(fs::read(mount.join(file)).unwrap() == fs::read(local.join(file)).unwrap());
}

fn an_answer_that_is_no_tile_is_not_kept(io: Io) {
    let remote = Remote::new();
    let local = remote.local(io);
    let mount = remote.mount(io, &[]);
    // A page that a proxy puts in place of what was asked for.
    remote.server.judge(|asked| match asked.path.contains("tile_000002") {
        true => Fate::Page,
        false => Fate::Answer,
    });
    let file = "tile_000002/data.i32";
    assert_eq!(fs::read(mount.join(file)).unwrap_err().raw_os_error(), Some(libc::EIO));
    remote.server.judge(|_| Fate::Answer);
    assert!(fs::read(mount.join(file)).unwrap() == fs::read(local.join(file)).unwrap());
}

fn a_store_that_falls_silent_leaves_everything_else(io: Io) {
    let remote = Remote::new();
    let mount = remote.mount(io, &["--request-timeout", "2"]);
    let known = fs::read(mount.join("tile_000000/data.i32")).unwrap();
    remote.server.judge(|_| Fate::Silence);
    let lost = fs::read(mount.join("tile_000001/data.i32")).unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(mount.join("tile_000000/data.i32")).unwrap(), known);
    run(std::process::Command::new("ls").arg(mount.path()));
    run(std::process::Command::new("ls")
        .arg("-l")
        .arg(mount.join("tile_000003")));
    run(std::process::Command::new("df").arg(mount.path()));
    let complaints = mount.complaints();
    assert!(
        complaints.iter().any(|line| line.contains("tile_000001.dct")),
        "{complaints:?}"
    );
    mount.unmount();
}

fn requests_that_hang_hold_up_nothing_that_is_here(io: Io) {
    let remote = Remote::new();
    let disk = Folder::new();
    let disk_cache = ["--disk-cache", disk.path().to_str().unwrap(), "--disk-cache-size", "1G"];
    // On the disk, and not in the memory of the mount that is asked.
    drop(fs::read(remote.mount(io, &disk_cache).join("tile_000004/data.i32")).unwrap());
    let options = ["--request-timeout", "86400", "--threads", "1", "--fetch-parallel", "2"];
    let mount = remote.mount(io, &[&disk_cache[..], &options].concat());
    // What the store has of it is asked once.
    fs::read(mount.join("tile_000004/indptr.i64")).unwrap();
    let known = fs::read(mount.join("tile_000000/data.i32")).unwrap();
    remote.server.judge(|_| Fate::Silence);
    let readers: Vec<_> = (1..4)
        .map(|tile| {
            let file = mount.join(format!("tile_{tile:06}/data.i32"));
            thread::spawn(move || fs::read(file).map(|_| ()))
        })
        .collect();
    let mut asked = Vec::new();
    wait_until("two requests hang", || {
        asked.extend(remote.server.take_asked());
        asked.len() >= 2
    });
    // Every one of these would wait for ever.
    assert!(!fs::read(mount.join("tile_000004/data.i32")).unwrap().is_empty());
    assert!(!fs::read(mount.join("tile_000004/indices.i32")).unwrap().is_empty());
    assert_eq!(fs::read(mount.join("tile_000000/data.i32")).unwrap(), known);
    assert!(!fs::read(mount.join("tile_000000/indices.i32")).unwrap().is_empty());
    for stored in ["manifest.json", "var_names.txt", "obs/schema.json"] {
        assert!(!fs::read(mount.join(stored)).unwrap().is_empty());
    }
    run(std::process::Command::new("ls")
        .arg("-l")
        .arg(mount.join("tile_000002")));
    drop(mount);
    for reader in readers {
        assert!(reader.join().unwrap().is_err());
    }
}

fn a_column_that_is_here_waits_for_none_that_is_not(io: Io) {
    let remote = Remote::new();
    let known = fs::read(remote.mount(io, &[]).join("obs/cell_type.arrow")).unwrap();
    let mount = remote.mount(io, &["--request-timeout", "86400"]);
    remote.server.judge(|_| Fate::Silence);
    let other = mount.join("obs/total_counts.arrow");
    let reader = thread::spawn(move || fs::read(other).map(|_| ()));
    wait_until("a shard is asked for", || {
        let asked = remote.server.take_asked();
        asked.iter().any(|asked| asked.path.ends_with(".parquet"))
    });
    // It would wait for ever.
    assert!(fs::read(mount.join("obs/cell_type.arrow")).unwrap() == known);
    drop(mount);
    assert!(reader.join().unwrap().is_err());
}

fn what_a_silent_store_was_never_asked_is_waited_for_once(io: Io) {
    let remote = Remote::new();
    let mount = remote.mount(
        io,
        &["--request-timeout", "2", "--fetch-parallel", "1", "--threads", "1"],
    );
    remote.server.judge(|_| Fate::Silence);
    let listed = std::process::Command::new("ls")
        .arg("-l")
        .arg(mount.path())
        .arg(mount.join("obs"))
        .output()
        .unwrap();
    let unknown = text(&listed.stderr);
    assert!(
        unknown.lines().count() > 2,
        "sizes of text columns are not known: {unknown}"
    );
    let listed = text(&listed.stdout);
    assert!(
        listed.contains("tile_000004") && listed.contains("total_counts.arrow"),
        "{listed}"
    );
    assert_eq!(mount.stat("/store/failures"), 1);
}

fn a_tile_that_was_replaced_is_stale(io: Io) {
    let remote = Remote::new();
    let mount = remote.mount(io, &["--fetch-memory", "1"]);
    fs::read(mount.join("tile_000001/data.i32")).unwrap();
    // Fetched last, so that nothing of the first is in memory.
    fs::read(mount.join("tile_000002/data.i32")).unwrap();
    let other = fs::read(remote.tile(3)).unwrap();
    replace(&remote.tile(1), &other);
    let stale = fs::read(mount.join("tile_000001/indices.i32")).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
    let complaints = mount.complaints();
    assert!(
        complaints
            .iter()
            .any(|line| line.contains("tile_000001.dct") && line.contains("replaced")),
        "{complaints:?}"
    );
}

fn a_dataset_that_was_replaced_is_stale_where_nobody_had_looked_yet(io: Io) {
    let remote = Remote::new();
    let mount = remote.mount(io, &[]);
    let read = |file: &str| fs::read(mount.join(file)).map_err(|error| error.raw_os_error());
    let known = read("tile_000000/data.i32").unwrap();
    // Written later than the manifest, as by a copy that did not care for the order.
    replace(&remote.tile(1), &fs::read(remote.tile(1)).unwrap());
    assert!(read("tile_000001/data.i32").is_ok());
    // Another dataset of the same sizes.
    for tile in [2, 3] {
        replace(&remote.tile(tile), &fs::read(remote.tile(tile)).unwrap());
    }
    let shard = remote.dataset.path.join("obs/obs_0000.parquet");
    replace(&shard, &fs::read(&shard).unwrap());
    edit_manifest(&remote.dataset.path, |manifest| {
        manifest["metadata"]["version"] = 2.into()
    });
    assert_eq!(read("tile_000002/data.i32"), Err(Some(libc::ESTALE)));
    assert_eq!(read("tile_000003/indices.i32"), Err(Some(libc::ESTALE)));
    assert_eq!(read("obs/total_counts.arrow"), Err(Some(libc::ESTALE)));
    assert_eq!(read("tile_000000/data.i32").unwrap(), known, "what was read stays");
    let copies = files_below(remote.cache.path());
    assert!(
        !copies.iter().any(|file| file.ends_with("total_counts.arrow")),
        "{copies:?}"
    );
    let complaints = mount.complaints();
    let clear = complaints
        .iter()
        .filter(|line| line.contains("manifest.json: another one by now"));
    assert_eq!(clear.count(), 1, "{complaints:?}");
    assert!(
        complaints.len() <= 2,
        "and the first object of which that was noticed: {complaints:?}"
    );
}

fn tiles_are_fetched_ahead_of_who_reads_on_and_of_nobody_else(io: Io) {
    // Four megabytes an array and tile.
    let dataset = repeated(8);
    let server = Server::new(dataset.path.parent().unwrap());
    let url = format!("{}/{}", server.url(), dataset.path.file_name().unwrap().display());
    let cache = Folder::new();
    let options = ["--fetch-parallel", "2", "--cache-dir", cache.path().to_str().unwrap()];
    let tiles = |asked: &[Asked]| {
        let mut tiles: Vec<String> = tiles_asked(asked).into_keys().map(str::to_owned).collect();
        tiles.sort();
        tiles
    };
    let tile = |tile: usize| {
        format!(
            "{}/tiles/tile_{tile:06}.dct",
            dataset.path.file_name().unwrap().display()
        )
    };

    let mount = Mount::with(Path::new(&url), io, &options);
    let file = File::open(mount.join("X/data.i32")).unwrap();
    let mut piece = vec![0; 64 << 10];
    server.take_asked();
    for far in [5, 2, 6] {
        file.read_exact_at(&mut piece, far * (4 << 20) + 1).unwrap();
    }
    let there = [tile(2), tile(5), tile(6)];
    assert!(
        tiles(&server.take_asked()).iter().all(|asked| there.contains(asked)),
        "who jumps gets what he asks for"
    );
    drop(mount);

    let mount = Mount::with(Path::new(&url), io, &options);
    let mut file = File::open(mount.join("X/data.i32")).unwrap();
    server.take_asked();
    let mut two_megabytes = vec![0; 2 << 20];
    file.read_exact(&mut two_megabytes).unwrap();
    let mut asked = Vec::new();
    wait_until("the next four tiles are fetched", || {
        asked.extend(server.take_asked());
        tiles(&asked).len() >= 5
    });
    assert_eq!(tiles(&asked), [0, 1, 2, 3, 4].map(tile));
}

fn obs_is_fetched_once_on_a_machine(io: Io) {
    let remote = Remote::new();
    let local = remote.local(io);
    for fetched in [true, false] {
        let mount = remote.mount(io, &[]);
        for column in ["cell_type", "total_counts"] {
            let file = format!("obs/{column}.arrow");
            assert!(fs::read(mount.join(&file)).unwrap() == fs::read(local.join(&file)).unwrap());
        }
        let asked = remote.server.take_asked();
        let parts: Vec<&Asked> = asked.iter().filter(|asked| asked.path.ends_with(".parquet")).collect();
        assert_eq!(!parts.is_empty(), fetched, "{parts:?}");
        assert!(
            parts
                .iter()
                .all(|asked| asked.method == "HEAD" || asked.range.is_some()),
            "parts alone: {parts:?}"
        );
    }
}

fn a_second_mount_fetches_nothing_that_is_on_the_disk(io: Io) {
    let remote = Remote::new();
    let local = remote.local(io);
    let disk = Folder::new();
    let options = ["--disk-cache", disk.path().to_str().unwrap(), "--disk-cache-size", "1G"];
    let fetched = || {
        let asked = remote.server.take_asked();
        asked
            .iter()
            .filter(|asked| asked.method == "GET" && asked.path.ends_with(".dct"))
            .count()
    };
    for expected in [remote.dataset.tiles, 0] {
        let mount = remote.mount(io, &options);
        assert_same_files(mount.path(), local.path());
        assert_eq!(fetched(), expected);
    }
    // What is damaged there is fetched again.
    let objects = files_below(disk.path())
        .into_iter()
        .filter(|file| !file.ends_with(".lock"));
    let damaged = objects.inspect(|file| {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).unwrap();
    });
    assert!(damaged.count() > remote.dataset.tiles, "tiles, and small files");
    let mount = remote.mount(io, &options);
    assert_same_files(mount.path(), local.path());
    assert_eq!(fetched(), remote.dataset.tiles);
    assert!(mount.complaints().iter().all(|line| line.contains("fetched again")));
}

#[test]
fn six_who_read_a_dataset_at_once_fetch_it_once() {
    let remote = Remote::new();
    let disk = Folder::new();
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let mut verify = dcfs();
            verify
                .arg("verify")
                .arg(remote.url())
                .arg("--disk-cache")
                .arg(disk.path());
            verify.spawn().unwrap()
        })
        .collect();
    for mut reader in readers {
        assert!(reader.wait().unwrap().success());
    }
    let asked = remote.server.take_asked();
    let gets: Vec<&Asked> = asked
        .iter()
        .filter(|asked| asked.method == "GET" && asked.path.ends_with(".dct"))
        .collect();
    assert_eq!(gets.len(), remote.dataset.tiles, "{gets:?}");
}

/// Bytes of a shard's footer and of what stands behind it.
fn footer_bytes(shard: &Path) -> u64 {
    let bytes = fs::read(shard).unwrap();
    let length = bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap();
    u64::from(u32::from_le_bytes(length)) + 8
}

#[test]
fn ten_who_localize_columns_fetch_no_more_than_these_once() {
    let remote = Remote::new();
    let wanted = ["cell_type", "total_counts", "age"];
    let mut localize = dcfs();
    localize.args(["obs", "localize", "--columns", &wanted.join(","), "--cache-dir"]);
    localize.arg(remote.cache.path()).arg(remote.url());
    let running: Vec<_> = (0..10).map(|_| localize.spawn().unwrap()).collect();
    for mut process in running {
        assert!(process.wait().unwrap().success());
    }
    let asked = remote.server.take_asked();
    let shards = asked.iter().filter(|asked| asked.path.ends_with(".parquet"));
    let fetched: u64 = shards
        .filter_map(|asked| asked.range)
        .map(|(start, end)| end - start)
        .sum();
    let info = run(dcfs()
        .args(["obs", "info", "--json", "--cache-dir"])
        .arg(remote.cache.path())
        .arg(remote.url()));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let columns = info["columns"].as_array().unwrap().iter();
    let columns = columns.filter(|column| wanted.contains(&column["name"].as_str().unwrap()));
    assert!(
        columns.clone().all(|column| column["local"].as_bool().unwrap()),
        "{info}"
    );
    let columns: u64 = columns.map(|column| column["bytes"].as_u64().unwrap()).sum();
    let shards = [0, 1].map(|shard| remote.dataset.path.join(format!("obs/obs_{shard:04}.parquet")));
    let footers: u64 = shards.iter().map(|shard| footer_bytes(shard)).sum();
    assert_eq!(fetched, columns + footers);
}

#[test]
fn all_columns_are_fetched_as_whole_shards_which_are_verified() {
    let remote = Remote::new();
    let localize = || {
        let mut localize = dcfs();
        localize.args(["obs", "localize", "--all", "--cache-dir"]);
        localize.arg(remote.cache.path()).arg(remote.url());
        localize
    };
    remote.server.judge(|asked| match asked.range {
        None if asked.path.ends_with("obs_0001.parquet") => Fate::WrongBit,
        _ => Fate::Answer,
    });
    let wrong = failed_with(&localize().output().unwrap(), 1);
    assert!(
        wrong.contains("obs_0001.parquet") && wrong.contains("SHA-256"),
        "{wrong}"
    );
    let copies = files_below(remote.cache.path());
    assert!(
        !copies
            .iter()
            .any(|file| file.extension().is_some_and(|arrow| arrow == "arrow"))
    );

    remote.server.judge(|_| Fate::Answer);
    remote.server.take_asked();
    run(&mut localize());
    let asked = remote.server.take_asked();
    let whole = asked
        .iter()
        .filter(|asked| asked.path.ends_with(".parquet") && asked.method == "GET" && asked.range.is_none());
    assert_eq!(whole.count(), 2, "{asked:?}");
    let parts: u64 = asked
        .iter()
        .filter_map(|asked| asked.range)
        .map(|(start, end)| end - start)
        .sum();
    let footer = footer_bytes(&remote.dataset.path.join("obs/obs_0000.parquet"));
    assert!(parts <= footer, "{asked:?}");
}

fn try_info(url: &str, options: &[&str]) -> Output {
    // Nothing of who runs the tests, and no metadata service.
    let mut command = dcfs();
    for name in [
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ENDPOINT",
        "AWS_ENDPOINT_URL",
    ] {
        command.env_remove(name);
    }
    command.arg("info").arg(url).args(options).output().unwrap()
}

#[test]
fn info_and_verify_read_a_bucket() {
    let remote = Remote::new();
    let url = remote.url();
    let text = run(dcfs().arg("info").arg(&url));
    assert!(text.contains("900") && text.contains(url.to_str().unwrap()), "{text}");
    let verdict = run(dcfs().arg("verify").arg(&url));
    assert!(verdict.starts_with("no faults in 5 tiles"), "{verdict}");
    remote
        .server
        .judge(|asked| match asked.path.ends_with("tile_000003.dct") {
            true => Fate::WrongBit,
            false => Fate::Answer,
        });
    let faults = failed_with(&dcfs().arg("verify").arg(&url).output().unwrap(), 1);
    assert!(faults.contains("tile_000003.dct"), "{faults}");
}

#[test]
fn what_is_wrong_with_a_store_is_said_with_what_to_do() {
    let remote = Remote::new();
    let server = remote.server.url();
    let missing = failed_with(&try_info(&format!("{server}/nothing.dc"), &[]), 1);
    assert!(
        missing.contains("/nothing.dc/manifest.json") && missing.contains("holds manifest.json"),
        "{missing}"
    );

    let options = ["--endpoint", &server, "--allow-http", "--anonymous"];
    let bucket = failed_with(&try_info("s3://no-bucket/made-up.dc", &options), 1);
    assert!(
        bucket.contains("404") && bucket.contains("--endpoint may be wrong"),
        "{bucket}"
    );

    remote.server.judge(|_| Fate::Status(403));
    let denied = failed_with(&try_info("s3://bucket/made-up.dc", &options), 1);
    assert!(denied.contains("403") && denied.contains("--anonymous"), "{denied}");
    remote.server.judge(|_| Fate::Answer);

    let no_url = ["--endpoint", "127.0.0.1:9000", "--allow-http", "--anonymous"];
    let endpoint = failed_with(&try_info("s3://bucket/made-up.dc", &no_url), 1);
    assert!(endpoint.contains("expected https://HOST"), "{endpoint}");

    let scheme = failed_with(&try_info("ftp://host/made-up.dc", &[]), 1);
    assert!(scheme.contains("ftp:// is not supported"), "{scheme}");

    let plain = ["--endpoint", &server, "--anonymous"];
    let unencrypted = failed_with(&try_info("s3://bucket/made-up.dc", &plain), 1);
    assert!(unencrypted.contains("--allow-http permits it"), "{unencrypted}");
}

#[test]
fn keys_of_a_profile_sign_requests() {
    let remote = Remote::new();
    let bucket = remote.dataset.folder.path().join("bucket");
    fs::create_dir(&bucket).unwrap();
    fs::rename(&remote.dataset.path, bucket.join("x.dc")).unwrap();
    let home = Folder::new();
    fs::create_dir(home.join(".aws")).unwrap();
    fs::write(
        home.join(".aws/credentials"),
        "[lab]\naws_access_key_id=K\naws_secret_access_key=S\n",
    )
    .unwrap();
    let config = format!(
        "[profile lab]\nregion = eu-west-3\nendpoint_url = {}\n",
        remote.server.url()
    );
    fs::write(home.join(".aws/config"), config).unwrap();
    let mut info = dcfs();
    info.env("HOME", home.path()).env("AWS_PROFILE", "lab");
    run(info.args(["info", "--allow-http", "s3://bucket/x.dc"]));
}

#[test]
fn a_real_dataset_reads_the_same_through_a_server() {
    let Some(dataset) = shared("edge.dc") else { return };
    let server = Server::new(dataset.parent().unwrap());
    let cache = Folder::new();
    let url = format!("{}/edge.dc", server.url());
    let io = Io::Fuse;
    let mount = Mount::with(Path::new(&url), io, &["--cache-dir", cache.path().to_str().unwrap()]);
    assert_same_files(mount.path(), Mount::new(&dataset, io).path());
}

#[test]
fn one_signal_ends_a_command_whose_store_is_silent() {
    let remote = Remote::new();
    let mut localize = dcfs();
    localize.args(["obs", "localize", "--all", "--cache-dir"]);
    localize.arg(remote.cache.path()).arg(remote.url());
    let mut asked_for_parts = false;
    remote.server.judge(move |asked| {
        asked_for_parts |= asked.path.ends_with(".parquet");
        match asked_for_parts {
            true => Fate::Silence,
            false => Fate::Answer,
        }
    });
    let mut localizing = localize.spawn().unwrap();
    let is_asked = |name: &str| {
        remote
            .server
            .take_asked()
            .iter()
            .any(|asked| asked.path.ends_with(name))
    };
    wait_until("a shard is asked for", || is_asked(".parquet"));
    kill(&localizing);
    assert_eq!(localizing.wait().unwrap().code(), Some(130));

    remote.server.judge(|_| Fate::Silence);
    let mountpoint = Folder::new();
    let mut mount = dcfs();
    mount.args(["mount", "--foreground", "--request-timeout", "86400"]);
    let mut mounting = mount.arg(remote.url()).arg(mountpoint.path()).spawn().unwrap();
    wait_until("the manifest is asked for", || is_asked("manifest.json"));
    kill(&mounting);
    assert!(!mounting.wait().unwrap().success());
}

fn kill(process: &std::process::Child) {
    rustix::process::kill_process(rustix::process::Pid::from_child(process), rustix::process::Signal::INT).unwrap();
}
