//! The whole dataset as one file or store: `dataset.h5ad`, `dataset.zarr`, `obs.arrow`, `var.arrow`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::data::{complaints_but_of_long_names, edit_manifest, links_to, made_up, repeated, shared};
use crate::harness::{Folder, Io, Mount, in_every_mode, run, skip_without};
use crate::python;
use crate::skip::skip;

in_every_mode!(
    anndata_reads_what_the_dataset_was_made_of,
    tables_are_mapped_by_pyarrow_and_polars,
    a_notebook_gives_the_same_numbers_on_the_mount_as_on_the_source,
    hdf5_tools_read_the_file,
    r_reads_the_file,
    two_mounts_show_the_same_bytes_and_a_copy_is_an_ordinary_file,
    a_damaged_tile_is_an_error_where_it_is_touched_and_nowhere_else,
    offsets_beyond_two_to_the_31_and_four_gibibytes_are_right,
    listing_other_folders_finds_out_nothing_about_columns,
    a_missing_chunk_is_never_what_a_damaged_one_is_taken_for,
);

/// Runs a script of `tests/python`, unless there is no Python.
fn script(name: &str, arguments: &[&Path]) {
    if let Some(mut python) = python::script(name) {
        run(python.args(arguments));
    }
}

fn anndata_reads_what_the_dataset_was_made_of(io: Io) {
    let Some(edge) = shared("edge.dc") else { return };
    let expected = [
        (edge, shared("edge.expected")),
        (shared("real/celseq2.dc").unwrap(), shared("real/celseq2.h5ad")),
        (shared("real/pbmc3k.dc").unwrap(), shared("real/pbmc3k.h5ad")),
        (shared("real/pbmc_facs.dc").unwrap(), shared("real/pbmc_facs.h5ad")),
    ];
    for (dataset, expected) in expected {
        let mount = Mount::new(&dataset, io);
        let (h5ad, zarr) = (mount.join("dataset.h5ad"), mount.join("dataset.zarr"));
        script("read_anndata.py", &[&h5ad, &zarr, &expected.unwrap()]);
        assert_eq!(complaints_but_of_long_names(&mount, io), [""; 0]);
    }
}

fn tables_are_mapped_by_pyarrow_and_polars(io: Io) {
    let dataset = made_up();
    let mut datasets = vec![dataset.path.clone()];
    datasets.extend(
        ["edge.dc", "real/celseq2.dc", "real/pbmc_facs.dc"]
            .into_iter()
            .filter_map(shared),
    );
    for dataset in datasets {
        let mount = Mount::new(&dataset, io);
        script("same_tables.py", &[mount.path()]);
    }
}

fn a_notebook_gives_the_same_numbers_on_the_mount_as_on_the_source(io: Io) {
    let Some(real) = shared("real") else { return };
    for name in ["celseq2", "pbmc3k"] {
        let mount = Mount::new(&real.join(name).with_extension("dc"), io);
        let source = real.join(name).with_extension("h5ad");
        script("same_notebook.py", &[mount.path(), &source]);
    }
}

fn hdf5_tools_read_the_file(io: Io) {
    if Command::new("h5dump").arg("--version").output().is_err() {
        return skip_without("h5dump", "hdf5-tools");
    }
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let file = mount.join("dataset.h5ad");
    let said = run(Command::new("h5ls").arg("-r").arg(&file));
    let nonzeros = dataset.synthetic.cells(0..900).counts.len();
    let line = said.lines().find(|line| line.starts_with("/X/data ")).unwrap();
    assert!(line.ends_with(&format!("Dataset {{{nonzeros}}}")), "{said}");
    let said = run(Command::new("h5dump")
        .args(["-d", "/X/data", "-y", "-w", "1", "-m", "%d"])
        .arg(&file));
    let (_, numbers) = said.split_once("DATA {").unwrap();
    let numbers = numbers.split(['}', ',']).map(str::trim);
    let counts: Vec<i32> = numbers.map_while(|number| number.parse().ok()).collect();
    assert!(counts == dataset.synthetic.cells(0..900).counts);
    // All of it, attributes included.
    run(Command::new("h5dump").arg(&file));
}

