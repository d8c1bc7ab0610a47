//! How large a dataset will be, reckoned from what a scan knows of the genes. Knows no files.

use super::plan::Totals;
use crate::format::obs::{ColumnKind, ObsColumn};

/// What an ideal coder would need that knew of each gene how many cells have it and how often on average. Cells differ
/// more than that, and zstd is not ideal, but it also sees what genes have in common: see [`Estimate::bytes`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// Nonzeros of all genes.
    pub(super) nonzeros: u64,
    bits: f64,
}

impl Estimate {
    /// For `cells` cells with these genes.
    pub(super) fn new(totals: &Totals, cells: u64) -> Self {
        let mut estimate = Self { nonzeros: 0, bits: 0.0 };
        for (&count, &nonzeros) in totals.counts.iter().zip(&totals.nonzeros) {
            if nonzeros == 0 {
                continue;
            }
            estimate.nonzeros += nonzeros;
            // Whether a cell has the gene, and how often it does.
            let share = (nonzeros as f64 / cells.max(1) as f64).min(1.0);
            estimate.bits += cells as f64 * entropy(share);
            estimate.bits += nonzeros as f64 * geometric_bits(count as f64 / nonzeros as f64);
        }
        estimate
    }

    /// Bytes of the tiles. Of real datasets, those of level 19 take 0.8 to 1.0 times what the ideal coder takes, those
    /// of level 3 an eighth more.
    pub(super) fn bytes(&self, level: i32) -> f64 {
        let factor = if level < 10 { 1.2 } else { 1.05 };
        self.bits / 8.0 * factor
    }
}

/// Bits of a yes or no that is a yes this often.
fn entropy(share: f64) -> f64 {
    let term = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    term(share) + term(1.0 - share)
}

/// Bits of a number from 1 with this mean, when small ones are as much more likely as they can be.
fn geometric_bits(mean: f64) -> f64 {
    match mean > 1.0 {
        true => entropy(1.0 / mean) * mean,
        false => 0.0,
    }
}

/// Bytes that the columns of obs take for each cell, compressed.
pub(super) fn obs_bytes_per_cell(columns: &[ObsColumn]) -> u64 {
    let bytes = |column: &ObsColumn| match &column.kind {
        ColumnKind::Category { codes: number, .. } | ColumnKind::Numeric(number) => number.width() as u64,
        ColumnKind::Bool => 1,
        // Names, mostly.
        ColumnKind::String => 16,
    };
    columns.iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn genes_that_every_cell_has_once_cost_nothing_and_rarer_ones_what_they_tell() {
        let totals = |count, nonzeros| Totals {
            counts: vec![count],
            nonzeros: vec![nonzeros],
        };
        let bits = |totals: &Totals| Estimate::new(totals, 1000).bits;
        assert_eq!(bits(&totals(1000, 1000)), 0.0);
        assert!((bits(&totals(500, 500)) - 1000.0).abs() < 1e-9);
        // Counts of mean 2: a fair coin for each step.
        assert!((bits(&totals(2000, 1000)) - 2000.0).abs() < 1e-9);
        assert_eq!(bits(&totals(0, 0)), 0.0);
    }
}
