//! Obs columns: a tile's rows as an Arrow message, and how large string columns are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arrow::array::AsArray;

use super::chunk::Found;
use super::{Engine, ReadError};
use crate::cache::{Block, Failure, Key, Lookup};
use crate::dataset::DatasetError;
use crate::format::TileId;
use crate::view::arrow::text_bytes;
use crate::view::{Node, Size};

/// What becomes of a size.
type Done = Box<dyn FnOnce(Result<u64, ReadError>) + Send>;

/// String columns whose sizes are being found, and who waits for them.
#[derive(Default)]
pub(super) struct TextSizes {
    waiting: Mutex<HashMap<usize, Vec<Done>>>,
}

impl TextSizes {
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Vec<Done>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// The message that holds a tile's rows of a column: from the cache, or made now if this thread may.
    pub(super) fn column_block(
        self: &Arc<Self>,
        tile: TileId,
        column: usize,
        may_work: bool,
    ) -> Result<Found, ReadError> {
        let key = Key::Column { tile, column };
        if !may_work {
            return Ok(self.cache.get(key).map_or(Found::Later, Found::Block));
        }
        let ticket = match self.cache.lookup(key) {
            Lookup::Hit(block) => return Ok(Found::Block(block)),
            Lookup::Busy(pending) => return Ok(Found::Busy(pending)),
            Lookup::Missing(ticket) => ticket,
        };
        let made = self.column_message(tile, column).map(|message| {
            let reservation = ticket.reserve(message.len() as u64);
            Block::from_vec(message, reservation)
        });
        let made = made.map_err(|error| {
            self.failed(&error);
            Failure::Failed(Arc::new(error))
        });
        Ok(Found::Block(ticket.finish(made)?))
    }

    fn column_message(&self, tile: TileId, column: usize) -> Result<Vec<u8>, DatasetError> {
        let array = self.view.dataset().column(tile, column)?;
        self.stats.count_column();
        let files = self.view.column(column);
        if let Some(text) = array.as_string_opt::<i32>() {
            files.learn_tile(tile, text_bytes(text));
        }
        files.batch().encode_message(&[array]).map_err(|error| {
            let (column, reason) = (files.file_name().to_owned(), error.to_string());
            DatasetError::Column { column, tile, reason }
        })
    }

    /// The size of a file of a string column, which takes reading it: once.
    pub(super) fn text_size(self: &Arc<Self>, node: Node, done: Done) {
        match node {
            Node::TileColumn(tile, column) => self.spawn(move |engine| engine.tile_text_size(node, tile, column, done)),
            Node::Column(column) => {
                let mut waiting = self.texts.lock();
                let others = waiting.entry(column).or_default();
                others.push(done);
                if others.len() == 1 {
                    drop(waiting);
                    self.measure_text(column);
                }
            }
            _ => done(Ok(0)),
        }
    }

    fn tile_text_size(self: &Arc<Self>, node: Node, tile: TileId, column: usize, done: Done) {
        // Making the message tells the view how much text there is.
        match self.column_block(tile, column, true) {
            Ok(Found::Busy(pending)) => {
                let engine = self.clone();
                pending.subscribe(move |outcome| match outcome {
                    Ok(_) => engine.deliver_size(node, done),
                    Err(failure) => done(Err(failure.into())),
                });
            }
            Ok(Found::Block(_) | Found::Later) => self.deliver_size(node, done),
            Err(error) => done(Err(error)),
        }
    }

    fn deliver_size(&self, node: Node, done: Done) {
        match self.view.size(node) {
            Size::Known(bytes) => done(Ok(bytes)),
            Size::OfText => {
                log::error!("the size of {} is not known after reading it", self.view.name(node));
                done(Err(ReadError::Abandoned));
            }
        }
    }

    /// Reads the column of every tile, with all threads, and keeps nothing but how much text each has.
    fn measure_text(self: &Arc<Self>, column: usize) {
        // One thread stays free for those who read.
        let workers = (self.threads - 1).max(1);
        let measure = Arc::new(Measure {
            column,
            bytes: (0..self.view.dataset().manifest().n_tiles())
                .map(|_| OnceLock::new())
                .collect(),
            next: AtomicUsize::new(0),
            working: AtomicUsize::new(workers),
            failed: OnceLock::new(),
        });
        for _ in 0..workers {
            let measure = measure.clone();
            self.spawn(move |engine| measure.take_part(engine));
        }
    }
}

/// Measuring a string column, by every thread that takes part.
struct Measure {
    column: usize,
    bytes: Vec<OnceLock<u64>>,
    next: AtomicUsize,
    working: AtomicUsize,
    failed: OnceLock<ReadError>,
}

impl Measure {
    fn take_part(&self, engine: &Arc<Engine>) {
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work(engine)));
        if let Err(error) = worked.unwrap_or(Err(ReadError::Abandoned)) {
            let _ = self.failed.set(error);
        }
        if self.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(engine);
        }
    }

    fn work(&self, engine: &Arc<Engine>) -> Result<(), ReadError> {
        let dataset = engine.view.dataset();
        while self.failed.get().is_none() {
            let tile = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(bytes) = self.bytes.get(tile) else { break };
            let array = dataset.column(tile, self.column).map_err(|error| engine.tell(error))?;
            let _ = bytes.set(array.as_string_opt::<i32>().map_or(0, text_bytes));
        }
        Ok(())
    }

    fn finish(&self, engine: &Arc<Engine>) {
        engine.stats.count_column();
        let result = match self.failed.get() {
            Some(error) => Err(error.clone()),
            None => {
                let bytes = self
                    .bytes
                    .iter()
                    .map(|bytes| bytes.get().copied().unwrap_or(0))
                    .collect();
                engine.view.column(self.column).learn_all(bytes).map_err(|error| {
                    log::error!("{error}");
                    ReadError::Abandoned
                })
            }
        };
        let waiting = engine.texts.lock().remove(&self.column).unwrap_or_default();
        for done in waiting {
            match &result {
                Ok(()) => engine.deliver_size(Node::Column(self.column), done),
                Err(error) => done(Err(error.clone())),
            }
        }
    }
}
