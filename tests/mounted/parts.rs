//! Of a large tile in a store, readers of a few cells fetch parts.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use crate::data::{Repeated, large_tiles, replace};
use crate::harness::{Folder, Io, Mount, in_both_modes, wait_until};
use crate::remote::every_second_fails;
use crate::server::{Asked, Fate, Server};

in_both_modes!(
    a_few_cells_of_a_large_tile_are_fetched_in_parts,
    who_needs_much_of_a_tile_fetches_all_of_it_once,
    row_starts_fetch_heads_alone,
    what_parts_showed_of_a_damaged_tile_is_given_up_with_the_tile,
    a_part_with_a_wrong_bit_is_not_shown_by_the_tile_and_is_told_of_once_the_tile_is_whole,
    a_tile_that_was_read_and_forgotten_is_fetched_in_parts_again,
    many_who_need_one_chunk_fetch_it_once,
    with_a_disk_cache_tiles_are_fetched_whole,
    many_who_read_anything_anywhere_through_faults_and_little_memory_read_what_is_right,
);

const TILES: usize = 3;
/// Bytes of an array's values that a reader of a few cells asks for.
const FEW: u64 = 40_000;

struct Remote {
    dataset: Repeated,
    server: Server,
    mount: Mount,
    local: Mount,
    _folder: Folder,
}

impl Remote {
    fn new(io: Io, options: &[&str]) -> Self {
        let dataset = large_tiles(TILES);
        let server = Server::new(dataset.path.parent().unwrap());
        let folder = Folder::new();
        let url = format!("{}/repeated.dc", server.url());
        let bytes = fs::metadata(dataset.path.join("tiles/tile_000000.dct")).unwrap().len();
        assert!(bytes >= 4 << 20, "{bytes} bytes are no large tile");
        let cache = ["--cache-dir", folder.path().to_str().unwrap()];
        let mount = Mount::with(Path::new(&url), io, &[&cache, options].concat());
        let local = Mount::new(&dataset.path, io);
        server.take_asked();
        Self {
            dataset,
            server,
            mount,
            local,
            _folder: folder,
        }
    }

    fn tile(&self, tile: usize) -> PathBuf {
        self.dataset.path.join(format!("tiles/tile_{tile:06}.dct"))
    }

    fn tile_bytes(&self) -> u64 {
        fs::metadata(self.tile(0)).unwrap().len()
    }

    /// Bytes of one array of a tile.
    fn array_bytes(&self) -> u64 {
        self.dataset.tile.counts.len() as u64 * 4
    }

