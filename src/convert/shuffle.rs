//! Cells in random order, in bounded memory.
//!
//! Each cell goes to a random bucket, in one temporary file without a name; then the buckets follow each other, each
//! in random order. Every order of all cells is equally likely, and the order depends on the seed, the number of cells
//! and that of buckets alone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::error::{ConvertError, Result};
use super::regroup::unnamed_file;
use super::renumber::Rows;

/// Nonzeros that a bucket should hold.
const BUCKET_NONZEROS: u64 = 8 << 20;
/// Buckets at most; beyond it buckets grow.
pub(crate) const MAX_BUCKETS: u64 = 1024;
/// Bytes of counts that a bucket collects before they are written.
const BUFFER_BYTES: usize = 64 << 10;
/// Rows of obs that a bucket collects before they are written.
const BUFFER_ROWS: usize = 1024;

/// Collects cells and gives them back in random order.
pub(crate) struct Shuffle {
    seed: u64,
    random: Xoshiro256PlusPlus,
    buckets: Vec<Bucket>,
    folder: PathBuf,
    spill: File,
    end: u64,
}

#[derive(Default)]
struct Bucket {
    /// Cells as their number of nonzeros, genes and counts.
    cells: Vec<u8>,
    obs: Vec<RecordBatch>,
    obs_rows: usize,
    written_cells: Vec<(u64, usize)>,
    written_obs: Vec<(u64, usize)>,
}

/// A number below `n` from a random one, as good as evenly.
fn below(random: u64, n: usize) -> usize {
    ((u128::from(random) * n as u128) >> 64) as usize
}

/// Buckets for cells with about this many nonzeros.
pub(crate) fn buckets(nonzeros: u64) -> u64 {
    nonzeros.div_ceil(BUCKET_NONZEROS).clamp(1, MAX_BUCKETS)
}

impl Shuffle {
    /// With as many buckets as [`buckets`] has it; spills into the folder `scratch`.
    pub(crate) fn new(seed: u64, buckets: u64, scratch: &Path) -> Result<Self> {
        Ok(Self {
            seed,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            folder: scratch.to_path_buf(),
            spill: unnamed_file(scratch)?,
            end: 0,
        })
    }

    /// Adds cells with their rows of obs.
    pub(crate) fn push(&mut self, rows: &Rows, obs: &RecordBatch) -> Result<()> {
        let mut chosen: Vec<Vec<u32>> = vec![Vec::new(); self.buckets.len()];
        for cell in 0..rows.n_cells() {
            let at = below(self.random.next_u64(), self.buckets.len());
            chosen[at].push(cell as u32);
            let entries = rows.indptr[cell] as usize..rows.indptr[cell + 1] as usize;
            let bucket = &mut self.buckets[at];
            bucket.cells.extend((entries.len() as u32).to_le_bytes());
            for part in [&rows.genes[entries.clone()], &rows.counts[entries]] {
                bucket.cells.extend(part.iter().flat_map(|number| number.to_le_bytes()));
            }
            if bucket.cells.len() >= BUFFER_BYTES {
                let bytes = std::mem::take(&mut bucket.cells);
                let written = self.write(&bytes)?;
                self.buckets[at].written_cells.push(written);
            }
        }
        for (at, cells) in chosen.into_iter().enumerate().filter(|(_, cells)| !cells.is_empty()) {
            let taken = take_record_batch(obs, &UInt32Array::from(cells)).map_err(|error| self.fault(error))?;
            let bucket = &mut self.buckets[at];
            bucket.obs_rows += taken.num_rows();
            bucket.obs.push(taken);
            if bucket.obs_rows >= BUFFER_ROWS {
                let parts = std::mem::take(&mut bucket.obs);
                bucket.obs_rows = 0;
                let bytes = encode(&obs.schema(), &parts).map_err(|error| self.fault(error))?;
                let written = self.write(&bytes)?;
                self.buckets[at].written_obs.push(written);
            }
        }
        Ok(())
    }

    /// The cells of each bucket, which are in random order, with their rows of obs.
    pub(crate) fn finish(mut self, schema: &SchemaRef) -> impl Iterator<Item = Result<(Rows, RecordBatch)>> {
        let buckets = std::mem::take(&mut self.buckets);
        let schema = schema.clone();
        buckets
            .into_iter()
            .enumerate()
            .map(move |(at, bucket)| self.bucket(at as u64, bucket, &schema))
    }

