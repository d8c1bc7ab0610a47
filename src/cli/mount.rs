//! `dcfs mount`: from the command line to a mount that answers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use log::LevelFilter;
use rustix::process::{Resource, getrlimit, setrlimit};
use thiserror::Error;

use super::cache_size::{CacheSize, Memory};
use super::detach::{Daemon, Side, detach, forget_umask};
use super::logging::{self, Destination, LogError};
use super::serve::{
    Hangup, NotReady, ServeError, StopSignals, announce_ready, await_answer, interruptible, until_stopped,
};
use super::source::{OpenError, Source, StoreFlags};
use super::{complain, grouped};
use crate::cache::tmpfs::{PrivateTmpfs, TmpfsError};
use crate::dataset::obs_cache::ObsCache;
use crate::engine::{Engine, Options};
use crate::fs::mount::{MountError, MountOptions, Mounted, PrepareError, join_session, mount, prepare};
use crate::fs::{DatasetFs, Ownership, Passthrough, Serve, takes_backing_files};
use crate::store::Links;
use crate::view::zarr::DEFAULT_CHUNK;
use crate::view::{Families, Family, View, ViewError, ViewOptions};

/// How long a new mount may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the kernel reads ahead of a sequential reader.
const READ_AHEAD_KIB: u32 = 4096;
/// File descriptors that are needed for other things than decoded files.
const SPARE_DESCRIPTORS: u64 = 224;
/// With fewer blocks than this a mount would be no help to anybody.
const LEAST_BLOCKS: u64 = 32;
/// Decoded blocks of memory need no descriptor, but a place in the process's table of mappings, of which there are
/// 65,530 unless an administrator gave more.
const MOST_BLOCKS: u64 = 30_000;
/// Beyond the cache's size, room in the file system of decoded files for those that are evicted but still open.
const TMPFS_SLACK: u64 = 64 << 20;

/// Mount a dataset
///
/// Returns once the mount answers, and leaves a daemon behind; `dcfs umount MOUNTPOINT` ends it. Start with README.txt
/// in the mount.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// Folder or URL of the dataset
    dataset: PathBuf,
    /// An empty folder
    mountpoint: PathBuf,
    #[command(flatten)]
    options: MountFlags,
    #[command(flatten)]
    store: StoreFlags,
    /// Stay in the foreground and log to standard error; tells systemd when it is ready
    #[arg(short, long)]
    foreground: bool,
    /// Append the log to this file instead of the system's log
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

/// What `dcfs mount` and `dcfs demo` have in common.
#[derive(Debug, Args)]
pub(super) struct MountFlags {
    /// Memory for decoded data: 8G, 512M, 25% [default: a quarter of what machine and cgroup have left]
    ///
    /// A percentage is of what the machine, or a cgroup's limit, allows in all. Beyond the cache the daemon needs at most
    /// 10 bytes a thread for each nonzero of the largest chunk, about 60 MB for tiles of the usual size, and 128 MB.
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<CacheSize>,
    /// Threads that decode [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// How bytes reach readers
    #[arg(long, value_enum, default_value_t = IoMode::Auto)]
    io: IoMode,
    /// What to show besides the dataset's own files: raw and npy arrays per tile and in X/, arrow tables, dataset.h5ad,
    /// dataset.zarr [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = family_parser())]
    views: Option<Vec<Family>>,
    /// Nonzeros in a chunk of dataset.zarr
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    zarr_chunk: u64,
    /// Let other users in; owners and modes of the dataset's files decide what they may read
    #[arg(long)]
    allow_other: bool,
    /// Show this user id as the owner of everything
    #[arg(long, value_name = "ID")]
    uid: Option<u32>,
    /// Show this group id as the group of everything
    #[arg(long, value_name = "ID")]
    gid: Option<u32>,
    /// Show this octal mode for every file, 444 for example; folders may be entered by those who may read
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<u16>,
    /// Seconds after which a request that the dataset's storage does not answer gets an I/O error
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    request_timeout: u32,
    /// Keep copies of obs columns that are read in this folder, and use those that are there; see dcfs obs
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

/// Who answers reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IoMode {
    /// passthrough where kernel and capabilities allow it, else fuse
    Auto,
    /// The kernel reads decoded files by itself: Linux 6.9 and CAP_SYS_ADMIN
    Passthrough,
    /// Every read comes to the daemon, unless the kernel remembers its bytes
    Fuse,
}

fn family_parser() -> impl TypedValueParser<Value = Family> {
    let known = PossibleValuesParser::new(Family::ALL.map(Family::name));
    known.map(|name| Family::named(&name).expect("only names of families are let through"))
}

fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected an octal mode from 0 to 777, such as 444".into()),
    }
}

