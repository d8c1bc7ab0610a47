//! `dcfs convert`: people's own data, made into a dataset.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::grouped;
use crate::convert::error::ConvertError;
use crate::convert::h5ad::MatrixChoice;
use crate::convert::open::{InputOptions, open_all};
use crate::convert::output::{Existing, check};
use crate::convert::plan::{Join, PlanOptions};
use crate::convert::run::{ConvertOptions, Converted, Prepared, Progress, prepare};
use crate::convert::source::{Reading, Source};
use crate::convert::tenx_h5::GENE_EXPRESSION;
use crate::store::Location;

/// Make a dataset of AnnData, 10x Genomics or MatrixMarket data
///
/// Inputs are AnnData files (.h5ad), Cell Ranger's HDF5 matrices (.h5), and the matrix folders of Cell Ranger, STARsolo and alevin
/// (matrix.mtx, genes or features, barcodes). Several inputs become one dataset, their cells in the order in which the inputs
/// are named. Everything is checked before anything is written; memory stays within a few tiles, whatever the size.
///
/// Exit status: 0 when the dataset is written; 1 when it is not; 130 when it was interrupted, and can be continued with --resume.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Folder of the dataset to make
    output: PathBuf,
    /// Files and folders to read
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    #[command(flatten)]
    input: InputFlags,
    #[command(flatten)]
    plan: PlanFlags,
    /// Keep the genes in their order [default: by decreasing total count, which compresses best]
    #[arg(long)]
    no_sort_genes: bool,
    /// Sort genes by their totals in N of the inputs, and check only these before writing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sort_genes_sample: Option<u32>,
    /// Put all cells in a random order, the same for the same seed
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Cells of a tile
    #[arg(long, value_name = "CELLS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    tile_size: u64,
    /// Parts of a tile that can be decoded at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    chunks: u32,
    /// Level of zstd: higher is smaller, takes longer to write, and is no slower to read
    #[arg(long, value_name = "LEVEL", default_value_t = 19, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-7..=22))]
    level: i32,
    /// Threads that read and compress [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Replace the dataset that is there
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Continue a conversion that was interrupted, with the same inputs and options
    #[arg(long)]
    resume: bool,
    /// Check and plan everything, say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Begin even if the free space seems too small
    #[arg(long)]
    no_space_check: bool,
}

