//! `manifest.json`: the sizes of everything else.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use super::{MAX_GENES, TileId};

/// The `format` key of every manifest.
pub const FORMAT: &str = "deltacells-dataset";
/// The version this crate reads and writes.
pub const VERSION: u64 = 2;
/// Bytes of a tile that holds nothing: its header and one indptr entry.
const TILE_FIXED_BYTES: u64 = 64 + 8;

/// Why a manifest was refused.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The text is not the JSON object the format asks for; serde's message names key and place.
    #[error("not a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// `format` is something else.
    #[error("\"format\" is {0:?}, expected {FORMAT:?}")]
    Format(String),
    /// The alpha release's format.
    #[error("version 1 is the format of an alpha release, which is not supported; convert the source again")]
    VersionOne,
    /// A version of the future.
    #[error("version {0} is not supported, expected {VERSION}")]
    Version(u64),
    /// A number outside the range the format gives it.
    #[error("{field} is {found}, expected {expected}")]
    Range {
        field: &'static str,
        found: u64,
        expected: String,
    },
    /// One entry of a per-tile or per-shard list is outside its range.
    #[error("{field}[{index}] is {found}, expected {expected}")]
    Entry {
        field: &'static str,
        index: usize,
        found: String,
        expected: String,
    },
    /// A list has the wrong number of entries.
    #[error("{field} has {found} entries, expected {expected} ({why})")]
    Length {
        field: &'static str,
        found: usize,
        expected: usize,
        why: &'static str,
    },
    /// A sum of a list contradicts another field, or is beyond what file offsets can hold.
    #[error("the sum of {field} is {found}, expected {expected}")]
    Sum {
        field: &'static str,
        found: String,
        expected: String,
    },
    /// `has_obs` without one of the fields that it requires.
    #[error("has_obs is true but {0} is missing")]
    ObsFieldMissing(&'static str),
    /// `obs_fingerprint` is not 24 lower-case hex characters (it becomes part of a path).
    #[error("obs_fingerprint is {0:?}, expected 24 lower-case hex characters")]
    Fingerprint(String),
}

/// The keys of `manifest.json` as they are stored.
///
/// Required keys are those without which data could be lost unnoticed; `n_chunks`, `zstd_level` and
/// `metadata` inform and may be missing.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    format: String,
    version: u64,
    n_cells: u64,
    n_genes: u64,
    tile_size: u64,
    tile_cells: Vec<u64>,
    tile_nnz: Vec<u64>,
    tile_bytes: Vec<u64>,
    #[serde(default)]
    n_chunks: u64,
    #[serde(default)]
    zstd_level: i64,
    has_gene_order: bool,
    has_var_names: bool,
    has_var_table: bool,
    has_obs: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obs_tiles_per_file: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obs_shard_bytes: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obs_shard_sha256: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    obs_fingerprint: Option<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

/// Only the keys that say whether the rest can be understood.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    version: u64,
}

/// A tile as the manifest describes it. What the tile's own header says must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileSpec {
    /// Which tile.
    pub id: TileId,
    /// Cells (rows), at least 1.
    pub n_cells: u64,
    /// Stored nonzeros.
    pub nnz: u64,
    /// Genes (columns) of the dataset.
    pub n_genes: u32,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl TileSpec {
    /// The tile's place below the dataset's root.
    pub fn path(&self) -> String {
        tile_path(self.id)
    }
}

/// `tiles/tile_NNNNNN.dct`
pub fn tile_path(tile: TileId) -> String {
    format!("tiles/tile_{tile:06}.dct")
}

/// `obs/obs_NNNN.parquet`
pub fn shard_path(shard: usize) -> String {
    format!("obs/obs_{shard:04}.parquet")
}

/// Where the obs schema is.
pub const SCHEMA_PATH: &str = "obs/schema.json";

/// What the manifest says of obs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsManifest {
    /// Tiles (row groups) a shard holds, all but the last.
    pub tiles_per_file: u64,
    /// Size of each shard in bytes.
    pub shard_bytes: Vec<u64>,
    /// SHA-256 of each shard, 64 lower-case hex characters.
    pub shard_sha256: Vec<String>,
    /// 24 lower-case hex characters that identify the obs content.
    pub fingerprint: String,
}

