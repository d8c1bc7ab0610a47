//! Count matrices in HDF5: compressed rows, compressed columns, dense. Knows neither names nor what else a file holds.

use std::ops::Range;
use std::sync::mpsc::sync_channel;

use super::error::{ConvertError, Result};
use super::hdf5::{H5Dataset, NotACount};
use super::regroup::Regroup;
use super::source::{MatrixError, Reading, RowBlock, Scan};

/// Entries that are read at a time for each thread, at least, and at most.
const WINDOW_ENTRIES: [u64; 3] = [1 << 18, 1 << 19, 1 << 22];
/// Offsets that are read at a time.
const WINDOW_OFFSETS: u64 = 1 << 17;
/// A band of chunks that covers all columns may have this many bytes; larger ones are regrouped chunk by chunk.
const MAX_BAND_BYTES: u64 = 128 << 20;
/// A row may have more entries than there are genes only up to this many: they are duplicates then.
const MAX_ROW_ENTRIES: u64 = 1 << 20;

/// Entries that are read at a time: so many that every thread has something to decode, and no more, since what stays in
/// a processor's cache is faster to work on.
fn window_entries(reading: &Reading) -> u64 {
    let [each, least, most] = WINDOW_ENTRIES;
    (each * reading.threads as u64).clamp(least, most)
}

/// A matrix of cells by genes.
pub(crate) struct Matrix {
    n_cells: u64,
    n_genes: u32,
    form: Form,
}

enum Form {
    /// Entries by cell.
    Rows(Sparse),
    /// Entries by gene.
    Columns(Sparse),
    Dense(H5Dataset),
}

/// A compressed matrix. The *major* dimension is the one that its offsets are for.
struct Sparse {
    data: H5Dataset,
    indices: H5Dataset,
    indptr: H5Dataset,
    major: u64,
    minor: u32,
}

/// Consecutive majors with their entries.
struct Window {
    first: u64,
    indptr: Vec<usize>,
    minors: Vec<u32>,
    counts: Vec<u32>,
}

type MatrixResult<T> = std::result::Result<T, MatrixError>;

impl Matrix {
    /// Compressed by cell: `indptr` has one entry more than there are cells.
    pub(crate) fn rows(
        data: H5Dataset,
        indices: H5Dataset,
        indptr: H5Dataset,
        n_cells: u64,
        n_genes: u32,
    ) -> Result<Self> {
        let sparse = Sparse::new(data, indices, indptr, n_cells, n_genes)?;
        Ok(Self {
            n_cells,
            n_genes,
            form: Form::Rows(sparse),
        })
    }

    /// Compressed by gene.
    pub(crate) fn columns(
        data: H5Dataset,
        indices: H5Dataset,
        indptr: H5Dataset,
        n_cells: u64,
        n_genes: u32,
    ) -> Result<Self> {
        let cells = u32::try_from(n_cells).map_err(|_| {
            indptr.fault(format!(
                "{n_cells} cells in one matrix stored by gene are more than 2^32 - 1"
            ))
        })?;
        let sparse = Sparse::new(data, indices, indptr, n_genes.into(), cells)?;
        Ok(Self {
            n_cells,
            n_genes,
            form: Form::Columns(sparse),
        })
    }

    /// Not compressed: cells are rows.
    pub(crate) fn dense(data: H5Dataset) -> Result<Self> {
        let &[n_cells, n_genes] = data.shape() else {
            return Err(data.fault(format!("has the shape {:?}, expected cells by genes", data.shape())));
        };
        let n_genes =
            u32::try_from(n_genes).map_err(|_| data.fault(format!("has {n_genes} genes, expected at most 2^31")))?;
        data.number()?;
        Ok(Self {
            n_cells,
            n_genes,
            form: Form::Dense(data),
        })
    }

    /// Cells.
    pub(crate) fn n_cells(&self) -> u64 {
        self.n_cells
    }

    /// Genes.
    pub(crate) fn n_genes(&self) -> u32 {
        self.n_genes
    }

