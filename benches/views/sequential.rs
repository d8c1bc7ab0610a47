//! Reading the counts of the whole matrix from beginning to end, against decoding their streams in process.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcfs::dataset::Dataset;
use dcfs::store::{Directory, Links};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::Result;
use crate::daemon::Mount;
use crate::table::{Line, Table, Target, median, ms};
use crate::wanted::Wanted;

const LINE: &str = "X/data.i32, sequential, cold";
/// What a reader asks for at a time.
const PIECE: usize = 1 << 20;

pub fn measure(wanted: &Wanted, cells: &Path, table: &mut Table) -> Result<()> {
    if !wanted.has(LINE) {
        return Ok(());
    }
    let threads = std::thread::available_parallelism()?.get();
    let pool = ThreadPoolBuilder::new().num_threads(threads).build()?;
    let (mut mounted, mut decoded) = (Vec::new(), Vec::new());
    for round in 0..=wanted.rounds {
        wanted.go_on()?;
        let mount = Mount::start(cells, &[])?;
        let through = read(&mount.path().join("X/data.i32"))?;
        mount.stop()?;
        let in_process = decode(cells, &pool)?;
        if round > 0 {
            mounted.push(through.as_secs_f64());
            decoded.push(in_process.as_secs_f64());
        }
    }
    let (mounted, decoded) = (median(mounted), median(decoded));
    table.add(Line {
        measure: LINE.into(),
        against: format!("decoding the value streams, {threads} threads"),
        found: mounted / decoded,
        unit: "",
        target: Target::AtMost(1.4),
        details: format!(
            "{}, {}",
            ms(Duration::from_secs_f64(mounted)),
            ms(Duration::from_secs_f64(decoded))
        ),
    });
    Ok(())
}

fn read(path: &Path) -> Result<Duration> {
    let mut buffer = vec![0; PIECE];
    let started = Instant::now();
    let mut file = File::open(path)?;
    while file.read(&mut buffer)? > 0 {}
    Ok(started.elapsed())
}

/// Every value stream into one buffer that is there already, tile after tile.
fn decode(cells: &Path, pool: &ThreadPool) -> Result<Duration> {
    let open = || -> Result<Dataset> { Ok(Dataset::open(Arc::new(Directory::open(cells, Links::Anywhere)?))?) };
    let largest = open()?.manifest().tile_nnz.iter().copied().max().unwrap_or(0);
    let mut room = vec![0; largest as usize];
    let started = Instant::now();
    let dataset = open()?;
    for id in 0..dataset.manifest().n_tiles() {
        let tile = dataset.tile(id)?;
        let nonzeros = dataset.manifest().tile_nnz[id] as usize;
        dataset.decode(&tile, None, Some(&mut room[..nonzeros]), pool)?;
    }
    Ok(started.elapsed())
}
