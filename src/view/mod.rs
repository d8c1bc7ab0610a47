//! Which files a mount shows, how large they are, and which bytes of the dataset each of their bytes is.
//!
//! A virtual file is a list of [`Extent`]s. Everything here follows from the manifest and the obs schema, and for string
//! columns from how much text they were found to hold: nothing is read or decoded here, and nothing here knows FUSE.
//! Files and folders are [`Node`]s, numbers rather than objects, so that a dataset of a hundred thousand tiles costs no
//! more than one of ten.

pub mod anndata;
pub mod arrow;
mod columns;
pub mod hdf5;
pub mod hierarchy;
pub mod names;
mod readme;
pub mod zarr;

use std::ops::Range;
use std::sync::Arc;

pub use arrow::LayoutError;
pub use columns::ColumnFiles;
use thiserror::Error;

use crate::dataset::{Array, Dataset};
use crate::format::TileId;
use crate::format::manifest::{Manifest, shard_path, tile_path};
use crate::store::{Attributes, StoreError, Version};

/// Size in bytes of `.dcfs/stats.json`, whatever it says: the rest is blanks.
pub const STATS_BYTES: u64 = 8192;

/// The arrays in a tile's folder, by file name.
const TILE_FILES: [(&str, Array); 3] = [
    ("indptr.i64", Array::Indptr),
    ("indices.i32", Array::Indices),
    ("data.i32", Array::Data),
];

/// A file or folder of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// The root folder.
    Root,
    /// `README.txt`
    Readme,
    /// `.dcfs`, what the daemon says of itself.
    Control,
    /// `.dcfs/stats.json`
    Stats,
    /// `obs`, the columns of all cells.
    Obs,
    /// A file of the dataset that is shown as it is, by position in [`View::stored`].
    Stored(usize),
    /// `obs/<column>.arrow`
    Column(usize),
    /// `tile_NNNNNN`
    Tile(TileId),
    /// `tile_NNNNNN/obs`
    TileObs(TileId),
    /// `tile_NNNNNN/<array>`
    TileArray(TileId, Array),
    /// `tile_NNNNNN/obs/<column>.arrow`
    TileColumn(TileId, usize),
}

/// A file of the dataset that appears unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Path below the dataset's root.
    pub path: &'static str,
    /// The folder of the mount it appears in.
    pub folder: Node,
    /// Its name there.
    pub name: &'static str,
    /// Its size in bytes when the dataset was mounted.
    pub bytes: u64,
    /// Its state then.
    pub version: Version,
}

/// A piece of a virtual file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Bytes that are known.
    Literal(Arc<[u8]>, Range<usize>),
    /// Bytes of a tile's decoded array.
    Array {
        tile: TileId,
        array: Array,
        bytes: Range<u64>,
    },
    /// Bytes of the message that holds a tile's rows of an obs column.
    Column {
        tile: TileId,
        column: usize,
        bytes: Range<u64>,
    },
    /// Bytes of a stored file.
    Stored { file: usize, bytes: Range<u64> },
}

impl Extent {
    fn literal(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len();
        Self::Literal(bytes.into(), all)
    }
}

/// A file's size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Known from manifest and schema.
    Known(u64),
    /// That of a string column: known once the column was read.
    OfText,
}

/// The tree of one dataset.
pub struct View {
    dataset: Arc<Dataset>,
    stored: Vec<Stored>,
    columns: Vec<ColumnFiles>,
    readme: Arc<[u8]>,
}

/// Inode numbers below this one belong to files that are there once.
const FIRST_COLUMN_INODE: u64 = 64;
const FIRST_STORED_INODE: u64 = 16;

