//! Zarr v3 stores whose chunks are given sizes but are not there: documents are written, chunks are extents.
//!
//! A store is a folder for each group and array with its `zarr.json`, and below an array the folder `c` of chunks named by number.
//! Nothing is compressed. The root's document holds all others as inline consolidated metadata. Files and folders are numbers, and
//! chunks are kept nowhere: a store of a million of them costs no more than one of ten.
//!
//! Knows trees of groups and arrays, not what they mean: no AnnData, no store, no FUSE.

mod chunks;
mod metadata;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value as Json;
use thiserror::Error;

use self::chunks::Chunks;
use super::arrow::Tiling;
use super::hierarchy::{ArrayNode, Extent, Group, Member, Shape};

/// What a document is called.
const DOCUMENT: &str = "zarr.json";
/// What the folder of chunks is called, or the one chunk of an array without dimensions.
const CHUNKS: &str = "c";

/// How many elements a chunk has unless told otherwise.
pub const DEFAULT_CHUNK: u64 = 1 << 18;

/// Why a tree cannot be a Zarr store.
#[derive(Debug, Error)]
pub enum ZarrError {
    /// A chunk with more bytes or texts than can be counted.
    #[error("a chunk of the array {array:?} would be too large")]
    ChunkTooLarge { array: String },
    /// More files than can be numbered.
    #[error("with the array {array:?} the store would have too many chunks to number")]
    TooManyChunks { array: String },
}

/// A file or folder of a store: 0 is its root. Numbers follow from the tree and the length of chunks alone.
pub type NodeId = u64;

/// One store: which files and folders there are, how large they are, and what their bytes are.
#[derive(Debug, Clone)]
pub struct Store {
    /// Groups and arrays, each after the group it is in.
    places: Vec<Place>,
    nodes: u64,
}

/// A group or an array.
#[derive(Debug, Clone)]
struct Place {
    /// Its folder; its document is the next number, and an array's chunks come after that.
    first: NodeId,
    /// Which group it is in; the root is in itself.
    parent: usize,
    name: String,
    document: Arc<[u8]>,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    /// Members, by name.
    Group(BTreeMap<String, usize>),
    Array(Chunks),
}

/// What a node is of its group or array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Folder,
    Document,
    ChunkFolder,
    Chunk(u64),
}

impl Place {
    fn role(&self, node: NodeId) -> Role {
        match (node - self.first, &self.content) {
            (0, _) => Role::Folder,
            (1, _) => Role::Document,
            (2, Content::Array(chunks)) if chunks.array.shape == Shape::Scalar => Role::Chunk(0),
            (2, _) => Role::ChunkFolder,
            (number, _) => Role::Chunk(number - 3),
        }
    }

    /// How many numbers it takes.
    fn nodes(&self) -> Option<u64> {
        match &self.content {
            Content::Group(_) => Some(2),
            Content::Array(chunks) if chunks.array.shape == Shape::Scalar => Some(3),
            Content::Array(chunks) => chunks.count().checked_add(3),
        }
    }
}

impl Store {
    /// Lays out the tree below `root` as a store, with about `chunk` elements in a chunk. Columns of obs are tiled as
    /// `tiling` says, and their chunks are whole tiles.
    ///
    /// # Errors
    /// [`ZarrError`] when chunks are too large or too many.
    ///
    /// # Panics
    /// When `chunk` is 0.
    pub fn new(root: &Group, tiling: Tiling, chunk: u64) -> Result<Self, ZarrError> {
        assert!(chunk > 0, "a chunk has elements");
        let mut builder = Builder {
            store: Self {
                places: Vec::new(),
                nodes: 0,
            },
            documents: BTreeMap::new(),
            tiling,
            chunk,
        };
        builder.group(0, "", "", root)?;
        let Builder {
            mut store, documents, ..
        } = builder;
        let mut document = metadata::group(&root.attributes);
        metadata::consolidate(&mut document, documents);
        store.places[0].document = text(&document);
        Ok(store)
    }

