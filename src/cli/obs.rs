//! `dcfs obs`: the node's copy of obs columns.

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

use super::source::{OpenError, StoreFlags, open_dataset};
use super::{complain, grouped};
use crate::dataset::obs_cache::{CacheError, ObsCache, Work};
use crate::dataset::{Dataset, DatasetError};
use crate::format::obs::{ColumnKind, ObsColumn};
use crate::store::Store;

/// Keep copies of obs columns on this machine
///
/// Columns are kept in the folder that other readers of the format use as well: what one of them has, none fetches again. It is
/// --cache-dir, $DELTACELLS_CACHE, $XDG_CACHE_HOME/deltacells or ~/.cache/deltacells.
#[derive(Debug, Args)]
pub struct ObsArgs {
    #[command(subcommand)]
    command: ObsCommand,
}

#[derive(Debug, Subcommand)]
enum ObsCommand {
    Info(InfoArgs),
    Localize(LocalizeArgs),
}

/// Say which columns there are, what they take, and which are on this machine
#[derive(Debug, Args)]
struct InfoArgs {
    /// Folder or URL of the dataset
    dataset: PathBuf,
    #[command(flatten)]
    store: StoreFlags,
    /// Folder of the cache
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Copy columns to this machine
///
/// Exit status: 0 when all of them are there; 1 when they are not; 130 when it was interrupted.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("selection").args(["columns", "column", "all"]).required(true).multiple(true)))]
struct LocalizeArgs {
    /// Folder or URL of the dataset
    dataset: PathBuf,
    #[command(flatten)]
    store: StoreFlags,
    /// Names of columns, with commas between them
    #[arg(long, value_name = "NAMES")]
    columns: Vec<String>,
    /// Name of one column, commas and all; may be given several times
    #[arg(long, value_name = "NAME")]
    column: Vec<String>,
    /// All columns; those that cannot be kept are named and left out
    #[arg(long, conflicts_with_all = ["columns", "column"])]
    all: bool,
    /// Folder of the cache
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Threads that read and decode [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Debug, Error)]
pub(super) enum ObsError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(
        "there is no folder for the cache: none of $DELTACELLS_CACHE, $XDG_CACHE_HOME and $HOME is set; use --cache-dir"
    )]
    NoFolder,
    #[error("{dataset} has no column {name:?}; its columns are: {columns}")]
    NoColumn {
        dataset: String,
        name: String,
        columns: String,
    },
    #[error(
        "{dataset} has no column {name:?}; for the one that is called {typed:?}, write --column {}",
        quoted(typed)
    )]
    NameWithCommas {
        dataset: String,
        name: String,
        typed: String,
    },
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl ObsError {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Cache(CacheError::Interrupted) => 130,
            _ => 1,
        }
    }
}

pub(super) fn run(args: &ObsArgs) -> Result<(), ObsError> {
    match &args.command {
        ObsCommand::Info(args) => info(args),
        ObsCommand::Localize(args) => localize(args),
    }
}

/// The cache that the user named, or the one of the environment.
fn cache(folder: Option<&PathBuf>) -> Result<ObsCache, ObsError> {
    match folder {
        Some(folder) => Ok(ObsCache::at(folder.clone())),
        None => ObsCache::of_environment(|name| std::env::var_os(name)).ok_or(ObsError::NoFolder),
    }
}

fn columns(dataset: &Dataset) -> Result<&[ObsColumn], CacheError> {
    match dataset.schema() {
        Some(schema) => Ok(&schema.columns),
        None => Err(CacheError::NoObs(dataset.store().location())),
    }
}

/// What is known of a column.
struct Known<'a> {
    column: &'a ObsColumn,
    /// Compressed, in all shards.
    bytes: u64,
    local: bool,
    /// Why the cache is of no use for it.
    problem: Option<String>,
}

