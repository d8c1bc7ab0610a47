//! Objects as they were fetched, on a disk of this machine, for all mounts and daemons of a user.
//!
//! `<folder>/<object>/<state>` holds one state of one object; both names are hashes, of the object's full name and of what the store
//! calls the state. A file appears whole, by rename, and is held against its checksum whenever it is read. Whoever fetches an object
//! holds the lock of its folder, so that it is fetched once. What was used longest ago goes first when the cache is full, or the disk
//! nearly is.
//!
//! Folders and files are the user's own and closed to everybody else: a cached object is not more open than the credentials that
//! fetched it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock, statvfs};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::trust::{self, Distrust};
use crate::format::fingerprint::hex;

/// What a file begins with.
const MAGIC: &[u8; 8] = b"dcfsobj1";
/// Magic, size of the object, CRC-32 of its bytes, and nothing for now.
const HEADER_BYTES: usize = 24;
/// Of the disk, this part is left free, one in so many.
const FREE_SHARE: u64 = 20;
/// When room is made, a little more than is needed, so that it is not made for every object: one part in so many.
const SLACK_SHARE: u64 = 20;
/// How often a lock is tried that somebody else holds.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Temporary files as old as this were left by a process that died.
const LEFTOVER: Duration = Duration::from_secs(24 * 3600);
/// What the names of temporary files begin with.
const TEMPORARY: &str = ".new-";
const LOCK: &str = ".lock";

/// Why there is no cache on disk.
#[derive(Debug, Error)]
pub enum DiskCacheError {
    /// A folder that cannot be made or used.
    #[error("cannot use {} as a disk cache: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Others could put anything there.
    #[error(transparent)]
    Distrust(#[from] Distrust),
}

/// Objects on disk.
#[derive(Debug)]
pub struct DiskCache {
    folder: PathBuf,
    limit: u64,
    /// Bytes written since room was last looked for.
    written: AtomicU64,
    /// A full or broken disk is said once.
    complained: AtomicBool,
}

/// Which state of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct State<'a> {
    /// Size in bytes.
    pub size: u64,
    /// What tells it from other states.
    pub tag: &'a [u8; 16],
}

/// One object's folder.
pub(super) struct Entry<'a> {
    cache: &'a DiskCache,
    folder: PathBuf,
}

