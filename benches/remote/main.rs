//! What a dataset in an object store costs, against what the way to it and decoding cost: `cargo bench --bench remote`.
//!
//! The store is a web server on this machine that answers after 50 ms and sends 150 MB/s on a connection. Ratios are of
//! things timed in turns; absolute times stand beside them.
//!
//! ```text
//! cargo bench --bench remote -- [--quick | --rounds N]
//! ```

#[path = "../mount/daemon.rs"]
#[allow(dead_code, reason = "shared by benches")]
mod daemon;
#[path = "../mount/datasets.rs"]
#[allow(dead_code, reason = "shared by benches")]
mod datasets;
#[path = "../mount/folder.rs"]
mod folder;
#[path = "../../tests/common/server.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod server;
#[path = "../mount/table.rs"]
#[allow(dead_code, reason = "shared by benches")]
mod table;

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcfs::dataset::Dataset;
use dcfs::store::{Directory, Links};
use rayon::{ThreadPool, ThreadPoolBuilder};

use daemon::Mount;
use server::{Pace, Server};
use table::{Line, Table, Target};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;
const PACE: Pace = Pace {
    latency: Duration::from_millis(50),
    bytes_per_second: 150e6,
};
/// A link that is slower than decoding, also on few processors.
const SLOW: Pace = Pace {
    latency: Duration::from_millis(50),
    bytes_per_second: 30e6,
};
/// Requests at the same time, where the whole matrix is read.
const CONNECTIONS: usize = 4;
/// Tiles that are read over the slow link.
const SLOW_TILES: usize = 12;
/// Bytes of each array that a reader of a few cells reads.
const FEW: usize = 256 << 10;
const PIECE: usize = 1 << 20;
/// Tiles of the dataset, 1.3 GB as they are stored.
const TILES: usize = 40;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("remote: {error}");
            ExitCode::FAILURE
        }
    }
}

fn rounds() -> Result<usize> {
    let mut rounds = ROUNDS;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bench" => {}
            "--quick" => rounds = QUICK_ROUNDS,
            "--rounds" => {
                rounds = arguments
                    .next()
                    .ok_or("--rounds needs a number")?
                    .parse::<usize>()?
                    .max(1)
            }
            other => return Err(format!("unknown argument {other}; there are --quick and --rounds N").into()),
        }
    }
    Ok(rounds)
}

