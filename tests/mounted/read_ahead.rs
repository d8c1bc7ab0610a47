//! Who reads on finds the next chunks decoded; who jumps about decodes nothing else.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::data::repeated;
use crate::harness::{Io, Mount, in_every_mode};

in_every_mode!(
    one_who_reads_the_matrix_on_finds_it_decoded,
    one_who_reads_one_file_a_tile_in_order_finds_the_next_decoded,
    one_who_reads_chunk_after_chunk_of_the_store_finds_the_next_decoded,
    one_who_jumps_about_has_nothing_decoded_early,
    reading_counts_on_never_decodes_genes,
);

fn prefetched(mount: &Mount) -> u64 {
    mount.stat("/decoded/prefetched")
}

fn read(path: &Path) -> u64 {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return bytes,
            read => bytes += read as u64,
        }
    }
}

fn one_who_reads_the_matrix_on_finds_it_decoded(io: Io) {
    let dataset = repeated(12);
    for file in ["X/data.i32", "X/data.f32", "X/indices.npy", "dataset.h5ad"] {
        let mount = Mount::new(&dataset.path, io);
        let bytes = read(&mount.join(file));
        assert_eq!(bytes, fs::metadata(mount.join(file)).unwrap().len());
        let arrays = if file == "dataset.h5ad" { 2 } else { 1 };
        let chunks = arrays * 12 * dataset.chunks;
        assert_eq!(mount.stat("/decoded/chunks"), chunks, "{file}: each chunk once");
        // But for those that it takes to see that somebody reads on.
        assert!(
            prefetched(&mount) > chunks / 2,
            "{file}: {} of {chunks}",
            prefetched(&mount)
        );
    }
}

fn one_who_reads_one_file_a_tile_in_order_finds_the_next_decoded(io: Io) {
    let dataset = repeated(12);
    let mount = Mount::new(&dataset.path, io);
    for tile in 0..12 {
        read(&mount.join(format!("tile_{tile:06}/data.i32")));
    }
    assert!(prefetched(&mount) >= 4, "{}", mount.stats());
    assert_eq!(mount.stat("/decoded/chunks"), 12 * dataset.chunks, "each chunk once");
}

fn one_who_reads_chunk_after_chunk_of_the_store_finds_the_next_decoded(io: Io) {
    let dataset = repeated(12);
    let mount = Mount::new(&dataset.path, io);
    let chunks = fs::read_dir(mount.join("dataset.zarr/X/data/c")).unwrap().count();
    for chunk in 0..chunks {
        read(&mount.join(format!("dataset.zarr/X/data/c/{chunk}")));
    }
    assert!(prefetched(&mount) > 6 * dataset.chunks, "{}", mount.stats());
    assert_eq!(mount.stat("/decoded/chunks"), 12 * dataset.chunks, "each chunk once");
}

fn one_who_jumps_about_has_nothing_decoded_early(io: Io) {
    let dataset = repeated(40);
    let mount = Mount::new(&dataset.path, io);
    let files = ["X/data.i32", "X/indices.i32", "dataset.h5ad"].map(|file| File::open(mount.join(file)).unwrap());
    let mut state = 3_u64;
    for turn in 0..400 {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let file = &files[turn % 3];
        let at = (state >> 24) % (file.metadata().unwrap().len() - (64 << 10));
        file.read_exact_at(&mut vec![0; 64 << 10], at).unwrap();
    }
    assert_eq!(prefetched(&mount), 0, "{}", mount.stats());
}

fn reading_counts_on_never_decodes_genes(io: Io) {
    let dataset = repeated(6);
    let mount = Mount::new(&dataset.path, io);
    read(&mount.join("X/data.i32"));
    assert_eq!(mount.stat("/decoded/chunks"), 6 * dataset.chunks);
    assert_eq!(
        mount.stat("/decoded/bytes"),
        fs::metadata(mount.join("X/data.i32")).unwrap().len()
    );
}
