//! Decoded data within its budget: memory, eviction, and files that are held open.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::data::{Repeated, assert_shows, int32s, made_up, map, repeated};
use crate::harness::{Io, Mount, Process, in_every_mode, wait_until};

in_every_mode!(
    memory_stays_within_the_documented_bound,
    an_open_mapped_file_outlives_the_eviction_of_everything_else,
    open_files_beyond_the_cache_are_served_all_the_same,
    a_cache_smaller_than_a_chunk_still_serves,
    what_is_in_the_cache_is_not_decoded_again,
    what_is_found_in_the_cache_counts_as_a_hit,
);

fn what_is_found_in_the_cache_counts_as_a_hit(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let read_some = || {
        let file = std::fs::File::open(data_file(&mount, 0)).unwrap();
        // The kernel's own memory of the file must not answer.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 8], 0).unwrap();
        drop(file);
        // Who opens a file that is still open is served without a look at the cache.
        wait_until("it is closed", || mount.stat("/cache/pinned_blocks") == 0);
    };
    read_some();
    let (hits, misses) = (mount.stat("/cache/hits"), mount.stat("/cache/misses"));
    assert!(misses > 0);
    for _ in 0..5 {
        read_some();
    }
    assert!(mount.stat("/cache/hits") >= hits + 5, "{}", mount.stats());
    assert_eq!(mount.stat("/cache/misses"), misses);
}

fn data_file(mount: &Mount, tile: usize) -> PathBuf {
    mount.join(format!("tile_{tile:06}/data.i32"))
}

fn bytes_of(counts: &[i32]) -> Vec<u8> {
    counts.iter().flat_map(|count| count.to_le_bytes()).collect()
}

/// What the daemon keeps from others: its own memory, and the decoded files, whose file system is mounted nowhere and has to be asked through
/// one of its files.
fn memory_of(daemon: &Process) -> u64 {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.pid)).unwrap();
    let files = descriptors.filter_map(|entry| {
        let path = entry.ok()?.path();
        let link = fs::read_link(&path).ok()?;
        // An unnamed file's link says so.
        link.to_str()?.ends_with(" (deleted)").then_some(path)
    });
    let used = files.filter_map(|file| {
        let statfs = rustix::fs::statvfs(file).ok()?;
        Some((statfs.f_blocks - statfs.f_bfree) * statfs.f_frsize)
    });
    daemon.memory("RssAnon") + used.max().unwrap_or(0)
}

/// The formula is the README's, with what it adds for buckets.
fn memory_stays_within_the_documented_bound(io: Io) {
    const CACHE: u64 = 24 << 20;
    const TILES: usize = 40;
    const FETCHED: u64 = 8 << 20;
    const REQUESTS: u64 = 4;
    let dataset = repeated(TILES);
    let largest_chunk = dataset.tile.counts.len() as u64 / dataset.chunks * 5 / 4;
    let largest_tile = fs::metadata(dataset.path.join("tiles/tile_000000.dct")).unwrap().len();
    let fetched = match io {
        Io::Passthrough | Io::Fuse => 0,
        Io::Bucket => FETCHED + REQUESTS * largest_tile,
    };
    let bound = CACHE + 2 * 10 * largest_chunk + fetched + (64 << 20);
    assert!(
        bound < TILES as u64 * dataset.tile.counts.len() as u64 * 8,
        "what is decoded is more by far"
    );
    let options = [
        "--cache-size",
        "24M",
        "--threads",
        "2",
        "--fetch-memory",
        "8M",
        "--fetch-parallel",
        "4",
    ];
    let mount = Mount::with(&dataset.path, io, &options);
    let done = AtomicBool::new(false);
    let peak = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(memory_of(mount.daemon()));
                thread::sleep(Duration::from_millis(2));
            }
            peak
        });
        let readers: Vec<_> = (0..8)
            .map(|reader| {
                let (mount, dataset) = (&mount, &dataset);
                scope.spawn(move || {
                    for tile in (0..TILES).map(|tile| (tile + reader * 5) % TILES) {
                        assert!(int32s(&data_file(mount, tile)) == dataset.tile.counts, "tile {tile}");
                    }
                })
            })
            .collect();
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
        watch.join().unwrap()
    });
    assert!(peak < bound, "{} MiB at most, {} MiB expected", peak >> 20, bound >> 20);
    let stats = mount.stats();
    assert!(stats["cache"]["evictions"].as_u64() > Some(0), "{stats}");
    assert!(stats["cache"]["bytes"].as_u64() <= Some(CACHE), "{stats}");
    assert_eq!(stats["cache"]["limit_bytes"], CACHE);
}

