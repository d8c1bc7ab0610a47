//! What must hold of the tree of any dataset that can be opened.

use std::sync::Arc;

use dcfs::dataset::Dataset;
use dcfs::view::{Node, Size, View, ViewOptions};

use crate::memory::Memory;

/// Entries of a folder that are looked at, at its beginning and at its end.
const SOME: u64 = 12;

/// Opens the dataset and walks what a mount of it would show, as far as that needs no decoding.
pub fn walk(store: Memory) {
    let Ok(dataset) = Dataset::open(Arc::new(store)) else {
        return;
    };
    let Ok(view) = View::new(Arc::new(dataset), ViewOptions::default()) else {
        return;
    };
    folder(&view, Node::Root);
    let tiles = view.dataset().manifest().n_tiles();
    for tile in [0, tiles / 2, tiles.saturating_sub(1)]
        .into_iter()
        .filter(|&tile| tile < tiles)
    {
        for at in [Node::Tile(tile), Node::TileObs(tile)] {
            folder(&view, at);
        }
    }
    for at in [Node::Obs, Node::Matrix, Node::Control] {
        folder(&view, at);
    }
}

fn folder(view: &View, at: Node) {
    let length = (0..).find(|&position| view.entry(at, position).is_none()).unwrap_or(0);
    for position in (0..length).filter(|&position| position < SOME || position + SOME >= length) {
        let node = view.entry(at, position).expect("entries have no gaps");
        assert_eq!(view.node(view.inode(node)), Some(node), "inode numbers lead back");
        assert_eq!(view.parent(node), at, "an entry's parent is its folder");
        let name = view.name(node);
        assert!(
            (1..=255).contains(&name.len()) && !name.contains(['/', '\0']),
            "{name:?} can be a name"
        );
        assert_eq!(view.lookup(at, &name), Some(node), "{name:?} is found");
        if let Size::Known(size) = view.size(node)
            && !view.is_folder(node)
        {
            ends(view, node, size);
        }
    }
}

/// The first and last bytes of a file, which must be there.
fn ends(view: &View, node: Node, size: u64) {
    assert!(i64::try_from(size).is_ok(), "sizes are file offsets");
    for range in [0..size.min(4096), size.saturating_sub(4096)..size] {
        let length = range.end - range.start;
        if node != Node::Stats {
            let extents = view.extents(node, range);
            let sum: u64 = extents.iter().map(extent_bytes).sum();
            assert_eq!(sum, length, "extents are as long as what was asked for");
        }
    }
}

fn extent_bytes(extent: &dcfs::view::Extent) -> u64 {
    use dcfs::view::Extent::*;
    match extent {
        Literal(_, range) => range.len() as u64,
        Array { bytes, .. } | RowStarts { bytes, .. } | Rows { bytes, .. } | Stored { bytes, .. } => {
            bytes.end - bytes.start
        }
    }
}