/// Why there is no mount.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("--io passthrough: {0}")]
    NoTmpfs(TmpfsError),
    #[error("--io passthrough: the kernel does not take decoded files: {0} (Linux 6.9 and CAP_SYS_ADMIN are needed)")]
    NoPassthrough(io::Error),
    #[error(
        "this process may have {allowed} files open, and needs {} at least; raise the limit (ulimit -Hn, LimitNOFILE=)",
        SPARE_DESCRIPTORS + LEAST_BLOCKS
    )]
    Descriptors { allowed: u64 },
    #[error("the cache {} is below the mountpoint", .0.display())]
    CacheInMount(PathBuf),
    #[error("cannot keep obs columns in {}: {source}", path.display())]
    Cache { path: PathBuf, source: io::Error },
    #[error("cannot start: {0}")]
    Start(io::Error),
    #[error("cannot speak with the kernel: {0}")]
    Session(io::Error),
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
}

/// A mount that answers.
pub(super) struct Running {
    mounted: Mounted,
    session: BackgroundSession,
    signals: StopSignals,
}

impl Running {
    /// Where.
    pub(super) fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Serves until it is asked to stop or unmounted.
    pub(super) fn until_stopped(self) -> Result<(), ServeError> {
        let session = self.session;
        until_stopped(self.mounted, self.signals, move || join_session(session))
    }

    /// Stops now.
    pub(super) fn stop(self) -> Result<(), ServeError> {
        self.mounted.unmount()?;
        Ok(())
    }
}

