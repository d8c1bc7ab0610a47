//! Who may read a tile through a file that spans all tiles.
//!
//! Such a file shows the access of the first tile: asking for the access of a hundred thousand would keep `stat`
//! waiting. So before a tile's bytes are served through it, the tile is asked, and one that is kept more closely than
//! the file says is refused. Nobody reads through the mount what they may not read beside it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Engine, ReadError};
use crate::dataset::DatasetError;
use crate::format::TileId;
use crate::format::manifest::tile_path;
use crate::store::StoreError;
use crate::view::View;

/// How long what the store said is believed.
const BELIEVED: Duration = Duration::from_secs(5);
/// How many tiles are remembered.
const REMEMBERED: usize = 20_000;

/// Tiles that were found to allow as much as spanning files show.
#[derive(Default)]
pub(super) struct Spanning(Mutex<HashMap<TileId, Instant>>);

impl Spanning {
    /// Whether that is known without asking the store.
    fn is_known(&self, tile: TileId) -> bool {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.get(&tile).is_some_and(|when| when.elapsed() < BELIEVED)
    }

    fn allows(&self, view: &View, tile: TileId) -> Result<bool, StoreError> {
        let store = view.dataset().store();
        let access = store.attributes(&tile_path(tile))?.access;
        let mut allowed = true;
        for path in view.sources_of_matrix() {
            let shown = store.attributes(&path)?.access;
            allowed &= shown.and(access).file_mode() == shown.file_mode();
        }
        if allowed {
            let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.len() >= REMEMBERED {
                asked.clear();
            }
            asked.insert(tile, Instant::now());
        }
        Ok(allowed)
    }
}

impl Engine {
    /// Whether a tile may be read through a file that spans all; `None` when this thread may not find out.
    pub(super) fn may_span(&self, tile: TileId, may_work: bool) -> Result<Option<()>, ReadError> {
        let Some(spanning) = &self.spanning else {
            return Ok(Some(()));
        };
        if spanning.is_known(tile) {
            return Ok(Some(()));
        }
        if !may_work {
            return Ok(None);
        }
        let store = self.view.dataset().store();
        match spanning.allows(&self.view, tile) {
            Ok(true) => Ok(Some(())),
            Ok(false) => {
                let name = format!("{}/{}", store.location(), tile_path(tile));
                Err(self.tell(DatasetError::Restricted { name }))
            }
            Err(error) => Err(self.tell(error.into())),
        }
    }
}
