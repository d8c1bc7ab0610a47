//! The conversion: inputs are opened, checked and planned before anything is written, then read, renumbered and written,
//! each by threads of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::UNIX_EPOCH;

use arrow::array::RecordBatch;
use serde_json::{Map, Value, json};

use super::error::{ConvertError, Result};
use super::plan::{GenePlan, ObsPlan, OrderedGenes, PlanOptions};
use super::renumber::{Renumber, Rows};
use super::shuffle::Shuffle;
use super::source::{Reading, RowBlock, Scan, Source};
use crate::format::encode::CsrRows;
use crate::write::{DatasetWriter, Finished, Genes as WrittenGenes, WriterOptions};

/// The file that tells what an unfinished dataset is made from.
const RECORD: &str = ".dcfs-convert.json";
/// Blocks of rows that wait between reading and writing.
const BLOCKS_AHEAD: usize = 2;
/// Bytes that a nonzero is reckoned to take, for want of anything better before it is compressed.
const BYTES_PER_NONZERO: u64 = 1;
/// Bytes that obs is reckoned to take for each cell.
const OBS_BYTES_PER_CELL: u64 = 16;
/// Bytes that a nonzero takes in temporary files.
const SPILLED_BYTES_PER_NONZERO: u64 = 12;

/// What a conversion may choose.
#[derive(Debug, Clone)]
pub struct ConvertOptions {
    /// Genes and obs.
    pub plan: PlanOptions,
    /// Inputs, evenly spaced, whose totals order the genes; all if there is no number.
    ///
    /// Only these are checked before anything is written.
    pub sort_sample: Option<usize>,
    /// Cells of a tile.
    pub tile_size: u64,
    /// Chunks of a tile.
    pub n_chunks: u32,
    /// zstd level.
    pub level: i32,
    /// Threads that compress; one for each processor when 0.
    pub threads: usize,
    /// The seed of a random order of the cells; their own order if there is none.
    pub shuffle: Option<u64>,
    /// Whether a dataset that was not finished is continued.
    pub resume: bool,
    /// Whether a dataset that is there already is replaced.
    pub overwrite: bool,
    /// Whether the free space is held against the estimate.
    pub check_space: bool,
}

impl Default for ConvertOptions {
    /// What existing tools use: tiles of 10,000 cells in 8 chunks at level 19.
    fn default() -> Self {
        Self {
            plan: PlanOptions::default(),
            sort_sample: None,
            tile_size: 10_000,
            n_chunks: crate::format::encode::DEFAULT_CHUNKS,
            level: crate::format::encode::DEFAULT_LEVEL,
            threads: 0,
            shuffle: None,
            resume: false,
            overwrite: false,
            check_space: true,
        }
    }
}

/// Inputs that have been checked, and what is to be made of them.
pub struct Prepared {
    sources: Vec<Box<dyn Source>>,
    genes: OrderedGenes,
    obs: ObsPlan,
    options: ConvertOptions,
    /// Cells of all inputs.
    pub n_cells: u64,
    /// Entries of all inputs that are not zero, where they are known.
    pub nonzeros: Option<u64>,
    /// Size of the inputs.
    pub input_bytes: u64,
    /// What the user should know before it begins.
    pub notes: Vec<String>,
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Cells read and handed on.
    pub cells: u64,
    /// Their nonzeros.
    pub nonzeros: u64,
    /// Tiles written.
    pub tiles: usize,
    /// Size of their files.
    pub tile_bytes: u64,
}

/// A conversion that has ended.
#[derive(Debug)]
pub struct Converted {
    /// The dataset.
    pub finished: Finished,
    /// Entries that were added to another of the same cell and gene.
    pub duplicates: u64,
    /// Size of all of the dataset's files.
    pub bytes: u64,
}

