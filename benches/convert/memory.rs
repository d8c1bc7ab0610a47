//! Memory: what the program takes at its peak for a million cells; and that threads change nothing but time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::input::Shape;
use crate::table::{Line, Table, Target};
use crate::{Result, Wanted};

const MIB: f64 = 1024.0 * 1024.0;
/// How often the process is looked at.
const EVERY: Duration = Duration::from_millis(2);
const TILE_CELLS: u64 = 10_000;
/// What a conversion may take beyond its tiles.
const BASE_MIB: f64 = 200.0;
const MILLION: Shape = Shape {
    cells: 1_000_000,
    genes: 20_000,
    mean_nonzeros: 300,
};
const DEEP: Shape = Shape {
    cells: 40_000,
    genes: 20_000,
    mean_nonzeros: 600,
};

/// Measures all lines.
pub fn measure(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    let threads = std::thread::available_parallelism()?.get();
    for (name, shape, level) in [("a million cells", MILLION, 3), ("few cells", DEEP, 19)] {
        let line = format!("memory: {name}, level {level}, {threads} threads, peak");
        if !wanted.has(&line) {
            continue;
        }
        let shape = Shape {
            cells: wanted.cells(shape.cells),
            ..shape
        };
        let input = folder.h5ad(shape, true)?;
        let (peak, seconds) = convert(&input, &folder.output()?, level, threads)?;
        let tile = TILE_CELLS as f64 * f64::from(shape.mean_nonzeros) * 8.0 / MIB;
        table.add(Line {
            measure: line,
            against: format!("{} tiles of {tile:.0} MiB as CSR + {BASE_MIB} MiB", threads + 2),
            found: peak,
            unit: " MiB",
            target: Target::AtMost(((threads + 2) as f64 * tile + BASE_MIB).floor()),
            details: format!("{} cells in {seconds:.1} s", shape.cells),
        });
    }
    same_bytes(wanted, folder, table)
}

/// Converts with one thread and with several, and holds the files against each other.
fn same_bytes(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    let line = "files that differ between 1 and 5 threads";
    if !wanted.has(line) {
        return Ok(());
    }
    let shape = Shape {
        cells: wanted.cells(DEEP.cells),
        ..DEEP
    };
    let input = folder.h5ad(shape, true)?;
    let mut datasets = Vec::new();
    for threads in [1, 5] {
        let output = folder.output()?;
        convert(&input, &output, 3, threads)?;
        datasets.push(files(&output)?);
    }
    let differing = datasets[0]
        .iter()
        .filter(|(path, bytes)| datasets[1].get(*path) != Some(bytes));
    table.add(Line {
        measure: line.into(),
        against: format!("{} files", datasets[0].len()),
        found: differing.count() as f64 + datasets[0].len().abs_diff(datasets[1].len()) as f64,
        unit: "",
        target: Target::AtMost(0.0),
        details: format!("{} cells", shape.cells),
    });
    Ok(())
}

/// Runs the program; MiB that it had in memory at most, and the seconds that it took.
fn convert(input: &Path, output: &Path, level: i32, threads: usize) -> Result<(f64, f64)> {
    let begun = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dcfs"))
        .arg("convert")
        .args([output, input])
        .args(["--level", &level.to_string(), "--threads", &threads.to_string()])
        .stdout(Stdio::null())
        .spawn()?;
    // Not what wait4 tells: that begins with the memory of the process that started the child.
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak = 0.0_f64;
    loop {
        let status = fs::read_to_string(&status_file).unwrap_or_default();
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
        if let Some(kib) = kib {
            peak = peak.max(kib.trim().parse::<f64>()? / 1024.0);
        }
        match child.try_wait()? {
            Some(status) if status.success() => return Ok((peak, begun.elapsed().as_secs_f64())),
            Some(_) => return Err(format!("{} could not be converted", input.display()).into()),
            None => std::thread::sleep(EVERY),
        }
    }
}

/// Every file of a dataset.
fn files(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    found.insert(path.strip_prefix(root)?.to_path_buf(), fs::read(&path)?);
                }
            }
        }
    }
    Ok(found)
}