fn r_reads_the_file(io: Io) {
    if Command::new("Rscript").arg("--version").output().is_err() {
        return skip("Rscript is not installed");
    }
    let code = r#"
        file <- commandArgs(TRUE)
        if (requireNamespace("rhdf5", quietly = TRUE)) {
            cat(sum(rhdf5::h5read(file, "X/data")), length(rhdf5::h5read(file, "obs/cell_type/codes")))
        } else if (requireNamespace("hdf5r", quietly = TRUE)) {
            h5 <- hdf5r::H5File$new(file, "r")
            cat(sum(h5[["X/data"]][]), length(h5[["obs/cell_type/codes"]][]))
        } else {
            cat("neither")
        }"#;
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let said = run(Command::new("Rscript")
        .args(["--vanilla", "-e", code])
        .arg(mount.join("dataset.h5ad")));
    if said == "neither" {
        return skip("R has neither rhdf5 nor hdf5r");
    }
    let sum: i64 = dataset.synthetic.cells(0..900).counts.into_iter().map(i64::from).sum();
    assert_eq!(said.trim(), format!("{sum} 900"));
}

fn two_mounts_show_the_same_bytes_and_a_copy_is_an_ordinary_file(io: Io) {
    let Some(edge) = shared("edge.dc") else { return };
    let (one, other) = (Mount::new(&edge, io), Mount::new(&edge, io));
    run(Command::new("cmp").args([one.join("dataset.h5ad"), other.join("dataset.h5ad")]));
    run(Command::new("diff")
        .arg("-r")
        .args([one.join("dataset.zarr"), other.join("dataset.zarr")]));
    let folder = Folder::new();
    let (h5ad, zarr) = (folder.join("copy.h5ad"), folder.join("copy.zarr"));
    run(Command::new("cp").arg(one.join("dataset.h5ad")).arg(&h5ad));
    run(Command::new("cp").arg("-r").arg(one.join("dataset.zarr")).arg(&zarr));
    one.unmount();
    script("read_anndata.py", &[&h5ad, &zarr, &shared("edge.expected").unwrap()]);
    run(Command::new("cmp").arg(&h5ad).arg(other.join("dataset.h5ad")));
}

