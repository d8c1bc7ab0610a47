//! The conversion: inputs are opened, checked and planned before anything is written, then read, renumbered and written,
//! each by threads of its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::RecordBatch;
use serde_json::{Map, Value, json};

use super::error::{ConvertError, Result};
use super::estimate::{Estimate, obs_bytes_per_cell};
use super::output::{Existing, Output, room};
use super::plan::{GenePlan, ObsPlan, OrderedGenes, PlanOptions, Totals};
use super::renumber::{Renumber, Rows};
use super::shuffle::{Shuffle, buckets};
use super::source::{Reading, RowBlock, Source};
use crate::format::encode::CsrRows;
use crate::write::{DatasetWriter, Encoded, Finished, Genes as WrittenGenes, WriteError, WriterOptions};

/// Blocks of rows that wait between reading and writing.
const BLOCKS_AHEAD: usize = 2;
/// Bytes that a nonzero takes in the temporary file of a shuffle.
const SHUFFLED_BYTES_PER_NONZERO: u64 = 8;
/// Rows of obs that are checked at a time.
const OBS_ROWS: u64 = 1 << 16;
/// Between two tellings of progress, and between two looks at whether to stop.
const TICK: Duration = Duration::from_millis(100);

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
    /// What becomes of an output that is there already.
    pub existing: Existing,
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
            existing: Existing::Refuse,
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
    /// Entries of all inputs that are not zero; reckoned from some where not all inputs were scanned.
    pub nonzeros: u64,
    /// Whether all inputs were scanned.
    pub all_scanned: bool,
    /// Bytes that the tiles are reckoned to take.
    tile_bytes: u64,
    /// Size of the inputs.
    pub input_bytes: u64,
    /// What the user should know before it begins.
    pub notes: Vec<String>,
}

/// How far a conversion is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Cells read and handed on.
    pub read: u64,
    /// Whether all cells are read first, because they are shuffled.
    pub shuffling: bool,
    /// What of them is encoded.
    pub encoded: Encoded,
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

/// Checks the inputs and plans the dataset, which is to be written to `out`. Writes nothing.
///
/// # Errors
/// Whatever is wrong with the inputs: values that are no counts, genes or columns that do not fit together; or with the
/// output, which is looked at first.
pub fn prepare(
    sources: Vec<Box<dyn Source>>,
    options: ConvertOptions,
    out: &Path,
    reading: &Reading,
) -> Result<Prepared> {
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
    let mut prepared = Prepared {
        genes: genes.order(None),
        obs,
        n_cells,
        nonzeros: sources.iter().map(|source| source.entries().unwrap_or(0)).sum(),
        all_scanned: false,
        tile_bytes: 0,
        input_bytes: sources.iter().map(|source| source.bytes()).sum(),
        notes,
        options,
        sources,
    };
    // A first guess, before much time is spent on reading.
    prepared.tile_bytes = prepared.nonzeros / 2;
    prepared.check_space(out)?;
    let (totals, scanned_cells) = scan(&prepared.sources, &genes, prepared.options.sort_sample, reading)?;
    prepared.genes = genes.order(prepared.options.plan.sort_genes.then_some(&totals));
    prepared.all_scanned = scanned_cells == n_cells;
    let estimate = Estimate::new(&totals, scanned_cells);
    let share = n_cells as f64 / scanned_cells.max(1) as f64;
    prepared.nonzeros = match prepared.all_scanned {
        true => estimate.nonzeros,
        false => (estimate.nonzeros as f64 * share) as u64,
    };
    prepared.tile_bytes = (estimate.bytes(prepared.options.level) * share) as u64;
    prepared.check_space(out)?;
    prepared.check_obs(reading)?;
    Ok(prepared)
}

/// Those of `inputs` inputs that are scanned when `sample` says how many.
fn sampled(inputs: usize, sample: Option<usize>) -> impl Iterator<Item = usize> {
    let wanted = sample.unwrap_or(inputs).clamp(1, inputs);
    (0..wanted).map(move |turn| turn * inputs / wanted)
}

/// What the inputs hold by gene, or as many of them as `sample` says; and the cells of those.
fn scan(
    sources: &[Box<dyn Source>],
    genes: &GenePlan,
    sample: Option<usize>,
    reading: &Reading,
) -> Result<(Totals, u64)> {
    let (mut totals, mut cells) = (Totals::default(), 0);
    for input in sampled(sources.len(), sample) {
        genes.add(input, &sources[input].scan(reading)?, &mut totals);
        cells += sources[input].n_cells();
    }
    Ok((totals, cells))
}

