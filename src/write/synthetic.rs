//! Made-up cells that behave like real ones, for demonstrations, tests and benches.
//!
//! Counts are negative binomial around the mean of the gene in the cell's cluster times the cell's depth; gene means
//! have a long tail. Everything of a cell follows from the seed and the cell's number alone, so any range of cells
//! can be made by itself, and the bytes are the same on every machine: only operations that IEEE 754 defines to
//! the last bit are used, no function of a platform's mathematics library.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};
use arrow::datatypes::{DataType, Field, Schema};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use serde_json::json;

use super::{DatasetWriter, Finished, Genes, WriteError, WriterOptions};
use crate::format::TileId;
use crate::format::encode::{CsrRows, DEFAULT_CHUNKS, DEFAULT_LEVEL, EncodeError};
use crate::format::obs::{ColumnKind, NumericType, ObsColumn};

/// The shape of the negative binomial: its variance is `mean + mean^2 / SHAPE`.
const SHAPE: f32 = 2.0;
/// Standard deviations of the logarithms of gene means, of a gene's mean between clusters, of cell depths.
const SPREAD_OF_GENES: f32 = 2.1;
const SPREAD_OF_CLUSTERS: f32 = 0.5;
const SPREAD_OF_DEPTHS: f32 = 0.45;
/// One in so many genes marks a cluster, where its mean is so many times larger.
const MARKER_ONE_IN: u64 = 100;
const MARKER_FACTOR: f32 = 12.0;
const DONORS: u64 = 6;
/// Cells that one task makes.
const CELLS_A_TASK: u64 = 32;

const CELL_TYPES: [&str; 12] = [
    "CD4 T cell",
    "CD14 monocyte",
    "B cell",
    "CD8 T cell",
    "NK cell",
    "naïve CD4 T cell",
    "γδ T cell",
    "FCGR3A monocyte",
    "plasma cell",
    "dendritic cell",
    "megakaryocyte",
    "HSC",
];
const MITOCHONDRIAL: [&str; 13] = [
    "MT-ND1", "MT-ND2", "MT-CO1", "MT-CO2", "MT-ATP8", "MT-ATP6", "MT-CO3", "MT-ND3", "MT-ND4L", "MT-ND4", "MT-ND5",
    "MT-ND6", "MT-CYB",
];

/// What to make up. The defaults are a small dataset that is quick to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntheticOptions {
    /// Cells, at least 1.
    pub n_cells: u64,
    /// Genes, `1 ..= 2^31`; they take memory, four bytes each for every cluster.
    pub n_genes: u32,
    /// Cells of every tile but the last.
    pub tile_size: u64,
    /// Nonzeros a cell has on average, at most nine tenths of the genes.
    pub mean_nnz_per_cell: u32,
    /// Kinds of cells, 1 to 1000.
    pub clusters: u32,
    /// Another seed makes other cells and genes.
    pub seed: u64,
    /// Chunks a tile is cut into.
    pub n_chunks: u32,
    /// zstd level.
    pub level: i32,
    /// Threads that encode, one for each processor when 0.
    pub threads: usize,
    /// Tiles in an obs shard.
    pub obs_tiles_per_file: u64,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        Self {
            n_cells: 5_000,
            n_genes: 2_000,
            tile_size: 1_000,
            mean_nnz_per_cell: 300,
            clusters: 8,
            seed: 1,
            n_chunks: DEFAULT_CHUNKS,
            level: DEFAULT_LEVEL,
            threads: 0,
            obs_tiles_per_file: 1000,
        }
    }
}

/// A count matrix of some cells in CSR form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csr {
    /// Genes (columns).
    pub n_genes: u32,
    /// Row starts, from 0; one more than cells.
    pub indptr: Vec<i64>,
    /// Gene of each nonzero, increasing in each cell.
    pub indices: Vec<i32>,
    /// Count of each nonzero.
    pub counts: Vec<i32>,
}

impl Csr {
    /// The matrix as rows to encode.
    ///
    /// # Errors
    /// When the arrays do not fit each other; they do unless the caller changed them.
    pub fn rows(&self) -> Result<CsrRows<'_, i32, i32>, EncodeError> {
        CsrRows::new(self.n_genes, &self.indptr, &self.indices, &self.counts)
    }
}