/// A validated `manifest.json`. Sums and offsets of a value of this type do not overflow.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Cells of the dataset.
    pub n_cells: u64,
    /// Genes of the dataset, `1 ..= 2^31`.
    pub n_genes: u32,
    /// Cells of every tile but the last.
    pub tile_size: u64,
    /// Stored nonzeros of each tile.
    pub tile_nnz: Vec<u64>,
    /// File size of each tile.
    pub tile_bytes: Vec<u64>,
    /// Chunks a tile was asked to have; informational.
    pub n_chunks: u64,
    /// The encoder's level; informational.
    pub zstd_level: i64,
    /// Whether `gene_order.npy` exists.
    pub has_gene_order: bool,
    /// Whether `var_names.txt` exists.
    pub has_var_names: bool,
    /// Whether `var.parquet` exists.
    pub has_var_table: bool,
    /// Obs, when the dataset has any.
    pub obs: Option<ObsManifest>,
    /// Free-form.
    pub metadata: Map<String, Value>,
    /// `nnz_starts[t]` is the number of nonzeros before tile `t`; one entry more than tiles.
    nnz_starts: Vec<u64>,
}

impl Manifest {
    /// Reads and validates the text of `manifest.json` (format, "manifest.json").
    ///
    /// # Errors
    /// [`ManifestError`] names the key and says what was found and what was expected.
    pub fn parse(text: &[u8]) -> Result<Self, ManifestError> {
        // A manifest of another version may have other keys: say that first.
        if let Ok(Preamble { format, version }) = serde_json::from_slice(text) {
            check_version(&format, version)?;
        }
        let stored: Stored = serde_json::from_slice(text)?;
        Self::from_stored(stored)
    }

    fn from_stored(stored: Stored) -> Result<Self, ManifestError> {
        check_version(&stored.format, stored.version)?;
        let tiles = stored.tile_cells.len();
        range("n_genes", stored.n_genes, 1, MAX_GENES)?;
        range("tile_size", stored.tile_size, 1, i64::MAX as u64 / 16)?;
        for (field, list) in [("tile_nnz", &stored.tile_nnz), ("tile_bytes", &stored.tile_bytes)] {
            length(field, list.len(), tiles, "one per entry of tile_cells")?;
        }
        check_cells(&stored)?;
        let nnz_starts = check_nonzeros(&stored)?;
        for (index, (&bytes, &cells)) in stored.tile_bytes.iter().zip(&stored.tile_cells).enumerate() {
            let least = TILE_FIXED_BYTES + 8 * cells;
            if bytes < least || bytes > i64::MAX as u64 {
                return Err(ManifestError::Entry {
                    field: "tile_bytes",
                    index,
                    found: bytes.to_string(),
                    expected: format!("at least {least}, the header and indptr of its {cells} cells"),
                });
            }
        }
        let obs = if stored.has_obs {
            Some(check_obs(&stored, tiles)?)
        } else {
            None
        };
        Ok(Self {
            n_cells: stored.n_cells,
            n_genes: stored.n_genes as u32,
            tile_size: stored.tile_size,
            tile_nnz: stored.tile_nnz,
            tile_bytes: stored.tile_bytes,
            n_chunks: stored.n_chunks,
            zstd_level: stored.zstd_level,
            has_gene_order: stored.has_gene_order,
            has_var_names: stored.has_var_names,
            has_var_table: stored.has_var_table,
            obs,
            metadata: stored.metadata,
            nnz_starts,
        })
    }

    /// The text of a `manifest.json` that [`Manifest::parse`] reads back as `self`.
    pub fn to_json(&self) -> String {
        let stored = Stored {
            format: FORMAT.into(),
            version: VERSION,
            n_cells: self.n_cells,
            n_genes: self.n_genes.into(),
            tile_size: self.tile_size,
            tile_cells: (0..self.n_tiles()).map(|t| self.tile_cells(t)).collect(),
            tile_nnz: self.tile_nnz.clone(),
            tile_bytes: self.tile_bytes.clone(),
            n_chunks: self.n_chunks,
            zstd_level: self.zstd_level,
            has_gene_order: self.has_gene_order,
            has_var_names: self.has_var_names,
            has_var_table: self.has_var_table,
            has_obs: self.obs.is_some(),
            obs_tiles_per_file: self.obs.as_ref().map(|o| o.tiles_per_file),
            obs_shard_bytes: self.obs.as_ref().map(|o| o.shard_bytes.clone()),
            obs_shard_sha256: self.obs.as_ref().map(|o| o.shard_sha256.clone()),
            obs_fingerprint: self.obs.as_ref().map(|o| o.fingerprint.clone()),
            metadata: self.metadata.clone(),
        };
        serde_json::to_string_pretty(&stored).expect("a manifest has nothing that JSON cannot hold")
    }

    /// Number of tiles.
    pub fn n_tiles(&self) -> usize {
        self.tile_nnz.len()
    }

