//! An opened dataset: a store whose manifest was read and validated, and the tiles in it.

mod error;
mod genes;
mod local;
pub mod obs_cache;
mod shard;
mod tile;
mod verify;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use arrow::array::ArrayRef;
use lru::LruCache;
use rayon::ThreadPool;
use rayon::prelude::*;

pub use error::DatasetError;
pub(crate) use shard::wrong_code;
pub use shard::{ObsShard, ShardError, ShardFault, verify_shard};
pub use tile::{Array, Part, Tile};
pub use verify::{Done, TableFault};

use local::LocalColumns;
use obs_cache::ObsCache;

use crate::format::TileId;
use crate::format::manifest::{Manifest, ObsManifest, SCHEMA_PATH, shard_path};
use crate::format::obs::ObsSchema;
use crate::store::{Held, Object, Store, Version, read_whole};

/// The most bytes of `manifest.json`: a hundred million tiles.
const MANIFEST_LIMIT: u64 = 4 << 30;
/// The most bytes of `obs/schema.json`.
const SCHEMA_LIMIT: u64 = 1 << 30;
/// How many tiles stay open, with their chunk table and indptr, after they were used.
const OPEN_TILES: NonZeroUsize = NonZeroUsize::new(128).expect("not zero");

/// How many obs shards stay open, with their footer.
const OPEN_SHARDS: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");

/// A shard, once somebody has opened it.
type ShardSlot = Arc<Mutex<Option<Arc<OpenShard>>>>;

/// A shard whose content was found to be the manifest's, and in which state of the file.
struct OpenShard {
    shard: ObsShard,
    version: Version,
}

/// A dataset that can be read. Shared between threads.
pub struct Dataset {
    store: Arc<dyn Store>,
    manifest: Manifest,
    schema: Option<ObsSchema>,
    tiles: Mutex<LruCache<TileId, Arc<Tile>>>,
    /// Shards whose footer was read. Who opens one holds its lock, so that it is opened once.
    shards: Mutex<LruCache<usize, ShardSlot>>,
    /// The checksum of each tile of which something was shown, and in which state of the file it was found right, if it
    /// was computed.
    shown: Mutex<HashMap<TileId, (Option<Version>, u32)>>,
    /// Shards whose SHA-256 was found right, and in which state of the file.
    verified_shards: Mutex<HashMap<usize, Version>>,
    /// Copies of columns on this machine, if they are to be used.
    local: Option<LocalColumns>,
}

impl Dataset {
    /// Reads and validates the manifest and the obs schema. Tiles and shards are looked at when they are needed.
    ///
    /// # Errors
    /// When either is missing, unreadable or not what the format asks for.
    pub fn open(store: Arc<dyn Store>) -> Result<Self, DatasetError> {
        let text = read_whole(&*store, "manifest.json", MANIFEST_LIMIT)?;
        let manifest = Manifest::parse(&text).map_err(|source| DatasetError::Manifest {
            name: name(&*store, "manifest.json"),
            source,
        })?;
        drop(text);
        store.anchor("manifest.json");
        let schema = if manifest.obs.is_some() {
            let path = SCHEMA_PATH;
            let text = read_whole(&*store, path, SCHEMA_LIMIT)?;
            let schema = ObsSchema::parse(&text).map_err(|source| DatasetError::ObsSchema {
                name: name(&*store, path),
                source,
            })?;
            Some(schema)
        } else {
            None
        };
        let tiles = Mutex::new(LruCache::new(OPEN_TILES));
        let shards = Mutex::new(LruCache::new(OPEN_SHARDS));
        Ok(Self {
            store,
            manifest,
            schema,
            tiles,
            shards,
            shown: Mutex::default(),
            verified_shards: Mutex::default(),
            local: None,
        })
    }

