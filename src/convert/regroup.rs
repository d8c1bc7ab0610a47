//! Entries in any order to rows in cell order, in bounded memory.
//!
//! Cells are cut into buckets of consecutive cells, each expected to hold a few million entries. Entries are spilled by
//! bucket into one temporary file without a name, and each bucket is then read back and sorted by cell, keeping the
//! order of arrival within a cell. What fits one bucket never leaves memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::{ConvertError, Result};
use super::source::{MatrixError, RowBlock};

/// Entries that a bucket should hold.
const BUCKET_ENTRIES: u64 = 4 << 20;
/// Buckets at most, so that their write buffers stay small; beyond it buckets grow.
const MAX_BUCKETS: u64 = 1024;
/// Entries that a bucket collects before they are written.
const BUFFER_ENTRIES: usize = 4096;
/// Bytes of a written entry: cell within the bucket, gene, count.
const ENTRY_BYTES: usize = 12;

/// Collects entries.
pub(crate) struct Regroup {
    n_cells: u64,
    cells_per_bucket: u64,
    buckets: Vec<Bucket>,
    spill: Option<Spill>,
}

#[derive(Default)]
struct Bucket {
    entries: Vec<[u32; 3]>,
    /// Where in the spill file full buffers went.
    written: Vec<u64>,
}

struct Spill {
    path: PathBuf,
    file: File,
    end: u64,
}

impl Regroup {
    /// For a matrix of `n_cells` cells with about `entries` entries; spills into the folder `scratch`.
    pub(crate) fn new(n_cells: u64, entries: u64, scratch: &Path) -> Result<Self> {
        Self::with_buckets(n_cells, entries.div_ceil(BUCKET_ENTRIES).clamp(1, MAX_BUCKETS), scratch)
    }

    /// Bytes that about `entries` entries take in the spill file.
    pub(crate) fn spilled_bytes(entries: u64) -> u64 {
        match entries > BUCKET_ENTRIES {
            true => entries.saturating_mul(ENTRY_BYTES as u64),
            false => 0,
        }
    }

    fn with_buckets(n_cells: u64, buckets: u64, scratch: &Path) -> Result<Self> {
        let cells_per_bucket = n_cells.div_ceil(buckets).max(1);
        let buckets = n_cells.div_ceil(cells_per_bucket);
        let spill = match buckets > 1 {
            true => Some(Spill {
                path: scratch.to_path_buf(),
                file: unnamed_file(scratch)?,
                end: 0,
            }),
            false => None,
        };
        Ok(Self {
            n_cells,
            cells_per_bucket,
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            spill,
        })
    }

    /// Adds an entry; `cell` is below the number of cells.
    pub(crate) fn push(&mut self, cell: u64, gene: u32, count: u32) -> Result<()> {
        let bucket = &mut self.buckets[(cell / self.cells_per_bucket) as usize];
        bucket
            .entries
            .push([(cell % self.cells_per_bucket) as u32, gene, count]);
        if let Some(spill) = &mut self.spill
            && bucket.entries.len() == BUFFER_ENTRIES
        {
            bucket.written.push(spill.write(&bucket.entries)?);
            bucket.entries.clear();
        }
        Ok(())
    }

    /// The rows, bucket by bucket.
    pub(crate) fn finish(self) -> impl Iterator<Item = std::result::Result<RowBlock, MatrixError>> + Send {
        let Self {
            n_cells,
            cells_per_bucket,
            buckets,
            spill,
        } = self;
        buckets.into_iter().enumerate().map(move |(index, bucket)| {
            let first = index as u64 * cells_per_bucket;
            let cells = cells_per_bucket.min(n_cells - first) as usize;
            let mut entries = Vec::with_capacity(bucket.written.len() * BUFFER_ENTRIES + bucket.entries.len());
            for &at in &bucket.written {
                let spill = spill.as_ref().expect("only a spilling bucket has written");
                spill.read(at, &mut entries)?;
            }
            entries.extend(bucket.entries);
            sort_by_cell(first, cells, &entries)
        })
    }
}