/// Checks the inputs and plans the dataset. Writes nothing.
///
/// # Errors
/// Whatever is wrong with the inputs: values that are no counts, genes or columns that do not fit together.
pub fn prepare(sources: Vec<Box<dyn Source>>, options: ConvertOptions, reading: &Reading) -> Result<Prepared> {
    let mut notes: Vec<String> = sources
        .iter()
        .flat_map(|source| {
            let name = source.path().display().to_string();
            source.notes().into_iter().map(move |note| format!("{name}: {note}"))
        })
        .collect();
    let genes = GenePlan::new(&sources, &options.plan)?;
    let obs = ObsPlan::new(&sources, &options.plan)?;
    notes.extend(genes.notes.iter().chain(&obs.notes).cloned());
    let n_cells = sources.iter().map(|source| source.n_cells()).sum();
    if n_cells == 0 {
        return Err(ConvertError::Plan("the inputs have no cells".into()));
    }
    let scans = scan(&sources, options.sort_sample, reading)?;
    let genes = genes.order(options.plan.sort_genes.then_some(scans.as_slice()));
    let nonzeros = scans.iter().map(|scan| scan.as_ref().map(|scan| scan.nonzeros)).sum();
    Ok(Prepared {
        genes,
        obs,
        n_cells,
        nonzeros,
        input_bytes: sources.iter().map(|source| source.bytes()).sum(),
        notes,
        options,
        sources,
    })
}

fn scan(sources: &[Box<dyn Source>], sample: Option<usize>, reading: &Reading) -> Result<Vec<Option<Scan>>> {
    let wanted = sample.unwrap_or(sources.len()).clamp(1, sources.len());
    let chosen: Vec<usize> = (0..wanted).map(|turn| turn * sources.len() / wanted).collect();
    let mut scans = Vec::with_capacity(sources.len());
    for (at, source) in sources.iter().enumerate() {
        scans.push(match chosen.contains(&at) {
            true => Some(source.scan(reading)?),
            false => None,
        });
    }
    Ok(scans)
}

impl Prepared {
    /// Genes of the dataset.
    pub fn n_genes(&self) -> usize {
        self.genes.genes.len()
    }

    /// Columns of obs, with their kinds.
    pub fn obs_columns(&self) -> &[crate::format::obs::ObsColumn] {
        &self.obs.columns
    }

    /// Bytes that the dataset is reckoned to take, and that temporary files may take besides.
    pub fn estimate(&self) -> (u64, u64) {
        let entries = self.sources.iter().map(|source| source.entries().unwrap_or(0)).sum();
        let nonzeros = self.nonzeros.unwrap_or(entries);
        let dataset = nonzeros * BYTES_PER_NONZERO + self.n_cells * OBS_BYTES_PER_CELL;
        let spilled = match self.options.shuffle {
            Some(_) => nonzeros * SPILLED_BYTES_PER_NONZERO,
            None => 0,
        };
        (dataset, spilled)
    }

    /// Writes the dataset into `out`.
    ///
    /// `progress` is told after every block of cells. When `reading.stop` is set, it ends with
    /// [`ConvertError::Interrupted`]; what is there then can be continued with `resume`.
    ///
    /// # Errors
    /// When `out` is not to be written to, there is no space, or reading or writing fails. There is no manifest then.
    pub fn write(self, out: &Path, reading: &Reading, progress: impl Fn(Progress)) -> Result<Converted> {
        self.check_space(out)?;
        let record = self.record().to_string();
        let mut writer = self.start(out, &record)?;
        let reading = Reading {
            scratch: out.to_path_buf(),
            progress: Arc::new(|_| ()),
            ..reading.clone()
        };
        let mut state = State {
            progress: Progress::default(),
            duplicates: 0,
        };
        match self.options.shuffle {
            None => self.read_all(&reading, |rows, obs, block| {
                state.duplicates += block.duplicates;
                push(&mut writer, &rows, &obs, self.n_genes())?;
                state.tell(&writer, &rows, &progress);
                Ok(())
            })?,
            Some(seed) => {
                let mut shuffle = Shuffle::new(seed, self.nonzeros.unwrap_or(0), out)?;
                let mut schema = None;
                self.read_all(&reading, |rows, obs, block| {
                    state.duplicates += block.duplicates;
                    schema.get_or_insert_with(|| obs.schema());
                    shuffle.push(&rows, &obs)
                })?;
                let schema = schema.unwrap_or_else(|| Arc::new(arrow::datatypes::Schema::empty()));
                for bucket in shuffle.finish(&schema) {
                    let (rows, obs) = bucket?;
                    if reading.stop.load(Ordering::Relaxed) {
                        return Err(ConvertError::Interrupted);
                    }
                    push(&mut writer, &rows, &obs, self.n_genes())?;
                    state.tell(&writer, &rows, &progress);
                }
            }
        }
        let finished = writer.finish()?;
        fs::remove_file(out.join(RECORD)).map_err(ConvertError::io(out, "remove a temporary file in"))?;
        Ok(Converted {
            bytes: folder_bytes(out).map_err(ConvertError::io(out, "read"))?,
            duplicates: state.duplicates,
            finished,
        })
    }

