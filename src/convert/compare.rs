//! A dataset held against what it was made from: every count and every value of obs, cell by cell.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type};
use arrow::util::display::array_value_to_string;
use rayon::ThreadPool;

use super::error::{ConvertError, Result};
use super::plan::{GenePlan, Join, OBS_NAMES, ObsPlan, PlanOptions};
use super::renumber::{Renumber, Rows};
use super::shuffle::{MAX_BUCKETS, Shuffle};
use super::source::{Reading, Source};
use crate::dataset::{Dataset, DatasetError};
use crate::format::manifest::Manifest;
use crate::format::obs::ColumnKind;

/// Differences that are told one by one; the rest are counted.
const MAX_TOLD: usize = 20;

/// What a comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The first differences, described.
    pub differences: Vec<String>,
    /// All differences.
    pub n_differences: u64,
    /// Cells compared.
    pub cells: u64,
    /// Nonzeros compared.
    pub nonzeros: u64,
    /// Values of obs compared.
    pub obs_values: u64,
    /// Columns of obs that only one of the two has.
    pub not_compared: Vec<String>,
}

impl Comparison {
    fn differs(&mut self, what: String) {
        self.n_differences += 1;
        if self.differences.len() < MAX_TOLD {
            self.differences.push(what);
        }
    }
}

fn failed(error: DatasetError) -> ConvertError {
    ConvertError::Plan(error.to_string())
}

/// Compares `dataset`, which is in the folder `root`, with the inputs that it was made from, in their order. If its cells
/// were shuffled, those of the inputs are shuffled again, in a temporary file.
///
/// `gene_key` is the column of the gene tables by which genes of several inputs are the same, if it is not their index.
/// Columns of obs that the dataset lacks are differences, but for those of `obs_exclude`.
///
/// # Errors
/// When either cannot be read, or the dataset cannot be compared cell by cell because nobody knows how its cells were
/// shuffled.
pub fn compare(
    dataset: &Dataset,
    root: &Path,
    sources: &[Box<dyn Source>],
    gene_key: Option<&str>,
    obs_exclude: &[String],
    reading: &Reading,
    pool: &ThreadPool,
) -> Result<Comparison> {
    let manifest = dataset.manifest();
    let shuffle = shuffle_of(manifest, root)?;
    let mut found = Comparison::default();
    let columns = gene_columns(manifest, root, sources, gene_key, &mut found)?;
    let cells: u64 = sources.iter().map(|source| source.n_cells()).sum();
    if cells != manifest.n_cells {
        found.differs(format!(
            "the dataset has {} cells, the inputs have {cells}",
            manifest.n_cells
        ));
    }
    let mut side = Side {
        obs: Obs::new(dataset, sources, obs_exclude, &mut found)?,
        stored: StoredRows::new(dataset, pool),
        found,
        next: 0,
    };
    let mut shuffle = match shuffle {
        Some((seed, buckets)) => Some(Shuffle::new(seed, buckets, &reading.scratch)?),
        None => None,
    };
    let mut renumber = Renumber::new(manifest.n_genes as usize);
    for (input, source) in sources.iter().enumerate() {
        for block in source.rows(reading)? {
            let block = block?;
            let range = block.first..block.first + block.n_cells() as u64;
            let rows = renumber.rows(&block, &columns[input]);
            let obs = side.obs.as_ref().map(|obs| obs.plan.rows(sources, input, range));
            let obs = obs.transpose()?;
            match (&mut shuffle, &obs) {
                (Some(shuffle), Some(obs)) => {
                    reading.tick(0)?;
                    shuffle.push(&rows, obs)?;
                }
                _ => side.compare(&rows, obs.as_ref(), reading)?,
            }
        }
    }
    let schema = side.obs.as_ref().map(|obs| obs.plan.schema());
    if let (Some(shuffle), Some(schema)) = (shuffle, schema) {
        for bucket in shuffle.finish(&schema) {
            let (rows, obs) = bucket?;
            side.compare(&rows, Some(&obs), reading)?;
        }
    }
    Ok(side.found)
}

