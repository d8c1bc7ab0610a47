//! The inputs that are measured, made cell block by cell block and kept in the target folder from one run to the next.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use dcfs::write::synthetic::{Csr, Synthetic, SyntheticOptions};
use flate2::Compression;
use flate2::write::GzEncoder;
use hdf5_pure::{AttrValue, FileAccessProperties, FileBuilder, MaxExtent, SyncPolicy};

use crate::Result;
use crate::folder::Folder;

/// Cells that are made up; more are these again.
const DISTINCT_CELLS: u64 = 20_000;
/// Cells that are written at a time.
const BLOCK_CELLS: u64 = 5_000;
/// Elements of a chunk, about as h5py chooses.
const CHUNK: u64 = 1 << 16;

/// What an input holds.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub cells: u64,
    pub genes: u32,
    pub mean_nonzeros: u32,
}

impl Shape {
    fn name(self, kind: &str) -> String {
        format!("convert-{}x{}x{}.{kind}", self.cells, self.genes, self.mean_nonzeros)
    }
}

impl Folder {
    /// An empty place for a dataset.
    pub fn output(&self) -> Result<PathBuf> {
        let path = self.join("converted");
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        Ok(path)
    }

    /// An AnnData file, compressed with gzip or not at all.
    pub fn h5ad(&self, shape: Shape, gzip: bool) -> Result<PathBuf> {
        let kind = if gzip { "gzip.h5ad" } else { "h5ad" };
        self.make(&shape.name(kind), |path| write_h5ad(shape, gzip, path))
    }

    /// A MatrixMarket folder, compressed with gzip.
    pub fn mtx(&self, shape: Shape) -> Result<PathBuf> {
        self.make(&shape.name("mtx"), |path| write_mtx(shape, path))
    }

    fn make(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let (whole, partial) = (self.join(name), self.join(format!("{name}.partial")));
        if whole.exists() {
            return Ok(whole);
        }
        eprintln!("making {} (once)", whole.display());
        if partial.is_dir() {
            fs::remove_dir_all(&partial)?;
        }
        fill(&partial)?;
        fs::rename(&partial, &whole)?;
        Ok(whole)
    }
}

/// Calls `take` with blocks of cells, whose genes are in no particular order of their totals, as genes are in inputs.
fn for_each_block(shape: Shape, mut take: impl FnMut(u64, &Csr) -> Result<()>) -> Result<()> {
    let synthetic = Synthetic::new(SyntheticOptions {
        n_cells: DISTINCT_CELLS.min(shape.cells),
        n_genes: shape.genes,
        mean_nnz_per_cell: shape.mean_nonzeros,
        ..SyntheticOptions::default()
    })?;
    let order = synthetic.genes().order.unwrap_or_default();
    let mut made: Vec<Csr> = Vec::new();
    for (block, first) in (0..shape.cells).step_by(BLOCK_CELLS as usize).enumerate() {
        let cells = BLOCK_CELLS.min(shape.cells - first);
        let distinct = (DISTINCT_CELLS / BLOCK_CELLS) as usize;
        if block < distinct {
            let mut csr = synthetic.cells(first..first + cells);
            for row in csr.indptr.windows(2) {
                let row = row[0] as usize..row[1] as usize;
                let mut entries: Vec<(i32, i32)> = csr.indices[row.clone()]
                    .iter()
                    .map(|&column| order[column as usize])
                    .zip(csr.counts[row.clone()].iter().copied())
                    .collect();
                entries.sort_unstable();
                for (at, (gene, count)) in row.zip(entries) {
                    (csr.indices[at], csr.counts[at]) = (gene, count);
                }
            }
            made.push(csr);
        }
        let mut csr = made[block % distinct].clone();
        csr.indptr.truncate(cells as usize + 1);
        take(first, &csr)?;
    }
    Ok(())
}

