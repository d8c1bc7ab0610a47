//! Which files a mount shows, how large they are, and which bytes of the dataset each of their bytes is.
//!
//! A virtual file is a list of [`Extent`]s. Everything here follows from the manifest and the obs schema, and for some
//! files from what was found in columns or in the files about genes ([`Need`]): nothing is read or decoded here, and nothing
//! here knows FUSE. Files and folders are [`Node`]s, numbers rather than objects, so that a dataset of a hundred thousand
//! tiles costs no more than one of ten.

pub mod anndata;
mod arrays;
pub mod arrow;
mod columns;
mod families;
pub mod hdf5;
pub mod hierarchy;
mod inodes;
mod object;
mod readme;
mod stored;
mod tables;
pub mod zarr;

use std::ops::Range;
use std::sync::Arc;

use ::arrow::array::ArrayRef;
use ::arrow::error::ArrowError;
pub use arrays::{ArrayFile, Elements, Form};
pub use arrow::LayoutError;
pub use columns::ColumnFiles;
pub use families::{Families, Family};
pub use object::Genes;
pub use stored::Stored;
use thiserror::Error;

use self::anndata::{AnnDataError, ColumnFacts};
use self::hdf5::Hdf5Error;
use self::hierarchy::Part;
use self::inodes::Numbering;
use self::object::{Layout, Object};
use self::tables::{ObsTable, VarTable};
use self::zarr::ZarrError;
use crate::dataset::Dataset;
use crate::format::TileId;
use crate::format::manifest::{Manifest, shard_path, tile_path};
use crate::store::StoreError;

/// Size in bytes of `.dcfs/stats.json`, whatever it says: the rest is blanks.
pub const STATS_BYTES: u64 = 8192;

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
    /// `obs.arrow`, all columns of all cells.
    ObsTable,
    /// `var.arrow`, the gene table.
    VarTable,
    /// `dataset.h5ad`
    H5ad,
    /// A file or folder of `dataset.zarr`; 0 is the folder itself.
    Zarr(zarr::NodeId),
    /// `X`, the arrays of the whole matrix.
    Matrix,
    /// `X/<array>`
    MatrixArray(ArrayFile),
    /// `tile_NNNNNN`
    Tile(TileId),
    /// `tile_NNNNNN/obs`
    TileObs(TileId),
    /// `tile_NNNNNN/<array>`
    TileArray(TileId, ArrayFile),
    /// `tile_NNNNNN/obs/<column>.arrow`
    TileColumn(TileId, usize),
}

/// The rows of a tile in obs, in a form that some file shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One column, as an Arrow message.
    Column(usize),
    /// All columns, as an Arrow message.
    Table,
    /// A part of a column, as the elements of an array.
    Part(usize, Part),
}

impl Rows {
    /// The form in which these rows are kept when they were made: text padded to the longest one could take any amount
    /// of room, so it is padded when it is asked for.
    pub fn kept(self) -> Self {
        match self {
            Self::Part(column, Part::FixedText { .. }) => Self::Part(column, Part::CountedText),
            other => other,
        }
    }
}

/// A piece of a virtual file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extent {
    /// Bytes that are known.
    Literal(Arc<[u8]>, Range<usize>),
    /// Bytes of a tile's array.
    Array {
        /// Which tile.
        tile: TileId,
        /// Which array, as what.
        elements: Elements,
        /// Which of its bytes.
        bytes: Range<u64>,
    },
    /// Bytes of a tile's indptr, counted from the first nonzero of the dataset.
    RowStarts {
        /// Which tile.
        tile: TileId,
        /// Bytes of an entry: 8, or 4 where all entries fit.
        width: u64,
        /// Which of its bytes.
        bytes: Range<u64>,
    },
    /// Bytes of a tile's rows in obs.
    Rows {
        /// Which tile.
        tile: TileId,
        /// Which columns, as what.
        rows: Rows,
        /// Which bytes of that.
        bytes: Range<u64>,
    },
    /// Bytes of a stored file.
    Stored {
        /// Position in [`View::stored`].
        file: usize,
        /// Which of its bytes.
        bytes: Range<u64>,
    },
}

impl Extent {
    fn literal(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len();
        Self::Literal(bytes.into(), all)
    }
}

/// A file's size in bytes.
#[derive(Debug, Clone)]
pub enum Size {
    /// Known.
    Known(u64),
    /// Known once something else is.
    Needs(Need),
    /// There cannot be such a file.
    Failed(Arc<ViewError>),
}

