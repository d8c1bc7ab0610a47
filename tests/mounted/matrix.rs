//! Arrays of the whole matrix, NumPy files and float32 counts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use dcfs::write::synthetic::Csr;

use crate::data::{MadeUp, entries, int32s, int64s, made_up, map, npy, shared};
use crate::harness::{Io, Mount, in_every_mode, run, text};
use crate::python;

in_every_mode!(
    the_whole_matrix_is_all_tiles_one_after_another,
    the_edge_cases_are_one_matrix,
    counts_are_floats_beside_the_integers,
    numpy_files_are_a_header_and_the_raw_array,
    every_range_of_the_matrix_is_cut_from_the_same_whole,
    a_range_decodes_the_chunks_it_covers_and_no_others,
    row_starts_cost_reading_row_starts,
    row_starts_that_do_not_fit_are_an_error,
    numpy_maps_what_it_would_read,
    only_the_views_that_were_asked_for_are_there,
);

fn whole(dataset: &MadeUp) -> Csr {
    dataset.synthetic.cells(0..900)
}

fn floats(path: &Path) -> Vec<f32> {
    entries(&fs::read(path).unwrap())
        .into_iter()
        .map(f32::from_le_bytes)
        .collect()
}

fn the_whole_matrix_is_all_tiles_one_after_another(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let expected = whole(&dataset);
    assert!(int64s(&mount.join("X/indptr.i64")) == expected.indptr);
    assert!(int32s(&mount.join("X/indices.i32")) == expected.indices);
    assert!(int32s(&mount.join("X/data.i32")) == expected.counts);
    assert_eq!(mount.complaints(), [""; 0]);
}

fn the_edge_cases_are_one_matrix(io: Io) {
    let (Some(dataset), Some(expected)) = (shared("edge.dc"), shared("edge.expected")) else {
        return;
    };
    let mount = Mount::new(&dataset, io);
    for (name, raw) in [("indices", "indices.i32"), ("data", "data.i32")] {
        let expected = npy::<4>(&expected.join(name).with_extension("npy"));
        assert_eq!(entries::<4>(&fs::read(mount.join("X").join(raw)).unwrap()), expected);
        assert_eq!(npy::<4>(&mount.join("X").join(name).with_extension("npy")), expected);
    }
    let indptr = npy::<8>(&expected.join("indptr.npy"));
    assert_eq!(npy::<8>(&mount.join("X/indptr.npy")), indptr);
    assert_eq!(entries::<8>(&fs::read(mount.join("X/indptr.i64")).unwrap()), indptr);
}

fn counts_are_floats_beside_the_integers(io: Io) {
    let Some(edge) = shared("edge.dc") else { return };
    let mount = Mount::new(&edge, io);
    for folder in [
        "X",
        "tile_000000",
        "tile_000001",
        "tile_000002",
        "tile_000003",
        "tile_000004",
    ] {
        let counts = int32s(&mount.join(folder).join("data.i32"));
        let expected: Vec<f32> = counts.into_iter().map(|count| count as f32).collect();
        assert_eq!(floats(&mount.join(folder).join("data.f32")), expected, "{folder}");
        let npy: Vec<f32> = npy(&mount.join(folder).join("data_f32.npy"))
            .into_iter()
            .map(f32::from_le_bytes)
            .collect();
        assert_eq!(npy, expected, "{folder}");
    }
}

fn numpy_files_are_a_header_and_the_raw_array(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let pairs = [
        ("indptr", "indptr.i64"),
        ("indices", "indices.i32"),
        ("data", "data.i32"),
        ("data_f32", "data.f32"),
    ];
    for folder in ["X", "tile_000000", "tile_000004"] {
        for (name, raw) in pairs {
            let file = fs::read(mount.join(folder).join(name).with_extension("npy")).unwrap();
            let start = file.iter().position(|&byte| byte == b'\n').unwrap() + 1;
            assert_eq!(
                (start % 64, &file[..8]),
                (0, &b"\x93NUMPY\x01\0"[..]),
                "{folder}/{name}"
            );
            assert!(
                file[start..] == fs::read(mount.join(folder).join(raw)).unwrap(),
                "{folder}/{name}"
            );
        }
    }
}