    /// Stored entries, where the matrix stores entries.
    pub(crate) fn entries(&self) -> Option<u64> {
        match &self.form {
            Form::Rows(sparse) | Form::Columns(sparse) => Some(sparse.data.rows()),
            Form::Dense(_) => None,
        }
    }

    /// See [`Source::spilled_bytes`](super::source::Source::spilled_bytes).
    pub(crate) fn spilled_bytes(&self) -> u64 {
        match &self.form {
            Form::Rows(_) => 0,
            Form::Columns(sparse) => Regroup::spilled_bytes(sparse.data.rows()),
            Form::Dense(data) if is_banded(data) => 0,
            Form::Dense(_) => Regroup::spilled_bytes(self.likely_nonzeros()),
        }
    }

    /// Of a dense matrix: at most a tenth of the values of count data are not zero, as a rule.
    fn likely_nonzeros(&self) -> u64 {
        self.n_cells.saturating_mul(self.n_genes.into()) / 10
    }

    /// See [`Source::scan`](super::source::Source::scan).
    pub(crate) fn scan(&self, reading: &Reading) -> MatrixResult<Scan> {
        let mut scan = Scan::new(self.n_genes as usize);
        match &self.form {
            Form::Rows(sparse) => ahead(sparse.windows(reading, Majors::Parts), |windows| {
                for window in windows {
                    let window = window.map_err(|bad| bad.by_cell())?;
                    reading.tick(window.counts.len() as u64)?;
                    for (&gene, &count) in window.minors.iter().zip(&window.counts) {
                        scan.add(gene, count);
                    }
                }
                MatrixResult::Ok(())
            })?,
            Form::Columns(sparse) => {
                for window in sparse.windows(reading, Majors::Parts) {
                    let window = window.map_err(|bad| bad.by_gene())?;
                    reading.tick(window.counts.len() as u64)?;
                    for (gene, range) in window.indptr.windows(2).enumerate() {
                        let counts = &window.counts[range[0]..range[1]];
                        let gene = window.first as usize + gene;
                        scan.totals[gene] += counts.iter().map(|&count| u64::from(count)).sum::<u64>();
                        scan.nonzeros[gene] += counts.iter().filter(|&&count| count != 0).count() as u64;
                    }
                }
            }
            Form::Dense(data) => {
                for window in dense_windows(data, reading) {
                    let block = dense_block(data, &window, reading)?;
                    reading.tick(block.len() as u64)?;
                    let width = (window.columns.end - window.columns.start) as usize;
                    let columns = window.columns.start as usize..window.columns.end as usize;
                    let (totals, nonzeros) = (&mut scan.totals[columns.clone()], &mut scan.nonzeros[columns]);
                    for row in block.chunks_exact(width.max(1)) {
                        for ((total, nonzeros), &count) in totals.iter_mut().zip(nonzeros.iter_mut()).zip(row) {
                            *total += u64::from(count);
                            *nonzeros += u64::from(count != 0);
                        }
                    }
                }
            }
        }
        Ok(scan)
    }