/// Turns a bit in the streams of a tile.
fn damage(dataset: &Path, tile: usize) {
    let path = dataset.join(format!("tiles/tile_{tile:06}.dct"));
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn a_damaged_tile_is_an_error_where_it_is_touched_and_nowhere_else(io: Io) {
    let (good, bad) = (made_up(), made_up());
    damage(&bad.path, 2);
    let options = ["--zarr-chunk", "5000"];
    let (good, bad) = (
        Mount::with(&good.path, io, &options),
        Mount::with(&bad.path, io, &options),
    );
    script("damaged_tile.py", &[good.path(), bad.path(), Path::new("2")]);
    let complaints = bad.complaints();
    assert!(
        !complaints.is_empty() && complaints.iter().all(|line| line.contains("tile_000002.dct: ")),
        "{complaints:?}"
    );
}

fn a_missing_chunk_is_never_what_a_damaged_one_is_taken_for(io: Io) {
    let dataset = made_up();
    fs::remove_file(dataset.path.join("tiles/tile_000002.dct")).unwrap();
    let mount = Mount::with(&dataset.path, io, &["--zarr-chunk", "5000"]);
    let chunks = mount.join("dataset.zarr/X/data/c");
    let mut failed = 0;
    let nonzeros = dataset.synthetic.cells(0..900).counts.len();
    for chunk in 0..nonzeros.div_ceil(5000) {
        let path = chunks.join(chunk.to_string());
        assert_eq!(fs::metadata(&path).unwrap().len(), 20_000, "the last one is padded");
        failed += usize::from(fs::read(&path).is_err_and(|error| error.raw_os_error() == Some(libc::EIO)));
    }
    let tile = dataset.synthetic.tile(2).counts.len();
    assert!(
        (tile / 5000..tile / 5000 + 3).contains(&failed),
        "{failed} of {nonzeros}"
    );
    assert!(!chunks.join(nonzeros.div_ceil(5000).to_string()).exists());
}

/// A dataset of so many tiles, all links to one, that there are more than 2^31 nonzeros.
fn far() -> (Folder, crate::data::Repeated, u64) {
    let one = repeated(1);
    let nonzeros = one.tile.counts.len() as u64;
    let tiles = (1 << 31) / nonzeros + 3;
    let folder = links_to(&one.path);
    let first = PathBuf::from("tile_000000.dct");
    for tile in 1..tiles {
        std::os::unix::fs::symlink(&first, folder.join(format!("tiles/tile_{tile:06}.dct"))).unwrap();
    }
    edit_manifest(folder.path(), |manifest| {
        for key in ["tile_cells", "tile_nnz", "tile_bytes"] {
            manifest[key] = vec![manifest[key][0].clone(); tiles as usize].into();
        }
        manifest["n_cells"] = (2_000 * tiles).into();
    });
    (folder, one, tiles)
}

fn offsets_beyond_two_to_the_31_and_four_gibibytes_are_right(io: Io) {
    let (dataset, one, tiles) = far();
    let mount = Mount::new(dataset.path(), io);
    let nonzeros = one.tile.counts.len() as u64;
    let size = |name: &str| fs::metadata(mount.join(name)).unwrap().len();
    assert_eq!(size("X/data.i32"), 4 * nonzeros * tiles);
    assert!(size("X/data.i32") > 8 << 30 && size("dataset.h5ad") > 16 << 30);
    for (name, expected) in [("indices.i32", &one.tile.indices), ("data.i32", &one.tile.counts)] {
        let file = File::open(mount.join("X").join(name)).unwrap();
        // The end of the last tile but one and all of the last, and both sides of 2^31 entries and of 4 GiB.
        for (entry, length) in [
            (nonzeros * (tiles - 1) - 100, nonzeros + 100),
            ((1 << 31) - 50, 100),
            ((1 << 30) - 50, 100),
        ] {
            let mut bytes = vec![0; 4 * length as usize];
            file.read_exact_at(&mut bytes, 4 * entry).unwrap();
            let entries = bytes.as_chunks::<4>().0.iter().map(|entry| i32::from_le_bytes(*entry));
            let wanted = (entry..entry + length).map(|entry| expected[(entry % nonzeros) as usize]);
            assert!(entries.eq(wanted), "{name} at {entry}");
        }
    }
    let file = File::open(mount.join("X/indptr.i64")).unwrap();
    let mut end = [0; 16];
    file.read_exact_at(&mut end, 8 * (2_000 * tiles - 1)).unwrap();
    let last = (nonzeros * (tiles - 1)) as i64 + one.tile.indptr[1_999];
    assert_eq!(
        end,
        [last.to_le_bytes(), ((nonzeros * tiles) as i64).to_le_bytes()].concat()[..]
    );
    let tile = Mount::new(&one.path, io);
    script("far_end.py", &[mount.path(), tile.path()]);
}

fn listing_other_folders_finds_out_nothing_about_columns(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let columns = || mount.stat("/decoded/columns");
    for folder in [".", "X", "tile_000001", "obs", "tile_000001/obs"] {
        assert!(fs::read_dir(mount.join(folder)).unwrap().count() > 0);
    }
    for folder in ["X", "tile_000001"] {
        run(Command::new("ls").arg("-l").arg(mount.join(folder)));
    }
    assert_eq!(columns(), 0);
    let size = fs::metadata(mount.join("dataset.h5ad")).unwrap().len();
    let found = columns();
    assert!(found > 0);
    assert_eq!(fs::metadata(mount.join("dataset.h5ad")).unwrap().len(), size);
    assert!(fs::metadata(mount.join("dataset.zarr/obs/zarr.json")).unwrap().len() > 0);
    assert_eq!(columns(), found, "it is known for the life of the mount");
    assert_eq!(mount.stat("/decoded/chunks"), 0);
}