    /// Stored nonzeros of the whole dataset.
    pub fn nnz(&self) -> u64 {
        self.nnz_before(self.n_tiles())
    }

    /// Cells before tile `tile`; `tile` may be the number of tiles.
    pub fn cells_before(&self, tile: TileId) -> u64 {
        if tile >= self.n_tiles() {
            self.n_cells
        } else {
            tile as u64 * self.tile_size
        }
    }

    /// Cells of tile `tile`.
    pub fn tile_cells(&self, tile: TileId) -> u64 {
        self.cells_before(tile + 1) - self.cells_before(tile)
    }

    /// Nonzeros before tile `tile`; `tile` may be the number of tiles.
    pub fn nnz_before(&self, tile: TileId) -> u64 {
        self.nnz_starts[tile]
    }

    /// Everything the manifest says of one tile.
    ///
    /// # Panics
    /// When there is no such tile.
    pub fn tile(&self, tile: TileId) -> TileSpec {
        TileSpec {
            id: tile,
            n_cells: self.tile_cells(tile),
            nnz: self.tile_nnz[tile],
            n_genes: self.n_genes,
            bytes: self.tile_bytes[tile],
        }
    }

    /// The tile that holds cell `cell` of the dataset.
    pub fn tile_of_cell(&self, cell: u64) -> Option<TileId> {
        (cell < self.n_cells).then(|| (cell / self.tile_size) as TileId)
    }

    /// The tile that holds nonzero `nonzero` of the dataset.
    pub fn tile_of_nonzero(&self, nonzero: u64) -> Option<TileId> {
        (nonzero < self.nnz()).then(|| self.nnz_starts.partition_point(|&start| start <= nonzero) - 1)
    }
}

/// What [`Manifest::new`] is told of a finished dataset.
#[derive(Debug, Clone, Default)]
pub struct NewManifest {
    /// Genes, `1 ..= 2^31`.
    pub n_genes: u64,
    /// Cells of every tile but the last.
    pub tile_size: u64,
    /// Cells of each tile.
    pub tile_cells: Vec<u64>,
    /// Nonzeros of each tile.
    pub tile_nnz: Vec<u64>,
    /// File size of each tile.
    pub tile_bytes: Vec<u64>,
    /// Chunks asked for.
    pub n_chunks: u64,
    /// The encoder's level.
    pub zstd_level: i64,
    /// Whether `gene_order.npy` was written.
    pub has_gene_order: bool,
    /// Whether `var_names.txt` was written.
    pub has_var_names: bool,
    /// Whether `var.parquet` was written.
    pub has_var_table: bool,
    /// Obs, when shards were written.
    pub obs: Option<ObsManifest>,
    /// Free-form.
    pub metadata: Map<String, Value>,
}

impl Manifest {
    /// A manifest for a dataset just written, held to the same rules as one that is read.
    ///
    /// # Errors
    /// As [`Manifest::parse`].
    pub fn new(new: NewManifest) -> Result<Self, ManifestError> {
        let stored = Stored {
            format: FORMAT.into(),
            version: VERSION,
            n_cells: new.tile_cells.iter().sum(),
            n_genes: new.n_genes,
            tile_size: new.tile_size,
            tile_cells: new.tile_cells,
            tile_nnz: new.tile_nnz,
            tile_bytes: new.tile_bytes,
            n_chunks: new.n_chunks,
            zstd_level: new.zstd_level,
            has_gene_order: new.has_gene_order,
            has_var_names: new.has_var_names,
            has_var_table: new.has_var_table,
            has_obs: new.obs.is_some(),
            obs_tiles_per_file: new.obs.as_ref().map(|o| o.tiles_per_file),
            obs_shard_bytes: new.obs.as_ref().map(|o| o.shard_bytes.clone()),
            obs_shard_sha256: new.obs.as_ref().map(|o| o.shard_sha256.clone()),
            obs_fingerprint: new.obs.map(|o| o.fingerprint),
            metadata: new.metadata,
        };
        Self::from_stored(stored)
    }
}

fn check_version(format: &str, version: u64) -> Result<(), ManifestError> {
    match (format, version) {
        (FORMAT, VERSION) => Ok(()),
        (FORMAT, 1) => Err(ManifestError::VersionOne),
        (FORMAT, other) => Err(ManifestError::Version(other)),
        (other, _) => Err(ManifestError::Format(other.to_owned())),
    }
}

fn range(field: &'static str, found: u64, least: u64, most: u64) -> Result<(), ManifestError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(ManifestError::Range {
        field,
        found,
        expected: format!("{least} to {most}"),
    })
}

