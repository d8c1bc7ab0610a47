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
use crate::store::{Access, Store, StoreError};
use crate::view::View;

/// How long what the store said is believed.
const BELIEVED: Duration = Duration::from_secs(30);
/// How many tiles are remembered.
const REMEMBERED: usize = 20_000;

/// The access that spanning files show, and the tiles that allow as much.
pub(super) struct Spanning {
    shown: Access,
    asked: Mutex<HashMap<TileId, Instant>>,
}

impl Spanning {
    /// # Errors
    /// When the store does not say what access the first tile gives.
    pub(super) fn new(view: &View) -> Result<Self, StoreError> {
        let store = view.dataset().store();
        let mut shown = store.attributes("")?.access;
        for (at, path) in view.sources_of_matrix().iter().enumerate() {
            let access = store.attributes(path)?.access;
            shown = if at == 0 { access } else { shown.and(access) };
        }
        let asked = Mutex::default();
        Ok(Self { shown, asked })
    }

    /// Whether that is known without asking the store.
    fn is_known(&self, tile: TileId) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.get(&tile).is_some_and(|when| when.elapsed() < BELIEVED)
    }

    fn allows(&self, store: &dyn Store, tile: TileId) -> Result<bool, StoreError> {
        let access = store.attributes(&tile_path(tile))?.access;
        let allowed = self.shown.and(access).file_mode() == self.shown.file_mode();
        if allowed {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
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
        match spanning.allows(&**store, tile) {
            Ok(true) => Ok(Some(())),
            Ok(false) => {
                let name = format!("{}/{}", store.location(), tile_path(tile));
                Err(self.tell(DatasetError::Restricted { name }))
            }
            Err(error) => Err(self.tell(error.into())),
        }
    }
}