/// Made-up genes and clusters, and through them cells.
#[derive(Debug, Clone)]
pub struct Synthetic {
    options: SyntheticOptions,
    /// Output column `j` is gene `order[j]` of the source, by decreasing expected total.
    order: Vec<i32>,
    /// For each cluster the mean count of each gene, in output order, in a cell of depth 1.
    means: Vec<Vec<f32>>,
    /// Columns of the mitochondrial genes.
    mitochondrial: Vec<i32>,
}

/// What is drawn for a cell besides its counts.
struct Profile {
    cluster: usize,
    depth: f32,
    donor: u64,
    /// For obs.
    rng: Xoshiro256PlusPlus,
}

/// The cells of one tile of the dataset that [`Synthetic::write`] writes with these options.
///
/// # Errors
/// When an option is outside its range.
///
/// # Panics
/// When there is no such tile.
pub fn synthetic_tile(options: &SyntheticOptions, tile: TileId) -> Result<Csr, WriteError> {
    Ok(Synthetic::new(options.clone())?.tile(tile))
}

impl Synthetic {
    /// Makes up genes and clusters.
    ///
    /// # Errors
    /// When an option is outside its range.
    pub fn new(options: SyntheticOptions) -> Result<Self, WriteError> {
        check(&options)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(options.seed);
        let genes = options.n_genes as usize;
        let named = mitochondrial_genes(options.n_genes);
        let base: Vec<f32> = (0..genes)
            .map(|gene| {
                let weight = exp(SPREAD_OF_GENES * normal(&mut rng));
                if gene < named { weight.max(20.0) } else { weight }
            })
            .collect();
        let weights: Vec<Vec<f32>> = (0..options.clusters)
            .map(|_| {
                let mut of_cluster = |&base: &f32| {
                    let marker = rng.next_u64() % MARKER_ONE_IN == 0;
                    let factor = if marker { MARKER_FACTOR } else { 1.0 };
                    base * factor * exp(SPREAD_OF_CLUSTERS * normal(&mut rng))
                };
                base.iter().map(&mut of_cluster).collect()
            })
            .collect();
        let scale = scale_for(&weights, options.mean_nnz_per_cell);
        let order = by_expected_total(&weights);
        let means = weights
            .iter()
            .map(|weights| order.iter().map(|&gene| weights[gene as usize] * scale).collect())
            .collect();
        let columns = order.iter().enumerate();
        let mitochondrial = columns
            .filter(|&(_, &gene)| (gene as usize) < named)
            .map(|(column, _)| column as i32)
            .collect();
        Ok(Self {
            options,
            order,
            means,
            mitochondrial,
        })
    }

    /// What was asked for.
    pub fn options(&self) -> &SyntheticOptions {
        &self.options
    }

    /// The cells of a tile.
    ///
    /// # Panics
    /// When there is no such tile.
    pub fn tile(&self, tile: TileId) -> Csr {
        self.cells(self.cells_of_tile(tile))
    }

    /// The cells `cells` of the dataset, made on all processors.
    ///
    /// # Panics
    /// When there are no such cells.
    pub fn cells(&self, cells: Range<u64>) -> Csr {
        assert!(
            cells.end <= self.options.n_cells,
            "there are {} cells",
            self.options.n_cells
        );
        let starts: Vec<u64> = cells.clone().step_by(CELLS_A_TASK as usize).collect();
        let parts: Vec<Csr> = starts
            .into_par_iter()
            .map(|start| self.some_cells(start..cells.end.min(start + CELLS_A_TASK)))
            .collect();
        let mut whole = self.no_cells();
        let nnz = parts.iter().map(|part| part.indices.len()).sum();
        whole.indices.reserve_exact(nnz);
        whole.counts.reserve_exact(nnz);
        for part in parts {
            let shift = whole.indices.len() as i64;
            whole.indptr.extend(part.indptr[1..].iter().map(|start| start + shift));
            whole.indices.extend(part.indices);
            whole.counts.extend(part.counts);
        }
        whole
    }

