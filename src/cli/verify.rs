//! `dcfs verify`: is every byte of a dataset as it was written?

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::convert::{InputFlags, raise_open_files};
use super::source::{StoreFlags, open_dataset};
use super::{complain, grouped};
use crate::convert::compare::{Comparison, compare};
use crate::convert::error::ConvertError;
use crate::convert::open::open_all;
use crate::convert::source::Reading;
use crate::dataset::Dataset;

/// Check a dataset completely
///
/// Decodes every tile, and checks every checksum, size, type and count there is: tiles, obs files, gene tables.
/// Lists all faults it finds.
///
/// Exit status: 0 without faults; 1 with faults or differences, or when it is no dataset at all.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder or URL of the dataset
    dataset: PathBuf,
    #[command(flatten)]
    store: StoreFlags,
    /// Compare every count and every value of obs with the file or folder that the dataset was made from, cell by cell;
    /// name all of them, in their order
    #[arg(long, value_name = "INPUT")]
    against: Vec<PathBuf>,
    #[command(flatten)]
    input: InputFlags,
    /// Column of the gene tables by which genes are the same, such as gene_ids [default: the names]
    #[arg(long, value_name = "COLUMN", requires = "against")]
    gene_key: Option<String>,
    /// Column of obs that was left out of the dataset; may be given several times
    #[arg(long, value_name = "COLUMN", requires = "against")]
    obs_exclude: Vec<String>,
    /// Threads that read and decode [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub(super) fn run(args: &VerifyArgs) -> ExitCode {
    let dataset = match open_dataset(&args.dataset, &args.store) {
        Ok(dataset) => dataset,
        Err(error) => {
            complain(&error);
            return ExitCode::FAILURE;
        }
    };
    let pool = match ThreadPoolBuilder::new()
        .num_threads(args.threads.unwrap_or(0).into())
        .build()
    {
        Ok(pool) => pool,
        Err(error) => {
            complain(&format!("cannot start threads: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let bytes = dataset.bytes_to_verify();
    let bar = progress_bar(bytes);
    let faults = pool.install(|| dataset.verify_all(|done| bar.inc(done.bytes)));
    bar.finish_and_clear();
    for fault in &faults {
        complain(fault);
    }
    let manifest = dataset.manifest();
    let checked = format!(
        "{} tiles, {} obs files, {}",
        grouped(manifest.n_tiles() as u64),
        manifest.obs.as_ref().map_or(0, |obs| obs.shard_bytes.len()),
        HumanBytes(bytes)
    );
    let verdict = match faults.len() {
        0 => format!("no faults in {checked}"),
        1 => format!("1 fault in {checked}"),
        n => format!("{n} faults in {checked}"),
    };
    let told = writeln!(io::stdout(), "{verdict}");
    if !faults.is_empty() || told.is_err() {
        return ExitCode::FAILURE;
    }
    if args.against.is_empty() {
        return ExitCode::SUCCESS;
    }
    match against(args, &dataset, &pool) {
        Ok(found) => tell(&found),
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Holds the dataset against its inputs.
fn against(args: &VerifyArgs, dataset: &Dataset, pool: &ThreadPool) -> Result<Comparison, ConvertError> {
    raise_open_files();
    let sources = open_all(&args.against, &args.input.options())?;
    let bar = cells_bar(dataset.manifest().n_cells);
    let scratch = scratch_folder();
    let mut reading = Reading::new(pool.current_num_threads(), &scratch);
    let compared = bar.clone();
    reading.progress = Arc::new(move |cells| compared.inc(cells));
    let key = args.gene_key.as_deref();
    let found = compare(dataset, &args.dataset, &sources, key, &args.obs_exclude, &reading, pool);
    bar.finish_and_clear();
    found
}

/// For temporary files, which may be as large as an input: `/tmp` is often in memory.
fn scratch_folder() -> PathBuf {
    match std::env::var_os("TMPDIR") {
        Some(folder) if !folder.is_empty() => folder.into(),
        _ if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
        _ => std::env::temp_dir(),
    }
}

fn tell(found: &Comparison) -> ExitCode {
    for difference in &found.differences {
        complain(difference);
    }
    let more = found.n_differences - found.differences.len() as u64;
    if more > 0 {
        complain(&format!("and {} more differences", grouped(more)));
    }
    if !found.not_compared.is_empty() {
        complain(&format!(
            "note: columns of obs that only one has: {}",
            found.not_compared.join(", ")
        ));
    }
    let verdict = format!(
        "{} against the input: {} cells, {} nonzeros, {} values of obs",
        match found.n_differences {
            0 => "no differences".to_owned(),
            1 => "1 difference".to_owned(),
            n => format!("{} differences", grouped(n)),
        },
        grouped(found.cells),
        grouped(found.nonzeros),
        grouped(found.obs_values)
    );
    let told = writeln!(io::stdout(), "{verdict}");
    match found.n_differences == 0 && told.is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// A bar on a terminal, nothing elsewhere.
fn cells_bar(cells: u64) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} cells  {eta} left");
    ProgressBar::with_draw_target(Some(cells), target).with_style(style.expect("the template is well-formed"))
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(bytes: u64) -> ProgressBar {
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}  {binary_bytes_per_sec}  {eta} left");
    ProgressBar::with_draw_target(Some(bytes), target).with_style(style.expect("the template is well-formed"))
}