fn an_open_mapped_file_outlives_the_eviction_of_everything_else(io: Io) {
    let dataset = repeated(12);
    let mount = Mount::with(&dataset.path, io, &["--cache-size", "16M"]);
    let mapped = map(&data_file(&mount, 0), true);
    let mut half = vec![0; mapped.len() / 2];
    let mut reader = File::open(data_file(&mount, 1)).unwrap();
    reader.read_exact(&mut half).unwrap();
    for tile in 2..12 {
        assert_shows(&mount.join(format!("tile_{tile:06}")), &dataset.tile);
    }
    assert!(mount.stat("/cache/evictions") > 0);
    reader.read_to_end(&mut half).unwrap();
    let truth = bytes_of(&dataset.tile.counts);
    assert!(mapped[..] == truth && half == truth);
}

fn open_files_beyond_the_cache_are_served_all_the_same(io: Io) {
    const TILES: usize = 10;
    let dataset = repeated(TILES);
    // Room for four arrays.
    let mount = Mount::with(&dataset.path, io, &["--cache-size", "18M"]);
    let files: Vec<File> = (0..TILES)
        .map(|tile| File::open(data_file(&mount, tile)).unwrap())
        .collect();
    let truth = bytes_of(&dataset.tile.counts);
    for mut file in &files {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == truth);
    }
    let opens = |mode: &str| mount.stat(&format!("/opens/{mode}"));
    if io == Io::Passthrough {
        assert!((1..TILES as u64).contains(&opens("passthrough")), "{}", mount.stats());
        assert!(mount.stat("/cache/pinned_bytes") <= 18 << 20);
    } else {
        assert_eq!(opens("passthrough"), 0);
    }
    // Both by those who find the file open in one mode or the other, and by a mapping.
    for tile in [0, TILES - 1] {
        assert!(int32s(&data_file(&mount, tile)) == dataset.tile.counts);
        assert!(map(&data_file(&mount, tile), true)[..] == truth);
    }
    drop(files);
    if io == Io::Passthrough {
        // Files whose last reader is gone make room; the kernel says so a moment later.
        let last = data_file(&mount, TILES - 1);
        crate::harness::wait_until("the last file is passed through", || {
            let before = opens("passthrough");
            assert!(int32s(&last) == dataset.tile.counts);
            opens("passthrough") > before
        });
    }
    assert_eq!(mount.complaints(), [""; 0]);
}

fn a_cache_smaller_than_a_chunk_still_serves(io: Io) {
    let dataset = repeated(2);
    let mount = Mount::with(&dataset.path, io, &["--cache-size", "64K", "--threads", "2"]);
    for tile in 0..2 {
        assert_shows(&mount.join(format!("tile_{tile:06}")), &dataset.tile);
    }
    assert!(mount.stat("/cache/bytes") <= 64 << 10);
    assert_eq!(mount.complaints(), [""; 0]);
}

fn what_is_in_the_cache_is_not_decoded_again(io: Io) {
    let dataset: Repeated = repeated(3);
    let mount = Mount::with(&dataset.path, io, &["--cache-size", "256M"]);
    for _ in 0..3 {
        for tile in 0..3 {
            assert_shows(&mount.join(format!("tile_{tile:06}")), &dataset.tile);
        }
    }
    assert_eq!(mount.stat("/decoded/chunks"), 3 * 2 * dataset.chunks);
    assert_eq!(
        mount.stat("/decoded/bytes"),
        3 * 2 * 4 * dataset.tile.counts.len() as u64
    );
    assert_eq!(mount.stat("/cache/evictions"), 0);
    let opens = mount.stat("/opens/passthrough");
    assert_eq!(opens, if io == Io::Passthrough { 3 * 3 * 3 } else { 0 });
}