/// Seed and buckets of the shuffle that put the cells in order, if there was one.
fn shuffle_of(manifest: &Manifest, root: &Path) -> Result<Option<(u64, u64)>> {
    let number = |key: &str| manifest.metadata.get(key).map(|number| number.as_u64());
    match (number("shuffle_seed"), number("shuffle_buckets")) {
        (None, _) => Ok(None),
        // Whatever shuffles so also writes obs.
        (Some(Some(seed)), Some(Some(buckets @ 1..=MAX_BUCKETS))) if manifest.obs.is_some() => {
            Ok(Some((seed, buckets)))
        }
        _ => Err(ConvertError::Plan(format!(
            "{}: its cells were shuffled by another program and have no order to be compared in",
            root.display()
        ))),
    }
}

/// The dataset's side of a comparison.
struct Side<'a> {
    obs: Option<Obs<'a>>,
    stored: StoredRows<'a>,
    found: Comparison,
    /// The first cell that was not compared yet.
    next: u64,
}

impl Side<'_> {
    /// Compares the next cells with these rows, which have columns of the dataset, and values of obs.
    fn compare(&mut self, rows: &Rows, obs: Option<&RecordBatch>, reading: &Reading) -> Result<()> {
        let n_cells = self.stored.dataset.manifest().n_cells;
        let cells = (rows.n_cells() as u64).min(n_cells.saturating_sub(self.next));
        reading.tick(cells)?;
        let names = obs.and_then(|obs| obs.column_by_name(OBS_NAMES)?.as_string_opt::<i32>());
        for row in 0..cells as usize {
            let cell = CellName {
                cell: self.next + row as u64,
                name: names.map(|names| names.value(row)),
            };
            self.stored.compare(cell, rows, row, &mut self.found)?;
        }
        if let (Some(known), Some(obs)) = (&self.obs, obs) {
            known.compare(self.next..self.next + cells, obs, &mut self.found)?;
        }
        self.found.cells += cells;
        self.next += cells;
        Ok(())
    }
}

/// A cell of the dataset, for messages.
#[derive(Clone, Copy)]
struct CellName<'a> {
    cell: u64,
    name: Option<&'a str>,
}

impl fmt::Display for CellName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cell {}", self.cell)?;
        match self.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

/// Of each input, the column of the dataset that each of its genes has.
fn gene_columns(
    manifest: &Manifest,
    root: &Path,
    sources: &[Box<dyn Source>],
    gene_key: Option<&str>,
    found: &mut Comparison,
) -> Result<Vec<Arc<Vec<Option<u32>>>>> {
    let n_genes = manifest.n_genes as usize;
    let plan = |join| {
        let options = PlanOptions {
            join,
            gene_key: gene_key.map(str::to_owned),
            ..PlanOptions::default()
        };
        GenePlan::new(sources, &options)
    };
    // Genes that not every input has are in the dataset or not; their number tells.
    let mut genes = plan(Join::Outer)?;
    if genes.genes().len() != n_genes {
        genes = plan(Join::Inner)?;
    }
    if genes.genes().len() != n_genes {
        let fault = format!("has {n_genes} genes, the inputs have {}", genes.genes().len());
        return Err(ConvertError::input(root, "manifest.json", fault));
    }
    let order: Vec<u32> = match manifest.has_gene_order {
        true => read_order(&root.join("gene_order.npy"), n_genes)?,
        false => (0..n_genes as u32).collect(),
    };
    if manifest.has_var_names {
        let path = root.join("var_names.txt");
        let names = std::fs::read_to_string(&path).map_err(ConvertError::io(&path, "read"))?;
        let names: Vec<&str> = names.lines().collect();
        if names.len() != n_genes {
            found.differs(format!("var_names.txt has {} names, expected {n_genes}", names.len()));
        }
        for (column, (&name, &place)) in names.iter().zip(&order).enumerate() {
            let expected = &genes.genes().names[place as usize];
            if name != expected {
                found.differs(format!("gene {column} is named {name:?}, in the input {expected:?}"));
            }
        }
    }
    let mut column = vec![0; n_genes];
    for (&place, at) in order.iter().zip(0_u32..) {
        column[place as usize] = at;
    }
    Ok(genes.columns(&column))
}

