//! A dataset folder, written from cells that come in order.

use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use serde_json::{Map, Value};

use super::encoders::{Encoders, Settings, TileRows, Watch};
use super::file::{create_folder, sync_folder, write_file};
use super::obs::ObsWriter;
use super::{Genes, WriteError};
use crate::format::TileId;
use crate::format::encode::{CsrRows, DEFAULT_CHUNKS, DEFAULT_LEVEL, EncodeError};
use crate::format::manifest::{Manifest, NewManifest, TileSpec, tile_path};
use crate::format::obs::{ObsColumn, ObsSchema};
use crate::format::tile::{HEADER_BYTES, Header};

/// What a dataset is written with. [`WriterOptions::new`] has what existing tools use.
#[derive(Debug, Clone)]
pub struct WriterOptions {
    /// Genes (columns), `1 ..= 2^31`.
    pub n_genes: u32,
    /// Cells of every tile but the last.
    pub tile_size: u64,
    /// Chunks a tile is cut into: as many threads can decode it at once.
    pub n_chunks: u32,
    /// zstd level.
    pub level: i32,
    /// Threads that encode, one for each processor when 0. The bytes do not depend on it.
    pub threads: usize,
    /// What is known of the genes.
    pub genes: Genes,
    /// The columns of obs, if there is to be any; with the whole vocabulary of each category column.
    pub obs: Option<Vec<ObsColumn>>,
    /// Tiles (row groups) in an obs shard.
    pub obs_tiles_per_file: u64,
    /// The manifest's free-form `metadata`.
    pub metadata: Map<String, Value>,
}

impl WriterOptions {
    /// Tiles of 10,000 cells in 8 chunks at level 19, 1,000 tiles an obs shard; nothing known of genes or cells.
    pub fn new(n_genes: u32) -> Self {
        Self {
            n_genes,
            tile_size: 10_000,
            n_chunks: DEFAULT_CHUNKS,
            level: DEFAULT_LEVEL,
            threads: 0,
            genes: Genes::default(),
            obs: None,
            obs_tiles_per_file: 1000,
            metadata: Map::new(),
        }
    }

    fn check(&self) -> Result<(), WriteError> {
        within("n_genes", self.n_genes.into(), 1 << 31)?;
        // A tile's cells are indexed in memory, eight bytes each.
        within(
            "tile_size",
            i64::try_from(self.tile_size).unwrap_or(i64::MAX),
            i64::MAX / 16,
        )?;
        within("n_chunks", self.n_chunks.into(), u32::MAX.into())?;
        let tiles = i64::try_from(self.obs_tiles_per_file).unwrap_or(i64::MAX);
        within("obs_tiles_per_file", tiles, u32::MAX.into())?;
        let levels = zstd_safe::min_c_level()..=zstd_safe::max_c_level();
        if !levels.contains(&self.level) {
            return Err(WriteError::Option {
                option: "level",
                found: self.level.into(),
                expected: format!("{} to {}", levels.start(), levels.end()),
            });
        }
        self.genes.check(self.n_genes)
    }
}

fn within(option: &'static str, found: i64, most: i64) -> Result<(), WriteError> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(WriteError::Option {
        option,
        found,
        expected: format!("1 to {most}"),
    })
}

/// Writes a dataset: cells are pushed in order, in blocks of any size, and [`DatasetWriter::finish`] makes it one.
///
/// Tiles are encoded by other threads meanwhile. In memory are the tile being filled and at most
/// `threads / n_chunks + 2` more, eight bytes a nonzero, and about 100 MB of zstd state for each thread at level 19.
///
/// The manifest is written last and only by `finish`: a writer that failed or was dropped leaves a folder that no
/// reader takes for a dataset. The files that were complete stay in it. A writer that has returned an error returns
/// errors from then on.
pub struct DatasetWriter {
    root: PathBuf,
    options: WriterOptions,
    encoders: Encoders,
    obs: Option<ObsWriter>,
    /// The tile being filled.
    tile: TileRows,
    tile_cells: Vec<u64>,
    tile_nnz: Vec<u64>,
    /// Whether tiles that are there already may be kept.
    keep_tiles: bool,
    failed: bool,
}

/// A dataset that has been written.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its folder.
    pub root: PathBuf,
    /// What `manifest.json` says.
    pub manifest: Manifest,
}

impl DatasetWriter {
    /// Starts a dataset in `root`, a folder that is empty or does not exist.
    ///
    /// # Errors
    /// When the folder is not empty or cannot be written, or an option is outside its range.
    pub fn create(root: &Path, options: WriterOptions) -> Result<Self, WriteError> {
        options.check()?;
        create_folder(root)?;
        let mut entries = std::fs::read_dir(root).map_err(WriteError::io("read", root))?;
        if entries.next().is_some() {
            return Err(WriteError::NotEmpty(root.to_owned()));
        }
        Self::start(root, options, false)
    }

