//! Finding out what a file's size depends on, once for the life of the mount.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::chunk::Found;
use super::{Engine, ReadError};
use crate::dataset::DatasetError;
use crate::format::TileId;
use crate::view::anndata::{ColumnFacts, TileFacts};
use crate::view::{Genes, Need, Node, Rows, Size};

/// For so long after a store did not answer nobody who asks for a size waits for it: a folder's listing, which asks for
/// one after another, would wait for each.
pub(super) const GONE: Duration = Duration::from_secs(5);

/// What becomes of a size.
type Done = Box<dyn FnOnce(Result<u64, ReadError>) + Send>;
/// Told when something is known, or cannot be.
type Told = Box<dyn FnOnce(Result<(), ReadError>) + Send>;

/// What is being found out, and who waits for it.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Waiters>);

#[derive(Default)]
struct Waiters {
    columns: HashMap<usize, Vec<Arc<Wanted>>>,
    genes: Vec<Told>,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Several columns that somebody waits for.
struct Wanted {
    left: AtomicUsize,
    failed: OnceLock<ReadError>,
    told: Mutex<Option<Told>>,
}

impl Wanted {
    fn one_is_known(&self, result: &Result<(), ReadError>) {
        if let Err(error) = result {
            let _ = self.failed.set(error.clone());
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(told) = told {
            told(self.failed.get().map_or(Ok(()), |error| Err(error.clone())));
        }
    }
}

impl Engine {
    /// The size of a file in bytes. What it depends on is found out the first time.
    ///
    /// # Errors
    /// `done` gets one when that cannot be found out, or there cannot be such a file.
    pub fn size(self: &Arc<Self>, node: Node, done: impl FnOnce(Result<u64, ReadError>) + Send + 'static) {
        match self.view.size(node) {
            Size::Known(bytes) => done(Ok(bytes)),
            unknown => self.find_size(node, unknown, None, Box::new(done)),
        }
    }

    fn find_size(self: &Arc<Self>, node: Node, size: Size, found: Option<Need>, done: Done) {
        match size {
            Size::Known(bytes) => done(Ok(bytes)),
            Size::Failed(error) => {
                self.report.tell(&error);
                done(Err(ReadError::View(error)));
            }
            // What was just found out made no difference: asking again would not either.
            Size::Needs(need) if found.as_ref() == Some(&need) => {
                let name = self.view.name(node);
                log::error!("the size of {name} is not known after finding out {need:?}");
                done(Err(ReadError::Abandoned));
            }
            Size::Needs(need) => {
                if let Some(error) = self.sizes_not_found.failure(&()) {
                    return done(Err(ReadError::Dataset(error)));
                }
                let engine = self.clone();
                let asked = need.clone();
                let told = move |result: Result<(), ReadError>| match result {
                    Ok(()) => engine.find_size(node, engine.view.size(node), Some(asked), done),
                    Err(error) => {
                        if let ReadError::Dataset(error) = &error {
                            engine.sizes_not_found.note((), error);
                        }
                        done(Err(error));
                    }
                };
                self.find_out(need, Box::new(told));
            }
        }
    }

    fn find_out(self: &Arc<Self>, need: Need, told: Told) {
        match need {
            Need::Tile(tile, column) => self.spawn_patient(move |engine| engine.find_out_tile(tile, column, told)),
            Need::Columns(columns) => self.find_out_columns(&columns, told),
            Need::Genes => {
                let mut waiting = self.waiting.lock();
                waiting.genes.push(told);
                if waiting.genes.len() == 1 {
                    drop(waiting);
                    self.spawn_patient(|engine| engine.find_out_genes());
                }
            }
        }
    }

    /// Making the rows tells the view what is in them.
    fn find_out_tile(self: &Arc<Self>, tile: TileId, column: usize, told: Told) {
        match self.rows_block(tile, Rows::Column(column), true) {
            Ok(Found::Busy(pending)) => pending.subscribe(|outcome| told(outcome.map(drop).map_err(ReadError::from))),
            Ok(Found::Block(_) | Found::Later | Found::Fetch(_)) => told(Ok(())),
            Err(error) => told(Err(error)),
        }
    }