    /// See [`Source::rows`](super::source::Source::rows).
    pub(crate) fn blocks<'a>(
        &'a self,
        reading: &Reading,
    ) -> MatrixResult<Box<dyn Iterator<Item = MatrixResult<RowBlock>> + Send + 'a>> {
        match &self.form {
            Form::Rows(sparse) => Ok(Box::new(sparse.windows(reading, Majors::Whole).map(|window| {
                let window = window.map_err(|bad| bad.by_cell())?;
                RowBlock::new(window.first, window.indptr, window.minors, window.counts)
            }))),
            Form::Columns(sparse) => {
                let mut regroup = Regroup::new(self.n_cells, sparse.data.rows(), &reading.scratch)?;
                for window in sparse.windows(reading, Majors::Parts) {
                    let window = window.map_err(|bad| bad.by_gene())?;
                    reading.tick(0)?;
                    for (gene, range) in window.indptr.windows(2).enumerate() {
                        let gene = (window.first as usize + gene) as u32;
                        for at in range[0]..range[1] {
                            regroup.push(window.minors[at].into(), gene, window.counts[at])?;
                        }
                    }
                }
                Ok(Box::new(regroup.finish()))
            }
            Form::Dense(data) if is_banded(data) => {
                let reading = reading.clone();
                Ok(Box::new(dense_windows(data, &reading).into_iter().map(move |window| {
                    let block = dense_block(data, &window, &reading)?;
                    Ok(compress(
                        window.rows.start,
                        &block,
                        self.n_genes as usize,
                        window.cells(),
                    ))
                })))
            }
            Form::Dense(data) => {
                // Buckets only grow if there are more.
                let mut regroup = Regroup::new(self.n_cells, self.likely_nonzeros(), &reading.scratch)?;
                for window in dense_windows(data, reading) {
                    let block = dense_block(data, &window, reading)?;
                    reading.tick(0)?;
                    let width = (window.columns.end - window.columns.start) as usize;
                    for (row, counts) in block.chunks_exact(width.max(1)).enumerate() {
                        for (column, &count) in counts.iter().enumerate().filter(|&(_, &count)| count != 0) {
                            regroup.push(
                                window.rows.start + row as u64,
                                window.columns.start as u32 + column as u32,
                                count,
                            )?;
                        }
                    }
                }
                Ok(Box::new(regroup.finish()))
            }
        }
    }
}

/// Has another thread take from `items`, one ahead of `each`, which takes them all.
fn ahead<I, R>(items: I, each: impl FnOnce(std::sync::mpsc::IntoIter<I::Item>) -> R) -> R
where
    I: Iterator + Send,
    I::Item: Send,
{
    let (send, receive) = sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for item in items {
                // Nobody receives any more after a failure.
                if send.send(item).is_err() {
                    return;
                }
            }
        });
        // The receiver moves in, so that it is gone, and the sender stops, before the scope waits for it.
        each(receive.into_iter())
    })
}

/// A window that cannot be read, in terms of major and minor.
enum BadWindow {
    Count { major: u64, minor: u32, bad: NotACount },
    Other(ConvertError),
}

impl From<ConvertError> for BadWindow {
    fn from(error: ConvertError) -> Self {
        Self::Other(error)
    }
}

impl BadWindow {
    fn by_cell(self) -> MatrixError {
        match self {
            Self::Count { major, minor, bad } => MatrixError::Count {
                cell: major,
                gene: minor,
                value: bad.value,
                why: bad.why,
            },
            Self::Other(error) => MatrixError::Other(error),
        }
    }

    fn by_gene(self) -> MatrixError {
        match self {
            Self::Count { major, minor, bad } => MatrixError::Count {
                cell: minor.into(),
                gene: major as u32,
                value: bad.value,
                why: bad.why,
            },
            Self::Other(error) => MatrixError::Other(error),
        }
    }
}

impl Sparse {
    fn new(data: H5Dataset, indices: H5Dataset, indptr: H5Dataset, major: u64, minor: u32) -> Result<Self> {
        for part in [&data, &indices, &indptr] {
            if part.shape().len() != 1 {
                return Err(part.fault(format!("has the shape {:?}, expected one dimension", part.shape())));
            }
            part.number()?;
        }
        if indptr.rows().checked_sub(1) != Some(major) {
            return Err(indptr.fault(format!("has {} entries, expected {}", indptr.rows(), major + 1)));
        }
        if indices.rows() != data.rows() {
            return Err(indices.fault(format!(
                "has {} entries, expected {} as data has",
                indices.rows(),
                data.rows()
            )));
        }
        let (first, last) = (indptr.offsets(0..1)?[0], indptr.offsets(major..major + 1)?[0]);
        if first != 0 || last != data.rows() {
            return Err(indptr.fault(format!(
                "runs from {first} to {last}, expected 0 to {}, the entries of data",
                data.rows()
            )));
        }
        Ok(Self {
            data,
            indices,
            indptr,
            major,
            minor,
        })
    }