    /// The rows of obs of the cells `cells`, whose counts are `counts`, in the types of [`Synthetic::obs_columns`].
    ///
    /// # Panics
    /// When `counts` are not those of as many cells.
    pub fn obs(&self, cells: Range<u64>, counts: &Csr) -> RecordBatch {
        assert_eq!(
            counts.indptr.len() as u64,
            cells.end - cells.start + 1,
            "counts are those of the cells"
        );
        let rows: Vec<ObsRow> = cells
            .enumerate()
            .map(|(row, cell)| {
                let nonzeros = counts.indptr[row] as usize..counts.indptr[row + 1] as usize;
                self.obs_row(cell, &counts.indices[nonzeros.clone()], &counts.counts[nonzeros])
            })
            .collect();
        let columns = self.obs_columns();
        let cell_types: ArrayRef = match columns[1].kind {
            ColumnKind::Category {
                codes: NumericType::Int8,
                ..
            } => Arc::new(rows.iter().map(|row| Some(row.cell_type as i8)).collect::<Int8Array>()),
            _ => Arc::new(rows.iter().map(|row| Some(row.cell_type)).collect::<Int16Array>()),
        };
        let arrays: [ArrayRef; 9] = [
            Arc::new(rows.iter().map(|row| Some(&row.name)).collect::<StringArray>()),
            cell_types,
            Arc::new(rows.iter().map(|row| Some(row.donor)).collect::<Int8Array>()),
            Arc::new(rows.iter().map(|row| Some(row.total)).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|row| Some(row.genes)).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|row| row.percent_mito).collect::<Float64Array>()),
            Arc::new(rows.iter().map(|row| row.doublet_score).collect::<Float32Array>()),
            Arc::new(rows.iter().map(|row| row.is_doublet).collect::<BooleanArray>()),
            Arc::new(rows.iter().map(|row| row.age).collect::<Int32Array>()),
        ];
        let named = columns.iter().map(|column| column.name.as_str()).zip(arrays);
        RecordBatch::try_from_iter_with_nullable(named.map(|(name, array)| (name, array, true)))
            .expect("the columns have a value for each cell")
    }

    /// The columns of obs: one or more of every kind, with missing values in each kind but the names.
    pub fn obs_columns(&self) -> Vec<ObsColumn> {
        let column = |name: &str, kind| ObsColumn {
            name: name.to_owned(),
            kind,
        };
        let clusters = self.options.clusters as usize;
        let codes = if clusters <= 128 {
            NumericType::Int8
        } else {
            NumericType::Int16
        };
        let cell_types = (0..clusters)
            .map(|cluster| match CELL_TYPES.get(cluster) {
                Some(name) => (*name).to_owned(),
                None => format!("cluster {cluster}"),
            })
            .collect();
        let donors = (1..=DONORS).map(|donor| format!("donor {donor}")).collect();
        vec![
            column("obs_names", ColumnKind::String),
            column(
                "cell_type",
                ColumnKind::Category {
                    codes,
                    categories: cell_types,
                },
            ),
            column(
                "donor",
                ColumnKind::Category {
                    codes: NumericType::Int8,
                    categories: donors,
                },
            ),
            column("total_counts", ColumnKind::Numeric(NumericType::Int64)),
            column("n_genes_by_counts", ColumnKind::Numeric(NumericType::Int32)),
            column("pct_counts_mt", ColumnKind::Numeric(NumericType::Float64)),
            column("doublet_score", ColumnKind::Numeric(NumericType::Float32)),
            column("predicted_doublet", ColumnKind::Bool),
            column("age", ColumnKind::Numeric(NumericType::Int32)),
        ]
    }

    /// Order, names and table of the genes.
    pub fn genes(&self) -> Genes {
        let names: Vec<String> = self.order.iter().map(|&gene| self.gene_name(gene)).collect();
        Genes {
            order: Some(self.order.clone()),
            table: Some(self.gene_table(&names)),
            names: Some(names),
        }
    }

    /// Writes the dataset into `root`, a folder that is empty or does not exist.
    ///
    /// # Errors
    /// When an option is outside its range or a file cannot be written.
    pub fn write(&self, root: &Path) -> Result<Finished, WriteError> {
        let options = WriterOptions {
            tile_size: self.options.tile_size,
            n_chunks: self.options.n_chunks,
            level: self.options.level,
            threads: self.options.threads,
            genes: self.genes(),
            obs: Some(self.obs_columns()),
            obs_tiles_per_file: self.options.obs_tiles_per_file,
            metadata: [
                ("source".to_owned(), json!("synthetic")),
                ("seed".to_owned(), json!(self.options.seed)),
            ]
            .into_iter()
            .collect(),
            ..WriterOptions::new(self.options.n_genes)
        };
        let mut writer = DatasetWriter::create(root, options)?;
        let tiles = self.options.n_cells.div_ceil(self.options.tile_size);
        for tile in 0..tiles as TileId {
            let cells = self.cells_of_tile(tile);
            let counts = self.cells(cells.clone());
            let rows = counts.rows().map_err(|source| WriteError::Rows {
                first_cell: cells.start,
                source,
            })?;
            writer.push(rows, Some(&self.obs(cells, &counts)))?;
        }
        writer.finish()
    }

    fn cells_of_tile(&self, tile: TileId) -> Range<u64> {
        let start = tile as u64 * self.options.tile_size;
        let end = self.options.n_cells.min(start + self.options.tile_size);
        assert!(start < end, "there is no tile {tile}");
        start..end
    }

    fn no_cells(&self) -> Csr {
        Csr {
            n_genes: self.options.n_genes,
            indptr: vec![0],
            indices: Vec::new(),
            counts: Vec::new(),
        }
    }

    fn some_cells(&self, cells: Range<u64>) -> Csr {
        let mut made = self.no_cells();
        let mut chances = vec![0.0_f32; self.options.n_genes as usize];
        for cell in cells {
            let Profile { cluster, depth, .. } = self.profile(cell);
            let mut rng = self.rng(cell, 1);
            for pair in chances.chunks_mut(2) {
                let bits = rng.next_u64();
                pair[0] = unit(bits);
                if let Some(second) = pair.get_mut(1) {
                    *second = unit(bits << 32);
                }
            }
            for (gene, (&chance, &mean)) in chances.iter().zip(&self.means[cluster]).enumerate() {
                let q = failure(mean * depth);
                if chance >= q * q {
                    made.indices.push(gene as i32);
                    made.counts.push(count(chance, mean * depth));
                }
            }
            made.indptr.push(made.indices.len() as i64);
        }
        made
    }

    /// A generator for one purpose of one cell.
    fn rng(&self, cell: u64, purpose: u64) -> Xoshiro256PlusPlus {
        let mut mixed = self.options.seed;
        for word in [cell, purpose] {
            mixed = mix(mixed.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ mix(word));
        }
        Xoshiro256PlusPlus::seed_from_u64(mixed)
    }

    fn profile(&self, cell: u64) -> Profile {
        let mut rng = self.rng(cell, 0);
        let clusters = self.means.len() as u64;
        // The smaller of two draws: early clusters are common, late ones rare.
        let cluster = (rng.next_u64() % clusters).min(rng.next_u64() % clusters) as usize;
        let depth = exp(SPREAD_OF_DEPTHS * normal(&mut rng));
        let donor = rng.next_u64() % DONORS;
        Profile {
            cluster,
            depth,
            donor,
            rng,
        }
    }

    fn obs_row(&self, cell: u64, genes: &[i32], counts: &[i32]) -> ObsRow {
        let Profile {
            cluster,
            donor,
            mut rng,
            ..
        } = self.profile(cell);
        let total: i64 = counts.iter().map(|&count| i64::from(count)).sum();
        let mito: i64 = self
            .mitochondrial
            .iter()
            .filter_map(|gene| genes.binary_search(gene).ok())
            .map(|position| i64::from(counts[position]))
            .sum();
        let mut one_in = |n: u64| rng.next_u64().is_multiple_of(n);
        let (unlabelled, unscored) = (one_in(30), one_in(50));
        let score = unit(rng.next_u64()) * unit(rng.next_u64());
        ObsRow {
            name: barcode(cell, self.options.seed),
            cell_type: if unlabelled { -1 } else { cluster as i16 },
            donor: donor as i8,
            total,
            genes: genes.len() as i32,
            percent_mito: (total > 0).then(|| 100.0 * mito as f64 / total as f64),
            doublet_score: (!unscored).then_some(score),
            is_doublet: (!unscored).then_some(score > 0.6),
            // The age of the third donor is not known.
            age: (donor != 2).then_some(23 + 9 * donor as i32),
        }
    }

    fn gene_name(&self, gene: i32) -> String {
        match MITOCHONDRIAL.get(gene as usize) {
            Some(name) if (gene as usize) < mitochondrial_genes(self.options.n_genes) => (*name).to_owned(),
            _ => format!("GENE{gene:05}"),
        }
    }

    fn gene_table(&self, names: &[String]) -> RecordBatch {
        let ids = self.order.iter().map(|gene| Some(format!("SYNG{gene:011}")));
        let mitochondrial = self
            .order
            .iter()
            .map(|&gene| Some(self.gene_name(gene).starts_with("MT-")));
        let columns = [
            ("gene_id", "unicode", "object"),
            ("mt", "bool", "bool"),
            ("gene_name", "unicode", "object"),
        ];
        let pandas = json!({
            "index_columns": ["gene_name"],
            "column_indexes": [],
            "columns": columns.map(|(name, pandas, numpy)| json!({
                "name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": null,
            })),
            "creator": {"library": "dcfs", "version": env!("CARGO_PKG_VERSION")},
            "pandas_version": "2.0.0",
        });
        let schema = Schema::new_with_metadata(
            vec![
                Field::new("gene_id", DataType::Utf8, true),
                Field::new("mt", DataType::Boolean, true),
                Field::new("gene_name", DataType::Utf8, true),
            ],
            HashMap::from([("pandas".to_owned(), pandas.to_string())]),
        );
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(ids.collect::<StringArray>()),
            Arc::new(mitochondrial.collect::<BooleanArray>()),
            Arc::new(names.iter().map(Some).collect::<StringArray>()),
        ];
        RecordBatch::try_new(Arc::new(schema), arrays).expect("the columns have a value for each gene")
    }
}