fn length(field: &'static str, found: usize, expected: usize, why: &'static str) -> Result<(), ManifestError> {
    if found == expected {
        return Ok(());
    }
    Err(ManifestError::Length {
        field,
        found,
        expected,
        why,
    })
}

/// Every tile is full but the last, which holds at least one cell; together they are `n_cells`.
fn check_cells(stored: &Stored) -> Result<(), ManifestError> {
    let last = stored.tile_cells.len().saturating_sub(1);
    for (index, &cells) in stored.tile_cells.iter().enumerate() {
        let least = if index == last { 1 } else { stored.tile_size };
        if !(least..=stored.tile_size).contains(&cells) {
            let expected = match least == stored.tile_size {
                true => format!("{least}, the tile_size"),
                false => format!("1 to {}, the tile_size", stored.tile_size),
            };
            return Err(ManifestError::Entry {
                field: "tile_cells",
                index,
                found: cells.to_string(),
                expected,
            });
        }
    }
    let sum: u128 = stored.tile_cells.iter().map(|&c| u128::from(c)).sum();
    // Obs and indptr files of eight bytes a cell must have sizes that a file offset can hold.
    if sum != u128::from(stored.n_cells) || sum > i64::MAX as u128 / 16 {
        return Err(ManifestError::Sum {
            field: "tile_cells",
            found: sum.to_string(),
            expected: format!("n_cells, {}", stored.n_cells),
        });
    }
    Ok(())
}

/// Each tile's nonzeros fit its cells and genes, and their sum fits a file of eight bytes each.
fn check_nonzeros(stored: &Stored) -> Result<Vec<u64>, ManifestError> {
    let mut starts = Vec::with_capacity(stored.tile_nnz.len() + 1);
    let mut sum = 0_u64;
    starts.push(0);
    for (index, (&nnz, &cells)) in stored.tile_nnz.iter().zip(&stored.tile_cells).enumerate() {
        let most = u128::from(cells) * u128::from(stored.n_genes);
        if u128::from(nnz) > most {
            return Err(ManifestError::Entry {
                field: "tile_nnz",
                index,
                found: nnz.to_string(),
                expected: format!("at most {most}, its cells times the genes"),
            });
        }
        sum = sum
            .checked_add(nnz)
            .filter(|&s| s <= i64::MAX as u64 / 16)
            .ok_or_else(|| ManifestError::Sum {
                field: "tile_nnz",
                found: format!("beyond {}", i64::MAX / 16),
                expected: "a number of nonzeros that files can hold".into(),
            })?;
        starts.push(sum);
    }
    Ok(starts)
}

fn check_obs(stored: &Stored, tiles: usize) -> Result<ObsManifest, ManifestError> {
    let missing = ManifestError::ObsFieldMissing;
    let tiles_per_file = stored.obs_tiles_per_file.ok_or(missing("obs_tiles_per_file"))?;
    let shard_bytes = stored.obs_shard_bytes.clone().ok_or(missing("obs_shard_bytes"))?;
    let shard_sha256 = stored.obs_shard_sha256.clone().ok_or(missing("obs_shard_sha256"))?;
    let fingerprint = stored.obs_fingerprint.clone().ok_or(missing("obs_fingerprint"))?;
    range("obs_tiles_per_file", tiles_per_file, 1, u64::from(u32::MAX))?;
    let shards = tiles.div_ceil(tiles_per_file as usize);
    let why = "one per obs_tiles_per_file tiles";
    length("obs_shard_bytes", shard_bytes.len(), shards, why)?;
    length("obs_shard_sha256", shard_sha256.len(), shards, why)?;
    for (index, &bytes) in shard_bytes.iter().enumerate() {
        if bytes > i64::MAX as u64 {
            let expected = "a file size".into();
            return Err(ManifestError::Entry {
                field: "obs_shard_bytes",
                index,
                found: bytes.to_string(),
                expected,
            });
        }
    }
    for (index, sha) in shard_sha256.iter().enumerate() {
        if !is_hex(sha, 64) {
            let expected = "64 lower-case hex characters".into();
            return Err(ManifestError::Entry {
                field: "obs_shard_sha256",
                index,
                found: format!("{sha:?}"),
                expected,
            });
        }
    }
    if !is_hex(&fingerprint, 24) {
        return Err(ManifestError::Fingerprint(fingerprint));
    }
    Ok(ObsManifest {
        tiles_per_file,
        shard_bytes,
        shard_sha256,
        fingerprint,
    })
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