    /// Number of files and folders; every number below it is one.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Entry `position` of a folder, in an order that never changes; `None` past the last one.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn entry(&self, folder: NodeId, position: u64) -> Option<NodeId> {
        let (place, role) = self.locate(folder);
        match (role, &place.content, position) {
            (Role::Folder, _, 0) => Some(place.first + 1),
            (Role::Folder, Content::Group(members), _) => {
                let position = usize::try_from(position - 1).ok()?;
                members.values().nth(position).map(|&at| self.places[at].first)
            }
            (Role::Folder, Content::Array(_), 1) => Some(place.first + 2),
            (Role::ChunkFolder, Content::Array(chunks), _) => {
                (position < chunks.count()).then(|| place.first + 3 + position)
            }
            _ => None,
        }
    }

    /// What `name` in `folder` is, if it is there.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn lookup(&self, folder: NodeId, name: &str) -> Option<NodeId> {
        let (place, role) = self.locate(folder);
        match (role, &place.content) {
            (Role::Folder, _) if name == DOCUMENT => Some(place.first + 1),
            (Role::Folder, Content::Group(members)) => members.get(name).map(|&at| self.places[at].first),
            (Role::Folder, Content::Array(_)) => (name == CHUNKS).then_some(place.first + 2),
            (Role::ChunkFolder, Content::Array(chunks)) => {
                let chunk: u64 = name.parse().ok()?;
                // One spelling a chunk: no sign, no further zeros.
                (chunk < chunks.count() && chunk.to_string() == name).then(|| place.first + 3 + chunk)
            }
            _ => None,
        }
    }

    /// The folder a node is in; the root is in itself.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn parent(&self, node: NodeId) -> NodeId {
        let (place, role) = self.locate(node);
        match role {
            Role::Folder => self.places[place.parent].first,
            Role::Chunk(_) if node > place.first + 2 => place.first + 2,
            Role::Document | Role::ChunkFolder | Role::Chunk(_) => place.first,
        }
    }

    /// The node's name in its folder; empty for the root.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn name(&self, node: NodeId) -> String {
        let (place, role) = self.locate(node);
        match role {
            Role::Folder => place.name.clone(),
            Role::Document => DOCUMENT.into(),
            Role::Chunk(chunk) if node > place.first + 2 => chunk.to_string(),
            Role::ChunkFolder | Role::Chunk(_) => CHUNKS.into(),
        }
    }

    /// Whether the node is a folder.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn is_folder(&self, node: NodeId) -> bool {
        matches!(self.locate(node).1, Role::Folder | Role::ChunkFolder)
    }

    /// Folders in a folder, for its link count.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn folders_in(&self, folder: NodeId) -> u64 {
        match self.locate(folder) {
            (place, Role::Folder) => match &place.content {
                Content::Group(members) => members.len() as u64,
                Content::Array(chunks) => u64::from(chunks.array.shape != Shape::Scalar),
            },
            _ => 0,
        }
    }

    /// The array that a chunk is of; `None` for everything else.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn array(&self, node: NodeId) -> Option<&ArrayNode> {
        match (self.locate(node), &self.locate(node).0.content) {
            ((_, Role::Chunk(_)), Content::Array(chunks)) => Some(&chunks.array),
            _ => None,
        }
    }

    /// The size of a file in bytes; folders have none.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn size(&self, node: NodeId) -> u64 {
        let (place, role) = self.locate(node);
        match (role, &place.content) {
            (Role::Document, _) => place.document.len() as u64,
            (Role::Chunk(chunk), Content::Array(chunks)) => chunks.bytes(chunk),
            _ => 0,
        }
    }

    /// What the bytes `range` of a file are, in order; the range is cut to the file's size.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn extents(&self, node: NodeId, range: Range<u64>) -> Vec<Extent> {
        let (place, role) = self.locate(node);
        let range = range.start..range.end.min(self.size(node));
        match (role, &place.content) {
            (Role::Document, _) if !range.is_empty() => {
                let bytes = range.start as usize..range.end as usize;
                vec![Extent::Literal(place.document.clone(), bytes)]
            }
            (Role::Chunk(chunk), Content::Array(chunks)) => chunks.extents(chunk, range),
            _ => Vec::new(),
        }
    }

    fn locate(&self, node: NodeId) -> (&Place, Role) {
        assert!(node < self.nodes, "the store has no node {node}");
        let place = &self.places[self.places.partition_point(|place| place.first <= node) - 1];
        (place, place.role(node))
    }
}

/// A store in the making, and its documents by path.
struct Builder {
    store: Store,
    documents: BTreeMap<String, Json>,
    tiling: Tiling,
    chunk: u64,
}

impl Builder {
    fn group(&mut self, parent: usize, path: &str, name: &str, group: &Group) -> Result<usize, ZarrError> {
        let at = self.add(
            parent,
            path,
            name,
            metadata::group(&group.attributes),
            Content::Group(BTreeMap::new()),
        )?;
        let mut members = BTreeMap::new();
        for (name, member) in &group.members {
            let below = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}/{name}")
            };
            let place = match member {
                Member::Group(group) => self.group(at, &below, name, group)?,
                Member::Array(array) => {
                    let chunks = Chunks::new(array, self.tiling, self.chunk)
                        .ok_or_else(|| ZarrError::ChunkTooLarge { array: below.clone() })?;
                    self.add(at, &below, name, metadata::array(&chunks), Content::Array(chunks))?
                }
            };
            members.insert(name.clone(), place);
        }
        self.store.places[at].content = Content::Group(members);
        Ok(at)
    }

    fn add(
        &mut self,
        parent: usize,
        path: &str,
        name: &str,
        document: Json,
        content: Content,
    ) -> Result<usize, ZarrError> {
        let place = Place {
            first: self.store.nodes,
            parent,
            name: name.to_owned(),
            document: text(&document),
            content,
        };
        let end = place.nodes().and_then(|nodes| self.store.nodes.checked_add(nodes));
        let end = end.filter(|&end| end < i64::MAX as u64);
        self.store.nodes = end.ok_or_else(|| ZarrError::TooManyChunks { array: path.to_owned() })?;
        self.store.places.push(place);
        if !path.is_empty() {
            self.documents.insert(path.to_owned(), document);
        }
        Ok(self.store.places.len() - 1)
    }
}

fn text(document: &Json) -> Arc<[u8]> {
    let mut text = document.to_string().into_bytes();
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests;