    /// Starts over in the folder of a dataset that was not finished, and keeps the tiles that are whole.
    ///
    /// The same cells must be pushed again, from the first, with the same options: a tile is kept when it has the
    /// same row starts and its checksum is right. The result has the bytes that it would have had without
    /// the interruption.
    ///
    /// # Errors
    /// As [`DatasetWriter::create`]; also when the folder has a manifest, and so is finished.
    pub fn resume(root: &Path, options: WriterOptions) -> Result<Self, WriteError> {
        options.check()?;
        create_folder(root)?;
        if root.join("manifest.json").exists() {
            return Err(WriteError::NotEmpty(root.to_owned()));
        }
        for folder in ["", "tiles", "obs"] {
            remove_unfinished(&root.join(folder))?;
        }
        Self::start(root, options, true)
    }

    fn start(root: &Path, options: WriterOptions, keep_tiles: bool) -> Result<Self, WriteError> {
        let schema = options.obs.clone().map(ObsSchema::new).transpose()?;
        let encoders = Encoders::start(
            Settings {
                root: root.to_owned(),
                n_genes: options.n_genes,
                tile_size: options.tile_size,
                n_chunks: options.n_chunks,
                level: options.level,
            },
            options.threads,
        )?;
        create_folder(&root.join("tiles"))?;
        let obs = schema
            .map(|schema| {
                create_folder(&root.join("obs"))?;
                ObsWriter::create(root, schema, options.obs_tiles_per_file)
            })
            .transpose()?;
        Ok(Self {
            root: root.to_owned(),
            options,
            encoders,
            obs,
            tile: empty_tile(),
            tile_cells: Vec::new(),
            tile_nnz: Vec::new(),
            keep_tiles,
            failed: false,
        })
    }

    /// Cells pushed so far.
    pub fn n_cells(&self) -> u64 {
        self.tile_cells.len() as u64 * self.options.tile_size + self.tile.n_cells()
    }

    /// Lets other threads see how far encoding is, and stop it.
    pub fn watch(&self) -> Watch {
        self.encoders.watch()
    }

    /// Adds the next cells, any number of them, with their rows of obs if the dataset has any: columns in the order,
    /// by the names and of the types that they are stored with, category codes as integers.
    ///
    /// Waits when the encoding threads have enough to do.
    ///
    /// # Errors
    /// When an entry cannot be stored, obs does not fit, or a tile pushed earlier could not be written.
    pub fn push<I, C>(&mut self, rows: CsrRows<'_, I, C>, obs: Option<&RecordBatch>) -> Result<(), WriteError>
    where
        I: Copy + Into<i64>,
        C: Copy + Into<i64>,
    {
        self.once_failed_always(|writer| writer.try_push(rows, obs))
    }

    /// Writes what is left, waits for all tiles, and makes the folder a dataset by writing its manifest.
    ///
    /// # Errors
    /// When a tile or file could not be written, an earlier call failed, or there are no cells.
    pub fn finish(mut self) -> Result<Finished, WriteError> {
        self.once_failed_always(|writer| match writer.tile.n_cells() {
            0 => Ok(()),
            _ => writer.end_tile(),
        })?;
        if self.tile_cells.is_empty() {
            return Err(WriteError::NoCells);
        }
        let tile_bytes = self.encoders.finish()?;
        let obs = self.obs.map(|obs| obs.finish(&self.tile_cells)).transpose()?;
        self.options.genes.write(&self.root)?;
        let manifest = Manifest::new(NewManifest {
            n_genes: self.options.n_genes.into(),
            tile_size: self.options.tile_size,
            tile_cells: self.tile_cells,
            tile_nnz: self.tile_nnz,
            tile_bytes,
            n_chunks: self.options.n_chunks.into(),
            zstd_level: self.options.level.into(),
            has_gene_order: self.options.genes.order.is_some(),
            has_var_names: self.options.genes.names.is_some(),
            has_var_table: self.options.genes.table.is_some(),
            obs,
            metadata: self.options.metadata,
        })?;
        // What the manifest speaks of is on disk before the manifest is.
        sync_folder(&self.root.join("tiles"))?;
        if manifest.obs.is_some() {
            sync_folder(&self.root.join("obs"))?;
        }
        write_file(self.root.join("manifest.json"), manifest.to_json().as_bytes())?;
        sync_folder(&self.root)?;
        Ok(Finished {
            root: self.root,
            manifest,
        })
    }

    fn once_failed_always(&mut self, step: impl FnOnce(&mut Self) -> Result<(), WriteError>) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::FailedBefore(self.root.clone()));
        }
        let outcome = step(self);
        self.failed = outcome.is_err();
        outcome
    }

    fn try_push<I, C>(&mut self, rows: CsrRows<'_, I, C>, obs: Option<&RecordBatch>) -> Result<(), WriteError>
    where
        I: Copy + Into<i64>,
        C: Copy + Into<i64>,
    {
        let first_cell = self.n_cells();
        if rows.n_genes() != self.options.n_genes {
            return Err(WriteError::Genes {
                first_cell,
                found: rows.n_genes(),
                expected: self.options.n_genes,
            });
        }
        rows.check_entries()
            .map_err(|source| self.tile_of(source.counted_from(first_cell)))?;
        let obs = self.check_obs(obs, rows.n_cells(), first_cell)?;
        let mut start = 0;
        while start < rows.n_cells() {
            let room = self.options.tile_size - self.tile.n_cells();
            let end =
                usize::try_from(room).map_or(rows.n_cells(), |room| rows.n_cells().min(start.saturating_add(room)));
            self.tile.append(&rows, start..end);
            if let (Some(writer), Some(obs)) = (&mut self.obs, &obs) {
                writer.write(&obs.slice(start, end - start))?;
            }
            if self.tile.n_cells() == self.options.tile_size {
                self.end_tile()?;
            }
            start = end;
        }
        Ok(())
    }

    /// An error that counts cells from the start of the dataset, with the tile that the cell would have been in.
    fn tile_of(&self, source: EncodeError) -> WriteError {
        match source {
            EncodeError::Entry { cell, .. } => WriteError::Tile {
                tile: (cell / self.options.tile_size) as usize,
                source,
            },
            _ => WriteError::Rows {
                first_cell: self.n_cells(),
                source,
            },
        }
    }

    fn check_obs(
        &self,
        obs: Option<&RecordBatch>,
        n_cells: usize,
        first_cell: u64,
    ) -> Result<Option<RecordBatch>, WriteError> {
        let wrong = |found: &str, expected: &str| WriteError::Obs {
            first_cell,
            what: "the table".into(),
            found: found.into(),
            expected: expected.into(),
        };
        match (&self.obs, obs) {
            (Some(writer), Some(obs)) => writer.check(obs, n_cells, first_cell).map(Some),
            (None, None) => Ok(None),
            (Some(_), None) => Err(wrong("absent", "one with the columns that were announced")),
            (None, Some(_)) => Err(wrong("present", "none, since no columns were announced")),
        }
    }

    fn end_tile(&mut self) -> Result<(), WriteError> {
        let tile = std::mem::replace(&mut self.tile, empty_tile());
        let id = self.tile_cells.len();
        self.tile_cells.push(tile.n_cells());
        self.tile_nnz.push(tile.indices.len() as u64);
        match self.keep_tiles.then(|| self.whole_tile(id, &tile)).flatten() {
            Some(bytes) => self.encoders.keep(&tile, bytes)?,
            None => self.encoders.push(id, tile)?,
        }
        self.obs.as_mut().map_or(Ok(()), ObsWriter::end_tile)
    }
}

