//! Rows of a tile in obs, in the form a file shows them in.

use std::sync::Arc;

use super::chunk::Found;
use super::{Engine, Key, ReadError};
use crate::cache::{Block, Failure, Lookup};
use crate::dataset::DatasetError;
use crate::format::TileId;
use crate::view::{EncodeError, Rows};

impl Engine {
    /// A tile's rows: from the cache, or made now if this thread may.
    pub(super) fn rows_block(self: &Arc<Self>, tile: TileId, rows: Rows, may_work: bool) -> Result<Found, ReadError> {
        let key = Key::Rows { tile, rows };
        if !may_work {
            return Ok(self.cache.join(key).into());
        }
        if let Some(error) = self.rows_not_given.failure(&(tile, rows)) {
            return Err(ReadError::Dataset(error));
        }
        let ticket = match self.cache.lookup(key) {
            Lookup::Hit(block) => return Ok(Found::Block(block)),
            Lookup::Busy(pending) => return Ok(Found::Busy(pending)),
            Lookup::Missing(ticket) => ticket,
        };
        let made = self.make_rows(tile, rows).map(|bytes| {
            let reservation = ticket.reserve(bytes.len() as u64);
            Block::from_vec(bytes, reservation)
        });
        let made = made.map_err(|error| {
            self.failed(&error);
            let error = Arc::new(error);
            self.rows_not_given.note((tile, rows), &error);
            Failure::Failed(error)
        });
        Ok(Found::Block(ticket.finish(made)?))
    }

    fn make_rows(&self, tile: TileId, rows: Rows) -> Result<Vec<u8>, DatasetError> {
        let columns = self.view.columns_of(rows);
        let mut arrays = Vec::with_capacity(columns.len());
        for column in columns.clone() {
            let array = self.view.dataset().column(tile, column)?;
            self.stats.count_column();
            self.view.learn_tile(tile, column, &array);
            arrays.push(array);
        }
        self.view
            .encode(rows, &arrays)
            .map_err(|error| self.bad_rows(tile, rows, &error))
    }

    /// What to say of rows that cannot be shown.
    pub(super) fn bad_rows(&self, tile: TileId, rows: Rows, error: &EncodeError) -> DatasetError {
        DatasetError::Column {
            column: self.view.column_name(self.view.columns_of(rows).start).to_owned(),
            tile,
            reason: error.to_string(),
        }
    }
}