impl Prepared {
    /// Makes every row of obs of the inputs that were scanned once, so that what cannot be written is known before an
    /// output is touched.
    fn check_obs(&self, reading: &Reading) -> Result<()> {
        for input in sampled(self.sources.len(), self.options.sort_sample) {
            let cells = self.sources[input].n_cells();
            for first in (0..cells).step_by(OBS_ROWS as usize) {
                reading.tick(0)?;
                self.obs
                    .rows(&self.sources, input, first..cells.min(first + OBS_ROWS))?;
            }
        }
        Ok(())
    }

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
        let dataset = self.tile_bytes + self.n_cells * obs_bytes_per_cell(&self.obs.columns) + self.genes_bytes();
        let shuffled = match self.options.shuffle {
            Some(_) => self.nonzeros * SHUFFLED_BYTES_PER_NONZERO + self.n_cells * 64,
            None => 0,
        };
        // Inputs are read one after another, and what one spills is gone when it is read.
        let spilled = self.sources.iter().map(|source| source.spilled_bytes()).max();
        (dataset, shuffled + spilled.unwrap_or(0))
    }

    /// Names and tables of genes, hardly compressed.
    fn genes_bytes(&self) -> u64 {
        let genes = &self.genes.genes;
        let names: usize = genes.names.iter().map(|name| 2 * name.len() + 1).sum();
        let columns = genes.columns.iter().map(|column| column.values.get_array_memory_size());
        (names + columns.sum::<usize>() / 2 + 4 * genes.len()) as u64
    }

    /// Writes the dataset into `out`.
    ///
    /// `progress` is told every now and then, by another thread. When `reading.stop` is set, it ends with
    /// [`ConvertError::Interrupted`]; what is there then can be continued with [`Existing::Resume`].
    ///
    /// # Errors
    /// When `out` is not to be written to, there is no space, or reading or writing fails. There is no manifest then.
    pub fn write(self, out: &Path, reading: &Reading, progress: impl Fn(Progress) + Send + Sync) -> Result<Converted> {
        let output = Output::start(out, self.options.existing, &self.record().to_string())?;
        // Started over, in an empty folder or in one with tiles to be kept.
        let writer = DatasetWriter::resume(out, self.writer_options())?;
        let watch = &writer.watch();
        let read = AtomicU64::new(0);
        let shuffling = self.options.shuffle.is_some();
        let tell = || {
            progress(Progress {
                read: read.load(Ordering::Relaxed),
                shuffling,
                encoded: watch.encoded(),
            });
        };
        let (done, ended) = channel::<()>();
        let written = std::thread::scope(|scope| {
            scope.spawn(move || {
                // Until the sender is gone.
                while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    if reading.stop.load(Ordering::Relaxed) {
                        watch.stop();
                    }
                    tell();
                }
            });
            let written = self.write_cells(writer, out, reading, &read);
            drop(done);
            written
        });
        let (finished, duplicates) = written.map_err(|error| match error {
            ConvertError::Write(WriteError::Stopped) => ConvertError::Interrupted,
            error => error,
        })?;
        Ok(Converted {
            bytes: output.finish()?,
            duplicates,
            finished,
        })
    }

    /// Writes everything; the duplicates found, too.
    fn write_cells(
        &self,
        mut writer: DatasetWriter,
        out: &Path,
        reading: &Reading,
        read: &AtomicU64,
    ) -> Result<(Finished, u64)> {
        let reading = Reading {
            scratch: out.to_path_buf(),
            progress: Arc::new(|_| ()),
            ..reading.clone()
        };
        let mut duplicates = 0;
        match self.options.shuffle {
            None => self.read_all(&reading, |rows, obs, block| {
                duplicates += block.duplicates;
                push(&mut writer, &rows, &obs, self.n_genes())?;
                read.fetch_add(rows.n_cells() as u64, Ordering::Relaxed);
                Ok(())
            })?,
            Some(seed) => {
                let mut shuffle = Shuffle::new(seed, buckets(self.nonzeros), out)?;
                self.read_all(&reading, |rows, obs, block| {
                    duplicates += block.duplicates;
                    shuffle.push(&rows, &obs)?;
                    read.fetch_add(rows.n_cells() as u64, Ordering::Relaxed);
                    Ok(())
                })?;
                for bucket in shuffle.finish(&self.obs.schema()) {
                    let (rows, obs) = bucket?;
                    push(&mut writer, &rows, &obs, self.n_genes())?;
                }
            }
        }
        Ok((writer.finish()?, duplicates))
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

    fn writer_options(&self) -> WriterOptions {
        let mut metadata = Map::new();
        let mut formats: Vec<&str> = self.sources.iter().map(|source| source.format()).collect();
        formats.dedup();
        metadata.insert("source".into(), json!(formats.join("+")));
        metadata.insert("sort_genes".into(), json!(self.options.plan.sort_genes));
        metadata.insert("writer".into(), json!(concat!("dcfs ", env!("CARGO_PKG_VERSION"))));
        if let Some(seed) = self.options.shuffle {
            metadata.insert("shuffle_seed".into(), json!(seed));
            metadata.insert("shuffle_buckets".into(), json!(buckets(self.nonzeros)));
        }
        WriterOptions {
            tile_size: self.options.tile_size,
            n_chunks: self.options.n_chunks,
            level: self.options.level,
            threads: self.options.threads,
            genes: WrittenGenes {
                order: Some(self.genes.order.clone()),
                names: Some(self.genes.genes.names.to_vec()),
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
        let Some(free) = room(out, self.options.existing) else {
            return Ok(());
        };
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