/// Which part of the inputs is read.
#[derive(Debug, Args)]
pub(super) struct InputFlags {
    /// Layer of AnnData files that holds the counts [default: X]
    #[arg(long, value_name = "NAME", conflicts_with = "use_raw")]
    layer: Option<String>,
    /// Read the counts and genes of AnnData files from raw
    #[arg(long)]
    use_raw: bool,
    /// Type of the features that are read from 10x Genomics data
    #[arg(long, value_name = "TYPE", default_value = GENE_EXPRESSION)]
    feature_type: String,
    /// Genome that is read from 10x Genomics HDF5 files of several
    #[arg(long, value_name = "NAME")]
    genome: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum JoinFlag {
    Inner,
    Outer,
}

/// How the inputs fit together.
#[derive(Debug, Args)]
pub(super) struct PlanFlags {
    /// Keep the genes that every input has, or those that any has [default: all inputs must have the same]
    #[arg(long, value_name = "HOW")]
    join: Option<JoinFlag>,
    /// Column of the gene tables by which genes are the same, such as gene_ids [default: the names]
    #[arg(long, value_name = "COLUMN")]
    gene_key: Option<String>,
    /// Store category columns of more values than this as text
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    max_categories: usize,
    /// Leave out a column of obs; may be given several times
    #[arg(long, value_name = "COLUMN")]
    obs_exclude: Vec<String>,
    /// Add a column of this name that says which input each cell is from
    #[arg(long, value_name = "NAME")]
    obs_source: Option<String>,
}

impl InputFlags {
    pub(super) fn options(&self) -> InputOptions {
        InputOptions {
            matrix: match (&self.layer, self.use_raw) {
                (Some(layer), _) => MatrixChoice::Layer(layer.clone()),
                (None, true) => MatrixChoice::Raw,
                (None, false) => MatrixChoice::X,
            },
            feature_type: self.feature_type.clone(),
            genome: self.genome.clone(),
        }
    }
}

impl ConvertArgs {
    fn options(&self) -> ConvertOptions {
        ConvertOptions {
            plan: PlanOptions {
                join: match self.plan.join {
                    None => Join::Same,
                    Some(JoinFlag::Inner) => Join::Inner,
                    Some(JoinFlag::Outer) => Join::Outer,
                },
                gene_key: self.plan.gene_key.clone(),
                sort_genes: !self.no_sort_genes,
                max_categories: self.plan.max_categories,
                obs_exclude: self.plan.obs_exclude.clone(),
                obs_source: self.plan.obs_source.clone(),
            },
            sort_sample: self.sort_genes_sample.map(|n| n as usize),
            tile_size: self.tile_size,
            n_chunks: self.chunks,
            level: self.level,
            threads: self.threads.unwrap_or(0).into(),
            shuffle: self.shuffle,
            existing: match (self.resume, self.overwrite) {
                (true, _) => Existing::Resume,
                (_, true) => Existing::Overwrite,
                _ => Existing::Refuse,
            },
            check_space: !self.no_space_check,
        }
    }
}

/// The exit status of a conversion that failed.
pub(super) fn exit_code(error: &ConvertError) -> u8 {
    match error {
        ConvertError::Interrupted => 130,
        _ => 1,
    }
}

/// Object stores are read by other commands; here their URLs would be taken for paths.
fn refuse_urls(args: &ConvertArgs) -> Result<(), ConvertError> {
    for path in args.inputs.iter().chain([&args.output]) {
        if !path.exists()
            && !matches!(Location::parse(path.as_os_str()), Ok(Location::Folder(folder)) if folder == *path)
        {
            return Err(ConvertError::Plan(format!(
                "{} is a URL; dcfs convert reads and writes files of this machine",
                path.display()
            )));
        }
    }
    Ok(())
}

pub(super) fn run(args: &ConvertArgs) -> Result<(), ConvertError> {
    refuse_urls(args)?;
    let begun = Instant::now();
    let options = args.options();
    let mut reading = Reading::new(threads(args.threads), Path::new(""));
    reading.stop = stop_signal(&args.output)?;
    if !args.dry_run {
        check(&args.output, options.existing)?;
    }
    raise_open_files();
    let sources = open_all(&args.inputs, &args.input.options())?;
    let shown = Shown::new();
    let checking = shown.bar(entries(&sources), "checking", "entries");
    let counted = checking.clone();
    reading.progress = Arc::new(move |entries| counted.add(entries));
    let prepared = prepare(sources, options, &args.output, &reading);
    checking.clear();
    let prepared = prepared?;
    for note in &prepared.notes {
        shown.note(note);
    }
    say(&plan_of(&prepared, args));
    if args.dry_run {
        return Ok(());
    }
    let (n_cells, input_bytes) = (prepared.n_cells, prepared.input_bytes);
    let bar = shown.bar(Some(n_cells), "writing", "cells");
    let writing = Instant::now();
    let result = prepared.write(&args.output, &reading, |progress| {
        show(progress, &bar, n_cells, input_bytes, writing.elapsed());
    });
    bar.clear();
    match result {
        Ok(converted) => {
            say(&summary(&converted, input_bytes, begun.elapsed()));
            Ok(())
        }
        Err(error) => {
            if matches!(
                error,
                ConvertError::Interrupted | ConvertError::Write(_) | ConvertError::Io { .. }
            ) {
                shown.note(&format!(
                    "{} is no dataset yet; the same command with --resume continues it",
                    args.output.display()
                ));
            }
            Err(error)
        }
    }
}

/// Raises the limit on open files as far as allowed: inputs stay open, and there may be thousands.
pub(super) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If it cannot be raised, opening one file too many says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn threads(wanted: Option<u16>) -> usize {
    match wanted {
        Some(threads) => threads.into(),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Set by Ctrl-C. A second one ends the program at once.
fn stop_signal(output: &Path) -> Result<Arc<AtomicBool>, ConvertError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|source| ConvertError::Io {
                path: output.to_path_buf(),
                action: "catch signals while writing",
                source,
            })?;
    }
    Ok(stop)
}

fn entries(sources: &[Box<dyn Source>]) -> Option<u64> {
    sources.iter().map(|source| source.entries()).sum()
}

fn plan_of(prepared: &Prepared, args: &ConvertArgs) -> String {
    let (estimate, spilled) = prepared.estimate();
    let mut text = format!(
        "{} cells x {} genes from {} input{} ({})",
        grouped(prepared.n_cells),
        grouped(prepared.n_genes() as u64),
        args.inputs.len(),
        if args.inputs.len() == 1 { "" } else { "s" },
        HumanBytes(prepared.input_bytes)
    );
    let about = if prepared.all_scanned { "" } else { "about " };
    text += &format!(", {about}{} nonzeros", grouped(prepared.nonzeros));
    text += &format!("\nobs: {} columns", prepared.obs_columns().len());
    for column in prepared.obs_columns() {
        text += &format!("\n  {} ({})", column.name, column.kind);
    }
    text += &format!("\nto {}: about {}", args.output.display(), HumanBytes(estimate));
    if spilled > 0 {
        text += &format!(", and {} for a while", HumanBytes(spilled));
    }
    text
}