    fn windows<'a>(
        &'a self,
        reading: &Reading,
        majors: Majors,
    ) -> impl Iterator<Item = std::result::Result<Window, BadWindow>> + Send + 'a {
        let threads = reading.threads;
        let mut offsets = Offsets {
            sparse: self,
            majors,
            entries: window_entries(reading),
            first: 0,
            known: Vec::new(),
        };
        let mut done = false;
        std::iter::from_fn(move || {
            if done {
                return None;
            }
            let window = offsets.next_window().map_err(BadWindow::from);
            let window = match window {
                Ok(None) => None,
                Ok(Some((first, offsets))) => Some(self.window(first, &offsets, threads)),
                Err(error) => Some(Err(error)),
            };
            done = !matches!(window, Some(Ok(_)));
            window
        })
    }

    fn window(&self, first: u64, offsets: &[u64], threads: usize) -> std::result::Result<Window, BadWindow> {
        let (from, to) = (offsets[0], offsets[offsets.len() - 1]);
        let indptr: Vec<usize> = offsets.iter().map(|&offset| (offset - from) as usize).collect();
        // Each of the two decodes on half of the threads.
        let threads = threads.div_ceil(2);
        let (counts, minors) = std::thread::scope(|scope| {
            let counts = scope.spawn(|| self.read_counts(from..to, threads));
            let minors = self.read_minors(from..to, threads);
            (counts.join(), minors)
        });
        let counts = counts.map_err(|_| self.data.fault("reading failed"))??;
        let minors = minors?;
        let counts = counts.map_err(|bad| BadWindow::Count {
            major: first + (indptr.partition_point(|&start| start <= bad.index) as u64 - 1),
            minor: minors[bad.index],
            bad,
        })?;
        Ok(Window {
            first,
            indptr,
            minors,
            counts,
        })
    }

    fn read_counts(&self, entries: Range<u64>, threads: usize) -> Result<std::result::Result<Vec<u32>, NotACount>> {
        let bytes = self.data.read(entries, threads)?;
        let mut counts = Vec::new();
        let counted = self.data.number()?.counts(&bytes, &mut counts);
        Ok(counted.map(|()| counts))
    }

    fn read_minors(&self, entries: Range<u64>, threads: usize) -> Result<Vec<u32>> {
        let bytes = self.indices.read(entries.clone(), threads)?;
        let mut minors = Vec::new();
        let number = self.indices.number()?;
        number
            .indices(&bytes, self.minor, &mut minors)
            .map_err(|(index, value)| {
                let entry = entries.start + index as u64;
                self.indices.fault(format!(
                    "entry {entry} is {value}, expected 0 to {}",
                    i64::from(self.minor) - 1
                ))
            })?;
        Ok(minors)
    }
}

/// What a window holds of a major that has more entries than a window should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Majors {
    /// All of it.
    Whole,
    /// A part: the next window begins with the same major.
    Parts,
}

/// Goes through the offsets of a compressed matrix.
struct Offsets<'a> {
    sparse: &'a Sparse,
    majors: Majors,
    /// About as many as a window should have.
    entries: u64,
    /// The major that `known` begins with.
    first: u64,
    /// Offsets read and not yet used; the first is where the next window begins.
    known: Vec<u64>,
}