pub(super) fn run(args: &MountArgs) -> ExitCode {
    if args.foreground {
        forget_umask();
        return foreground(args);
    }
    match detach() {
        Ok(Side::Launcher(Ok(()))) => ExitCode::SUCCESS,
        Ok(Side::Launcher(Err(error))) => {
            complain(&error);
            ExitCode::from(error.exit_code())
        }
        Ok(Side::Daemon(daemon)) => background(args, daemon),
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn foreground(args: &MountArgs) -> ExitCode {
    match start(args, Destination::Stderr, Hangup::Stop) {
        Ok(running) => finish(running),
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn background(args: &MountArgs, daemon: Daemon) -> ExitCode {
    let running = match start(args, Destination::Syslog, Hangup::Ignore) {
        Ok(running) => running,
        Err(error) => {
            daemon.fail(&error);
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = daemon.ready() {
        log::warn!("whoever started the mount is gone ({error}); stopping");
        let _ = running.stop();
        return ExitCode::FAILURE;
    }
    finish(running)
}

fn finish(running: Running) -> ExitCode {
    announce_ready(&format!("serving {}", running.path().display()));
    match running.until_stopped() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &MountArgs, log: Destination, hangup: Hangup) -> Result<Running, Refusal> {
    let log = match &args.log_file {
        // What the mountpoint turns out to be is `prepare`'s business.
        Some(file) => Destination::file(file, &args.mountpoint.canonicalize().unwrap_or(args.mountpoint.clone()))?,
        None => log,
    };
    logging::init(log, LevelFilter::Info)?;
    mount_dataset(&args.dataset, &args.store, &args.mountpoint, &args.options, hangup)
}

/// Mounts `dataset` and waits until the mount answers. On failure there is no mount.
pub(super) fn mount_dataset(
    dataset: &Path,
    store: &StoreFlags,
    mountpoint: &Path,
    flags: &MountFlags,
    hangup: Hangup,
) -> Result<Running, Refusal> {
    let signals = StopSignals::catch(hangup).map_err(Refusal::Signals)?;
    // What this process may read and others may not, no link shall show them.
    let links = if flags.allow_other {
        Links::Within
    } else {
        Links::Anywhere
    };
    let patience = Duration::from_secs(flags.request_timeout.into());
    for folder in [flags.cache_dir.as_deref(), store.disk_cache_folder()]
        .into_iter()
        .flatten()
    {
        let absolute = |path| std::path::absolute(path).map_err(Refusal::Start);
        // The daemon would wait for itself.
        if absolute(folder)?.starts_with(absolute(mountpoint)?) {
            return Err(Refusal::CacheInMount(folder.to_owned()));
        }
    }
    if let Some(path) = flags.cache_dir.clone() {
        check_cache(&path).map_err(|source| Refusal::Cache { path, source })?;
    }
    // The store's own word, which names object and cause, is to come before the reader's time is up.
    let source = Source::find(dataset, store, links, patience - patience / 10)?;
    let mountpoint = prepare(mountpoint, source.folder())?;
    let cache_blocks = most_blocks()?;
    let root = source.folder().map(Path::to_owned);
    let is_remote = root.is_none();
    let cancel = source.canceller();
    // What is fetched is worth keeping.
    let cache = match &flags.cache_dir {
        Some(folder) => Some(ObsCache::at(folder.clone())),
        None if is_remote => ObsCache::of_environment(|name| std::env::var_os(name)),
        None => None,
    };
    let look = || -> Result<View, Refusal> {
        let mut dataset = source.open()?;
        if let Some(cache) = cache {
            let folder = std::path::absolute(cache.root()).map_err(Refusal::Start)?;
            dataset = dataset.with_obs_cache(ObsCache::at(folder));
        }
        let families = match &flags.views {
            Some(families) => families.iter().copied().collect(),
            None => Families::all(),
        };
        let shown = ViewOptions {
            families,
            zarr_chunk: flags.zarr_chunk,
        };
        Ok(View::new(Arc::new(dataset), shown)?)
    };
    let view = interruptible(cancel, look).map_err(Refusal::Signals)??;
    let dataset = view.dataset();
    let location = dataset.store().location();
    let memory = Memory::of_this_process();
    let cache_bytes = flags
        .cache_size
        .map_or_else(|| memory.default_cache_size(), |size| size.bytes(&memory));
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = flags.threads.map_or(processors, usize::from);
    let tmpfs = match flags.io {
        IoMode::Fuse => None,
        IoMode::Auto => PrivateTmpfs::new(cache_bytes + TMPFS_SLACK)
            .inspect_err(|reason| log::info!("reads come to the daemon (no passthrough): {reason}"))
            .ok(),
        IoMode::Passthrough => Some(PrivateTmpfs::new(cache_bytes + TMPFS_SLACK).map_err(Refusal::NoTmpfs)?),
    };
    let trial = tmpfs.as_ref().and_then(|tmpfs| tmpfs.file(1).ok());
    let cells = grouped(dataset.manifest().n_cells);
    let options = Options {
        cache_bytes,
        cache_blocks,
        threads,
        tmpfs,
        // With a mode of the administrator's choice, all tiles have the same, and so have those of a store.
        guard_tiles: flags.allow_other && flags.mode.is_none() && !is_remote,
    };
    let engine = Engine::new(view, options).map_err(Refusal::Start)?;
    let serve = Serve {
        ownership: Ownership {
            uid: flags.uid,
            gid: flags.gid,
            mode: flags.mode,
        },
        request_timeout: patience,
    };
    let passthrough = Passthrough::default();
    let fs = DatasetFs::new(engine, serve, passthrough.clone()).map_err(Refusal::Start)?;

    let options = MountOptions {
        source_name: root.map_or_else(|| location.clone().into(), PathBuf::into_os_string),
        allow_other: flags.allow_other,
        max_read: None,
    };
    let (device, mounted) = mount(mountpoint, &options)?;
    let for_trial = device.try_clone().map_err(Refusal::Session)?;
    let mut config = Config::default();
    config.n_threads = Some(threads.clamp(2, 16));
    config.clone_fd = true;
    // Who may come in, and what for, is checked by the kernel.
    let session = Session::from_fd(fs, device, SessionACL::All, config).map_err(Refusal::Session)?;
    if let Some(trial) = trial
        && let Err(reason) = takes_backing_files(&passthrough, &for_trial, &trial)
    {
        if flags.io == IoMode::Passthrough {
            return Err(Refusal::NoPassthrough(reason));
        }
        log::info!("reads come to the daemon (no passthrough): {reason}");
        passthrough.forgo();
    }
    drop(for_trial);
    let session = session.spawn().map_err(Refusal::Session)?;
    mounted.raise_read_ahead(READ_AHEAD_KIB);
    await_answer(mounted.path(), PATIENCE)?;
    log::info!(
        "{location} ({cells} cells) is mounted at {}; cache {} MiB, {threads} threads, {}",
        mounted.path().display(),
        cache_bytes >> 20,
        if passthrough.is_on() { "passthrough" } else { "fuse" }
    );
    Ok(Running {
        mounted,
        session,
        signals,
    })
}

/// Whether a folder is there, which others may have filled, or could be created.
fn check_cache(folder: &Path) -> io::Result<()> {
    let folder = std::path::absolute(folder)?;
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(&folder);
    if !there.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            format!("{} is no folder", there.display()),
        ));
    }
    if there != folder {
        // It is created when it is needed, and as open as the dataset is then.
        let trial = there.join(format!(".dcfs-{}", std::process::id()));
        fs::create_dir(&trial)?;
        fs::remove_dir(&trial)?;
    }
    Ok(())
}

/// Raises the limit on open files as far as allowed; returns how many decoded blocks there may be.
fn most_blocks() -> Result<usize, Refusal> {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    limit.current = Some(most);
    // With fewer descriptors fewer blocks are kept; no more than that.
    let allowed = match setrlimit(Resource::Nofile, limit) {
        Ok(()) => most,
        Err(_) => getrlimit(Resource::Nofile).current.unwrap_or(1024),
    };
    match allowed.checked_sub(SPARE_DESCRIPTORS) {
        Some(left) if left >= LEAST_BLOCKS => Ok(left.min(MOST_BLOCKS) as usize),
        _ => Err(Refusal::Descriptors { allowed }),
    }
}