/// The values of one cell in obs.
struct ObsRow {
    name: String,
    cell_type: i16,
    donor: i8,
    total: i64,
    genes: i32,
    percent_mito: Option<f64>,
    doublet_score: Option<f32>,
    is_doublet: Option<bool>,
    age: Option<i32>,
}

fn check(options: &SyntheticOptions) -> Result<(), WriteError> {
    let most_nnz = (u64::from(options.n_genes) * 9).div_ceil(10);
    for (option, found, most) in [
        ("n_cells", options.n_cells, i64::MAX as u64 / 16),
        ("n_genes", options.n_genes.into(), 1 << 31),
        ("tile_size", options.tile_size, i64::MAX as u64 / 16),
        ("mean_nnz_per_cell", options.mean_nnz_per_cell.into(), most_nnz),
        ("clusters", options.clusters.into(), 1000),
    ] {
        if !(1..=most).contains(&found) {
            return Err(WriteError::Option {
                option,
                found: i64::try_from(found).unwrap_or(i64::MAX),
                expected: format!("1 to {most}"),
            });
        }
    }
    Ok(())
}

/// How many of the source's first genes are mitochondrial: none where they would be most of them.
fn mitochondrial_genes(n_genes: u32) -> usize {
    if n_genes >= 200 { MITOCHONDRIAL.len() } else { 0 }
}

