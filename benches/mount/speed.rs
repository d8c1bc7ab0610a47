//! How fast: everything that is a ratio of two times.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcfs::cache::tmpfs::PrivateTmpfs;
use dcfs::dataset::Dataset;
use dcfs::store::{Directory, Links};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use zerocopy::IntoBytes;
use zstd_safe::DCtx;

use crate::daemon::Mount;
use crate::folder::Folder;
use crate::readers::{self, PIECE};
use crate::table::{Line, Table, Target, median, ms};
use crate::wanted::Wanted;
use crate::{Result, machine, plain};

/// The tile that is measured.
const TILE: usize = 0;
const ARRAYS: [&str; 3] = ["indptr.i64", "indices.i32", "data.i32"];
/// The array that is read when it is warm.
const WARM: &str = "indices.i32";
/// Warm measures take a few milliseconds, so they are done this often in each round.
const WARM_PASSES: u32 = 5;
/// The cell whose counts are read.
const CELL: usize = 5_432;
/// Something that is timed; each call does it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timed {
    Plain,
    ColdMap,
    ColdRead,
    InProcess,
    ZstdAlone,
    WarmRead,
    TmpfsRead,
    WarmPages,
    TmpfsPages,
    FuseRead,
    FuseRow,
    ValuesWhole,
}

/// A line of the table.
struct Ratio {
    name: &'static str,
    against: &'static str,
    timed: Timed,
    reference: Timed,
    target: Target,
    needs_passthrough: bool,
}

const fn ratio(name: &'static str, timed: Timed, against: &'static str, reference: Timed, most: f64) -> Ratio {
    Ratio {
        name,
        against,
        timed,
        reference,
        target: Target::AtMost(most),
        needs_passthrough: false,
    }
}

const RATIOS: [Ratio; 7] = [
    ratio(
        "cold: map and touch every page",
        Timed::ColdMap,
        "plain",
        Timed::Plain,
        0.45,
    ),
    ratio(
        "cold: read, 1 MiB at a time",
        Timed::ColdRead,
        "plain",
        Timed::Plain,
        0.6,
    ),
    ratio(
        "in process, all cores, reused buffers",
        Timed::InProcess,
        "zstd alone, all cores",
        Timed::ZstdAlone,
        1.25,
    ),
    Ratio {
        target: Target::AtLeast(0.9),
        needs_passthrough: true,
        ..ratio(
            "warm: read, 1 MiB at a time (speed)",
            Timed::WarmRead,
            "huge-page tmpfs",
            Timed::TmpfsRead,
            0.0,
        )
    },
    Ratio {
        needs_passthrough: true,
        ..ratio(
            "warm: map, touch random pages",
            Timed::WarmPages,
            "huge-page tmpfs",
            Timed::TmpfsPages,
            1.3,
        )
    },
    ratio(
        "--io fuse, cold: read, 1 MiB at a time",
        Timed::FuseRead,
        "plain",
        Timed::Plain,
        1.5,
    ),
    ratio(
        "--io fuse, cold: one row's counts",
        Timed::FuseRow,
        "values whole, 1 thread, reused buffer",
        Timed::ValuesWhole,
        0.35,
    ),
];

/// Measures every line that is wanted, in turns.
pub fn measure(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    let mut lines: Vec<&Ratio> = RATIOS.iter().filter(|line| wanted.has(line.name)).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let two_tiles = folder.two_tiles()?;
    machine::touch_memory()?;
    let tmpfs = match PrivateTmpfs::new(1 << 30) {
        Ok(tmpfs) => Some(tmpfs),
        Err(reason) => {
            table.remark(format!(
                "left out, without passthrough: the warm lines; cold ones are as --io fuse ({reason})"
            ));
            lines.retain(|line| !line.needs_passthrough);
            None
        }
    };
    let timed: Vec<Timed> =
        lines
            .iter()
            .flat_map(|line| [line.timed, line.reference])
            .fold(Vec::new(), |mut all, one| {
                if !all.contains(&one) {
                    all.push(one);
                }
                all
            });
    let mut bench = Bench::new(&two_tiles, tmpfs.as_ref())?;
    bench.check(tmpfs.is_some())?;
    let others = machine::Others::watch()?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); timed.len()];
    // The first round is not timed: it brings code, files and memory to where they stay.
    for round in 0..=wanted.rounds {
        for (one, times) in timed.iter().zip(&mut times) {
            wanted.go_on()?;
            let time = bench.time(*one)?;
            if round > 0 {
                times.push(time.as_secs_f64());
            }
        }
    }
    drop(bench);
    let disturbance = others.report()?;
    let median_of = |wanted: Timed| {
        let index = timed.iter().position(|&one| one == wanted);
        median(index.map_or_else(Vec::new, |index| times[index].clone()))
    };
    for line in lines {
        let (time, reference) = (median_of(line.timed), median_of(line.reference));
        let found = match line.target {
            Target::AtMost(_) => time / reference,
            Target::AtLeast(_) => reference / time,
        };
        let [time, reference] = [time, reference].map(Duration::from_secs_f64);
        table.add(Line {
            measure: line.name.into(),
            against: line.against.into(),
            found,
            unit: "",
            target: line.target,
            details: format!("{} against {}", ms(time), ms(reference)),
        });
    }
    let rounds = wanted.rounds;
    table.remark(format!(
        "Times are medians of {rounds} rounds; each round does everything once. plain: one thread, file to fresh arrays, \
         checksum included. In process and values whole: this library, checksum included, arrays that are reused."
    ));
    table.remark(disturbance.to_string());
    Ok(())
}

