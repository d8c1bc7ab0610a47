//! Columns that describe cells, as Arrow files.

use std::fs::{self, File};
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use arrow::ipc::reader::FileReader;

use crate::data::{made_up, shared};
use crate::harness::{Io, Mount, in_every_mode, run};
use crate::python;

in_every_mode!(
    columns_of_made_up_cells_are_those_that_were_made,
    every_kind_of_column_is_read_by_pyarrow_and_pandas,
    columns_are_mapped_without_copies,
    sizes_are_known_before_anything_is_read,
    the_size_of_a_string_column_takes_that_column_alone_and_once,
);

fn read(path: &Path) -> Vec<RecordBatch> {
    let reader = FileReader::try_new(File::open(path).unwrap(), None).unwrap();
    reader.map(|batch| batch.unwrap()).collect()
}

fn columns_of_made_up_cells_are_those_that_were_made(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let columns = dataset.synthetic.obs_columns();
    for (number, column) in columns.iter().enumerate() {
        let file = format!("obs/{}.arrow", column.name);
        let all = read(&mount.join(&file));
        assert_eq!(all.len(), dataset.tiles, "a batch a tile");
        for (tile, batch) in all.iter().enumerate() {
            let cells = tile as u64 * 200..900.min((tile as u64 + 1) * 200);
            let made = dataset.synthetic.obs(cells, &dataset.synthetic.tile(tile));
            let of_tile = read(&mount.join(format!("tile_{tile:06}/{file}")));
            assert_eq!(of_tile, std::slice::from_ref(batch), "{file} of tile {tile}");
            let (shown, made) = (batch.column(0), made.column(number));
            match shown.as_any_dictionary_opt() {
                // A label that is missing has code -1 in the dataset.
                Some(dictionary) => assert_eq!(codes(dictionary.keys(), -1), codes(made, -1), "{file}"),
                None => assert_eq!(shown, made, "{file}"),
            }
        }
    }
}

fn codes(array: &dyn Array, missing: i32) -> Vec<i32> {
    let codes = cast(array, &DataType::Int32).unwrap();
    codes
        .as_primitive::<Int32Type>()
        .iter()
        .map(|code| code.unwrap_or(missing))
        .collect()
}

fn every_kind_of_column_is_read_by_pyarrow_and_pandas(io: Io) {
    let (Some(dataset), Some(expected)) = (shared("edge.dc"), shared("edge.expected")) else {
        return;
    };
    let mount = Mount::new(&dataset, io);
    let Some(mut check) = python::script("same_as_obs_json.py") else {
        return;
    };
    run(check.arg(mount.path()).arg(expected.join("obs.json")));
}

fn columns_are_mapped_without_copies(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let Some(mut check) = python::script("mapped_without_copies.py") else {
        return;
    };
    run(check.arg(mount.path()));
}

fn sizes_are_known_before_anything_is_read(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let read_from = Mount::new(&dataset.path, io);
    let columns = dataset.synthetic.obs_columns();
    for column in columns.iter().filter(|column| column.name != "obs_names") {
        for file in [
            format!("obs/{}.arrow", column.name),
            format!("tile_000004/obs/{}.arrow", column.name),
        ] {
            let size = fs::metadata(mount.join(&file)).unwrap().len();
            assert_eq!(size, fs::read(read_from.join(&file)).unwrap().len() as u64, "{file}");
        }
    }
    assert_eq!(mount.stat("/decoded/columns"), 0);
    assert_eq!(mount.stat("/decoded/chunks"), 0);
}

fn the_size_of_a_string_column_takes_that_column_alone_and_once(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let size = |file: &str| fs::metadata(mount.join(file)).unwrap().len();
    let one = size("tile_000003/obs/obs_names.arrow");
    assert_eq!(mount.stat("/decoded/columns"), 1);
    let all = size("obs/obs_names.arrow");
    assert_eq!(mount.stat("/decoded/columns"), 2, "the column of all cells counts once");
    let list = || run(std::process::Command::new("ls").arg("-lR").arg(mount.path()));
    run(std::process::Command::new("ls").arg("-lR").arg(mount.join("obs")));
    assert_eq!(mount.stat("/decoded/columns"), 2);
    // Now dataset.h5ad is looked at too, and asks what is missing in other columns.
    list();
    let found_out = mount.stat("/decoded/columns");
    list();
    assert_eq!(
        mount.stat("/decoded/columns"),
        found_out,
        "sizes are kept for the life of the mount"
    );
    assert_eq!(fs::read(mount.join("obs/obs_names.arrow")).unwrap().len() as u64, all);
    assert_eq!(
        fs::read(mount.join("tile_000003/obs/obs_names.arrow")).unwrap().len() as u64,
        one
    );
}