    /// The same dataset, which reads obs columns from the node's cache from now on, and puts those there that are
    /// missing. What goes wrong with the cache is logged; the column is then read from its shards.
    pub fn with_obs_cache(self, cache: ObsCache) -> Self {
        let local = self.manifest.obs.is_some().then(|| LocalColumns::new(cache));
        Self { local, ..self }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The obs columns; `None` when the dataset has no obs.
    pub fn schema(&self) -> Option<&ObsSchema> {
        self.schema.as_ref()
    }

    /// Where the dataset is.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Opens tile `id`: header, chunk table and indptr, held against the manifest. Nothing is decoded.
    ///
    /// # Errors
    /// When the file cannot be read, is not what the format and the manifest say, or holds something else than it did
    /// when something of it was shown.
    ///
    /// # Panics
    /// When there is no such tile.
    pub fn tile(&self, id: TileId) -> Result<Arc<Tile>, DatasetError> {
        match self.opened(id) {
            Some(tile) => Ok(tile),
            None => {
                let spec = self.manifest.tile(id);
                self.open_tile(self.store.open_whole(&spec.path(), spec.bytes)?, id)
            }
        }
    }

    /// Fetches a part of tile `id`, where tiles are fetched, and opens the tile if it is not open. All of it, or its head, is
    /// fetched with one request; a chunk of a tile that is not open, with two.
    ///
    /// The part stays in memory as long as what comes with the tile is there.
    ///
    /// # Errors
    /// As [`Self::tile`].
    ///
    /// # Panics
    /// When there is no such tile or chunk.
    pub fn fetch(&self, id: TileId, part: Part) -> Result<(Arc<Tile>, Held), DatasetError> {
        let spec = self.manifest.tile(id);
        let tile = match self.opened(id) {
            Some(tile) => tile,
            None => {
                let path = spec.path();
                let object = match part {
                    Part::Whole => self.store.open_whole(&path, spec.bytes)?,
                    Part::Head | Part::Chunk(_) => self.store.open_parts(&path, tile::head_bytes(&spec), spec.bytes)?,
                };
                self.open_tile(object, id)?
            }
        };
        let held = match tile.hold(part) {
            Some(held) => held,
            None => tile.fetch(part)?,
        };
        Ok((tile, held))
    }

    fn open_tile(&self, object: Arc<dyn Object>, id: TileId) -> Result<Arc<Tile>, DatasetError> {
        let spec = self.manifest.tile(id);
        let opened = Tile::open(object, spec).inspect_err(|error| {
            // Fetched anew, it may be right.
            if matches!(error, DatasetError::Tile { .. }) {
                self.store.forget(&spec.path());
            }
        });
        let tile = Arc::new(opened?);
        match lock(&self.shown).get(&id) {
            Some(&(Some(version), _)) if version == tile.version() => tile.trust(),
            // Another file with the same content, a copy put back for example, is as good once it is verified.
            Some(&(_, crc32)) if crc32 != tile.layout().crc32 => {
                return Err(DatasetError::Changed { name: tile.name() });
            }
            _ => {}
        }
        lock(&self.tiles).put(id, tile.clone());
        Ok(tile)
    }

    /// Tile `id` if it is open already.
    pub fn opened(&self, id: TileId) -> Option<Arc<Tile>> {
        lock(&self.tiles).get(&id).cloned()
    }

    /// Makes sure that the tile's checksum is right. It is computed once for each state of the file.
    ///
    /// Threads that ask at the same time share the work.
    ///
    /// # Errors
    /// When the file cannot be read or the checksum is wrong.
    pub fn verify(&self, tile: &Tile) -> Result<(), DatasetError> {
        let id = tile.layout().spec.id;
        match tile.verify() {
            Ok(first) => {
                if first {
                    lock(&self.shown).insert(id, (Some(tile.version()), tile.layout().crc32));
                }
                Ok(())
            }
            Err(error) => {
                self.distrust(id);
                Err(error)
            }
        }
    }

    /// Notes that something of a tile is shown whose checksum need not be known: computing it takes all of the tile, a hundred
    /// times its row starts, and many times a chunk.
    ///
    /// Header, chunk table and row starts were held against each other and the manifest: the row starts begin with 0, never
    /// decrease, are those of the chunk table at every chunk, and end with the manifest's nonzeros. So those of other tiles are right
    /// whatever is wrong with this one. What can be wrong in a tile that fits all that are starts within a chunk; then
    /// the checksum is wrong, and nothing of the tile is served any more once all of it was read. From now on the tile is refused if it
    /// becomes one with another checksum.
    pub fn show_unverified(&self, tile: &Tile) {
        if !tile.is_verified() {
            let (id, crc32) = (tile.layout().spec.id, tile.layout().crc32);
            lock(&self.shown).entry(id).or_insert((None, crc32));
        }
    }

    /// Decodes whole arrays of a tile with every thread of `pool`, and makes sure that its checksum is right.
    ///
    /// `indices` and `data`, where wanted, have one entry a nonzero of the tile.
    ///
    /// # Errors
    /// When the tile cannot be read or decoded, or its checksum is wrong; the outputs then hold nothing of use.
    ///
    /// # Panics
    /// When an output has another length.
    pub fn decode(
        &self,
        tile: &Tile,
        indices: Option<&mut [i32]>,
        data: Option<&mut [i32]>,
        pool: &ThreadPool,
    ) -> Result<(), DatasetError> {
        let mut jobs = Vec::new();
        for (array, out) in [(Array::Indices, indices), (Array::Data, data)] {
            let Some(mut rest) = out else { continue };
            assert_eq!(rest.len() as u64, tile.layout().spec.nnz, "one entry a nonzero");
            for chunk in &tile.layout().chunks {
                let (out, later) = rest.split_at_mut(chunk.nnz() as usize);
                rest = later;
                jobs.push((array, chunk.index, out));
            }
        }
        let decode = |(array, chunk, out)| tile.decode_chunk(array, chunk, out);
        let decoded = pool.install(|| jobs.into_par_iter().with_max_len(1).try_for_each(decode));
        if !tile.is_verified() {
            // What was decoded has been hashed on the way; a checksum that is wrong explains whatever else was found.
            let verified = pool.broadcast(|_| self.verify(tile));
            verified.into_iter().collect::<Result<(), _>>()?;
        }
        decoded
    }

    /// Values of obs column `column` (its place in the schema) for the cells of tile `tile`, of the type they are
    /// stored with: from the node's cache where it is used ([`Self::with_obs_cache`]), or as [`Self::stored_column`].
    ///
    /// # Errors
    /// When the shard cannot be read or is not what format, manifest and schema say.
    ///
    /// # Panics
    /// When there is no such tile or column.
    pub fn column(&self, tile: TileId, column: usize) -> Result<ArrayRef, DatasetError> {
        match self.local_column(tile, column)? {
            Some(values) => Ok(values),
            None => self.stored_column(tile, column),
        }
    }

    fn local_column(&self, tile: TileId, column: usize) -> Result<Option<ArrayRef>, DatasetError> {
        let local = self.local.as_ref();
        local.map_or(Ok(None), |local| local.read(self, tile, column))
    }

    /// Opens obs shard `shard`: its footer, held against manifest and schema. Its SHA-256 is another matter.
    ///
    /// # Errors
    /// When it cannot be read or is not what format, manifest and schema say.
    ///
    /// # Panics
    /// When there is no such shard.
    pub fn shard(&self, shard: usize) -> Result<ObsShard, DatasetError> {
        let (Some(obs), Some(schema)) = (&self.manifest.obs, &self.schema) else {
            panic!("a dataset without obs has no shards");
        };
        let object = self.store.open(&shard_path(shard))?;
        Ok(ObsShard::open(object, &self.manifest, obs, shard, schema)?)
    }

    /// Values of obs column `column` for the cells of tile `tile`, as stored. Reads that column of that tile and, the
    /// first time, the footer of its shard.
    ///
    /// # Errors
    /// When the shard cannot be read or is not what format, manifest and schema say.
    ///
    /// # Panics
    /// When there is no such tile or column.
    pub fn stored_column(&self, tile: TileId, column: usize) -> Result<ArrayRef, DatasetError> {
        self.of_shard(tile, |shard| shard.read_column(tile, column))
    }

    /// Whether a value of obs column `column` is missing for a cell of tile `tile`; costs less than its values.
    ///
    /// # Errors
    /// As [`Self::column`].
    ///
    /// # Panics
    /// When there is no such tile or column.
    pub fn has_missing(&self, tile: TileId, column: usize) -> Result<bool, DatasetError> {
        match self.local_column(tile, column)? {
            Some(values) => Ok(values.null_count() > 0),
            None => self.of_shard(tile, |shard| shard.has_missing(tile, column)),
        }
    }

    /// Bytes that obs column `column` takes in the shard that describes a tile.
    pub(super) fn column_bytes(&self, tile: TileId, column: usize) -> Result<u64, DatasetError> {
        self.of_shard(tile, |shard| shard.column_bytes(column))
    }

    /// What is read of the shard that describes a tile.
    fn of_shard<T>(
        &self,
        tile: TileId,
        read: impl FnOnce(&ObsShard) -> Result<T, ShardError>,
    ) -> Result<T, DatasetError> {
        let (Some(obs), Some(schema)) = (&self.manifest.obs, &self.schema) else {
            panic!("a dataset without obs has no columns");
        };
        let index = tile / obs.tiles_per_file as usize;
        let slot = lock(&self.shards).get_or_insert(index, Arc::default).clone();
        let mut opened = lock(&slot);
        let shard = match &*opened {
            Some(shard) => shard.clone(),
            None => {
                let object = self.store.open(&shard_path(index))?;
                let version = self.verify_shard_once(&*object, obs, index)?;
                let shard = ObsShard::open(object, &self.manifest, obs, index, schema)?;
                opened.insert(Arc::new(OpenShard { shard, version })).clone()
            }
        };
        drop(opened);
        let values = read(&shard.shard);
        // What was read of a file that changed was no fault of its own, nor is it to be believed.
        if shard.shard.version()? != shard.version {
            lock(&self.shards).pop(&index);
            let name = name(&*self.store, &shard_path(index));
            return Err(DatasetError::Changed { name });
        }
        Ok(values?)
    }

    /// Fetches all of a shard with one request, which shows whether it is the one the manifest was written for. Its columns are
    /// then read from memory.
    ///
    /// # Errors
    /// When it cannot be fetched, or is another one.
    pub(super) fn fetch_shard(&self, shard: usize) -> Result<(), DatasetError> {
        let (Some(obs), Some(schema)) = (&self.manifest.obs, &self.schema) else {
            panic!("a dataset without obs has no shards");
        };
        let path = shard_path(shard);
        let object = self.store.open_whole(&path, obs.shard_bytes[shard])?;
        let version = shard::version(&*object)?;
        if lock(&self.verified_shards).get(&shard) == Some(&version) {
            return Ok(());
        }
        shard::check_sha256(&*object, obs, shard).inspect_err(|_| self.store.forget(&path))?;
        lock(&self.verified_shards).insert(shard, version);
        let opened = ObsShard::open(object, &self.manifest, obs, shard, schema)?;
        let slot = lock(&self.shards).get_or_insert(shard, Arc::default).clone();
        *lock(&slot) = Some(Arc::new(OpenShard { shard: opened, version }));
        Ok(())
    }

    /// Makes sure that the shard is the one the manifest was written for: once for each state of the file.
    fn verify_shard_once(&self, object: &dyn Object, obs: &ObsManifest, shard: usize) -> Result<Version, DatasetError> {
        let version = shard::version(object)?;
        // Fetching all of it would cost more than what is wanted of it; its size is the manifest's, and its state stays the same.
        if self.store.is_remote() {
            return Ok(version);
        }
        if lock(&self.verified_shards).get(&shard) == Some(&version) {
            return Ok(version);
        }
        shard::check_sha256(object, obs, shard)?;
        if shard::version(object)? != version {
            return Err(DatasetError::Changed { name: object.name() });
        }
        lock(&self.verified_shards).insert(shard, version);
        Ok(version)
    }

    /// Closes tile `id`, whose bytes are wrong: none that were fetched are kept.
    pub fn distrust(&self, id: TileId) {
        self.forget(id);
        self.store.forget(&self.manifest.tile(id).path());
    }

    /// Closes tile `id`, so that the next use looks at the file again.
    pub fn forget(&self, id: TileId) {
        lock(&self.tiles).pop(&id);
    }
}

fn name(store: &dyn Store, path: &str) -> String {
    format!("{}/{path}", store.location())
}

/// Locks; a thread that panicked while it held the lock left nothing half done in these maps.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
