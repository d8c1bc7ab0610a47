//! Inode numbers: arithmetic from nodes to numbers and back.
//!
//! A node has the same number at every mount of the dataset, whichever views are shown, and a small one, for programs
//! that keep 32 bits. Knows how many of each kind there are, not which of them exist.

use super::Node;
use super::arrays::ArrayFile;
use crate::format::TileId;

/// Numbers below these belong to files that are there once.
const FIRST_STORED: u64 = 16;
const FIRST_MATRIX: u64 = 32;
const FIRST_COLUMN: u64 = 64;
/// Nodes of a tile that every dataset has: its folder, the folder of its columns, its arrays.
const PER_TILE: usize = 2 + ArrayFile::COUNT;

/// The nodes that are there once.
const SINGLE: [(u64, Node); 9] = [
    (1, Node::Root),
    (2, Node::Readme),
    (3, Node::Control),
    (4, Node::Stats),
    (5, Node::Obs),
    (6, Node::Matrix),
    (7, Node::ObsTable),
    (8, Node::VarTable),
    (9, Node::H5ad),
];

/// How many there are of what there may be many of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbering {
    pub(super) stored: usize,
    pub(super) columns: usize,
    pub(super) tiles: usize,
}

impl Numbering {
    fn tile_stride(self) -> u64 {
        (PER_TILE + self.columns) as u64
    }

    fn first_tile(self) -> u64 {
        FIRST_COLUMN + self.columns as u64
    }

    /// The node's inode number.
    pub(super) fn inode(self, node: Node) -> u64 {
        let tile = |tile: TileId| self.first_tile() + tile as u64 * self.tile_stride();
        match node {
            Node::Stored(file) => FIRST_STORED + file as u64,
            Node::MatrixArray(file) => FIRST_MATRIX + file.number() as u64,
            Node::Column(column) => FIRST_COLUMN + column as u64,
            Node::Tile(id) => tile(id),
            Node::TileObs(id) => tile(id) + 1,
            Node::TileArray(id, file) => tile(id) + 2 + file.number() as u64,
            Node::TileColumn(id, column) => tile(id) + (PER_TILE + column) as u64,
            // After everything else, since nobody knows how many there are.
            Node::Zarr(node) => tile(self.tiles) + node,
            once => {
                let found = SINGLE.iter().find(|&&(_, node)| node == once);
                found.map(|&(inode, _)| inode).expect("every other node is there once")
            }
        }
    }

    /// The node of an inode number.
    pub(super) fn node(self, inode: u64) -> Option<Node> {
        let from = |first: u64| (inode - first) as usize;
        match inode {
            FIRST_COLUMN.. => Some(self.numbered(inode)),
            FIRST_MATRIX.. => ArrayFile::numbered(from(FIRST_MATRIX)).map(Node::MatrixArray),
            FIRST_STORED.. => (from(FIRST_STORED) < self.stored).then(|| Node::Stored(from(FIRST_STORED))),
            _ => SINGLE
                .iter()
                .find(|&&(number, _)| number == inode)
                .map(|&(_, node)| node),
        }
    }

    /// What there are many of.
    fn numbered(self, inode: u64) -> Node {
        let Some(after) = inode.checked_sub(self.first_tile()) else {
            return Node::Column((inode - FIRST_COLUMN) as usize);
        };
        let tiles_end = self.tiles as u64 * self.tile_stride();
        if after >= tiles_end {
            return Node::Zarr(after - tiles_end);
        }
        let tile = (after / self.tile_stride()) as TileId;
        match (after % self.tile_stride()) as usize {
            0 => Node::Tile(tile),
            1 => Node::TileObs(tile),
            within => match ArrayFile::numbered(within - 2) {
                Some(file) => Node::TileArray(tile, file),
                None => Node::TileColumn(tile, within - PER_TILE),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_that_of_its_node_and_no_other() {
        let numbering = Numbering {
            stored: 5,
            columns: 3,
            tiles: 4,
        };
        let mut nodes = std::collections::HashSet::new();
        for inode in 0..200 {
            let Some(node) = numbering.node(inode) else { continue };
            assert_eq!(numbering.inode(node), inode, "{node:?}");
            assert!(nodes.insert(node), "{node:?} has two numbers");
        }
        let expected = SINGLE.len() + 5 + ArrayFile::COUNT + 3 + 4 * (2 + ArrayFile::COUNT + 3);
        let zarr = nodes.iter().filter(|node| matches!(node, Node::Zarr(_))).count();
        assert_eq!(nodes.len() - zarr, expected);
        assert!(nodes.contains(&Node::Zarr(0)) && nodes.contains(&Node::Zarr(zarr as u64 - 1)));
    }
}