/// What must be found out before a file has a size. Whoever does tells the view, and asks again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Need {
    /// How much text is in a tile's rows of a column: [`View::learn_tile`].
    Tile(TileId, usize),
    /// What is in all rows of these columns: [`View::learn_column`].
    Columns(Vec<usize>),
    /// The files about genes: [`View::learn_genes`].
    Genes,
}

/// What a mount shows.
#[derive(Debug, Clone, Copy)]
pub struct ViewOptions {
    /// Kinds of files.
    pub families: Families,
    /// Elements in a chunk of `dataset.zarr`, at least 1.
    pub zarr_chunk: u64,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self {
            families: Families::all(),
            zarr_chunk: zarr::DEFAULT_CHUNK,
        }
    }
}

/// The tree of one dataset.
pub struct View {
    dataset: Arc<Dataset>,
    families: Families,
    stored: Vec<Stored>,
    columns: Vec<ColumnFiles>,
    obs_table: Option<ObsTable>,
    var_table: VarTable,
    object: Object,
    readme: Arc<[u8]>,
    /// What is in the root before the tiles.
    root: Vec<Node>,
}

impl View {
    /// The tree of `dataset`, as far as it is wanted.
    ///
    /// # Errors
    /// When a column cannot be laid out, or a file that the manifest promises is not there.
    pub fn new(dataset: Arc<Dataset>, options: ViewOptions) -> Result<Self, ViewError> {
        let families = options.families;
        let manifest = dataset.manifest();
        let (columns, obs_table) = match dataset.schema() {
            Some(schema) => (
                ColumnFiles::all(schema, manifest)?,
                Some(ObsTable::new(schema, manifest.into())?),
            ),
            None => (Vec::new(), None),
        };
        let stored = Stored::all(&dataset)?;
        let readme = readme::text(&dataset, &columns, families).into_bytes().into();
        let mut view = Self {
            dataset,
            families,
            stored,
            columns,
            obs_table,
            var_table: VarTable::default(),
            object: Object::new(options.zarr_chunk),
            readme,
            root: Vec::new(),
        };
        view.root = view.root_entries();
        Ok(view)
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Files of the dataset that appear unchanged.
    pub fn stored(&self) -> &[Stored] {
        &self.stored
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

    /// Whether there are Arrow files of cells.
    fn has_columns(&self) -> bool {
        self.has_obs() && self.families.has(Family::Arrow)
    }

    fn array_files(&self) -> impl Iterator<Item = ArrayFile> + use<> {
        let families = self.families;
        ArrayFile::all(move |form| match form {
            Form::Raw => families.has(Family::Raw),
            Form::Npy => families.has(Family::Npy),
        })
    }

    fn has_tiles(&self) -> bool {
        self.has_columns() || self.array_files().next().is_some()
    }

    fn numbering(&self) -> Numbering {
        Numbering {
            stored: self.stored.len(),
            columns: self.columns.len(),
            tiles: self.manifest().n_tiles(),
        }
    }

    /// The node's inode number: the same at every mount of the dataset, and small, for programs that keep 32 bits.
    pub fn inode(&self, node: Node) -> u64 {
        self.numbering().inode(node)
    }

    /// The node of an inode number, if there is one.
    pub fn node(&self, inode: u64) -> Option<Node> {
        self.numbering().node(inode).filter(|&node| self.exists(node))
    }

    /// Whether a node that has a number is shown.
    fn exists(&self, node: Node) -> bool {
        match node {
            Node::Root | Node::Readme | Node::Control | Node::Stats | Node::Stored(_) => true,
            Node::Obs => self.has_obs(),
            Node::Column(_) | Node::ObsTable | Node::TileObs(_) | Node::TileColumn(..) => self.has_columns(),
            Node::VarTable => self.manifest().has_var_table && self.families.has(Family::Arrow),
            Node::H5ad => self.families.has(Family::H5ad),
            Node::Zarr(0) => self.families.has(Family::Zarr),
            Node::Zarr(node) => self.object.zarr_if_there().is_some_and(|store| node < store.nodes()),
            Node::Matrix => self.array_files().next().is_some(),
            Node::MatrixArray(file) | Node::TileArray(_, file) => self.array_files().any(|shown| shown == file),
            Node::Tile(_) => self.has_tiles(),
        }
    }

    /// Whether the node is a folder.
    pub fn is_folder(&self, node: Node) -> bool {
        match node {
            Node::Root | Node::Control | Node::Obs | Node::Matrix | Node::Tile(_) | Node::TileObs(_) => true,
            Node::Zarr(0) => true,
            Node::Zarr(node) => self.object.zarr_if_there().is_some_and(|store| store.is_folder(node)),
            _ => false,
        }
    }

    /// Whether the file is made of all tiles, so that whoever reads it can read them.
    pub fn spans_tiles(&self, node: Node) -> bool {
        matches!(node, Node::MatrixArray(_) | Node::H5ad | Node::Zarr(_))
    }

    /// The folder a node is in; the root is in itself.
    pub fn parent(&self, node: Node) -> Node {
        match node {
            Node::Root | Node::Readme | Node::Control | Node::Obs | Node::Matrix | Node::Tile(_) => Node::Root,
            Node::ObsTable | Node::VarTable | Node::H5ad | Node::Zarr(0) => Node::Root,
            Node::Zarr(node) => Node::Zarr(self.object.zarr_if_there().map_or(0, |store| store.parent(node))),
            Node::Stats => Node::Control,
            Node::Stored(file) => self.stored[file].folder,
            Node::Column(_) => Node::Obs,
            Node::MatrixArray(_) => Node::Matrix,
            Node::TileObs(tile) | Node::TileArray(tile, _) => Node::Tile(tile),
            Node::TileColumn(tile, _) => Node::TileObs(tile),
        }
    }

    /// Entry `position` of a folder, in an order that never changes; `None` past the last one.
    ///
    /// Folders of `dataset.zarr` are empty until their [`size`](Self::size) is known.
    pub fn entry(&self, folder: Node, position: u64) -> Option<Node> {
        if let Node::Zarr(folder) = folder {
            return self.object.zarr_if_there()?.entry(folder, position).map(Node::Zarr);
        }
        let position = usize::try_from(position).ok()?;
        let column = |position: usize| (self.has_columns() && position < self.columns.len()).then_some(position);
        match folder {
            Node::Root => self.root.get(position).copied().or_else(|| {
                let tile = position - self.root.len();
                (self.has_tiles() && tile < self.manifest().n_tiles()).then_some(Node::Tile(tile))
            }),
            Node::Control => (position == 0).then_some(Node::Stats),
            Node::Obs => {
                let stored = self.stored_in(Node::Obs);
                let mut fixed = stored.clone();
                fixed
                    .nth(position)
                    .or_else(|| column(position - stored.count()).map(Node::Column))
            }
            Node::Matrix => self.array_files().nth(position).map(Node::MatrixArray),
            Node::Tile(tile) => {
                let arrays = self.array_files().map(|file| Node::TileArray(tile, file));
                let obs = self.has_columns().then_some(Node::TileObs(tile));
                arrays.chain(obs).nth(position)
            }
            Node::TileObs(tile) => column(position).map(|column| Node::TileColumn(tile, column)),
            _ => None,
        }
    }

    /// Folders in a folder, for its link count.
    pub fn folders_in(&self, folder: Node) -> u64 {
        match folder {
            Node::Root => {
                let tiles = if self.has_tiles() { self.manifest().n_tiles() } else { 0 };
                self.root.iter().filter(|&&node| self.is_folder(node)).count() as u64 + tiles as u64
            }
            Node::Tile(_) => u64::from(self.has_columns()),
            Node::Zarr(folder) => self.object.zarr_if_there().map_or(0, |store| store.folders_in(folder)),
            _ => 0,
        }
    }

    /// What `name` in `folder` is, if it is there.
    ///
    /// Nothing is in folders of `dataset.zarr` until their [`size`](Self::size) is known.
    pub fn lookup(&self, folder: Node, name: &str) -> Option<Node> {
        let named = |&node: &Node| self.name(node) == name;
        let column = || {
            let column = self.columns.iter().position(|column| column.file_name() == name);
            column.filter(|_| self.has_columns())
        };
        match folder {
            Node::Root => self.root.iter().copied().find(named).or_else(|| self.tile_named(name)),
            Node::Obs => self
                .stored_in(Node::Obs)
                .find(named)
                .or_else(|| column().map(Node::Column)),
            Node::TileObs(tile) => column().map(|column| Node::TileColumn(tile, column)),
            Node::Zarr(folder) => self.object.zarr_if_there()?.lookup(folder, name).map(Node::Zarr),
            Node::Control | Node::Matrix | Node::Tile(_) => {
                (0..).map_while(|position| self.entry(folder, position)).find(named)
            }
            _ => None,
        }
    }

    fn tile_named(&self, name: &str) -> Option<Node> {
        let tile = name.strip_prefix("tile_")?.parse().ok()?;
        // One spelling a tile: no sign, no missing or further zeros.
        let there = self.has_tiles() && tile < self.manifest().n_tiles() && tile_name(tile) == name;
        there.then_some(Node::Tile(tile))
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
            Node::ObsTable => "obs.arrow".into(),
            Node::VarTable => "var.arrow".into(),
            Node::H5ad => "dataset.h5ad".into(),
            Node::Zarr(0) => "dataset.zarr".into(),
            Node::Zarr(node) => self
                .object
                .zarr_if_there()
                .map_or_else(String::new, |store| store.name(node)),
            Node::Matrix => "X".into(),
            Node::Tile(tile) => tile_name(tile),
            Node::MatrixArray(file) | Node::TileArray(_, file) => file.name().into(),
        }
    }

    /// The files and folders of the dataset that decide who may see the node; the empty path is the dataset's root.
    ///
    /// These are all that the node is made of, except that the first tile stands for all of a file that
    /// [spans](Self::spans_tiles) them: asking for all would take long, so that is done as each tile is read.
    pub fn sources(&self, node: Node) -> Vec<String> {
        match node {
            Node::Root | Node::Control | Node::Stats => vec![String::new()],
            Node::Readme => self.with_schema(vec!["manifest.json".into()]),
            Node::Obs | Node::TileObs(_) => self.with_schema(vec!["obs".into()]),
            Node::Stored(file) => vec![self.stored[file].path.into()],
            Node::Column(_) | Node::ObsTable => self.with_schema(self.shards().map(shard_path).collect()),
            Node::TileColumn(tile, _) => self.with_schema(vec![shard_path(self.shard_of(tile))]),
            Node::VarTable => vec!["var.parquet".into()],
            Node::Matrix | Node::Tile(_) => vec!["tiles".into()],
            Node::MatrixArray(_) => self.sources_of_matrix(),
            Node::Zarr(_) if self.is_folder(node) => self.sources_of_folder(),
            Node::H5ad | Node::Zarr(_) => self.sources_of_object(),
            Node::TileArray(tile, _) => vec![tile_path(tile)],
        }
    }

    /// These and the obs schema, whose names and labels whatever is made of obs shows.
    fn with_schema(&self, mut paths: Vec<String>) -> Vec<String> {
        paths.extend(self.has_obs().then(|| "obs/schema.json".into()));
        paths
    }

    /// What decides who may see a file that [spans](Self::spans_tiles) all tiles, as far as tiles do.
    pub fn sources_of_matrix(&self) -> Vec<String> {
        let first = if self.manifest().n_tiles() > 0 {
            tile_path(0)
        } else {
            "tiles".to_owned()
        };
        vec![first]
    }

    /// Folders of `dataset.zarr` are named for columns, genes' columns and metadata.
    fn sources_of_folder(&self) -> Vec<String> {
        let mut sources = vec!["tiles".to_owned()];
        sources.extend(self.stored.iter().map(|stored| stored.path.to_owned()));
        sources
    }

    fn sources_of_object(&self) -> Vec<String> {
        let mut sources = self.sources_of_matrix();
        sources.extend(self.shards().map(shard_path));
        sources.extend(self.stored.iter().map(|stored| stored.path.to_owned()));
        sources
    }

    fn shards(&self) -> Range<usize> {
        0..self.manifest().obs.as_ref().map_or(0, |obs| obs.shard_bytes.len())
    }

    /// The tiles whose cells each obs shard describes.
    pub fn tiles_of_shards(&self) -> impl Iterator<Item = Range<TileId>> {
        let tiles = self.manifest().n_tiles();
        let of_shard = self
            .manifest()
            .obs
            .as_ref()
            .map_or(1, |obs| obs.tiles_per_file as usize);
        let start = move |shard: usize| shard.saturating_mul(of_shard).min(tiles);
        self.shards().map(move |shard| start(shard)..start(shard + 1))
    }

    fn shard_of(&self, tile: TileId) -> usize {
        self.manifest()
            .obs
            .as_ref()
            .map_or(0, |obs| tile / obs.tiles_per_file as usize)
    }

    /// The size of a file; folders have none.
    pub fn size(&self, node: Node) -> Size {
        match node {
            Node::Root | Node::Control | Node::Obs | Node::Matrix | Node::Tile(_) | Node::TileObs(_) => Size::Known(0),
            Node::Readme => Size::Known(self.readme.len() as u64),
            Node::Stats => Size::Known(STATS_BYTES),
            Node::Stored(file) => Size::Known(self.stored[file].bytes),
            Node::TileArray(tile, file) => Size::Known(file.bytes(file.entries_of_tile(self.manifest(), tile))),
            Node::MatrixArray(file) => Size::Known(file.bytes(file.entries_of_matrix(self.manifest()))),
            Node::Column(column) => match self.columns[column].of_all_cells() {
                Some(layout) => Size::Known(layout.len()),
                None => Size::Needs(Need::Columns(vec![column])),
            },
            Node::TileColumn(tile, column) => {
                match self.columns[column].of_tile(tile, self.manifest().tile_cells(tile)) {
                    Some(layout) => Size::Known(layout.len()),
                    None => Size::Needs(Need::Tile(tile, column)),
                }
            }
            Node::ObsTable => match &self.obs_table {
                Some(table) => table.size(&self.columns),
                None => Size::Known(0),
            },
            Node::VarTable => self.var_table.size(),
            Node::H5ad => size_of(self.object.h5ad(&self.dataset, &self.columns), hdf5::FileLayout::len),
            Node::Zarr(node) => size_of(self.object.zarr(&self.dataset, &self.columns), |store| store.size(node)),
        }
    }

    /// What the bytes `range` of a file are, in order. The range ends within the file, whose size is known.
    pub fn extents(&self, node: Node, range: Range<u64>) -> Vec<Extent> {
        match node {
            Node::Root | Node::Control | Node::Obs | Node::Matrix | Node::Tile(_) | Node::TileObs(_) => Vec::new(),
            Node::Stats => Vec::new(),
            Node::Readme => vec![Extent::Literal(
                self.readme.clone(),
                range.start as usize..range.end as usize,
            )],
            Node::Stored(file) => vec![Extent::Stored { file, bytes: range }],
            Node::TileArray(tile, file) => file.of_tile(self.manifest(), tile, range),
            Node::MatrixArray(file) => file.of_matrix(self.manifest(), range),
            Node::Column(column) => {
                let layout = self.columns[column].of_all_cells();
                layout.map_or_else(Vec::new, |layout| {
                    columns::extents(layout, range, Rows::Column(column), |batch| batch as TileId)
                })
            }
            Node::TileColumn(tile, column) => {
                let layout = self.columns[column].of_tile(tile, self.manifest().tile_cells(tile));
                layout.map_or_else(Vec::new, |layout| {
                    columns::extents(&layout, range, Rows::Column(column), |_| tile)
                })
            }
            Node::ObsTable => self
                .obs_table
                .as_ref()
                .map_or_else(Vec::new, |table| table.extents(range)),
            Node::VarTable => self.var_table.extents(range),
            Node::H5ad => {
                let layout = self.object.h5ad_if_there();
                layout.map_or_else(Vec::new, |l| object::extents(self.manifest(), l.extents(range)))
            }
            Node::Zarr(node) => {
                let store = self.object.zarr_if_there();
                store.map_or_else(Vec::new, |store| {
                    object::extents(self.manifest(), store.extents(node, range))
                })
            }
        }
    }

    /// The columns that rows are made of, by position in the schema.
    pub fn columns_of(&self, rows: Rows) -> Range<usize> {
        match rows {
            Rows::Column(column) | Rows::Part(column, _) => column..column + 1,
            Rows::Table => 0..self.columns.len(),
        }
    }

    /// The bytes `range` of a tile's rows in the form `rows`, of the rows as they are [kept](Rows::kept); `None` where
    /// these are the same.
    ///
    /// # Errors
    /// When the rows are not what was found of them before.
    pub fn cut(&self, rows: Rows, kept: &[u8], range: Range<u64>) -> Result<Option<Vec<u8>>, EncodeError> {
        match rows {
            Rows::Part(column, Part::FixedText { width }) => {
                Ok(Some(anndata::pad(self.column_name(column), kept, width, range)?))
            }
            _ => Ok(None),
        }
    }

    /// A tile's rows in a form in which they are [kept](Rows::kept). `arrays` has their columns as stored, in order.
    ///
    /// # Errors
    /// When the arrays cannot be shown as what the schema says they are.
    pub fn encode(&self, rows: Rows, arrays: &[ArrayRef]) -> Result<Vec<u8>, EncodeError> {
        Ok(match (rows, &self.obs_table, self.dataset.schema()) {
            (Rows::Column(column), ..) => self.columns[column].batch().encode_message(arrays)?,
            (Rows::Table, Some(table), _) => table.batch().encode_message(arrays)?,
            (Rows::Part(column, part), _, Some(schema)) => anndata::encode(&schema.columns[column], part, &arrays[0])?,
            (Rows::Table | Rows::Part(..), ..) => Vec::new(),
        })
    }

    /// Takes note of a tile's rows of a column.
    pub fn learn_tile(&self, tile: TileId, column: usize, rows: &ArrayRef) {
        use ::arrow::array::AsArray;
        if let Some(text) = rows.as_string_opt::<i32>() {
            self.columns[column].learn_tile(tile, arrow::text_bytes(text));
        }
    }

    /// Takes note of what is in a column.
    ///
    /// # Errors
    /// When the column's file would be too large to address.
    pub fn learn_column(&self, column: usize, facts: ColumnFacts) -> Result<(), LayoutError> {
        self.columns[column].learn_all(facts)
    }

    /// Takes note of what the files about genes say.
    pub fn learn_genes(&self, genes: Genes) {
        if let Some(table) = &genes.table {
            self.var_table.learn(table);
        }
        self.object.learn(genes);
    }

    /// Whether a column holds text.
    pub fn is_text(&self, column: usize) -> bool {
        self.columns[column].is_text()
    }

    /// The name of a column's file, for messages.
    pub fn column_name(&self, column: usize) -> &str {
        self.columns[column].file_name()
    }

    /// Number of files and folders.
    pub fn files(&self) -> u64 {
        let arrays = self.array_files().count() as u64;
        let columns = if self.has_columns() {
            self.columns.len() as u64
        } else {
            0
        };
        let in_tile = if self.has_tiles() {
            1 + arrays + u64::from(self.has_columns()) + columns
        } else {
            0
        };
        // The root itself, what is in it, and what is in those of its folders that are there once.
        let once = 2 + (self.root.len() + self.stored_in(Node::Obs).count()) as u64 + arrays + columns;
        once + self.manifest().n_tiles() as u64 * in_tile
    }

    fn root_entries(&self) -> Vec<Node> {
        let mut nodes = vec![Node::Readme, Node::Control];
        nodes.extend(self.stored_in(Node::Root));
        let shown = [
            Node::H5ad,
            Node::Zarr(0),
            Node::Obs,
            Node::ObsTable,
            Node::VarTable,
            Node::Matrix,
        ];
        nodes.extend(shown.into_iter().filter(|&node| self.exists(node)));
        nodes
    }

    fn stored_in(&self, folder: Node) -> impl Iterator<Item = Node> + Clone + '_ {
        (0..self.stored.len())
            .filter(move |&file| self.stored[file].folder == folder)
            .map(Node::Stored)
    }
}

