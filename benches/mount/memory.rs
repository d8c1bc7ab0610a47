//! Whether a cache stays within its size: ten tiles through a daemon that may keep little more than one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::Result;
use crate::daemon::Mount;
use crate::datasets::TEN_TILES;
use crate::folder::Folder;
use crate::many_tiles::kib;
use crate::readers::{self, PIECE};
use crate::table::{Line, Table, Target};
use crate::wanted::Wanted;

const MIB: f64 = 1024.0 * 1024.0;
const CACHE_MIB: f64 = 512.0;
/// What the daemon may take beyond its cache: for each thread, and for itself.
const THREAD_MIB: f64 = 40.0;
const BASE_MIB: f64 = 64.0;
/// Files that are read at the same time.
const READERS: usize = 8;
const ARRAYS: [&str; 3] = ["indptr.i64", "indices.i32", "data.i32"];
/// How often the daemon is looked at.
const EVERY: Duration = Duration::from_millis(2);
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Measures both ways of serving.
pub fn measure(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    for mode in ["passthrough", "fuse"] {
        let line = format!("memory: --io {mode} --cache-size 512M, peak");
        if wanted.has(&line) {
            measure_mode(wanted, &folder.ten_tiles()?, mode, line, table)?;
        }
    }
    Ok(())
}

fn measure_mode(wanted: &Wanted, dataset: &Path, mode: &str, line: String, table: &mut Table) -> Result<()> {
    let threads = thread::available_parallelism()?.get();
    let count = threads.to_string();
    let options = ["--io", mode, "--cache-size", "512M", "--threads", &count];
    let mount = match Mount::start(dataset, &options) {
        Ok(mount) => mount,
        Err(reason) if mode == "passthrough" => {
            table.remark(format!(
                "left out, without passthrough: {line} ({})",
                reason.to_string().trim()
            ));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let daemon = Daemon::find(&mount, mode == "passthrough")?;
    let before = daemon.look()?;
    let stop = AtomicBool::new(false);
    let (once, together) = thread::scope(|scope| -> Result<(Memory, Memory)> {
        let watch = || scope.spawn(|| daemon.peak_until(&stop).map_err(|error| error.to_string()));
        let phase = |readers: usize, files: usize| -> Result<Memory> {
            wanted.go_on()?;
            stop.store(false, Ordering::Relaxed);
            let watcher = watch();
            let read = read_tiles(&mount, readers, files);
            stop.store(true, Ordering::Relaxed);
            let peak = watcher.join().map_err(|_| "the watcher died")??;
            read?;
            Ok(peak)
        };
        Ok((phase(1, TEN_TILES)?, phase(READERS, 2 * TEN_TILES)?))
    })?;
    mount.stop()?;
    let peak = if once.total() > together.total() {
        once
    } else {
        together
    };
    table.add(Line {
        measure: line,
        against: format!("512 MiB + {THREAD_MIB} a thread + {BASE_MIB}"),
        found: peak.total(),
        unit: " MiB",
        target: Target::AtMost(CACHE_MIB + THREAD_MIB * threads as f64 + BASE_MIB),
        details: format!(
            "{threads} threads; before {before}; one tile at a time {once}; {READERS} at a time {together}"
        ),
    });
    Ok(())
}

/// Reads `files` tiles, beginning again after the last, as many at a time as there are readers. Every second one is mapped.
fn read_tiles(mount: &Mount, readers: usize, files: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    let read = || -> Result<()> {
        let mut buffer = vec![0; PIECE];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= files {
                return Ok(());
            }
            for name in ARRAYS {
                let mut file = File::open(mount.array(number % TEN_TILES, name))?;
                if readers > 1 && number % 2 == 1 {
                    readers::touch_all(&readers::map(&file)?);
                } else {
                    readers::read_through(&mut file, &mut buffer)?;
                }
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..readers)
            .map(|_| scope.spawn(|| read().map_err(|error| error.to_string())))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| Ok(thread.join().map_err(|_| "a reader died")??))
    })
}

/// Memory of a daemon in MiB: its own, the files it has mapped, and its tmpfs, mapped or not.
#[derive(Debug, Clone, Copy)]
struct Memory {
    anonymous: f64,
    files: f64,
    tmpfs: f64,
}

impl Memory {
    fn total(self) -> f64 {
        self.anonymous + self.files + self.tmpfs
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            anonymous,
            files,
            tmpfs,
        } = self;
        write!(f, "{:.0} ({anonymous:.0} + {files:.0} + {tmpfs:.0})", self.total())
    }
}

/// Where a daemon's memory is told.
struct Daemon {
    process: PathBuf,
    /// Its descriptor of the tmpfs, which has no other name.
    tmpfs: Option<PathBuf>,
}

impl Daemon {
    fn find(mount: &Mount, has_tmpfs: bool) -> Result<Self> {
        let process = mount.process();
        let mut tmpfs = None;
        for descriptor in fs::read_dir(process.join("fd"))? {
            let descriptor = descriptor?.path();
            let is_root = fs::read_link(&descriptor).is_ok_and(|to| to == Path::new("/"));
            if is_root && rustix::fs::statfs(&descriptor).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC) {
                tmpfs = Some(descriptor);
            }
        }
        if has_tmpfs && tmpfs.is_none() {
            return Err("the daemon has no tmpfs of its own to measure".into());
        }
        Ok(Self { process, tmpfs })
    }

    fn look(&self) -> Result<Memory> {
        let tmpfs = match &self.tmpfs {
            Some(descriptor) => {
                let fs = rustix::fs::statfs(descriptor)?;
                (fs.f_blocks - fs.f_bfree) as f64 * fs.f_bsize as f64 / MIB
            }
            // Shared memory can then only be what the daemon has mapped.
            None => kib(&self.process, "RssShmem")? / 1024.0,
        };
        Ok(Memory {
            anonymous: kib(&self.process, "RssAnon")? / 1024.0,
            files: kib(&self.process, "RssFile")? / 1024.0,
            tmpfs,
        })
    }

    /// The most memory there was at once.
    fn peak_until(&self, stop: &AtomicBool) -> Result<Memory> {
        let mut peak = self.look()?;
        while !stop.load(Ordering::Relaxed) {
            let now = self.look()?;
            if now.total() > peak.total() {
                peak = now;
            }
            thread::sleep(EVERY);
        }
        Ok(peak)
    }
}