fn pool(threads: usize) -> Result<ThreadPool> {
    Ok(ThreadPoolBuilder::new().num_threads(threads).build()?)
}

/// What is measured, and what it takes.
struct Bench {
    dataset: PathBuf,
    tile: PathBuf,
    all_cores: ThreadPool,
    one_core: ThreadPool,
    indices: Vec<i32>,
    data: Vec<i32>,
    buffer: Vec<u8>,
    warm: Option<Warm>,
}

/// A mount with the array in its cache, and the same bytes beside it.
struct Warm {
    mounted: File,
    on_tmpfs: File,
    bytes: u64,
    pages: Vec<u32>,
    /// Dropped last, after what is open in it.
    _mount: Mount,
}

impl Warm {
    fn new(dataset: &Path, tmpfs: &PrivateTmpfs) -> Result<Self> {
        let mount = Mount::start(dataset, &["--io", "passthrough"])?;
        let mounted = File::open(mount.array(TILE, WARM))?;
        let bytes = mounted.metadata()?.len();
        let on_tmpfs = tmpfs.file(bytes)?;
        std::io::copy(&mut &mounted, &mut &on_tmpfs)?;
        Ok(Self {
            mounted,
            on_tmpfs,
            bytes,
            pages: readers::shuffled_pages(bytes as usize),
            _mount: mount,
        })
    }
}

impl Bench {
    fn new(dataset: &Path, tmpfs: Option<&PrivateTmpfs>) -> Result<Self> {
        let threads = std::thread::available_parallelism()?.get();
        let opened = Dataset::open(Arc::new(Directory::open(dataset, Links::Anywhere)?))?;
        let spec = opened.manifest().tile(TILE);
        Ok(Self {
            dataset: dataset.to_owned(),
            tile: dataset.join(spec.path()),
            all_cores: pool(threads)?,
            one_core: pool(1)?,
            indices: vec![-1; spec.nnz as usize],
            data: vec![-1; spec.nnz as usize],
            buffer: vec![0xff; PIECE],
            warm: tmpfs.map(|tmpfs| Warm::new(dataset, tmpfs)).transpose()?,
        })
    }

    /// An error unless everything that is timed comes to the same numbers.
    fn check(&mut self, passthrough: bool) -> Result<()> {
        let plain = plain::decode(&self.tile)?;
        let modes: &[&str] = if passthrough {
            &["passthrough", "fuse"]
        } else {
            &["fuse"]
        };
        for mode in modes {
            let mount = Mount::start(&self.dataset, &["--io", mode])?;
            let expected = [plain.indptr.as_bytes(), plain.indices.as_bytes(), plain.data.as_bytes()];
            for (name, expected) in ARRAYS.iter().zip(expected) {
                readers::check(&mount.array(TILE, name), expected)?;
            }
            mount.stop()?;
        }
        self.in_process()?;
        if self.indices != plain.indices || self.data != plain.data {
            return Err("the library does not come to what the plain algorithm does".into());
        }
        Ok(())
    }

    fn time(&mut self, timed: Timed) -> Result<Duration> {
        match timed {
            Timed::Plain => self.plain(),
            Timed::ColdMap => self.cold(&[], |mount, _| map_all(mount)),
            Timed::ColdRead => self.cold(&[], read_all),
            Timed::FuseRead => self.cold(&["--io", "fuse"], read_all),
            Timed::FuseRow => self.cold(&["--io", "fuse"], |mount, _| one_row(mount)),
            Timed::InProcess => self.twice(Self::in_process),
            Timed::ZstdAlone => self.twice(|bench| bench.zstd_alone()),
            Timed::ValuesWhole => self.twice(Self::values_whole),
            Timed::WarmRead => self.read_warm(|warm| &warm.mounted),
            Timed::TmpfsRead => self.read_warm(|warm| &warm.on_tmpfs),
            Timed::WarmPages => self.touch_warm(|warm| &warm.mounted),
            Timed::TmpfsPages => self.touch_warm(|warm| &warm.on_tmpfs),
        }
    }

    /// Has the compressed tile in the page cache, where every measure expects it.
    fn cache_tile(&mut self) -> Result<()> {
        readers::read_through(&mut File::open(&self.tile)?, &mut self.buffer)?;
        Ok(())
    }

    fn plain(&mut self) -> Result<Duration> {
        self.cache_tile()?;
        let started = Instant::now();
        let tile = plain::decode(&self.tile)?;
        let time = started.elapsed();
        drop(tile);
        Ok(time)
    }