    /// Reads all inputs and gives their cells, renumbered, with their rows of obs.
    fn read_all(
        &self,
        reading: &Reading,
        mut take: impl FnMut(Rows, RecordBatch, &RowBlock) -> Result<()>,
    ) -> Result<()> {
        let (send, receive) = sync_channel::<Result<(usize, RowBlock)>>(BLOCKS_AHEAD);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (input, source) in self.sources.iter().enumerate() {
                    let blocks = match source.rows(reading) {
                        Ok(blocks) => blocks,
                        Err(error) => {
                            let _ = send.send(Err(error));
                            return;
                        }
                    };
                    for block in blocks {
                        let failed = block.is_err();
                        // Nobody receives any more when writing has failed.
                        if send.send(block.map(|block| (input, block))).is_err() || failed {
                            return;
                        }
                    }
                }
            });
            let mut renumber = Renumber::new(self.n_genes());
            let mut cells = vec![0; self.sources.len()];
            // The receiver moves in, so that reading stops, and can be waited for, when this loop is left.
            for message in receive {
                let (input, block) = message?;
                if reading.stop.load(Ordering::Relaxed) {
                    return Err(ConvertError::Interrupted);
                }
                let range = block.first..block.first + block.n_cells() as u64;
                let obs = self.obs.rows(&self.sources, input, range)?;
                cells[input] += block.n_cells() as u64;
                take(renumber.rows(&block, &self.genes.columns[input]), obs, &block)?;
            }
            for (source, &found) in self.sources.iter().zip(&cells) {
                if found != source.n_cells() {
                    let fault = format!("gave {found} cells, expected {}", source.n_cells());
                    return Err(ConvertError::input(source.path(), "matrix", fault));
                }
            }
            Ok(())
        })
    }

    fn start(&self, out: &Path, record: &str) -> Result<DatasetWriter> {
        let record_path = out.join(RECORD);
        if self.options.resume
            && out.exists()
            && fs::read_dir(out)
                .map_err(ConvertError::io(out, "read"))?
                .next()
                .is_some()
        {
            let found = fs::read_to_string(&record_path).map_err(|_| {
                ConvertError::input(
                    out,
                    RECORD,
                    "is missing: this is no unfinished conversion that could be resumed",
                )
            })?;
            if found != record {
                let fault = "was made from other inputs or with other options than these: it cannot be resumed";
                return Err(ConvertError::input(out, RECORD, fault));
            }
            return Ok(DatasetWriter::resume(out, self.writer_options())?);
        }
        if self.options.overwrite {
            remove_dataset(out)?;
        }
        let writer = DatasetWriter::create(out, self.writer_options())?;
        fs::write(&record_path, record).map_err(ConvertError::io(&record_path, "write"))?;
        Ok(writer)
    }

    fn writer_options(&self) -> WriterOptions {
        let mut metadata = Map::new();
        let mut formats: Vec<&str> = self.sources.iter().map(|source| source.format()).collect();
        formats.dedup();
        metadata.insert("source".into(), json!(formats.join("+")));
        metadata.insert("sort_genes".into(), json!(self.options.plan.sort_genes));
        metadata.insert("writer".into(), json!(concat!("dcfs ", env!("CARGO_PKG_VERSION"))));
        if let Some(seed) = self.options.shuffle {
            metadata.insert("shuffle_seed".into(), json!(seed));
        }
        WriterOptions {
            tile_size: self.options.tile_size,
            n_chunks: self.options.n_chunks,
            level: self.options.level,
            threads: self.options.threads,
            genes: WrittenGenes {
                order: Some(self.genes.order.clone()),
                names: Some(self.genes.genes.names.clone()),
                table: Some(self.genes.genes.to_table()),
            },
            obs: Some(self.obs.columns.clone()),
            metadata,
            ..WriterOptions::new(self.n_genes() as u32)
        }
    }

    /// What decides the dataset's bytes, so that only the same conversion is resumed.
    fn record(&self) -> Value {
        let inputs: Vec<Value> = self.sources.iter().map(|source| identity(&**source)).collect();
        let options = &self.options;
        json!({
            "writer": concat!("dcfs ", env!("CARGO_PKG_VERSION")),
            "inputs": inputs,
            "genes": options.plan.gene_key,
            "plan": format!("{:?}", options.plan),
            "sort_sample": options.sort_sample,
            "tile_size": options.tile_size,
            "n_chunks": options.n_chunks,
            "level": options.level,
            "shuffle": options.shuffle,
            "n_cells": self.n_cells,
            "nonzeros": self.nonzeros,
        })
    }

    fn check_space(&self, out: &Path) -> Result<()> {
        if !self.options.check_space {
            return Ok(());
        }
        let existing = std::path::absolute(out)
            .ok()
            .and_then(|path| path.ancestors().find(|path| path.exists()).map(Path::to_path_buf));
        let Some(free) = existing.and_then(|path| rustix::fs::statvfs(&path).ok()) else {
            return Ok(());
        };
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        let (dataset, spilled) = self.estimate();
        let needed = dataset.saturating_add(spilled);
        if needed > free {
            let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
            return Err(ConvertError::Plan(format!(
                "{}: about {} MB are needed, {} MB are free; --no-space-check goes on all the same",
                out.display(),
                megabytes(needed),
                megabytes(free)
            )));
        }
        Ok(())
    }
}