impl Offsets<'_> {
    /// The next majors with about as many entries: the first, and the offsets of all and of their end.
    fn next_window(&mut self) -> Result<Option<(u64, Vec<u64>)>> {
        let sparse = self.sparse;
        if self.first >= sparse.major {
            return Ok(None);
        }
        if self.known.len() < 2 {
            let end = (self.first + WINDOW_OFFSETS).min(sparse.major) + 1;
            self.known = sparse.indptr.offsets(self.first..end)?;
            self.check()?;
        }
        let begin = self.known[0];
        if self.majors == Majors::Parts && self.known[1] - begin > self.entries {
            self.known[0] = begin + self.entries;
            return Ok(Some((self.first, vec![begin, begin + self.entries])));
        }
        // At least one, however many entries it has.
        let taken = self.known[1..]
            .partition_point(|&end| end - begin <= self.entries)
            .max(1);
        let window = self.known[..=taken].to_vec();
        let first = self.first;
        self.known.drain(..taken);
        self.first += taken as u64;
        Ok(Some((first, window)))
    }

    fn check(&self) -> Result<()> {
        let most = MAX_ROW_ENTRIES.max(self.sparse.minor.into());
        for (index, pair) in self.known.windows(2).enumerate() {
            let place = self.first + index as u64;
            if pair[1] < pair[0] || pair[1] > self.sparse.data.rows() {
                return Err(self.sparse.indptr.fault(format!(
                    "entry {} is {}, expected {} to {}",
                    place + 1,
                    pair[1],
                    pair[0],
                    self.sparse.data.rows()
                )));
            }
            if pair[1] - pair[0] > most {
                return Err(self.sparse.indptr.fault(format!(
                    "says that row {place} has {} entries, which is more than {most}",
                    pair[1] - pair[0]
                )));
            }
        }
        Ok(())
    }
}

/// A block of a dense matrix.
struct DenseWindow {
    rows: Range<u64>,
    columns: Range<u64>,
}

impl DenseWindow {
    fn cells(&self) -> usize {
        (self.rows.end - self.rows.start) as usize
    }
}

/// Whether the chunks beside each other are small enough to be read together.
fn is_banded(data: &H5Dataset) -> bool {
    data.chunk().is_none_or(|(rows, _)| {
        rows.saturating_mul(data.columns())
            .saturating_mul(data.element_bytes() as u64)
            <= MAX_BAND_BYTES
    })
}

/// Windows that cover the matrix: of whole rows, or of single chunks column by column.
fn dense_windows(data: &H5Dataset, reading: &Reading) -> Vec<DenseWindow> {
    let (rows, columns) = (data.rows(), data.columns());
    let steps = |end: u64, step: u64| {
        (0..end)
            .step_by(step.max(1) as usize)
            .map(move |at| at..(at + step).min(end))
    };
    match data.chunk() {
        Some((chunk_rows, chunk_columns)) if !is_banded(data) => steps(columns, chunk_columns)
            .flat_map(|columns| {
                steps(rows, chunk_rows).map(move |rows| DenseWindow {
                    rows,
                    columns: columns.clone(),
                })
            })
            .collect(),
        chunk => {
            let wanted = (window_entries(reading) / columns.max(1)).max(1);
            // Whole bands, so that no chunk is needed for two windows.
            let band = chunk.map_or(1, |(rows, _)| rows);
            let step = (wanted / band).max(1) * band;
            let whole = |rows| DenseWindow {
                rows,
                columns: 0..columns,
            };
            steps(rows, step).map(whole).collect()
        }
    }
}

fn dense_block(data: &H5Dataset, window: &DenseWindow, reading: &Reading) -> MatrixResult<Vec<u32>> {
    let bytes = data.read_block(window.rows.clone(), window.columns.clone(), reading.threads)?;
    let width = window.columns.end - window.columns.start;
    let mut counts = Vec::new();
    data.number()?
        .counts(&bytes, &mut counts)
        .map_err(|bad| MatrixError::Count {
            cell: window.rows.start + bad.index as u64 / width,
            gene: (window.columns.start + bad.index as u64 % width) as u32,
            value: bad.value,
            why: bad.why,
        })?;
    Ok(counts)
}

fn compress(first: u64, dense: &[u32], n_genes: usize, cells: usize) -> RowBlock {
    let mut block = RowBlock {
        first,
        indptr: Vec::with_capacity(cells + 1),
        ..RowBlock::default()
    };
    block.indptr.push(0);
    for cell in 0..cells {
        for (gene, &count) in dense[cell * n_genes..(cell + 1) * n_genes].iter().enumerate() {
            if count != 0 {
                block.genes.push(gene as u32);
                block.counts.push(count);
            }
        }
        block.indptr.push(block.genes.len());
    }
    block
}