fn every_range_of_the_matrix_is_cut_from_the_same_whole(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    for name in ["X/indptr.i64", "X/indices.npy", "X/data.i32", "X/data.f32"] {
        let whole = fs::read(mount.join(name)).unwrap();
        let file = File::open(mount.join(name)).unwrap();
        let mut state = 7_u64;
        for _ in 0..300 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let start = (state >> 20) as usize % whole.len();
            let length = ((state >> 45) as usize % 70_000).min(whole.len() - start);
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, start as u64).unwrap();
            assert!(
                bytes == whole[start..start + length],
                "{name}: {length} bytes at {start}"
            );
        }
        for shared in [true, false] {
            assert!(map(&mount.join(name), shared)[..] == whole[..], "{name}");
        }
    }
}

fn a_range_decodes_the_chunks_it_covers_and_no_others(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let chunks = || mount.stat("/decoded/chunks");
    let read = |file: &str, nonzero: u64| {
        let file = File::open(mount.join(file)).unwrap();
        let mut entry = [0; 4];
        file.read_exact_at(&mut entry, 4 * nonzero).unwrap();
        i32::from_le_bytes(entry)
    };
    let (tile, before) = (
        dataset.synthetic.tile(3),
        dataset.synthetic.cells(0..600).counts.len() as u64,
    );
    assert_eq!(read("X/data.i32", before + 5), tile.counts[5]);
    assert_eq!(chunks(), 1, "of all tiles and both arrays");
    assert_eq!(read("X/indices.i32", before + 5), tile.indices[5]);
    assert_eq!(chunks(), 2);
    // Floats are made of the same counts.
    let file = File::open(mount.join("X/data.f32")).unwrap();
    let mut entry = [0; 4];
    file.read_exact_at(&mut entry, 4 * (before + 6)).unwrap();
    assert_eq!(f32::from_le_bytes(entry), tile.counts[6] as f32);
    assert_eq!(chunks(), 2);
}

fn row_starts_cost_reading_row_starts(io: Io) {
    let dataset = made_up();
    // Without its streams a tile has row starts and nothing else that could be read.
    for tile in 0..dataset.tiles {
        let path = dataset.path.join(format!("tiles/tile_{tile:06}.dct"));
        let bytes = fs::read(&path).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let end = word(40) + 8 * (word(16) + 1);
        let mut cut = bytes[..end].to_vec();
        cut.resize(bytes.len(), 0);
        fs::write(&path, cut).unwrap();
    }
    let mount = Mount::new(&dataset.path, io);
    assert!(int64s(&mount.join("X/indptr.i64")) == whole(&dataset).indptr);
    assert_eq!((mount.stat("/decoded/chunks"), mount.complaints().len()), (0, 0));
    // The checksum is wrong, which those find out who read on; rows of other tiles are found all the same.
    assert!(fs::read(mount.join("X/data.i32")).is_err());
    assert!(!mount.complaints().is_empty());
    assert!(
        npy::<8>(&mount.join("X/indptr.npy"))
            .into_iter()
            .map(i64::from_le_bytes)
            .eq(whole(&dataset).indptr)
    );
}