impl DatasetWriter {
    /// The size of the file of tile `id`, if it is there and holds these cells.
    fn whole_tile(&self, id: TileId, rows: &TileRows) -> Option<u64> {
        let bytes = std::fs::read(self.root.join(tile_path(id))).ok()?;
        let spec = TileSpec {
            id,
            n_cells: rows.n_cells(),
            nnz: rows.indices.len() as u64,
            n_genes: self.options.n_genes,
            bytes: bytes.len() as u64,
        };
        let header = Header::parse(&bytes, spec.bytes, spec).ok()?;
        let stored = bytes.get(header.indptr_offset as usize..)?.chunks_exact(8);
        let starts = rows.indptr.iter().map(|start| start.to_le_bytes());
        let same = stored.take(rows.indptr.len()).eq(starts) && crc32fast::hash(&bytes[HEADER_BYTES..]) == header.crc32;
        same.then_some(spec.bytes)
    }
}

/// Removes what an interrupted writer leaves of files that it had not finished.
fn remove_unfinished(folder: &Path) -> Result<(), WriteError> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).map_err(WriteError::io("read", folder))? {
        let path = entry.map_err(WriteError::io("read", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') && name.ends_with(".tmp") {
            std::fs::remove_file(&path).map_err(WriteError::io("remove", &path))?;
        }
    }
    Ok(())
}

fn empty_tile() -> TileRows {
    TileRows {
        indptr: vec![0],
        ..TileRows::default()
    }
}

impl TileRows {
    fn n_cells(&self) -> u64 {
        self.indptr.len() as u64 - 1
    }

    /// Adds cells whose entries have been checked, so that they fit 32 bits.
    fn append<I, C>(&mut self, rows: &CsrRows<'_, I, C>, cells: std::ops::Range<usize>)
    where
        I: Copy + Into<i64>,
        C: Copy + Into<i64>,
    {
        let shift = self.indices.len() as i64 - rows.indptr()[cells.start];
        let starts = &rows.indptr()[cells.start + 1..=cells.end];
        self.indptr.extend(starts.iter().map(|start| start + shift));
        let (genes, counts) = rows.entries(cells);
        self.indices.extend(genes.iter().map(|&gene| gene.into() as u32));
        self.counts.extend(counts.iter().map(|&count| count.into() as u32));
    }
}