/// Held by whoever fetches an object. Nobody has to have it: it spares requests and nothing else.
pub(super) struct Fetching(#[allow(dead_code, reason = "what counts is when it is closed")] Option<File>);

impl DiskCache {
    /// The cache in `folder`, which is created if need be, of at most `limit` bytes.
    ///
    /// # Errors
    /// When the folder cannot be used, or others could write to it.
    pub fn open(folder: &Path, limit: u64) -> Result<Self, DiskCacheError> {
        let failed = |source| DiskCacheError::Io {
            path: folder.to_owned(),
            source,
        };
        private_folders().create(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        trust::check_folders(&folder, &folder)?;
        let cache = Self {
            folder,
            limit,
            written: AtomicU64::new(0),
            complained: AtomicBool::new(false),
        };
        cache.make_room(0).map_err(failed)?;
        Ok(cache)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The place of the object with this full name.
    pub(super) fn entry(&self, name: &str) -> Entry<'_> {
        let hash = hex(&Sha256::digest(name));
        Entry {
            cache: self,
            folder: self.folder.join(hash),
        }
    }

    /// Deletes objects, those first that were used longest ago, until `bytes` more fit.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut objects = Vec::new();
        let mut total = 0;
        for folder in fs::read_dir(&self.folder)? {
            let folder = folder?.path();
            // What is gone meanwhile takes no room.
            let Ok(files) = fs::read_dir(&folder) else { continue };
            for file in files.flatten() {
                let Ok(metadata) = file.metadata() else { continue };
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                if file.file_name() == LOCK {
                    continue;
                }
                if file.file_name().to_string_lossy().starts_with(TEMPORARY) {
                    if used.elapsed().is_ok_and(|age| age > LEFTOVER) {
                        let _ = fs::remove_file(file.path());
                    }
                    continue;
                }
                // What is on the disk, not what is in the file.
                let size = metadata.blocks() * 512;
                total += size;
                objects.push((used, size, file.path()));
            }
        }
        let most = self
            .limit
            .saturating_sub(bytes)
            .min(total + self.free()?.saturating_sub(bytes));
        if total <= most {
            return Ok(());
        }
        objects.sort_unstable();
        let enough = most - most / SLACK_SHARE;
        for (_, size, path) in objects {
            if total <= enough {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                total -= size;
                if let Some(folder) = path.parent() {
                    remove_if_empty(folder);
                }
            }
        }
        Ok(())
    }

    /// Bytes that may still be written to the disk.
    fn free(&self) -> io::Result<u64> {
        let disk = statvfs(&self.folder)?;
        let reserve = disk.f_blocks / FREE_SHARE;
        Ok(disk.f_bavail.saturating_sub(reserve) * disk.f_frsize)
    }
}

/// Removes an object's folder in which nothing but the lock is left. Somebody who holds that lock loses no more than
/// its use: another may fetch the same object.
fn remove_if_empty(folder: &Path) {
    let others = fs::read_dir(folder).into_iter().flatten().flatten();
    if others.map(|file| file.file_name()).all(|name| name == LOCK) {
        let _ = fs::remove_file(folder.join(LOCK));
        let _ = fs::remove_dir(folder);
    }
}

/// Makes folders that are closed to others.
fn private_folders() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

impl Entry<'_> {
    /// Whether any state of the object is there.
    pub(super) fn has_any(&self) -> bool {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files
            .map(|file| file.file_name())
            .any(|name| !name.to_string_lossy().starts_with('.'))
    }

    fn file(&self, state: State) -> PathBuf {
        self.folder.join(format!("{}-{}", hex(state.tag), state.size))
    }

    /// The object in this state, if it is there and whole. One that is not is deleted.
    pub(super) fn read(&self, state: State) -> Option<Bytes> {
        let path = self.file(state);
        let file = trust::open_file(&path).ok()?;
        if let Err(reason) = trust::check(&self.cache.folder, &path, &file) {
            self.cache.complain(&reason);
            return None;
        }
        match read_checked(&file, state.size) {
            Ok(bytes) => {
                // It was used last.
                let _ = file.set_modified(SystemTime::now());
                Some(bytes)
            }
            Err(reason) => {
                log::warn!("{}: {reason}; it is deleted and fetched again", path.display());
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Waits, for so long at most, until nobody else fetches the object.
    pub(super) fn lock(&self, patience: Duration) -> Fetching {
        let until = Instant::now() + patience;
        let open = || {
            private_folders().create(&self.folder)?;
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(self.folder.join(LOCK))?;
            while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                if error != rustix::io::Errno::WOULDBLOCK || Instant::now() > until {
                    return Err(error.into());
                }
                thread::sleep(LOCK_PAUSE);
            }
            Ok::<_, io::Error>(lock)
        };
        Fetching(open().ok())
    }

    /// Keeps the object. What goes wrong is logged, and the object is not kept.
    pub(super) fn write(&self, state: State, bytes: &[u8]) {
        let cache = self.cache;
        let size = bytes.len() as u64 + HEADER_BYTES as u64;
        if size > cache.limit {
            return;
        }
        let written = cache.written.fetch_add(size, Ordering::Relaxed) + size;
        let write = || {
            // Others write as well; so the disk is looked at now and then, and whenever it is nearly full.
            if written > cache.limit / 100 || cache.free()? < size {
                cache.written.store(0, Ordering::Relaxed);
                cache.make_room(size)?;
                if cache.free()? < size {
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            self.write_whole(state, bytes)
        };
        if let Err(reason) = write() {
            cache.complain(&reason);
        }
    }

    fn write_whole(&self, state: State, bytes: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        private_folders().create(&self.folder)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.folder.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&state.size.to_le_bytes());
        header[16..20].copy_from_slice(&crc32fast::hash(bytes).to_le_bytes());
        let write = file
            .write_all(&header)
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| fs::rename(&temporary, self.file(state)));
        if write.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        write
    }

    /// Forgets every state of the object.
    pub(super) fn forget(&self) {
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if !file.file_name().to_string_lossy().starts_with('.') {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

impl DiskCache {
    fn complain(&self, reason: &dyn std::fmt::Display) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the disk cache {} does not work as it should: {reason}",
                self.folder.display()
            );
        }
    }
}

fn read_checked(mut file: &File, size: u64) -> Result<Bytes, String> {
    let expected = size + HEADER_BYTES as u64;
    let found = file.metadata().map_err(|error| error.to_string())?.len();
    if found != expected {
        return Err(format!("{found} bytes, expected {expected}"));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; size as usize];
    file.read_exact(&mut bytes).map_err(|error| error.to_string())?;
    if header[..8] != *MAGIC || header[8..16] != size.to_le_bytes() {
        return Err("not an object of this cache".into());
    }
    if header[16..20] != crc32fast::hash(&bytes).to_le_bytes() {
        return Err("its checksum is wrong".into());
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TAG: [u8; 16] = [7; 16];

    fn state(bytes: &[u8]) -> State<'static> {
        State {
            size: bytes.len() as u64,
            tag: &TAG,
        }
    }

    fn cache(limit: u64) -> (tempfile::TempDir, DiskCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(&folder.path().join("a/cache"), limit).unwrap();
        (folder, cache)
    }

    #[test]
    fn what_is_written_is_read_by_another_process_and_in_no_other_state() {
        let (_folder, cache) = cache(1 << 20);
        let entry = cache.entry("s3://bucket/x/tiles/tile_000000.dct");
        assert!(!entry.has_any());
        entry.write(state(b"tile"), b"tile");
        let other = DiskCache::open(cache.folder(), 1 << 20).unwrap();
        let entry = other.entry("s3://bucket/x/tiles/tile_000000.dct");
        assert!(entry.has_any());
        assert_eq!(entry.read(state(b"tile")).unwrap(), &b"tile"[..]);
        let tag = [8; 16];
        assert!(entry.read(State { size: 4, tag: &tag }).is_none());
        assert!(other.entry("s3://bucket/y").read(state(b"tile")).is_none());
        entry.forget();
        assert!(!entry.has_any());
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let (_folder, cache) = cache(1 << 20);
        let entry = cache.entry("x");
        let bytes = [5; 40];
        entry.write(state(&bytes), &bytes);
        let file = entry.file(state(&bytes));
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            // The last bytes of the header mean nothing.
            if (20..HEADER_BYTES).contains(&at) {
                continue;
            }
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&file, bad).unwrap();
            assert!(entry.read(state(&bytes)).is_none(), "byte {at}");
            assert!(!file.exists());
        }
        fs::write(&file, &good[..30]).unwrap();
        assert!(entry.read(state(&bytes)).is_none());
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_the_limit_holds() {
        let (_folder, cache) = cache(100 << 10);
        let object = vec![1; 20 << 10];
        let hour = Duration::from_secs(3600);
        for index in 0..4 {
            let entry = cache.entry(&index.to_string());
            entry.write(state(&object), &object);
            let file = File::open(entry.file(state(&object))).unwrap();
            file.set_modified(SystemTime::now() - hour * (10 - index)).unwrap();
        }
        assert!(
            cache.entry("0").read(state(&object)).is_some(),
            "now it is the one used last"
        );
        for index in 4..6 {
            cache.entry(&index.to_string()).write(state(&object), &object);
        }
        let there: Vec<bool> = (0..6).map(|index| cache.entry(&index.to_string()).has_any()).collect();
        assert!(there[0] && there[5], "{there:?}");
        assert!(!there[1], "{there:?}");
        let kept = there.iter().filter(|there| **there).count() as u64;
        assert!(kept * (20 << 10) <= 100 << 10, "{there:?}");
    }

    #[test]
    fn an_object_larger_than_the_cache_is_not_kept() {
        let (_folder, cache) = cache(100);
        cache.entry("x").write(state(&[1; 90]), &[1; 90]);
        assert!(!cache.entry("x").has_any());
    }

    #[test]
    fn nobody_else_gets_in_and_what_others_may_write_is_not_used() {
        let (_folder, cache) = cache(1 << 20);
        let entry = cache.entry("x");
        entry.write(state(b"x"), b"x");
        let file = entry.file(state(b"x"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&file), mode(&entry.folder), mode(cache.folder())),
            (0o600, 0o700, 0o700)
        );
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(entry.read(state(b"x")).is_none());
        fs::set_permissions(cache.folder(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(
            DiskCache::open(cache.folder(), 1),
            Err(DiskCacheError::Distrust(_))
        ));
    }

    #[test]
    fn one_fetches_while_others_wait_for_as_long_as_they_like() {
        let (_folder, cache) = cache(1 << 20);
        let first = cache.entry("x").lock(Duration::ZERO);
        assert!(first.0.is_some());
        let second = cache.entry("x").lock(Duration::from_millis(20));
        assert!(second.0.is_none(), "it goes on without");
        drop(first);
        assert!(cache.entry("x").lock(Duration::ZERO).0.is_some());
    }

    #[test]
    fn a_disk_that_is_full_is_no_error() {
        let (_folder, cache) = cache(1 << 20);
        let entry = cache.entry("x");
        fs::write(&entry.folder, "a file in the way").unwrap();
        entry.write(state(b"x"), b"x");
        assert!(cache.complained.load(Ordering::Relaxed));
        assert!(entry.read(state(b"x")).is_none());
    }
}