fn info(args: &InfoArgs) -> Result<(), ObsError> {
    let dataset = open_dataset(&args.dataset, &args.store)?;
    let cache = cache(args.cache_dir.as_ref())?;
    let columns = columns(&dataset)?;
    let mut bytes = vec![0; columns.len()];
    let n_shards = dataset.manifest().obs.as_ref().map_or(0, |obs| obs.shard_bytes.len());
    for shard in 0..n_shards {
        let shard = dataset.shard(shard)?;
        for (column, bytes) in bytes.iter_mut().enumerate() {
            *bytes += shard.column_bytes(column).map_err(DatasetError::from)?;
        }
    }
    let known: Vec<Known> = columns
        .iter()
        .zip(bytes)
        .enumerate()
        .map(|(index, (column, bytes))| {
            let found = cache.column(&dataset, index);
            Known {
                column,
                bytes,
                local: matches!(found, Ok(Some(_))),
                problem: found.err().map(|error| error.to_string()),
            }
        })
        .collect();
    let text = match args.json {
        true => format!("{:#}\n", as_json(&dataset, &cache, &known)),
        false => as_text(&cache, &known),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn n_categories(column: &ObsColumn) -> Option<usize> {
    match &column.kind {
        ColumnKind::Category { categories, .. } => Some(categories.len()),
        _ => None,
    }
}

fn as_json(dataset: &Dataset, cache: &ObsCache, known: &[Known]) -> serde_json::Value {
    let column = |known: &Known| {
        json!({
            "name": known.column.name,
            "kind": known.column.kind.to_string(),
            "type": known.column.kind.arrow_name(),
            "categories": n_categories(known.column),
            "bytes": known.bytes,
            "local": known.local,
            "problem": known.problem,
        })
    };
    json!({
        "location": dataset.store().location(),
        "fingerprint": dataset.manifest().obs.as_ref().map(|obs| &obs.fingerprint),
        "cache": cache.root().to_string_lossy(),
        "columns": known.iter().map(column).collect::<Vec<_>>(),
    })
}

fn as_text(cache: &ObsCache, known: &[Known]) -> String {
    let length = |known: &Known| known.column.name.escape_debug().count();
    let width = known.iter().map(length).max().unwrap_or(0).clamp(6, 40);
    let mut lines = vec![
        format!("cache  {}", cache.root().display()),
        format!("{:width$}  kind      type     categories     to fetch  local", "column"),
    ];
    for known in known {
        // Names are the dataset's own text and may hold anything, terminal controls included.
        let name = known.column.name.escape_debug().to_string();
        let kind = known.column.kind.to_string();
        let categories = n_categories(known.column).map_or(String::new(), |n| grouped(n as u64));
        let local = match (known.local, &known.problem) {
            (true, _) => "yes",
            (false, None) => "no",
            (false, Some(_)) => "see below",
        };
        let bytes = HumanBytes(known.bytes).to_string();
        lines.push(format!(
            "{name:width$}  {kind:8}  {:7}  {categories:>10}  {bytes:>11}  {local}",
            known.column.kind.arrow_name()
        ));
    }
    for problem in known.iter().filter_map(|known| known.problem.as_ref()) {
        // That of a folder is one of all columns.
        if !lines.contains(problem) {
            lines.push(problem.clone());
        }
    }
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

/// The places of the wanted columns in the schema.
fn wanted(args: &LocalizeArgs, dataset: &Dataset, cache: &ObsCache) -> Result<Vec<usize>, ObsError> {
    let columns = columns(dataset)?;
    if args.all {
        let can_be_kept = |&column: &usize| {
            let kept = cache.can_keep(dataset, column);
            kept.inspect_err(|error| complain(&format_args!("left out: {error}")))
                .is_ok()
        };
        return Ok((0..columns.len()).filter(can_be_kept).collect());
    }
    let find = |name: &str| columns.iter().position(|column| column.name == name);
    let place = |(typed, name): (&str, &str)| {
        let no_column = || ObsError::NoColumn {
            dataset: dataset.store().location(),
            name: name.to_owned(),
            columns: columns
                .iter()
                .map(|column| format!("{:?}", column.name))
                .collect::<Vec<_>>()
                .join(", "),
        };
        let name_with_commas = || ObsError::NameWithCommas {
            dataset: dataset.store().location(),
            name: name.to_owned(),
            typed: typed.to_owned(),
        };
        match find(name) {
            Some(place) => Ok(place),
            None if find(typed).is_some() => Err(name_with_commas()),
            None => Err(no_column()),
        }
    };
    let several = args.columns.iter();
    let several = several.flat_map(|typed| typed.split(',').map(move |name| (&**typed, name)));
    let single = args.column.iter().map(|name| (&**name, &**name));
    several.chain(single).map(place).collect()
}

/// A text as a shell takes it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn localize(args: &LocalizeArgs) -> Result<(), ObsError> {
    let dataset = open_dataset(&args.dataset, &args.store)?;
    let cache = cache(args.cache_dir.as_ref())?;
    let wanted = wanted(args, &dataset, &cache)?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signals(&stop, dataset.store()).map_err(ObsError::Signals)?;
    let bar = progress_bar(wanted.len() as u64 * dataset.manifest().n_tiles() as u64);
    let given = args.threads.and_then(|threads| NonZeroUsize::new(threads.into()));
    let work = Work {
        threads: given.unwrap_or_else(|| Work::threads_for(&dataset)),
        done: &|| bar.inc(1),
        stop: &stop,
        patience: Duration::MAX,
    };
    let added = cache.localize(&dataset, &wanted, work);
    bar.finish_and_clear();
    let added = match added {
        // A request that was cut off is no fault of the store.
        Err(_) if stop.load(Ordering::Relaxed) => return Err(CacheError::Interrupted.into()),
        added => added?,
    };
    let there = wanted.len() - added.min(wanted.len());
    Ok(writeln!(
        io::stdout(),
        "{added} columns were added to {}; {there} were there",
        cache.root().display()
    )?)
}

/// The first signal that asks to stop sets `stop` and ends requests to the store; the second ends the program.
fn stop_on_signals(stop: &Arc<AtomicBool>, store: &Arc<dyn Store>) -> io::Result<()> {
    let signals = [SIGINT, SIGTERM];
    for signal in signals {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(stop))?;
    }
    let mut signals = Signals::new(signals)?;
    let (stop, store) = (Arc::clone(stop), Arc::clone(store));
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            stop.store(true, Ordering::Relaxed);
            store.cancel();
        }
    });
    Ok(())
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(steps: u64) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:40} {percent} %  {eta} left");
    ProgressBar::with_draw_target(Some(steps), target).with_style(style.expect("the template is well-formed"))
}