/// A counting sort, which is stable.
fn sort_by_cell(first: u64, cells: usize, entries: &[[u32; 3]]) -> std::result::Result<RowBlock, MatrixError> {
    let mut indptr = vec![0; cells + 1];
    for [cell, ..] in entries {
        indptr[*cell as usize + 1] += 1;
    }
    for cell in 0..cells {
        indptr[cell + 1] += indptr[cell];
    }
    let mut next = indptr.clone();
    let (mut genes, mut counts) = (vec![0; entries.len()], vec![0; entries.len()]);
    for &[cell, gene, count] in entries {
        let at = &mut next[cell as usize];
        genes[*at] = gene;
        counts[*at] = count;
        *at += 1;
    }
    RowBlock::new(first, indptr, genes, counts)
}

impl Spill {
    fn write(&mut self, entries: &[[u32; 3]]) -> Result<u64> {
        let bytes: Vec<u8> = entries
            .iter()
            .flatten()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let at = self.end;
        self.file
            .write_all_at(&bytes, at)
            .map_err(ConvertError::io(&self.path, "write a temporary file in"))?;
        self.end += bytes.len() as u64;
        Ok(at)
    }

    fn read(&self, at: u64, entries: &mut Vec<[u32; 3]>) -> Result<()> {
        let mut bytes = vec![0; BUFFER_ENTRIES * ENTRY_BYTES];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(ConvertError::io(&self.path, "read a temporary file in"))?;
        let numbers = bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let mut numbers = numbers.fuse();
        while let (Some(cell), Some(gene), Some(count)) = (numbers.next(), numbers.next(), numbers.next()) {
            entries.push([cell, gene, count]);
        }
        Ok(())
    }
}

/// A file for reading and writing that is gone when it is closed, however the program ends.
pub(crate) fn unnamed_file(folder: &Path) -> Result<File> {
    use rustix::fs::{Mode, OFlags};
    let refused = |error: rustix::io::Errno| ConvertError::Io {
        path: folder.to_path_buf(),
        action: "make a temporary file in",
        source: error.into(),
    };
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok(File::from(file)),
        // Not every file system has files without names; there, one is made and its name taken away.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::NOENT) => {
            let path = folder.join(format!(".spill-{}-{:p}", std::process::id(), &mode));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(&path, flags, mode).map_err(refused)?;
            rustix::fs::unlink(&path).map_err(refused)?;
            Ok(File::from(file))
        }
        Err(error) => Err(refused(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rand::{RngExt, SeedableRng};

    #[test]
    fn spilled_buckets_give_the_rows_that_memory_gives() {
        let scratch = std::env::temp_dir();
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(1);
        let entries: Vec<_> = (0..60_000)
            .map(|_| {
                (
                    random.random_range(0..1000u64),
                    random.random_range(0..500u32),
                    random.random_range(0..9u32),
                )
            })
            .collect();
        let rows = |buckets: u64| {
            let mut regroup = Regroup::with_buckets(1003, buckets, &scratch).unwrap();
            for &(cell, gene, count) in &entries {
                regroup.push(cell, gene, count).unwrap();
            }
            let (mut rows, mut next) = (Vec::new(), 0);
            for block in regroup.finish() {
                let block = block.unwrap();
                assert_eq!(block.first, next);
                next += block.n_cells() as u64;
                rows.extend((0..block.n_cells()).map(|row| {
                    let (genes, counts) = block.row(row);
                    (genes.to_vec(), counts.to_vec())
                }));
            }
            rows
        };
        let one = rows(1);
        assert_eq!(one.len(), 1003);
        assert_eq!(
            one.iter()
                .map(|(_, counts)| counts.iter().map(|&c| u64::from(c)).sum::<u64>())
                .sum::<u64>(),
            entries.iter().map(|e| u64::from(e.2)).sum::<u64>()
        );
        assert_eq!(rows(7), one);
    }

    #[test]
    fn no_cells_give_no_rows() {
        assert_eq!(Regroup::new(0, 0, &std::env::temp_dir()).unwrap().finish().count(), 0);
    }
}
