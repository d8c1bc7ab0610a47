//! Checking a dataset completely: every byte that has a checksum or a rule.

use std::collections::HashSet;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rayon::prelude::*;
use thiserror::Error;

use super::genes::GENES_LIMIT;
use super::shard::guarded;
use super::{Array, Dataset, DatasetError, verify_shard};
use crate::format::TileId;
use crate::format::fingerprint::fingerprint;
use crate::format::manifest::shard_path;
use crate::format::npy::{self, NpyError};
use crate::store::read_whole;

/// What is wrong with one of the files about genes or obs as a whole.
#[derive(Debug, Error)]
pub enum TableFault {
    /// `gene_order.npy` is not an int32 vector.
    #[error("{0}")]
    Npy(#[from] NpyError),
    /// Another number of genes than the manifest's.
    #[error("{found} genes, expected {expected}, as the manifest says")]
    Genes { found: u64, expected: u32 },
    /// `gene_order.npy` is not a permutation.
    #[error("entry {index} is {found}, expected each of 0 to {last} once")]
    Order { index: usize, found: i32, last: u32 },
    /// `var_names.txt` is not UTF-8 text.
    #[error("not UTF-8 at byte {0}")]
    Utf8(usize),
    /// The last line has no end.
    #[error("the last name does not end in a line break")]
    LineBreak,
    /// `var.parquet` cannot be read.
    #[error("not a readable Parquet file: {0}")]
    Parquet(String),
    /// The content of obs is not the one the manifest was written for.
    #[error("obs_fingerprint is {found:?}, expected {expected:?}, which schema, tiles and shards give")]
    Fingerprint { found: String, expected: String },
}

/// One unit of work done, for progress bars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Bytes of the file that was checked.
    pub bytes: u64,
}

impl Dataset {
    /// Bytes that [`Dataset::verify_all`] will report as done.
    pub fn bytes_to_verify(&self) -> u64 {
        let shards = self.manifest.obs.iter().flat_map(|obs| &obs.shard_bytes);
        self.manifest.tile_bytes.iter().chain(shards).sum()
    }

    /// Checks every tile, every obs shard and the files about genes, on the threads of the current rayon pool.
    ///
    /// Returns everything that is wrong, in the order of the files. `done` is called, on any thread, after each file.
    pub fn verify_all(&self, done: impl Fn(Done) + Sync) -> Vec<DatasetError> {
        let tiles = (0..self.manifest.n_tiles())
            .into_par_iter()
            .with_max_len(1)
            .flat_map_iter(|tile| {
                let faults = self.verify_tile(tile);
                done(Done {
                    bytes: self.manifest.tile_bytes[tile],
                });
                faults
            });
        let mut faults: Vec<DatasetError> = tiles.collect();
        faults.extend(self.verify_obs(&done));
        faults.extend(self.verify_genes());
        faults
    }

    /// Everything that is wrong with one tile.
    fn verify_tile(&self, id: TileId) -> Vec<DatasetError> {
        let tile = match self.tile(id) {
            Ok(tile) => tile,
            Err(error) => return vec![error],
        };
        let mut faults: Vec<DatasetError> = self.verify(&tile).err().into_iter().collect();
        let mut room = Vec::new();
        for chunk in &tile.layout().chunks {
            for array in [Array::Indices, Array::Data] {
                room.resize(chunk.nnz() as usize, 0);
                faults.extend(tile.decode_chunk(array, chunk.index, &mut room).err());
            }
        }
        self.forget(id);
        faults
    }

    fn verify_obs(&self, done: &(impl Fn(Done) + Sync)) -> Vec<DatasetError> {
        let (Some(obs), Some(schema)) = (&self.manifest.obs, &self.schema) else {
            return Vec::new();
        };
        let shards = (0..obs.shard_bytes.len())
            .into_par_iter()
            .with_max_len(1)
            .flat_map_iter(|shard| {
                let faults: Vec<DatasetError> = match self.store.open(&shard_path(shard)) {
                    Err(error) => vec![error.into()],
                    Ok(object) => {
                        let faults = verify_shard(object, &self.manifest, obs, shard, schema);
                        faults.into_iter().map(DatasetError::from).collect()
                    }
                };
                done(Done {
                    bytes: obs.shard_bytes[shard],
                });
                faults
            });
        let mut faults: Vec<DatasetError> = shards.collect();
        let cells = (0..self.manifest.n_tiles()).map(|tile| self.manifest.tile_cells(tile));
        let expected = fingerprint(&schema.text, cells, &obs.shard_sha256);
        if expected != obs.fingerprint {
            let found = obs.fingerprint.clone();
            faults.push(self.table("manifest.json", TableFault::Fingerprint { found, expected }));
        }
        faults
    }

    fn verify_genes(&self) -> Vec<DatasetError> {
        let files = [
            (
                self.manifest.has_gene_order,
                "gene_order.npy",
                check_order as fn(Vec<u8>, u32) -> Result<(), TableFault>,
            ),
            (self.manifest.has_var_names, "var_names.txt", check_names),
            (self.manifest.has_var_table, "var.parquet", check_table),
        ];
        let mut faults = Vec::new();
        for (there, path, check) in files {
            if !there {
                continue;
            }
            match read_whole(&*self.store, path, GENES_LIMIT) {
                Err(error) => faults.push(error.into()),
                Ok(bytes) => {
                    let fault = check(bytes, self.manifest.n_genes).err();
                    faults.extend(fault.map(|fault| self.table(path, fault)));
                }
            }
        }
        faults
    }
}

fn check_genes(found: u64, expected: u32) -> Result<(), TableFault> {
    if found == u64::from(expected) {
        return Ok(());
    }
    Err(TableFault::Genes { found, expected })
}

fn check_order(bytes: Vec<u8>, n_genes: u32) -> Result<(), TableFault> {
    let order = npy::parse_int32(&bytes)?;
    check_genes(order.len() as u64, n_genes)?;
    let mut seen = HashSet::with_capacity(order.len());
    for (index, &found) in order.iter().enumerate() {
        if found as u32 >= n_genes || !seen.insert(found) {
            return Err(TableFault::Order {
                index,
                found,
                last: n_genes - 1,
            });
        }
    }
    Ok(())
}

fn check_names(bytes: Vec<u8>, n_genes: u32) -> Result<(), TableFault> {
    let text = String::from_utf8(bytes).map_err(|error| TableFault::Utf8(error.utf8_error().valid_up_to()))?;
    if !text.ends_with('\n') {
        return Err(TableFault::LineBreak);
    }
    check_genes(text.split_terminator('\n').count() as u64, n_genes)
}

/// Reads the table whole, since its pages have no other checksum.
fn check_table(bytes: Vec<u8>, n_genes: u32) -> Result<(), TableFault> {
    let rows = guarded(|| {
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes))?.build()?;
        let mut rows = 0;
        for batch in reader {
            rows += batch?.num_rows() as u64;
        }
        Ok(rows)
    });
    check_genes(rows.map_err(TableFault::Parquet)?, n_genes)
}