/// The permutation in a NumPy file of one `int32` vector.
fn read_order(path: &Path, n_genes: usize) -> Result<Vec<u32>> {
    let fault = |fault: &str| ConvertError::input(path, "file", fault);
    let bytes = std::fs::read(path).map_err(ConvertError::io(path, "read"))?;
    let header = match bytes.get(..10) {
        Some(start) if start.starts_with(b"\x93NUMPY\x01") => {
            10 + usize::from(u16::from_le_bytes([start[8], start[9]]))
        }
        _ => return Err(fault("is no NumPy file of version 1")),
    };
    let described = bytes.get(10..header).map(String::from_utf8_lossy).unwrap_or_default();
    let values = bytes.get(header..).unwrap_or_default();
    if !described.contains("<i4") || values.len() != 4 * n_genes {
        return Err(fault("does not hold an int32 for each gene"));
    }
    let order: Vec<u32> = values
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let mut seen = vec![false; n_genes];
    for &place in &order {
        match seen.get_mut(place as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(fault("is no permutation of the genes")),
        }
    }
    Ok(order)
}

/// The dataset's rows, one tile in memory.
struct StoredRows<'a> {
    dataset: &'a Dataset,
    pool: &'a ThreadPool,
    tile: Option<DecodedTile>,
}

struct DecodedTile {
    id: usize,
    indptr: Vec<i64>,
    indices: Vec<i32>,
    data: Vec<i32>,
}

impl<'a> StoredRows<'a> {
    fn new(dataset: &'a Dataset, pool: &'a ThreadPool) -> Self {
        Self {
            dataset,
            pool,
            tile: None,
        }
    }