fn size_of<T>(layout: Layout<'_, T>, size: impl FnOnce(&T) -> u64) -> Size {
    match layout {
        Layout::There(layout) => Size::Known(size(layout)),
        Layout::Needs(need) => Size::Needs(need),
        Layout::Failed(error) => Size::Failed(error),
    }
}

/// `tile_NNNNNN`
pub fn tile_name(tile: TileId) -> String {
    format!("tile_{tile:06}")
}

/// Why a dataset, or one of its files, cannot be shown.
#[derive(Debug, Error)]
pub enum ViewError {
    /// Columns cannot be laid out as a file.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// `obs.arrow` cannot be laid out.
    #[error("obs.arrow: {0}")]
    ObsTable(#[from] Arc<LayoutError>),
    /// The gene table cannot be written as Arrow.
    #[error("var.arrow: {0}")]
    VarTable(#[from] Arc<ArrowError>),
    /// The dataset cannot be one AnnData object.
    #[error("dataset.h5ad, dataset.zarr: {0}")]
    AnnData(#[from] AnnDataError),
    /// It cannot be one HDF5 file.
    #[error("dataset.h5ad: {0}")]
    Hdf5(#[from] Hdf5Error),
    /// It cannot be one Zarr store.
    #[error("dataset.zarr: {0}")]
    Zarr(#[from] ZarrError),
    /// A file that the manifest promises is not there.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why rows cannot be shown.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// As Arrow.
    #[error(transparent)]
    Arrow(#[from] arrow::EncodeError),
    /// As the elements of an array.
    #[error(transparent)]
    AnnData(#[from] anndata::EncodeError),
}