/// Shows how far it is.
fn show(progress: Progress, bar: &Bar, n_cells: u64, input_bytes: u64, elapsed: Duration) {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let Progress {
        read,
        shuffling,
        encoded,
    } = progress;
    if shuffling && read < n_cells {
        bar.set("shuffling", read, "");
        return;
    }
    // Tiles that were there already took no time.
    let cells = (encoded.cells - encoded.kept_cells) as f64;
    let mut text = format!(
        "{} cells/s, {}/s",
        grouped((cells / seconds) as u64),
        HumanBytes((input_bytes as f64 * cells / n_cells.max(1) as f64 / seconds) as u64)
    );
    if encoded.nonzeros > 0 {
        let each = encoded.bytes as f64 / encoded.nonzeros as f64;
        text += &format!(", {each:.2} bytes a nonzero");
    }
    bar.set("writing", encoded.cells, &text);
}

fn summary(converted: &Converted, input_bytes: u64, elapsed: Duration) -> String {
    let manifest = &converted.finished.manifest;
    let tile_bytes: u64 = manifest.tile_bytes.iter().sum();
    let nonzeros = manifest.nnz();
    let mut text = format!(
        "{}: {} cells x {} genes, {} nonzeros in {} tiles\n{} in all, {} in tiles",
        converted.finished.root.display(),
        grouped(manifest.n_cells),
        grouped(manifest.n_genes.into()),
        grouped(nonzeros),
        grouped(manifest.n_tiles() as u64),
        HumanBytes(converted.bytes),
        HumanBytes(tile_bytes),
    );
    if nonzeros > 0 {
        text += &format!(" ({:.2} bytes a nonzero)", tile_bytes as f64 / nonzeros as f64);
    }
    if input_bytes > 0 {
        text += &format!(
            ", {:.0} % of the input",
            100.0 * converted.bytes as f64 / input_bytes as f64
        );
    }
    if converted.duplicates > 0 {
        text += &format!(
            "\n{} entries of the same cell and gene were added up",
            grouped(converted.duplicates)
        );
    }
    text + &format!("\nin {}", HumanDuration(elapsed))
}

/// Says something on standard output, which may be closed.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// What is shown while it works: a bar on a terminal, a line now and then elsewhere.
struct Shown {
    terminal: bool,
}

#[derive(Clone)]
struct Bar {
    bar: ProgressBar,
    unit: &'static str,
    /// When a line is due, where there is no bar.
    lines: Option<Arc<Mutex<Instant>>>,
}

/// Between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

impl Shown {
    fn new() -> Self {
        Self {
            terminal: io::stderr().is_terminal(),
        }
    }

    fn note(&self, note: &str) {
        let _ = writeln!(io::stderr(), "dcfs: note: {note}");
    }

    fn bar(&self, length: Option<u64>, what: &'static str, unit: &'static str) -> Bar {
        let target = match self.terminal {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let template = match length {
            Some(_) => {
                // With what stands in the message, 80 columns.
                "{prefix} {bar:12} {percent} %, {eta} left  {wide_msg}".to_owned()
            }
            None => format!("{{prefix}} {{human_pos}} {unit}  {{elapsed}}"),
        };
        let style = ProgressStyle::with_template(&template).expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(length, target).with_style(style);
        bar.set_prefix(what);
        Bar {
            bar,
            unit,
            lines: (!self.terminal).then(|| Arc::new(Mutex::new(Instant::now()))),
        }
    }
}

impl Bar {
    fn add(&self, count: u64) {
        self.bar.inc(count);
        self.line("");
    }

    fn set(&self, what: &'static str, position: u64, message: &str) {
        if self.bar.prefix() != what {
            self.bar.set_prefix(what);
            self.bar.reset_eta();
        }
        self.bar.set_position(position);
        self.bar.set_message(message.to_owned());
        self.line(message);
    }

    /// Where there is no bar, says the same in a line, if one is due.
    fn line(&self, message: &str) {
        let Some(lines) = &self.lines else { return };
        let mut last = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() < LINE_EVERY {
            return;
        }
        *last = Instant::now();
        let (position, unit) = (self.bar.position(), self.unit);
        let mut text = format!("{} {}", self.bar.prefix(), grouped(position));
        if let Some(length) = self.bar.length().filter(|&length| length > 0) {
            let percent = 100 * position / length;
            text += &format!(" of {} {unit} ({percent} %)", grouped(length));
            text += &format!(", {} left", HumanDuration(self.bar.eta()));
        } else {
            text += &format!(" {unit}");
        }
        if !message.is_empty() {
            text += &format!(", {message}");
        }
        let _ = writeln!(io::stderr(), "dcfs: {text}");
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