    fn compare(&mut self, name: CellName<'_>, rows: &Rows, row: usize, found: &mut Comparison) -> Result<()> {
        let manifest = self.dataset.manifest();
        let cell = name.cell;
        let Some(id) = manifest.tile_of_cell(cell) else {
            return Ok(());
        };
        if self.tile.as_ref().is_none_or(|tile| tile.id != id) {
            let tile = self.dataset.tile(id).map_err(failed)?;
            let nnz = tile.layout().spec.nnz as usize;
            let (mut indices, mut data) = (vec![0; nnz], vec![0; nnz]);
            self.dataset
                .decode(&tile, Some(&mut indices), Some(&mut data), self.pool)
                .map_err(failed)?;
            self.tile = Some(DecodedTile {
                id,
                indptr: tile.indptr().to_vec(),
                indices,
                data,
            });
        }
        let Some(DecodedTile {
            indptr, indices, data, ..
        }) = &self.tile
        else {
            return Ok(());
        };
        let local = (cell - manifest.cells_before(id)) as usize;
        let stored = indptr[local] as usize..indptr[local + 1] as usize;
        let expected = rows.indptr[row] as usize..rows.indptr[row + 1] as usize;
        found.nonzeros += expected.len() as u64;
        let stored = indices[stored.clone()]
            .iter()
            .zip(&data[stored])
            .map(|(&gene, &count)| (gene as u32, count as u32));
        let expected = rows.genes[expected.clone()]
            .iter()
            .zip(&rows.counts[expected])
            .map(|(&gene, &count)| (gene, count));
        if !stored.clone().eq(expected.clone()) {
            let stored: HashMap<u32, u32> = stored.collect();
            let expected: HashMap<u32, u32> = expected.collect();
            let mut genes: Vec<&u32> = stored.keys().chain(expected.keys()).collect();
            genes.sort();
            genes.dedup();
            for gene in genes {
                let (stored, expected) = (stored.get(gene).unwrap_or(&0), expected.get(gene).unwrap_or(&0));
                if stored != expected {
                    found.differs(format!(
                        "{name}, gene {gene}: {stored} in the dataset, {expected} in the input"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The columns that both have.
struct Obs<'a> {
    dataset: &'a Dataset,
    plan: ObsPlan,
    /// Of each column of the plan, its place in the dataset.
    places: Vec<Option<usize>>,
}

impl<'a> Obs<'a> {
    fn new(
        dataset: &'a Dataset,
        sources: &[Box<dyn Source>],
        obs_exclude: &[String],
        found: &mut Comparison,
    ) -> Result<Option<Self>> {
        let schema = dataset.schema();
        let position = |name: &str| schema.and_then(|schema| schema.position(name));
        let mut excluded = Vec::new();
        for column in sources.iter().flat_map(|source| source.columns()) {
            if position(&column.name).is_none() && !excluded.contains(&column.name) {
                excluded.push(column.name.clone());
            }
        }
        for column in excluded.iter().filter(|column| !obs_exclude.contains(column)) {
            found.differs(format!(
                "obs: the dataset has no column {column:?}, which the input has"
            ));
        }
        found.not_compared.clone_from(&excluded);
        let Some(schema) = schema else {
            return Ok(None);
        };
        let options = PlanOptions {
            obs_exclude: excluded,
            max_categories: usize::MAX,
            ..PlanOptions::default()
        };
        let plan = ObsPlan::new(sources, &options)?;
        let planned = |name: &str| plan.columns.iter().any(|column| column.name == name);
        let others = schema
            .columns
            .iter()
            .map(|column| &column.name)
            .filter(|name| !planned(name));
        found.not_compared.extend(others.cloned());
        let places = plan
            .columns
            .iter()
            .map(|column| schema.position(&column.name))
            .collect();
        Ok(Some(Self { dataset, plan, places }))
    }

    /// Compares some cells of the dataset with as many rows.
    fn compare(&self, cells: Range<u64>, expected: &RecordBatch, found: &mut Comparison) -> Result<()> {
        let manifest = self.dataset.manifest();
        let Some(schema) = self.dataset.schema() else {
            return Ok(());
        };
        let mut at = cells.start;
        while at < cells.end {
            let Some(tile) = manifest.tile_of_cell(at) else { break };
            let start = manifest.cells_before(tile);
            let end = manifest.cells_before(tile + 1).min(cells.end);
            for (column, place) in self.places.iter().enumerate() {
                let Some(place) = *place else { continue };
                let stored = self.dataset.column(tile, place).map_err(failed)?;
                let stored = stored.slice((at - start) as usize, (end - at) as usize);
                let wanted = expected
                    .column(column)
                    .slice((at - cells.start) as usize, (end - at) as usize);
                let kinds = (&schema.columns[place].kind, &self.plan.columns[column].kind);
                let values = (values(kinds.0, &stored), values(kinds.1, &wanted));
                for (row, (stored, wanted)) in values.0.iter().zip(&values.1).enumerate() {
                    if stored != wanted {
                        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "missing".into());
                        let name = &self.plan.columns[column].name;
                        found.differs(format!(
                            "cell {}, obs column {name:?}: {} in the dataset, {} in the input",
                            at + row as u64,
                            shown(stored),
                            shown(wanted)
                        ));
                    }
                }
                found.obs_values += end - at;
            }
            at = end;
        }
        Ok(())
    }
}

/// Values as text, by which categories and text, and numbers of any width, can be compared.
fn values(kind: &ColumnKind, values: &ArrayRef) -> Vec<Option<String>> {
    let text = |values: &ArrayRef| -> Vec<Option<String>> {
        let show = |row| {
            values
                .is_valid(row)
                .then(|| array_value_to_string(values, row).unwrap_or_default())
        };
        (0..values.len()).map(show).collect()
    };
    match kind {
        ColumnKind::Category { categories, .. } => {
            let codes = cast(values, &DataType::Int32).unwrap_or_else(|_| values.clone());
            let codes = codes.as_primitive::<Int32Type>();
            let label = |code: Option<i32>| categories.get(usize::try_from(code?).ok()?).cloned();
            codes.iter().map(label).collect()
        }
        ColumnKind::Numeric(number) if number.arrow_name().starts_with(['h', 'f', 'd']) => {
            let wide = cast(values, &DataType::Float64).unwrap_or_else(|_| values.clone());
            let shown = wide.as_primitive::<Float64Type>().iter();
            // Missing and NaN are the same.
            shown
                .map(|value| value.filter(|value| !value.is_nan()).map(|value| value.to_string()))
                .collect()
        }
        _ => text(values),
    }
}