fn run() -> Result<()> {
    let rounds = rounds()?;
    let folder = folder::Folder::lock()?;
    let dataset = folder.repeated("many-whole-tiles", TILES)?;
    let bench = Bench::new(&dataset)?;
    let mut times: [Vec<Duration>; 6] = Default::default();
    for _ in 0..rounds {
        let round = [
            bench.first_byte()?,
            bench.decode(0..1)?,
            bench.read_all(PACE, bench.tile_bytes.len())?,
            bench.decode(0..bench.tile_bytes.len())?,
            bench.few_cells()?,
            bench.read_all(SLOW, SLOW_TILES)?,
        ];
        for (times, time) in times.iter_mut().zip(round) {
            times.push(time);
        }
    }
    let [first, decode_one, all, decode_all, few, slow] = times.map(median);
    let mut table = Table::default();
    let transfer = |bytes: u64, pace: Pace, connections: usize| {
        Duration::from_secs_f64(bytes as f64 / pace.bytes_per_second / connections as f64)
    };
    let way = PACE.latency + transfer(bench.tile_bytes[0], PACE, 1) + decode_one;
    table.add(Line {
        measure: "first byte of a cold tile's data.i32".into(),
        against: "latency, transfer, decoding on all cores".into(),
        found: first.as_secs_f64() / way.as_secs_f64(),
        unit: "",
        target: Target::AtMost(1.3),
        details: format!("{first:.1?} against {way:.1?}, of which {decode_one:.1?} decoding"),
    });
    table.add(Line {
        measure: "a few cells of a cold tile, both arrays".into(),
        against: "the same: all of the tile".into(),
        found: few.as_secs_f64() / way.as_secs_f64(),
        unit: "",
        target: Target::AtMost(1.0),
        details: format!("{few:.1?} against {way:.1?}"),
    });
    let link = transfer(bench.tile_bytes.iter().sum(), PACE, CONNECTIONS);
    let bound = link.max(decode_all);
    table.add(Line {
        measure: "X/data.i32 in order, 4 connections (speed)".into(),
        against: "link or decoding, whichever is slower".into(),
        found: bound.as_secs_f64() / all.as_secs_f64(),
        unit: "",
        target: Target::AtLeast(0.85),
        details: format!("{all:.1?}; link {link:.1?}, decoding {decode_all:.1?}"),
    });
    let link = transfer(bench.tile_bytes[..SLOW_TILES].iter().sum(), SLOW, CONNECTIONS);
    table.add(Line {
        measure: "the same at 30 MB/s a connection".into(),
        against: "link".into(),
        found: link.as_secs_f64() / slow.as_secs_f64(),
        unit: "",
        target: Target::AtLeast(0.85),
        details: format!("{slow:.1?}; link {link:.1?}"),
    });
    table.remark(format!(
        "A server on this machine that answers after {:?} and sends {:.0} MB/s on a connection. Times are medians of {rounds} rounds.",
        PACE.latency,
        PACE.bytes_per_second / 1e6
    ));
    print!("{table}");
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

struct Bench {
    dataset: PathBuf,
    tile_bytes: Vec<u64>,
    pool: ThreadPool,
}

impl Bench {
    fn new(dataset: &Path) -> Result<Self> {
        let opened = open(dataset)?;
        Ok(Self {
            dataset: dataset.to_owned(),
            tile_bytes: opened.manifest().tile_bytes.clone(),
            pool: ThreadPoolBuilder::new().build()?,
        })
    }

    /// A mount of which nothing was fetched before, and its server.
    fn mount(&self, pace: Pace, options: &[&str]) -> Result<(Mount, Server)> {
        let parent = self.dataset.parent().ok_or("a dataset is in a folder")?;
        let name = self.dataset.file_name().ok_or("a dataset has a name")?;
        let server = Server::paced(parent, pace);
        let url = format!("{}/{}", server.url(), name.display());
        Ok((Mount::start(Path::new(&url), options)?, server))
    }

    fn first_byte(&self) -> Result<Duration> {
        let (mount, _server) = self.mount(PACE, &[])?;
        let started = Instant::now();
        let mut byte = [0];
        File::open(mount.array(0, "data.i32"))?.read_exact(&mut byte)?;
        let time = started.elapsed();
        mount.stop()?;
        Ok(time)
    }

    /// Counts and gene indices of a few cells in the middle of a tile.
    fn few_cells(&self) -> Result<Duration> {
        let nonzeros = open(&self.dataset)?.manifest().tile_nnz[0];
        let (mount, _server) = self.mount(PACE, &[])?;
        let started = Instant::now();
        let mut cells = vec![0; FEW];
        for array in ["data.i32", "indices.i32"] {
            let file = File::open(mount.path().join("X").join(array))?;
            file.read_exact_at(&mut cells, nonzeros * 9 / 16 * 4)?;
        }
        let time = started.elapsed();
        mount.stop()?;
        Ok(time)
    }

    /// The counts of the first tiles, one piece after another.
    fn read_all(&self, pace: Pace, tiles: usize) -> Result<Duration> {
        let nonzeros: u64 = open(&self.dataset)?.manifest().tile_nnz[..tiles].iter().sum();
        let (mount, _server) = self.mount(pace, &["--fetch-parallel", &CONNECTIONS.to_string()])?;
        let started = Instant::now();
        let mut counts = File::open(mount.path().join("X/data.i32"))?.take(nonzeros * 4);
        let mut piece = vec![0; PIECE];
        while counts.read(&mut piece)? > 0 {}
        let time = started.elapsed();
        mount.stop()?;
        Ok(time)
    }

    /// The counts of some tiles decoded in process, checksum and all, into one array that is reused.
    fn decode(&self, tiles: std::ops::Range<usize>) -> Result<Duration> {
        let dataset = open(&self.dataset)?;
        let most = dataset.manifest().tile_nnz.iter().max().copied().unwrap_or(0);
        let mut counts = vec![0; most as usize];
        let started = Instant::now();
        for id in tiles {
            let tile = dataset.tile(id)?;
            let nonzeros = dataset.manifest().tile_nnz[id] as usize;
            dataset.decode(&tile, None, Some(&mut counts[..nonzeros]), &self.pool)?;
        }
        Ok(started.elapsed())
    }
}

fn open(dataset: &Path) -> Result<Dataset> {
    Ok(Dataset::open(Arc::new(Directory::open(dataset, Links::Anywhere)?))?)
}
