//! Rows of an input with the columns of the dataset.

use super::source::RowBlock;

/// Renumbers the genes of rows; keeps what that needs from row to row.
pub(crate) struct Renumber {
    n_genes: usize,
    /// The counts of the row at hand by new gene, zero between rows.
    counts: Vec<u32>,
    /// A bit for each new gene that the row has, zero between rows.
    present: Vec<u64>,
}

/// Rows as the writer takes them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) indptr: Vec<i64>,
    pub(crate) genes: Vec<u32>,
    pub(crate) counts: Vec<u32>,
}

impl Rows {
    pub(crate) fn n_cells(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }
}

impl Renumber {
    /// For a dataset of `n_genes` genes.
    pub(crate) fn new(n_genes: usize) -> Self {
        Self {
            n_genes,
            counts: vec![0; n_genes],
            present: vec![0; n_genes.div_ceil(64)],
        }
    }

    /// The rows of `block` with gene `g` as `columns[g]`, in increasing order; genes without a column are left out.
    pub(crate) fn rows(&mut self, block: &RowBlock, columns: &[Option<u32>]) -> Rows {
        let mut rows = Rows {
            indptr: Vec::with_capacity(block.indptr.len()),
            genes: Vec::with_capacity(block.genes.len()),
            counts: Vec::with_capacity(block.counts.len()),
        };
        rows.indptr.push(0);
        for row in 0..block.n_cells() {
            let (genes, counts) = block.row(row);
            let renumbered = genes
                .iter()
                .zip(counts)
                .filter_map(|(&gene, &count)| columns[gene as usize].map(|gene| (gene, count)));
            // Going through all words of the bits costs as much as sorting a few entries.
            if genes.len() * 16 < self.n_genes / 64 {
                let mut entries: Vec<(u32, u32)> = renumbered.collect();
                entries.sort_unstable();
                rows.genes.extend(entries.iter().map(|&(gene, _)| gene));
                rows.counts.extend(entries.iter().map(|&(_, count)| count));
            } else {
                for (gene, count) in renumbered {
                    self.counts[gene as usize] = count;
                    self.present[gene as usize / 64] |= 1 << (gene % 64);
                }
                self.collect(&mut rows);
            }
            rows.indptr.push(rows.genes.len() as i64);
        }
        rows
    }

    fn collect(&mut self, rows: &mut Rows) {
        for (word, bits) in self.present.iter_mut().enumerate() {
            let mut left = std::mem::take(bits);
            while left != 0 {
                let gene = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                rows.genes.push(gene as u32);
                rows.counts.push(self.counts[gene]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_renumbered_and_sorted_whether_few_or_many() {
        for n_genes in [4, 100_000] {
            let block = RowBlock {
                first: 0,
                indptr: vec![0, 3, 3, 4],
                genes: vec![0, 1, 3, 2],
                counts: vec![7, 8, 9, 5],
                duplicates: 0,
            };
            let rows = Renumber::new(n_genes).rows(&block, &[Some(3), Some(1), None, Some(0)]);
            assert_eq!(
                (rows.indptr, rows.genes, rows.counts),
                (vec![0, 3, 3, 3], vec![0, 1, 3], vec![9, 8, 7])
            );
        }
    }
}