fn write_h5ad(shape: Shape, gzip: bool, path: &Path) -> Result<()> {
    let text = |text: &str| AttrValue::AsciiString(text.into());
    let names = |prefix: &str, n: u64| -> Vec<String> { (0..n).map(|i| format!("{prefix}{i:08}")).collect() };
    let mut file = FileBuilder::new();
    let mut x = file.create_group("X");
    x.set_attr("encoding-type", text("csr_matrix"));
    x.set_attr(
        "shape",
        AttrValue::I64Array(vec![shape.cells as i64, shape.genes.into()]),
    );
    for part in ["data", "indices", "indptr"] {
        let dataset = x.create_dataset(part);
        match part {
            "data" => dataset.with_f32_data(&[]),
            "indices" => dataset.with_i32_data(&[]),
            _ => dataset.with_i64_data(&[]),
        };
        dataset.with_shape(&[0]).with_maxshape(&[MaxExtent::Unlimited]);
        dataset.with_chunks(&[CHUNK]);
        if gzip {
            dataset.with_deflate(4);
        }
    }
    file.add_group(x.finish());
    for (frame, prefix, rows) in [("obs", "cell", shape.cells), ("var", "gene", shape.genes.into())] {
        let mut group = file.create_group(frame);
        group.set_attr("_index", text("_index"));
        group.set_attr("encoding-type", text("dataframe"));
        let names = names(prefix, rows);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        group.create_dataset("_index").with_strings(&names)?;
        if frame == "obs" {
            group.set_attr("column-order", AttrValue::AsciiStringArray(vec!["n_counts".into()]));
            let numbers: Vec<f64> = (0..rows).map(|row| row as f64 / 8.0).collect();
            group.create_dataset("n_counts").with_f64_data(&numbers);
        }
        file.add_group(group.finish());
    }
    file.write(path)?;
    let access = FileAccessProperties::new().with_sync_policy(SyncPolicy::OnClose);
    let file = hdf5_pure::File::open_rw_with_options(path, access)?;
    let mut open = ["data", "indices", "indptr"].map(|part| file.dataset(&format!("X/{part}")));
    let [Ok(data), Ok(indices), Ok(indptr)] = &mut open else {
        return Err("the datasets of X cannot be opened".into());
    };
    let (mut data, mut indices, mut indptr) = (
        data.buffered_appender()?,
        indices.buffered_appender()?,
        indptr.buffered_appender()?,
    );
    let mut end = 0;
    indptr.append(&[0_i64])?;
    for_each_block(shape, |_, csr| {
        let nonzeros = csr.indptr.last().map_or(0, |&end| end as usize);
        let counts: Vec<f32> = csr.counts[..nonzeros].iter().map(|&count| count as f32).collect();
        data.append(&counts)?;
        indices.append(&csr.indices[..nonzeros])?;
        let ends: Vec<i64> = csr.indptr[1..].iter().map(|start| start + end).collect();
        indptr.append(&ends)?;
        end += nonzeros as i64;
        Ok(())
    })?;
    data.finish()?;
    indices.finish()?;
    Ok(indptr.finish()?)
}

fn write_mtx(shape: Shape, path: &Path) -> Result<()> {
    fs::create_dir_all(path)?;
    let gz = |name: &str| -> Result<_> {
        let file = BufWriter::new(File::create(path.join(name))?);
        Ok(BufWriter::new(GzEncoder::new(file, Compression::new(6))))
    };
    let mut entries = 0;
    for_each_block(shape, |_, csr| {
        entries += csr.indptr.last().copied().unwrap_or(0);
        Ok(())
    })?;
    let mut matrix = gz("matrix.mtx.gz")?;
    writeln!(matrix, "%%MatrixMarket matrix coordinate integer general")?;
    writeln!(matrix, "{} {} {entries}", shape.genes, shape.cells)?;
    for_each_block(shape, |first, csr| {
        for (row, range) in csr.indptr.windows(2).enumerate() {
            for at in range[0] as usize..range[1] as usize {
                let (gene, cell) = (csr.indices[at] + 1, first + row as u64 + 1);
                writeln!(matrix, "{gene} {cell} {}", csr.counts[at])?;
            }
        }
        Ok(())
    })?;
    matrix.into_inner()?.finish()?.flush()?;
    let mut features = gz("features.tsv.gz")?;
    for gene in 0..shape.genes {
        writeln!(features, "ENSG{gene:08}\tgene{gene}\tGene Expression")?;
    }
    features.into_inner()?.finish()?.flush()?;
    let mut barcodes = gz("barcodes.tsv.gz")?;
    for cell in 0..shape.cells {
        writeln!(barcodes, "cell{cell}")?;
    }
    barcodes.into_inner()?.finish()?.flush()?;
    Ok(())
}