    /// A few cells' values of an array of the whole matrix, from the middle of a chunk.
    fn few(&self, mount: &Mount, array: &str, tile: usize, chunk: u64) -> io::Result<Vec<u8>> {
        let start = (tile as u64 * self.array_bytes() + self.array_bytes() * (2 * chunk + 1) / 32) / 4 * 4;
        let mut bytes = vec![0; FEW as usize];
        let file = File::open(mount.join("X").join(array))?;
        file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    /// Reads them; they are those of the local dataset.
    fn read_few(&self, array: &str, tile: usize, chunk: u64) {
        let read = |mount| self.few(mount, array, tile, chunk).unwrap();
        assert!(read(&self.mount) == read(&self.local), "{array} {tile} {chunk}");
    }

    fn asked(&self) -> Vec<Asked> {
        self.server.take_asked()
    }
}

/// Bytes of the parts that were asked for; all of them are parts of this tile.
fn parts_of(tile: usize, asked: &[Asked]) -> u64 {
    let name = format!("tile_{tile:06}.dct");
    let part = |asked: &Asked| {
        assert!(asked.path.ends_with(&name), "{asked:?}");
        let (start, end) = asked.range.unwrap_or_else(|| panic!("all of it: {asked:?}"));
        end - start
    };
    asked.iter().map(part).sum()
}

fn a_few_cells_of_a_large_tile_are_fetched_in_parts(io: Io) {
    let remote = Remote::new(io, &[]);
    remote.read_few("data.i32", 1, 5);
    let asked = remote.asked();
    assert_eq!(asked.len(), 2, "the head, and the chunk: {asked:?}");
    let bytes = parts_of(1, &asked);
    assert!(bytes < remote.tile_bytes() / 8, "{bytes} of {}", remote.tile_bytes());
    remote.read_few("indices.i32", 1, 5);
    assert_eq!(remote.asked(), [], "the other array's streams came with the chunk");
    remote.read_few("data.i32", 1, 9);
    let asked = remote.asked();
    assert_eq!(asked.len(), 1, "the head is known: {asked:?}");
    parts_of(1, &asked);
    assert_eq!(remote.mount.complaints(), [""; 0]);
}

fn who_needs_much_of_a_tile_fetches_all_of_it_once(io: Io) {
    let remote = Remote::new(io, &[]);
    let chunks = [3, 12, 7, 0, 15, 5, 9, 1, 13, 11, 2, 6];
    for chunk in chunks {
        remote.read_few("data.i32", 2, chunk);
    }
    let asked = remote.asked();
    let (parts, whole): (Vec<Asked>, Vec<Asked>) = asked.into_iter().partition(|asked| asked.range.is_some());
    assert_eq!(whole.len(), 1, "{whole:?}");
    assert!(
        parts.len() > 2 && parts_of(2, &parts) < remote.tile_bytes() / 3,
        "{parts:?}"
    );
    for chunk in [4, 8, 10, 14] {
        remote.read_few("indices.i32", 2, chunk);
    }
    assert_eq!(remote.asked(), []);
}

fn row_starts_fetch_heads_alone(io: Io) {
    let remote = Remote::new(io, &[]);
    let name = "X/indptr.i64";
    assert!(fs::read(remote.mount.join(name)).unwrap() == fs::read(remote.local.join(name)).unwrap());
    let mut heads = HashMap::new();
    for asked in remote.asked() {
        let range = asked.range.unwrap_or_else(|| panic!("all of it: {asked:?}"));
        assert!(range.1 < 32_000, "{asked:?}");
        *heads.entry(asked.path).or_insert(0) += 1;
    }
    assert!(
        heads.len() == TILES && heads.values().all(|&requests| requests == 1),
        "{heads:?}"
    );
}

fn what_parts_showed_of_a_damaged_tile_is_given_up_with_the_tile(io: Io) {
    let remote = Remote::new(io, &[]);
    let right = remote.few(&remote.local, "data.i32", 1, 2).unwrap();
    // In the last stream, which only who reads the last chunk sees.
    let mut bytes = fs::read(remote.tile(1)).unwrap();
    let place = bytes.len() - 100;
    bytes[place] ^= 1;
    replace(&remote.tile(1), &bytes);
    assert!(remote.few(&remote.mount, "data.i32", 1, 2).unwrap() == right);
    let all = fs::read(remote.mount.join("tile_000001/data.i32")).map(|_| ());
    assert_eq!(all.unwrap_err().raw_os_error(), Some(libc::EIO));
    // Another array, of which the kernel has nothing.
    for array in ["indices.i32", "data.f32"] {
        let again = remote.few(&remote.mount, array, 1, 2).map(|_| ());
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EIO), "{array}");
    }
    remote.read_few("data.i32", 0, 2);
    let complaints = remote.mount.complaints();
    assert!(
        complaints.iter().all(|line| line.contains("tile_000001.dct")),
        "{complaints:?}"
    );
    assert!(complaints.iter().any(|line| line.contains("CRC-32")), "{complaints:?}");
}