struct State {
    progress: Progress,
    duplicates: u64,
}

impl State {
    fn tell(&mut self, writer: &DatasetWriter, rows: &Rows, progress: &impl Fn(Progress)) {
        self.progress.cells += rows.n_cells() as u64;
        self.progress.nonzeros += rows.genes.len() as u64;
        (self.progress.tiles, self.progress.tile_bytes) = writer.written();
        progress(self.progress);
    }
}

fn push(writer: &mut DatasetWriter, rows: &Rows, obs: &RecordBatch, n_genes: usize) -> Result<()> {
    let csr = CsrRows::new(n_genes as u32, &rows.indptr, &rows.genes, &rows.counts);
    let csr = csr.map_err(|error| ConvertError::Plan(error.to_string()))?;
    Ok(writer.push(csr, Some(obs))?)
}

/// An input, as far as it can be told from another without reading it.
fn identity(source: &dyn Source) -> Value {
    let modified = fs::metadata(source.path())
        .and_then(|metadata| metadata.modified())
        .ok();
    let modified = modified
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map(|time| time.as_nanos().to_string());
    let path = fs::canonicalize(source.path()).unwrap_or_else(|_| source.path().to_path_buf());
    json!({"path": path.to_string_lossy(), "bytes": source.bytes(), "modified": modified})
}

/// Removes a dataset, finished or not, and nothing else that may be in its folder.
fn remove_dataset(root: &Path) -> Result<()> {
    let is_one = root.join("manifest.json").is_file() || root.join(RECORD).is_file();
    if !is_one {
        return Ok(());
    }
    // The manifest first: what is left of a dataset is none.
    for file in [
        "manifest.json",
        RECORD,
        "gene_order.npy",
        "var_names.txt",
        "var.parquet",
    ] {
        match fs::remove_file(root.join(file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(ConvertError::io(&root.join(file), "remove")(error));
            }
            _ => {}
        }
    }
    for folder in ["tiles", "obs"] {
        let path = root.join(folder);
        if path.is_dir() {
            fs::remove_dir_all(&path).map_err(ConvertError::io(&path, "remove"))?;
        }
    }
    Ok(())
}

fn folder_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => bytes += entry.metadata()?.len(),
            }
        }
    }
    Ok(bytes)
}