    fn find_out_genes(self: &Arc<Self>) {
        let read = || -> Result<(), ReadError> {
            let dataset = self.view.dataset();
            self.view.learn_genes(Genes {
                table: dataset.gene_table().map_err(|error| self.tell(error))?,
                names: dataset.gene_names().map_err(|error| self.tell(error))?,
            });
            Ok(())
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
        let result = result.unwrap_or(Err(ReadError::Abandoned));
        let waiting = std::mem::take(&mut self.waiting.lock().genes);
        waiting.into_iter().for_each(|told| told(result.clone()));
    }

    /// What had to be found out about a tile's rows of a column; of numbers that is whether any are missing.
    fn facts(&self, tile: TileId, column: usize) -> Result<TileFacts, DatasetError> {
        let dataset = self.view.dataset();
        if self.view.is_text(column) {
            return Ok(TileFacts::of(&dataset.column(tile, column)?));
        }
        Ok(TileFacts {
            has_missing: dataset.has_missing(tile, column)?,
            ..TileFacts::default()
        })
    }

    /// Has those columns read that nobody is reading yet.
    fn find_out_columns(self: &Arc<Self>, columns: &[usize], told: Told) {
        let wanted = Arc::new(Wanted {
            left: AtomicUsize::new(columns.len()),
            failed: OnceLock::new(),
            told: Mutex::new(Some(told)),
        });
        let mut unread = Vec::new();
        let mut waiting = self.waiting.lock();
        for &column in columns {
            let others = waiting.columns.entry(column).or_default();
            if others.is_empty() {
                unread.push(column);
            }
            others.push(wanted.clone());
        }
        drop(waiting);
        if !unread.is_empty() {
            self.survey(unread);
        }
    }

    /// Reads columns of every tile, with all threads, and keeps nothing but what had to be found out.
    fn survey(self: &Arc<Self>, columns: Vec<usize>) {
        let shards: Vec<Part> = self.view.tiles_of_shards().map(Part::new).collect();
        let survey = Arc::new(Survey {
            columns,
            tiles: (0..self.view.dataset().manifest().n_tiles())
                .map(|_| OnceLock::new())
                .collect(),
            shards,
            next: AtomicUsize::new(0),
            working: AtomicUsize::new(self.threads),
            failed: OnceLock::new(),
        });
        for _ in 0..self.threads {
            let survey = survey.clone();
            self.spawn_patient(move |engine| survey.take_part(engine));
        }
    }
}

/// Columns being read, by every thread that takes part.
struct Survey {
    columns: Vec<usize>,
    /// For each tile, what was found in each of the columns.
    tiles: Vec<OnceLock<Vec<TileFacts>>>,
    shards: Vec<Part>,
    /// The next shard that nobody has begun.
    next: AtomicUsize,
    working: AtomicUsize,
    failed: OnceLock<ReadError>,
}

/// The tiles of a shard, and the next of them.
struct Part {
    tiles: Range<TileId>,
    next: AtomicUsize,
}

impl Part {
    fn new(tiles: Range<TileId>) -> Self {
        let next = AtomicUsize::new(tiles.start);
        Self { tiles, next }
    }

    fn next(&self) -> Option<TileId> {
        let tile = self.next.fetch_add(1, Ordering::Relaxed);
        self.tiles.contains(&tile).then_some(tile)
    }
}

impl Survey {
    fn take_part(&self, engine: &Arc<Engine>) {
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work(engine)));
        if let Err(error) = worked.unwrap_or(Err(ReadError::Abandoned)) {
            let _ = self.failed.set(error);
        }
        if self.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(engine);
        }
    }

    /// First of all a shard to itself, whose checksum others would wait for; then whatever is left of others'.
    fn work(&self, engine: &Arc<Engine>) -> Result<(), ReadError> {
        let begun = std::iter::from_fn(|| self.shards.get(self.next.fetch_add(1, Ordering::Relaxed)));
        begun
            .chain(&self.shards)
            .try_for_each(|shard| self.look_at(engine, shard))
    }

    fn look_at(&self, engine: &Arc<Engine>, shard: &Part) -> Result<(), ReadError> {
        while self.failed.get().is_none() {
            let Some(tile) = shard.next() else { break };
            let mut found = Vec::with_capacity(self.columns.len());
            for &column in &self.columns {
                let facts = engine.facts(tile, column).map_err(|error| engine.tell(error))?;
                found.push(facts);
            }
            let _ = self.tiles[tile].set(found);
            // Whoever reads goes first.
            rayon::yield_now();
        }
        Ok(())
    }

    fn finish(&self, engine: &Arc<Engine>) {
        for (at, &column) in self.columns.iter().enumerate() {
            engine.stats.count_column();
            let result = match self.failed.get() {
                Some(error) => Err(error.clone()),
                None => self.learn(engine, at, column),
            };
            let waiting = engine.waiting.lock().columns.remove(&column).unwrap_or_default();
            waiting.iter().for_each(|wanted| wanted.one_is_known(&result));
        }
    }

    fn learn(&self, engine: &Arc<Engine>, at: usize, column: usize) -> Result<(), ReadError> {
        let tiles = self.tiles.iter().filter_map(|found| found.get());
        let facts: ColumnFacts = tiles.map(|found| found[at]).collect();
        engine.view.learn_column(column, facts).map_err(|error| {
            let error = Arc::new(error.into());
            engine.report.tell(&error);
            ReadError::View(error)
        })
    }
}