fn a_part_with_a_wrong_bit_is_not_shown_by_the_tile_and_is_told_of_once_the_tile_is_whole(io: Io) {
    let remote = Remote::new(io, &[]);
    remote.read_few("data.i32", 1, 2);
    // Of the chunk's streams, so late that nothing but a count is wrong, if anything is noticed at all.
    remote.server.judge(|asked| match asked.range {
        Some(_) => Fate::WrongBit,
        None => Fate::Answer,
    });
    for chunk in [4, 6] {
        drop(remote.few(&remote.mount, "data.i32", 1, chunk));
    }
    let read = |mount: &Mount, array: &str| fs::read(mount.join("tile_000001").join(array)).unwrap();
    for array in ["data.i32", "indices.i32", "indptr.i64"] {
        assert!(read(&remote.mount, array) == read(&remote.local, array), "{array}");
    }
    wait_until("it is told", || {
        let complaints = remote.mount.complaints();
        assert!(
            complaints.iter().all(|line| line.contains("tile_000001.dct")),
            "{complaints:?}"
        );
        !complaints.is_empty()
    });
    for chunk in [2, 4, 6] {
        remote.read_few("indices.i32", 1, chunk);
    }
}

fn a_tile_that_was_read_and_forgotten_is_fetched_in_parts_again(io: Io) {
    let remote = Remote::new(io, &["--fetch-memory", "1"]);
    fs::read(remote.mount.join("tile_000001/indptr.i64")).unwrap();
    fs::read(remote.mount.join("tile_000002/indptr.i64")).unwrap();
    remote.asked();
    remote.read_few("indices.i32", 1, 5);
    let asked = remote.asked();
    let bytes = parts_of(1, &asked);
    assert!(bytes < remote.tile_bytes() / 8, "{asked:?}");
}

fn many_who_need_one_chunk_fetch_it_once(io: Io) {
    let remote = Remote::new(io, &[]);
    thread::scope(|scope| {
        for reader in 0..10 {
            let array = ["data.i32", "indices.i32"][reader % 2];
            let remote = &remote;
            scope.spawn(move || remote.read_few(array, 0, 8));
        }
    });
    let asked = remote.asked();
    assert_eq!(asked.len(), 2, "the head, and the chunk: {asked:?}");
}

fn with_a_disk_cache_tiles_are_fetched_whole(io: Io) {
    let disk = Folder::new();
    let options = ["--disk-cache", disk.path().to_str().unwrap(), "--disk-cache-size", "1G"];
    let remote = Remote::new(io, &options);
    remote.read_few("data.i32", 1, 5);
    remote.read_few("data.i32", 1, 9);
    let asked = remote.asked();
    assert!(asked.len() == 1 && asked[0].range.is_none(), "{asked:?}");
}

fn many_who_read_anything_anywhere_through_faults_and_little_memory_read_what_is_right(io: Io) {
    for memory in ["1", "12M", "200M"] {
        let options = ["--fetch-memory", memory, "--cache-size", "48M", "--fetch-parallel", "3"];
        let remote = Remote::new(io, &options);
        remote.server.judge(every_second_fails());
        let files = [
            "X/data.i32",
            "X/indices.i32",
            "X/indptr.i64",
            "X/data.f32",
            "dataset.h5ad",
            "tile_000000/data.i32",
            "tile_000001/indices.i32",
            "tile_000002/indptr.i64",
        ];
        thread::scope(|scope| {
            for reader in 0..4_u64 {
                let remote = &remote;
                scope.spawn(move || {
                    let mut state = reader + 1;
                    let mut random = |below: u64| {
                        state = state
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        (state >> 33) % below
                    };
                    for _ in 0..40 {
                        let name = files[random(files.len() as u64) as usize];
                        let length = 1 + random(300_000);
                        let open = |mount: &Mount| File::open(mount.join(name)).unwrap();
                        let (file, truth) = (open(&remote.mount), open(&remote.local));
                        let size = truth.metadata().unwrap().len();
                        let start = random(size);
                        let length = length.min(size - start) as usize;
                        let read = |file: &File| {
                            let mut bytes = vec![0; length];
                            file.read_exact_at(&mut bytes, start).map(|()| bytes)
                        };
                        let found = read(&file).unwrap_or_else(|error| panic!("{name} at {start}: {error}"));
                        assert!(
                            found == read(&truth).unwrap(),
                            "{name} at {start}, {length} bytes, {memory}"
                        );
                    }
                });
            }
        });
        assert_eq!(remote.mount.complaints(), [""; 0]);
    }
}