impl View {
    /// The tree of `dataset`.
    ///
    /// # Errors
    /// When a column cannot be laid out, or a file that the manifest promises is not there.
    pub fn new(dataset: Arc<Dataset>) -> Result<Self, ViewError> {
        let columns = match dataset.schema() {
            Some(schema) => ColumnFiles::all(schema, dataset.manifest())?,
            None => Vec::new(),
        };
        let stored = stored_files(&dataset)?;
        let readme = readme::text(&dataset, &columns).into_bytes().into();
        Ok(Self {
            dataset,
            stored,
            columns,
            readme,
        })
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Files of the dataset that appear unchanged.
    pub fn stored(&self) -> &[Stored] {
        &self.stored
    }

    /// The layout of an obs column.
    pub fn column(&self, column: usize) -> &ColumnFiles {
        &self.columns[column]
    }

    /// Number of obs columns.
    pub fn n_columns(&self) -> usize {
        self.columns.len()
    }

    fn manifest(&self) -> &Manifest {
        self.dataset.manifest()
    }

    fn has_obs(&self) -> bool {
        self.dataset.schema().is_some()
    }

    /// Inodes of a tile: its folder, its obs folder, its arrays, its columns.
    fn tile_stride(&self) -> u64 {
        (2 + TILE_FILES.len() + self.columns.len()) as u64
    }

    fn first_tile_inode(&self) -> u64 {
        FIRST_COLUMN_INODE + self.columns.len() as u64
    }

    /// The node's inode number: the same at every mount of the dataset, and small, for programs that keep 32 bits.
    pub fn inode(&self, node: Node) -> u64 {
        let tile = |tile: TileId| self.first_tile_inode() + tile as u64 * self.tile_stride();
        match node {
            Node::Root => 1,
            Node::Readme => 2,
            Node::Control => 3,
            Node::Stats => 4,
            Node::Obs => 5,
            Node::Stored(file) => FIRST_STORED_INODE + file as u64,
            Node::Column(column) => FIRST_COLUMN_INODE + column as u64,
            Node::Tile(id) => tile(id),
            Node::TileObs(id) => tile(id) + 1,
            Node::TileArray(id, array) => tile(id) + 2 + array as u64,
            Node::TileColumn(id, column) => tile(id) + 2 + TILE_FILES.len() as u64 + column as u64,
        }
    }

    /// The node of an inode number, if there is one.
    pub fn node(&self, inode: u64) -> Option<Node> {
        let first_tile = self.first_tile_inode();
        if inode >= first_tile {
            let tile = ((inode - first_tile) / self.tile_stride()) as TileId;
            let within = ((inode - first_tile) % self.tile_stride()) as usize;
            let node = match within {
                0 => Node::Tile(tile),
                1 => Node::TileObs(tile),
                _ if within < 2 + TILE_FILES.len() => Node::TileArray(tile, TILE_FILES[within - 2].1),
                _ => Node::TileColumn(tile, within - 2 - TILE_FILES.len()),
            };
            return (tile < self.manifest().n_tiles()).then_some(node);
        }
        let at = |first: u64| (inode - first) as usize;
        match inode {
            1 => Some(Node::Root),
            2 => Some(Node::Readme),
            3 => Some(Node::Control),
            4 => Some(Node::Stats),
            5 if self.has_obs() => Some(Node::Obs),
            FIRST_STORED_INODE..FIRST_COLUMN_INODE if at(FIRST_STORED_INODE) < self.stored.len() => {
                Some(Node::Stored(at(FIRST_STORED_INODE)))
            }
            FIRST_COLUMN_INODE.. => Some(Node::Column(at(FIRST_COLUMN_INODE))),
            _ => None,
        }
    }

    /// Whether the node is a folder.
    pub fn is_folder(&self, node: Node) -> bool {
        matches!(
            node,
            Node::Root | Node::Control | Node::Obs | Node::Tile(_) | Node::TileObs(_)
        )
    }

    /// The folder a node is in; the root is in itself.
    pub fn parent(&self, node: Node) -> Node {
        match node {
            Node::Root | Node::Readme | Node::Control | Node::Obs | Node::Tile(_) => Node::Root,
            Node::Stats => Node::Control,
            Node::Stored(file) => self.stored[file].folder,
            Node::Column(_) => Node::Obs,
            Node::TileObs(tile) | Node::TileArray(tile, _) => Node::Tile(tile),
            Node::TileColumn(tile, _) => Node::TileObs(tile),
        }
    }

    /// Entry `position` of a folder, in an order that never changes; `None` past the last one.
    pub fn entry(&self, folder: Node, position: u64) -> Option<Node> {
        let position = usize::try_from(position).ok()?;
        let column = |position: usize| (position < self.columns.len()).then_some(position);
        match folder {
            Node::Root => {
                let fixed = self.root_entries();
                let tile = || position - fixed.len();
                fixed
                    .get(position)
                    .copied()
                    .or_else(|| (tile() < self.manifest().n_tiles()).then(|| Node::Tile(tile())))
            }
            Node::Control => (position == 0).then_some(Node::Stats),
            Node::Obs => {
                let stored = self.stored_in(Node::Obs);
                let mut fixed = stored.clone();
                fixed
                    .nth(position)
                    .or_else(|| column(position - stored.count()).map(Node::Column))
            }
            Node::Tile(tile) => match TILE_FILES.get(position) {
                Some(&(_, array)) => Some(Node::TileArray(tile, array)),
                None => (position == TILE_FILES.len() && self.has_obs()).then_some(Node::TileObs(tile)),
            },
            Node::TileObs(tile) => column(position).map(|column| Node::TileColumn(tile, column)),
            _ => None,
        }
    }

    /// Folders in a folder, for its link count.
    pub fn folders_in(&self, folder: Node) -> u64 {
        match folder {
            Node::Root => 1 + u64::from(self.has_obs()) + self.manifest().n_tiles() as u64,
            Node::Tile(_) => u64::from(self.has_obs()),
            _ => 0,
        }
    }

    /// What `name` in `folder` is, if it is there.
    pub fn lookup(&self, folder: Node, name: &str) -> Option<Node> {
        let fixed = |mut nodes: Box<dyn Iterator<Item = Node> + '_>| nodes.find(|&node| self.name(node) == name);
        let column = || self.columns.iter().position(|column| column.file_name() == name);
        match folder {
            Node::Root => fixed(Box::new(self.root_entries().into_iter())).or_else(|| {
                let digits = name.strip_prefix("tile_")?;
                let tile = digits.parse().ok()?;
                // One spelling a tile: no sign, no missing or further zeros.
                (tile < self.manifest().n_tiles() && tile_name(tile) == name).then_some(Node::Tile(tile))
            }),
            Node::Control => fixed(Box::new([Node::Stats].into_iter())),
            Node::Obs => fixed(Box::new(self.stored_in(Node::Obs))).or_else(|| column().map(Node::Column)),
            Node::Tile(tile) => {
                let arrays = TILE_FILES.map(|(_, array)| Node::TileArray(tile, array));
                let obs = self.has_obs().then_some(Node::TileObs(tile));
                fixed(Box::new(arrays.into_iter().chain(obs)))
            }
            Node::TileObs(tile) => column().map(|column| Node::TileColumn(tile, column)),
            _ => None,
        }
    }

    /// The node's name in its folder; empty for the root.
    pub fn name(&self, node: Node) -> String {
        match node {
            Node::Root => String::new(),
            Node::Readme => "README.txt".into(),
            Node::Control => ".dcfs".into(),
            Node::Stats => "stats.json".into(),
            Node::Obs | Node::TileObs(_) => "obs".into(),
            Node::Stored(file) => self.stored[file].name.into(),
            Node::Column(column) | Node::TileColumn(_, column) => self.columns[column].file_name().into(),
            Node::Tile(tile) => tile_name(tile),
            Node::TileArray(_, array) => TILE_FILES[array as usize].0.into(),
        }
    }

    /// The files and folders of the dataset that the node is made of, all of which decide who may see it; the empty
    /// path is the dataset's root.
    pub fn sources(&self, node: Node) -> Vec<String> {
        match node {
            Node::Root | Node::Control | Node::Stats => vec![String::new()],
            Node::Readme => self.with_schema(vec!["manifest.json".into()]),
            Node::Obs | Node::TileObs(_) => self.with_schema(vec!["obs".into()]),
            Node::Stored(file) => vec![self.stored[file].path.into()],
            Node::Column(_) => self.with_schema(self.shards().map(shard_path).collect()),
            Node::TileColumn(tile, _) => self.with_schema(vec![shard_path(self.shard_of(tile))]),
            Node::Tile(_) => vec!["tiles".into()],
            Node::TileArray(tile, _) => vec![tile_path(tile)],
        }
    }

    /// These and the obs schema, whose names and labels whatever is made of obs shows.
    fn with_schema(&self, mut paths: Vec<String>) -> Vec<String> {
        paths.extend(self.has_obs().then(|| "obs/schema.json".into()));
        paths
    }

    fn shards(&self) -> Range<usize> {
        0..self.manifest().obs.as_ref().map_or(0, |obs| obs.shard_bytes.len())
    }

    fn shard_of(&self, tile: TileId) -> usize {
        self.manifest()
            .obs
            .as_ref()
            .map_or(0, |obs| tile / obs.tiles_per_file as usize)
    }

    /// The size of a file; folders have none.
    pub fn size(&self, node: Node) -> Size {
        let of_text = |layout: Option<u64>| layout.map_or(Size::OfText, Size::Known);
        match node {
            Node::Root | Node::Control | Node::Obs | Node::Tile(_) | Node::TileObs(_) => Size::Known(0),
            Node::Readme => Size::Known(self.readme.len() as u64),
            Node::Stats => Size::Known(STATS_BYTES),
            Node::Stored(file) => Size::Known(self.stored[file].bytes),
            Node::TileArray(tile, array) => Size::Known(array.bytes(&self.manifest().tile(tile))),
            Node::Column(column) => of_text(self.columns[column].of_all_cells().map(|layout| layout.len())),
            Node::TileColumn(tile, column) => {
                let cells = self.manifest().tile_cells(tile);
                of_text(self.columns[column].of_tile(tile, cells).map(|layout| layout.len()))
            }
        }
    }

    /// What the bytes `range` of a file are, in order. The range ends within the file, whose size is known.
    pub fn extents(&self, node: Node, range: Range<u64>) -> Vec<Extent> {
        match node {
            Node::Root | Node::Control | Node::Obs | Node::Tile(_) | Node::TileObs(_) | Node::Stats => Vec::new(),
            Node::Readme => vec![Extent::Literal(
                self.readme.clone(),
                range.start as usize..range.end as usize,
            )],
            Node::Stored(file) => vec![Extent::Stored { file, bytes: range }],
            Node::TileArray(tile, array) => vec![Extent::Array {
                tile,
                array,
                bytes: range,
            }],
            Node::Column(column) => {
                let layout = self.columns[column].of_all_cells();
                layout.map_or_else(Vec::new, |l| {
                    columns::extents(l, range, column, |batch| batch as TileId)
                })
            }
            Node::TileColumn(tile, column) => {
                let layout = self.columns[column].of_tile(tile, self.manifest().tile_cells(tile));
                layout.map_or_else(Vec::new, |l| columns::extents(&l, range, column, |_| tile))
            }
        }
    }

    /// Number of files and folders.
    pub fn files(&self) -> u64 {
        let obs = u64::from(self.has_obs());
        // Of each tile its folder, its arrays and, if there are columns, their folder.
        let of_tile = 1 + TILE_FILES.len() as u64 + obs + self.columns.len() as u64;
        // Root, README.txt, .dcfs and what is in it.
        let once = 4 + obs + (self.stored.len() + self.columns.len()) as u64;
        once + self.manifest().n_tiles() as u64 * of_tile
    }

    fn root_entries(&self) -> Vec<Node> {
        let mut nodes = vec![Node::Readme, Node::Control];
        nodes.extend(self.stored_in(Node::Root));
        nodes.extend(self.has_obs().then_some(Node::Obs));
        nodes
    }

    fn stored_in(&self, folder: Node) -> impl Iterator<Item = Node> + Clone + '_ {
        (0..self.stored.len())
            .filter(move |&file| self.stored[file].folder == folder)
            .map(Node::Stored)
    }
}

/// `tile_NNNNNN`
pub fn tile_name(tile: TileId) -> String {
    format!("tile_{tile:06}")
}

/// Why a dataset cannot be shown.
#[derive(Debug, Error)]
pub enum ViewError {
    /// An obs column cannot be laid out as a file.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A file that the manifest promises is not there.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The stored files that the manifest promises, with their sizes.
fn stored_files(dataset: &Dataset) -> Result<Vec<Stored>, StoreError> {
    let manifest = dataset.manifest();
    let files = [
        ("manifest.json", Node::Root, "manifest.json", true),
        ("var.parquet", Node::Root, "var.parquet", manifest.has_var_table),
        ("var_names.txt", Node::Root, "var_names.txt", manifest.has_var_names),
        ("gene_order.npy", Node::Root, "gene_order.npy", manifest.has_gene_order),
        ("obs/schema.json", Node::Obs, "schema.json", manifest.obs.is_some()),
    ];
    let stored = files.into_iter().filter(|&(.., promised)| promised);
    stored
        .map(|(path, folder, name, _)| {
            let Attributes {
                size: bytes, version, ..
            } = dataset.store().attributes(path)?;
            Ok(Stored {
                path,
                folder,
                name,
                bytes,
                version,
            })
        })
        .collect()
}
