//! What the views of the whole matrix cost, against the files they stand for: `cargo bench --bench views`.
//!
//! ```text
//! cargo bench --bench views -- [--quick | --rounds N] [NAME...]
//! ```
//!
//! Figures are ratios of two things that were timed in turns; absolute times are printed beside them. The machine needs `/dev/fuse`, and a
//! Python with anndata: the one that `cargo test --release` made, or what `DCFS_PYTHON` names.

#[path = "../mount/daemon.rs"]
#[allow(dead_code, reason = "the other bench uses all of it")]
mod daemon;
mod dataset;
#[path = "../mount/folder.rs"]
mod folder;
#[path = "../mount/machine.rs"]
mod machine;
mod python;
mod sequential;
mod stat;
#[path = "../mount/table.rs"]
#[allow(dead_code, reason = "the other bench uses all of it")]
mod table;
#[path = "../mount/wanted.rs"]
mod wanted;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use daemon::Mount;
use dataset::OnTmpfs;
use folder::Folder;
use python::Python;
use table::{Line, Table, Target, median};
use wanted::Wanted;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rounds unless the command line says otherwise.
const ROUNDS: usize = 7;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("views: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let wanted = Wanted::parse(ROUNDS)?;
    let folder = Folder::lock()?;
    let mut table = Table::default();
    stat::measure(&wanted, &folder, &mut table)?;
    let cells = folder.cells()?;
    machine::touch_memory()?;
    let others = machine::Others::watch()?;
    sequential::measure(&wanted, &cells, &mut table)?;
    anndata(&wanted, &folder, &cells, &mut table)?;
    table.remark(others.report()?.to_string());
    print!("{table}");
    Ok(())
}

const EVERYTHING: &str = "read_h5ad, everything, cold";
const AGAIN: &str = "read_h5ad, everything, again";
const BLOCKS: &str = "64 blocks of 16 rows, backed, cold";
const BLOCKS_AGAIN: &str = "64 blocks of 16 rows, backed, warm";

fn anndata(wanted: &Wanted, folder: &Folder, cells: &Path, table: &mut Table) -> Result<()> {
    let all = [EVERYTHING, AGAIN, BLOCKS, BLOCKS_AGAIN];
    if !all.into_iter().any(|line| wanted.has(line)) {
        return Ok(());
    }
    let python = Python::find()?;
    let gzip = folder.gzip(cells, &python)?;
    let plain = OnTmpfs::new(cells, &python)?;
    if wanted.has(EVERYTHING) || wanted.has(AGAIN) {
        let times = in_turns(wanted, &python, "everything", cells, &gzip, plain.path())?;
        times.report(table, [EVERYTHING, AGAIN], [0.35, 1.6]);
    }
    if wanted.has(BLOCKS) || wanted.has(BLOCKS_AGAIN) {
        let times = in_turns(wanted, &python, "blocks", cells, &gzip, plain.path())?;
        times.report(table, [BLOCKS, BLOCKS_AGAIN], [0.5, 3.0]);
    }
    Ok(())
}

/// Seconds of one reader, in each round.
#[derive(Default)]
struct Times {
    cold: Vec<f64>,
    warm: Vec<f64>,
    gzip: Vec<f64>,
    tmpfs: Vec<f64>,
}

impl Times {
    fn report(self, table: &mut Table, names: [&str; 2], targets: [f64; 2]) {
        let [cold, warm, gzip, tmpfs] = [self.cold, self.warm, self.gzip, self.tmpfs].map(median);
        let pairs = [
            (cold, gzip, "gzip h5ad on disk"),
            (warm, tmpfs, "uncompressed h5ad on tmpfs"),
        ];
        for ((name, target), (found, other, against)) in names.into_iter().zip(targets).zip(pairs) {
            table.add(Line {
                measure: name.into(),
                against: against.into(),
                found: found / other,
                unit: "",
                target: Target::AtMost(target),
                details: format!("{:.0} ms, {:.0} ms", found * 1e3, other * 1e3),
            });
        }
    }
}

/// The reader on a fresh mount, there again, and on the two files, in turns.
fn in_turns(wanted: &Wanted, python: &Python, reader: &str, cells: &Path, gzip: &Path, plain: &Path) -> Result<Times> {
    let mut times = Times::default();
    for round in 0..=wanted.rounds {
        wanted.go_on()?;
        let mount = Mount::start(cells, &[])?;
        let file = mount.path().join("dataset.h5ad");
        let cold = python.seconds(reader, &file, round)?;
        let warm = python.seconds(reader, &file, round)?;
        mount.stop()?;
        let (gzip, tmpfs) = (
            python.seconds(reader, gzip, round)?,
            python.seconds(reader, plain, round)?,
        );
        // The first one fills the page cache.
        if round > 0 {
            for (list, time) in [
                (&mut times.cold, cold),
                (&mut times.warm, warm),
                (&mut times.gzip, gzip),
                (&mut times.tmpfs, tmpfs),
            ] {
                list.push(time);
            }
        }
    }
    Ok(times)
}