/// Starts that do not fit the chunk table are those of rows in other chunks and tiles.
fn row_starts_that_do_not_fit_are_an_error(io: Io) {
    let dataset = made_up();
    let path = dataset.path.join("tiles/tile_000001.dct");
    let mut bytes = fs::read(&path).unwrap();
    let indptr = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    bytes[indptr + 8 * 100] ^= 0x80;
    bytes[indptr + 8 * 100 + 2] ^= 0x40;
    fs::write(&path, bytes).unwrap();
    let mount = Mount::new(&dataset.path, io);
    assert_eq!(
        fs::read(mount.join("X/indptr.i64")).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert!(
        mount.complaints()[0].contains("tile_000001.dct: "),
        "{:?}",
        mount.complaints()
    );
}

fn numpy_maps_what_it_would_read(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let Some(mut python) = python::python() else { return };
    let code = "
import numpy as np, sys, glob
for folder in ['X'] + sorted(glob.glob('tile_*')):
    for name, raw, dtype in [('indptr', 'indptr.i64', '<i8'), ('indices', 'indices.i32', '<i4'), ('data', 'data.i32', '<i4'),
                             ('data_f32', 'data.f32', '<f4')]:
        mapped = np.load(f'{folder}/{name}.npy', mmap_mode='r')
        assert isinstance(mapped, np.memmap) and mapped.offset % 64 == 0 and mapped.dtype == dtype
        assert np.array_equal(mapped, np.fromfile(f'{folder}/{raw}', dtype)), (folder, name)
        assert np.array_equal(mapped, np.load(f'{folder}/{name}.npy')), (folder, name)
    assert np.array_equal(np.load(f'{folder}/data_f32.npy'), np.load(f'{folder}/data.npy').astype('f4'))
";
    run(python.args(["-c", code]).current_dir(mount.path()));
}

fn only_the_views_that_were_asked_for_are_there(io: Io) {
    let dataset = made_up();
    let listed = |mount: &Mount, folder: &str| {
        let entries = fs::read_dir(mount.join(folder)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let stored = [
        ".dcfs",
        "README.txt",
        "gene_order.npy",
        "manifest.json",
        "obs",
        "var.parquet",
        "var_names.txt",
    ];
    let tiles = [
        "tile_000000",
        "tile_000001",
        "tile_000002",
        "tile_000003",
        "tile_000004",
    ];
    let raw = ["data.f32", "data.i32", "indices.i32", "indptr.i64"];
    let npy = ["data.npy", "data_f32.npy", "indices.npy", "indptr.npy"];
    for (views, more, in_x, in_tile) in [
        ("raw", vec!["X"], &raw[..], &raw[..]),
        ("npy", vec!["X"], &npy[..], &npy[..]),
        ("arrow", vec!["obs.arrow", "var.arrow"], &[], &["obs"]),
        ("h5ad", vec!["dataset.h5ad"], &[], &[]),
        ("zarr,h5ad", vec!["dataset.h5ad", "dataset.zarr"], &[], &[]),
    ] {
        let mount = Mount::with(&dataset.path, io, &["--views", views]);
        let mut expected: Vec<&str> = [&stored[..], &more].concat();
        if !in_tile.is_empty() {
            expected.extend(tiles);
        }
        expected.sort();
        assert_eq!(listed(&mount, "."), expected, "{views}");
        if !in_x.is_empty() {
            assert_eq!(listed(&mount, "X"), in_x, "{views}");
        }
        if !in_tile.is_empty() {
            assert_eq!(listed(&mount, "tile_000002"), in_tile, "{views}");
        }
        let readme = fs::read_to_string(mount.join("README.txt")).unwrap();
        for name in ["dataset.h5ad", "dataset.zarr", "obs.arrow", "data.i32", "data.npy"] {
            let shown = mount.join(name).exists() || in_x.contains(&name);
            assert_eq!(readme.contains(name), shown, "{views}: {name} in {readme}");
        }
        for name in [
            "X",
            "dataset.h5ad",
            "dataset.zarr",
            "obs.arrow",
            "var.arrow",
            "tile_000000",
        ] {
            assert_eq!(mount.join(name).exists(), expected.contains(&name), "{views}: {name}");
        }
    }
    let mut command = crate::harness::dcfs();
    let output = command
        .args(["mount", "--views", "raw,hdf", "a", "b"])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("possible values: raw, npy, arrow, h5ad, zarr"),
        "{said}"
    );
}
