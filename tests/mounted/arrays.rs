//! The numbers are right.

use std::fs;
use std::path::Path;

use crate::data::{assert_shows, entries, int32s, int64s, made_up, npy, shared};
use crate::harness::{Io, Mount, in_every_mode, run};
use crate::python;

in_every_mode!(
    made_up_cells_are_read_as_they_were_made,
    the_edge_cases_are_read_as_an_independent_decoder_reads_them,
    real_datasets_equal_the_matrices_they_were_made_from,
    stored_files_appear_as_they_are,
);

fn made_up_cells_are_read_as_they_were_made(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    for tile in 0..dataset.tiles {
        assert_shows(&mount.join(format!("tile_{tile:06}")), &dataset.synthetic.tile(tile));
    }
    assert!(!mount.join(format!("tile_{:06}", dataset.tiles)).exists());
    assert_eq!(mount.complaints(), [""; 0]);
}

/// Empty cells and tiles, counts and gaps around 65,536, the largest count there is.
fn the_edge_cases_are_read_as_an_independent_decoder_reads_them(io: Io) {
    let (Some(dataset), Some(expected)) = (shared("edge.dc"), shared("edge.expected")) else {
        return;
    };
    let mount = Mount::new(&dataset, io);
    let indptr: Vec<i64> = npy(&expected.join("indptr.npy"))
        .into_iter()
        .map(i64::from_le_bytes)
        .collect();
    let (indices, data) = (
        npy::<4>(&expected.join("indices.npy")),
        npy::<4>(&expected.join("data.npy")),
    );
    let (mut cell, mut nonzero) = (0, 0);
    for tile in 0..5 {
        let folder = mount.join(format!("tile_{tile:06}"));
        let starts = int64s(&folder.join("indptr.i64"));
        let cells = starts.len() - 1;
        let local: Vec<i64> = indptr[cell..=cell + cells]
            .iter()
            .map(|start| start - indptr[cell])
            .collect();
        assert_eq!(starts, local, "tile {tile}");
        let end = nonzero + starts[cells] as usize;
        let shown = |name: &str| entries::<4>(&fs::read(folder.join(name)).unwrap());
        assert_eq!(shown("indices.i32"), indices[nonzero..end], "tile {tile}");
        assert_eq!(shown("data.i32"), data[nonzero..end], "tile {tile}");
        (cell, nonzero) = (cell + cells, end);
    }
    assert_eq!((cell + 1, nonzero), (indptr.len(), data.len()));
    let largest = (0..5)
        .flat_map(|tile| int32s(&mount.join(format!("tile_{tile:06}/data.i32"))))
        .max();
    assert_eq!(largest, Some(i32::MAX));
}

fn real_datasets_equal_the_matrices_they_were_made_from(io: Io) {
    let Some(real) = shared("real") else { return };
    for name in ["celseq2", "pbmc3k", "pbmc_facs"] {
        let mount = Mount::new(&real.join(name).with_extension("dc"), io);
        let Some(mut check) = python::script("same_as_h5ad.py") else {
            return;
        };
        run(check.arg(mount.path()).arg(real.join(name).with_extension("h5ad")));
    }
}

fn stored_files_appear_as_they_are(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    for file in [
        "manifest.json",
        "var.parquet",
        "var_names.txt",
        "gene_order.npy",
        "obs/schema.json",
    ] {
        let read = |root: &Path| fs::read(root.join(file)).unwrap();
        assert!(read(mount.path()) == read(&dataset.path), "{file}");
    }
}