    fn bucket(&self, number: u64, bucket: Bucket, schema: &SchemaRef) -> Result<(Rows, RecordBatch)> {
        let mut bytes = Vec::new();
        for &place in &bucket.written_cells {
            bytes.extend(self.read(place)?);
        }
        bytes.extend(bucket.cells);
        let mut obs = Vec::new();
        for &place in &bucket.written_obs {
            let stored = self.read(place)?;
            for part in StreamReader::try_new(stored.as_slice(), None).map_err(|error| self.fault(error))? {
                obs.push(part.map_err(|error| self.fault(error))?);
            }
        }
        obs.extend(bucket.obs);
        let obs = concat_batches(schema, &obs).map_err(|error| self.fault(error))?;
        let mut starts = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            starts.push(at);
            at += 4 + 8 * number_at(&bytes, at) as usize;
        }
        let order = permutation(starts.len(), self.seed, number);
        let mut rows = Rows {
            indptr: vec![0],
            ..Rows::default()
        };
        for &cell in &order {
            let start = starts[cell as usize];
            let length = number_at(&bytes, start) as usize;
            let numbers = |from: usize| bytes[from..from + 4 * length].chunks_exact(4).map(|b| number_at(b, 0));
            rows.genes.extend(numbers(start + 4));
            rows.counts.extend(numbers(start + 4 + 4 * length));
            rows.indptr.push(rows.genes.len() as i64);
        }
        let obs = take_record_batch(&obs, &UInt32Array::from(order)).map_err(|error| self.fault(error))?;
        Ok((rows, obs))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(u64, usize)> {
        let at = self.end;
        self.spill
            .write_all_at(bytes, at)
            .map_err(ConvertError::io(&self.folder, "write a temporary file in"))?;
        self.end += bytes.len() as u64;
        Ok((at, bytes.len()))
    }

    fn read(&self, (at, length): (u64, usize)) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.spill
            .read_exact_at(&mut bytes, at)
            .map_err(ConvertError::io(&self.folder, "read a temporary file in"))?;
        Ok(bytes)
    }

    fn fault(&self, error: arrow::error::ArrowError) -> ConvertError {
        ConvertError::input(&self.folder, "temporary file", error.to_string())
    }
}

fn number_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Fisher and Yates' shuffle of `0..n`.
fn permutation(n: usize, seed: u64, bucket: u64) -> Vec<u32> {
    // Buckets take their numbers from streams of their own, far from that which chose the buckets.
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ (bucket + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut order: Vec<u32> = (0..n as u32).collect();
    for last in (1..n).rev() {
        order.swap(last, below(random.next_u64(), last + 1));
    }
    order
}

fn encode(schema: &SchemaRef, parts: &[RecordBatch]) -> std::result::Result<Vec<u8>, arrow::error::ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    for part in parts {
        writer.write(part)?;
    }
    writer.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    use arrow::array::{ArrayRef, AsArray, StringArray};
    use arrow::datatypes::Int32Type;
    use std::sync::Arc;

    fn shuffled(seed: u64, buckets: u64, step: usize) -> Vec<(u32, String)> {
        let n = 5000;
        let mut shuffle = Shuffle::new(seed, super::buckets(buckets * BUCKET_NONZEROS), &std::env::temp_dir()).unwrap();
        let mut schema = None;
        for from in (0..n).step_by(step) {
            let cells = from..(from + step).min(n);
            let rows = Rows {
                indptr: (0..=cells.len() as i64).collect(),
                genes: cells.clone().map(|cell| cell as u32).collect(),
                counts: vec![1; cells.len()],
            };
            let names: ArrayRef = Arc::new(
                cells
                    .clone()
                    .map(|cell| Some(cell.to_string()))
                    .collect::<StringArray>(),
            );
            let number: ArrayRef = Arc::new(arrow::array::PrimitiveArray::<Int32Type>::from_iter_values(
                cells.map(|c| c as i32),
            ));
            let obs = RecordBatch::try_from_iter([("name", names), ("number", number)]).unwrap();
            schema = Some(obs.schema());
            shuffle.push(&rows, &obs).unwrap();
        }
        let mut found = Vec::new();
        for bucket in shuffle.finish(&schema.unwrap()) {
            let (rows, obs) = bucket.unwrap();
            let names = obs.column(0).as_string::<i32>();
            found.extend(
                rows.genes
                    .iter()
                    .zip(names)
                    .map(|(&gene, name)| (gene, name.unwrap().to_owned())),
            );
        }
        found
    }

    #[test]
    fn every_cell_comes_once_with_its_own_row_of_obs_in_an_order_that_the_seed_gives() {
        for buckets in [1, 7] {
            let found = shuffled(3, buckets, 1000);
            assert!(found.iter().all(|(gene, name)| gene.to_string() == *name));
            let mut cells: Vec<u32> = found.iter().map(|(gene, _)| *gene).collect();
            assert_ne!(cells, (0..5000).collect::<Vec<_>>());
            cells.sort_unstable();
            assert_eq!(cells, (0..5000).collect::<Vec<_>>());
            assert_eq!(found, shuffled(3, buckets, 77), "however the cells are pushed");
            assert_ne!(found, shuffled(4, buckets, 1000));
        }
    }

    #[test]
    fn cells_go_everywhere() {
        // The mean place of the first thousand cells is near the middle.
        let found = shuffled(11, 5, 500);
        let places: Vec<usize> = found
            .iter()
            .enumerate()
            .filter(|(_, (gene, _))| *gene < 1000)
            .map(|(at, _)| at)
            .collect();
        let mean = places.iter().sum::<usize>() as f64 / places.len() as f64;
        assert!((mean - 2500.0).abs() < 150.0, "{mean}");
    }
}
