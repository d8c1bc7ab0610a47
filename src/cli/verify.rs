//! `dcfs verify`: is every byte of a dataset as it was written?

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::ThreadPoolBuilder;

use super::source::{StoreFlags, open_dataset};
use super::{complain, grouped};

/// Check a dataset completely
///
/// Decodes every tile, and checks every checksum, size, type and count there is: tiles, obs files, gene tables.
/// Lists all faults it finds.
///
/// Exit status: 0 without faults; 1 with faults, or when it is no dataset at all.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder or URL of the dataset
    dataset: PathBuf,
    #[command(flatten)]
    store: StoreFlags,
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
    if faults.is_empty() && told.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
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