/// The factor from weights to means with which cells have `nnz` nonzeros on average.
fn scale_for(weights: &[Vec<f32>], nnz: u32) -> f32 {
    // Eighths of the normal distribution: depth bends the number of nonzeros, so its spread matters.
    let depths = [-1.53, -0.89, -0.49, -0.16, 0.16, 0.49, 0.89, 1.53].map(|z| exp(SPREAD_OF_DEPTHS * z));
    let shares = cluster_shares(weights.len());
    let expected = |scale: f32| -> f64 {
        let of_depth = |weights: &[f32], depth: f32| -> f64 {
            let nonzero = |&weight: &f32| {
                let q = failure(weight * scale * depth);
                1.0 - f64::from(q * q)
            };
            weights.iter().map(nonzero).sum()
        };
        let of_cluster = |weights: &Vec<f32>| {
            let sum: f64 = depths.iter().map(|&depth| of_depth(weights, depth)).sum();
            sum / depths.len() as f64
        };
        let of_clusters: Vec<f64> = weights.par_iter().map(of_cluster).collect();
        of_clusters.iter().zip(&shares).map(|(nnz, share)| nnz * share).sum()
    };
    let (mut low, mut high) = (0.0_f32, 1.0_f32);
    // Where no scale is enough, 2^20 is as good as any.
    while expected(high) < nnz.into() && high < 1_048_576.0 {
        (low, high) = (high, high * 2.0);
    }
    for _ in 0..20 {
        let middle = (low + high) / 2.0;
        if expected(middle) < nnz.into() {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The share of cells that each cluster has: the smaller of two even draws.
fn cluster_shares(clusters: usize) -> Vec<f64> {
    let n = clusters as f64;
    (0..clusters)
        .map(|cluster| (2.0 * (n - cluster as f64) - 1.0) / (n * n))
        .collect()
}

/// The genes by decreasing expected total over all cells, the first of equals first.
fn by_expected_total(weights: &[Vec<f32>]) -> Vec<i32> {
    let shares = cluster_shares(weights.len());
    let total = |gene: usize| -> f64 {
        let of_clusters = weights.iter().zip(&shares);
        of_clusters
            .map(|(weights, share)| f64::from(weights[gene]) * share)
            .sum()
    };
    let totals: Vec<f64> = (0..weights[0].len()).map(total).collect();
    let mut order: Vec<i32> = (0..totals.len()).map(|gene| gene as i32).collect();
    order.sort_by(|&a, &b| totals[b as usize].total_cmp(&totals[a as usize]));
    order
}

/// A name like those of sequencing barcodes: another for each cell.
fn barcode(cell: u64, seed: u64) -> String {
    // A bijection of 32 bits: multiplying by odd numbers and folding can be undone.
    let mut word = (cell as u32) ^ (mix(seed) as u32);
    for factor in [0x85eb_ca6b_u32, 0xc2b2_ae35] {
        word = (word ^ (word >> 16)).wrapping_mul(factor);
    }
    word ^= word >> 16;
    let bases = (0..16).map(|place| ['A', 'C', 'G', 'T'][(word >> (2 * place)) as usize & 3]);
    format!("{}-{}", bases.collect::<String>(), (cell >> 32) + 1)
}

/// The finaliser of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The upper 24 bits as a number from 0 up to but not including 1.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / 16_777_216.0
}

/// Nearly normal with mean 0 and deviation 1: the sum of twelve even draws.
fn normal(rng: &mut Xoshiro256PlusPlus) -> f32 {
    (0..12).map(|_| unit(rng.next_u64())).sum::<f32>() - 6.0
}

/// Nearly the exponential function, from multiplications alone.
fn exp(x: f32) -> f32 {
    (0..10).fold(1.0 + x / 1024.0, |power, _| power * power)
}

/// The negative binomial's failure probability; to the power of `SHAPE` that of a zero.
fn failure(mean: f32) -> f32 {
    SHAPE / (SHAPE + mean)
}

/// The negative binomial count, at least 1, at which the distribution passes `chance`.
fn count(chance: f32, mean: f32) -> i32 {
    let q = f64::from(failure(mean));
    let (chance, mean) = (f64::from(chance), f64::from(mean));
    let mut probability = q * q;
    let mut sum = probability;
    let mut count = 0.0;
    loop {
        count += 1.0;
        probability *= (1.0 - q) * (count + 1.0) / count;
        sum += probability;
        // Past the mean probabilities fall, and below this no chance of 24 bits tells them apart.
        if chance < sum || (count > mean && probability < 1e-9) {
            return count as i32;
        }
    }
}