    /// The time that `read` says it took on a mount of which nothing was read before.
    fn cold(&mut self, options: &[&str], read: impl FnOnce(&Mount, &mut [u8]) -> Result<Duration>) -> Result<Duration> {
        self.cache_tile()?;
        let mount = Mount::start(&self.dataset, options)?;
        let time = read(&mount, &mut self.buffer)?;
        mount.stop()?;
        Ok(time)
    }

    /// A dataset that has not seen the tile yet.
    fn unread(&mut self) -> Result<Dataset> {
        self.cache_tile()?;
        Ok(Dataset::open(Arc::new(Directory::open(
            &self.dataset,
            Links::Anywhere,
        )?))?)
    }

    /// The second of two times.
    ///
    /// To start a daemon is to fork, which write-protects every page of this process: whoever writes first to buffers that
    /// are meant to be reused pays for a fault a page, which is no part of what is measured.
    fn twice(&mut self, timed: impl Fn(&mut Self) -> Result<Duration>) -> Result<Duration> {
        timed(self)?;
        timed(self)
    }

    fn in_process(&mut self) -> Result<Duration> {
        let dataset = self.unread()?;
        let started = Instant::now();
        let tile = dataset.tile(TILE)?;
        dataset.decode(&tile, Some(&mut self.indices), Some(&mut self.data), &self.all_cores)?;
        Ok(started.elapsed())
    }

    fn values_whole(&mut self) -> Result<Duration> {
        let dataset = self.unread()?;
        let started = Instant::now();
        let tile = dataset.tile(TILE)?;
        dataset.decode(&tile, None, Some(&mut self.data), &self.one_core)?;
        Ok(started.elapsed())
    }

    fn zstd_alone(&mut self) -> Result<Duration> {
        thread_local! {
            static SCRATCH: RefCell<(DCtx<'static>, Vec<u8>)> = RefCell::new((DCtx::create(), Vec::new()));
        }
        let file = fs::read(&self.tile)?;
        let streams = plain::streams(&file);
        let decompress = |stream: &&[u8]| {
            SCRATCH.with_borrow_mut(|(context, content)| {
                let size = zstd_safe::get_frame_content_size(stream)
                    .ok()
                    .flatten()
                    .ok_or("no content size")?;
                content.clear();
                content.reserve_exact(size as usize);
                context.decompress(content, stream).map_err(zstd_safe::get_error_name)
            })
        };
        let started = Instant::now();
        let all = || {
            streams
                .par_iter()
                .with_max_len(1)
                .try_for_each(|stream| decompress(stream).map(|_| ()))
        };
        self.all_cores.install(all)?;
        Ok(started.elapsed())
    }

    fn warm(&self) -> Result<&Warm> {
        Ok(self.warm.as_ref().ok_or("there is no passthrough")?)
    }

    fn read_warm(&mut self, file: impl Fn(&Warm) -> &File) -> Result<Duration> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let warm = self.warm()?;
        let started = Instant::now();
        for _ in 0..WARM_PASSES {
            readers::read_again(file(warm), warm.bytes, &mut buffer)?;
        }
        let time = started.elapsed() / WARM_PASSES;
        self.buffer = buffer;
        Ok(time)
    }

    fn touch_warm(&mut self, file: impl Fn(&Warm) -> &File) -> Result<Duration> {
        let warm = self.warm()?;
        let mut time = Duration::ZERO;
        for _ in 0..WARM_PASSES {
            let started = Instant::now();
            let map = readers::map(file(warm))?;
            readers::touch(&map, &warm.pages);
            time += started.elapsed();
        }
        Ok(time / WARM_PASSES)
    }
}

fn map_all(mount: &Mount) -> Result<Duration> {
    let started = Instant::now();
    let mut maps = Vec::new();
    for name in ARRAYS {
        let map = readers::map(&File::open(mount.array(TILE, name))?)?;
        readers::touch_all(&map);
        maps.push(map);
    }
    let time = started.elapsed();
    drop(maps);
    Ok(time)
}

fn read_all(mount: &Mount, buffer: &mut [u8]) -> Result<Duration> {
    let started = Instant::now();
    for name in ARRAYS {
        readers::read_through(&mut File::open(mount.array(TILE, name))?, buffer)?;
    }
    Ok(started.elapsed())
}

/// As a program would that knows nothing yet: where the row is, then its counts.
fn one_row(mount: &Mount) -> Result<Duration> {
    use std::os::unix::fs::FileExt;
    let started = Instant::now();
    let mut row = [0_u64; 2];
    File::open(mount.array(TILE, "indptr.i64"))?.read_exact_at(row.as_mut_bytes(), CELL as u64 * 8)?;
    let mut counts = vec![0_i32; (row[1] - row[0]) as usize];
    File::open(mount.array(TILE, "data.i32"))?.read_exact_at(counts.as_mut_bytes(), row[0] * 4)?;
    let time = started.elapsed();
    if counts.is_empty() || counts.iter().any(|&count| count < 1) {
        return Err(format!("the counts of cell {CELL} are wrong").into());
    }
    Ok(time)
}
