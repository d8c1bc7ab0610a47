//! FUSE requests, one method each: translated into questions to the engine, and its answers into replies.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::attributes::{BELIEVED, NodeAttributes, Ownership};
use super::deadline::Deadlines;
use super::errno;
use super::open_files::{Next, OpenFiles, Opening, daemon_flags};
use super::passthrough::Passthrough;
use crate::engine::{Engine, OpenMode, Pin, ReadError};
use crate::format::TileId;
use crate::store::StoreError;
use crate::view::{ArrayFile, Node};

/// Names and sizes never change, so the kernel may keep them.
const NAMES_LAST: Duration = Duration::from_secs(24 * 3600);
/// The largest request the kernel makes.
const MAX_REQUEST: u32 = 1 << 20;
/// Threads that ask the store for attributes.
const ASKING_THREADS: usize = 2;

/// What the kernel is told of a name that is not there.
const ABSENT: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

/// How a file system is to serve.
#[derive(Debug, Clone, Copy)]
pub struct Serve {
    /// What replaces the dataset's owners and modes.
    pub ownership: Ownership,
    /// How long a request may wait for the dataset.
    pub request_timeout: Duration,
}

/// An open file.
struct Handle {
    node: Node,
    /// What the file said when it was opened, where that changes.
    snapshot: Option<Vec<u8>>,
}

/// The file system of one mount.
pub struct DatasetFs {
    shared: Arc<Shared>,
    deadlines: Deadlines,
}

struct Shared {
    engine: Arc<Engine>,
    attributes: NodeAttributes,
    /// Asks the store for attributes, so that neither a decode nor a slow store stands in the way of other requests.
    asking: ThreadPool,
    open_files: OpenFiles,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
    passthrough: Passthrough,
    /// Whether files can be read past the kernel's memory and mapped all the same.
    direct: AtomicBool,
}

impl DatasetFs {
    /// A file system that serves what `engine` answers.
    ///
    /// # Errors
    /// When the dataset's root cannot be looked at, or threads cannot be started.
    ///
    /// `passthrough` is turned on when the session begins, if the engine makes files and the kernel takes them.
    pub fn new(engine: Arc<Engine>, serve: Serve, passthrough: Passthrough) -> io::Result<Self> {
        let store = engine.view().dataset().store();
        let root = store
            .attributes("")
            .map_err(|StoreError { name, source }| io::Error::new(source.kind(), format!("{name}: {source}")))?;
        let (timed_out, seconds) = (engine.clone(), serve.request_timeout.as_secs_f64());
        let deadlines = Deadlines::new(serve.request_timeout, move || {
            timed_out.stats().count_error("timeout");
            log::error!(
                "a request got an I/O error after {seconds} s without an answer; is the dataset's storage hung?"
            );
        })?;
        let asking = ThreadPoolBuilder::new()
            .num_threads(ASKING_THREADS)
            .thread_name(|i| format!("attributes-{i}"))
            .panic_handler(|_| log::error!("a thread that asks for attributes panicked; its request got an error"))
            .build()
            .map_err(io::Error::other)?;
        let shared = Shared {
            attributes: NodeAttributes::new(serve.ownership, root),
            asking,
            open_files: OpenFiles::new(engine.clone()),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            passthrough,
            direct: AtomicBool::new(false),
            engine,
        };
        Ok(Self {
            shared: Arc::new(shared),
            deadlines,
        })
    }

    fn node(&self, inode: INodeNo) -> Option<Node> {
        self.shared.engine.view().node(inode.0)
    }
}

impl Shared {
    /// Finds the attributes of `node` and hands them to `done`, without keeping the calling thread.
    fn with_attributes(self: &Arc<Self>, node: Node, done: impl FnOnce(Result<FileAttr, Errno>) + Send + 'static) {
        let shared = self.clone();
        self.engine.size(node, move |size| match size {
            Ok(size) if shared.attributes.are_known(shared.engine.view(), node) => {
                done(Ok(shared.attributes.of(shared.engine.view(), node, size)));
            }
            Ok(size) => {
                let asker = shared.clone();
                shared
                    .asking
                    .spawn(move || done(Ok(asker.attributes.of(asker.engine.view(), node, size))));
            }
            Err(error) => done(Err(errno(&error))),
        });
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_handle(&self, handle: Handle) -> FileHandle {
        let id = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles().insert(id, Arc::new(handle));
        FileHandle(id)
    }

    /// How a file is opened whose reads come to the daemon.
    ///
    /// What is made of all tiles is kept decoded by the daemon and goes from there to the reader, copied once: keeping
    /// it in the kernel's memory as well would take a second copy of both time and room. Only what is mapped is.
    fn flags(&self, node: Node) -> FopenFlags {
        let mut flags = daemon_flags();
        if self.engine.view().spans_tiles(node) {
            if self.direct.load(Ordering::Acquire) {
                flags |= FopenFlags::FOPEN_DIRECT_IO;
            }
            // What the kernel remembers of a tile must not outlive the right to read the tile.
            if self.engine.guards_tiles() {
                flags &= !FopenFlags::FOPEN_KEEP_CACHE;
            }
        }
        flags
    }

    fn open_array(self: &Arc<Self>, tile: TileId, file: ArrayFile, process: u32, opening: Opening) {
        let inode = self.engine.view().inode(Node::TileArray(tile, file));
        match self.open_files.open(inode, opening) {
            Next::Wait => {}
            Next::Decide if self.passthrough.is_on() => {
                let decision = Decision {
                    shared: self.clone(),
                    inode,
                    made: false,
                };
                self.engine.whole(tile, file, process, move |pin| decision.make(pin));
            }
            Next::Decide => self.decided(inode, Ok(None)),
        }
    }

    fn decided(&self, inode: u64, pin: Result<Option<Pin>, ReadError>) {
        for handle in self.open_files.decided(inode, pin) {
            self.handles().remove(&handle.0);
        }
    }
}

/// The duty to say how an inode is served. Dropping it, as a thread that panics does, is an error for those who wait.
struct Decision {
    shared: Arc<Shared>,
    inode: u64,
    made: bool,
}

impl Decision {
    fn make(mut self, pin: Result<Option<Pin>, ReadError>) {
        self.made = true;
        self.shared.decided(self.inode, pin);
    }
}

impl Drop for Decision {
    fn drop(&mut self) {
        if !self.made {
            self.shared.decided(self.inode, Err(ReadError::Abandoned));
        }
    }
}

/// Runs a handler. One that panics must not take its worker thread with it: its reply, dropped, is an I/O error.
fn shielded(handler: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handler)).is_err() {
        log::error!("a request handler panicked; the request got an I/O error");
    }
}

impl Filesystem for DatasetFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Where the kernel does not have it, folders are listed one at a time.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(64);
        let _ = config.set_max_readahead(4 * MAX_REQUEST);
        // Linux 6.6.
        if config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok() {
            self.shared.direct.store(true, Ordering::Release);
        }
        if self.shared.engine.has_files()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            self.shared.passthrough.agreed();
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        shielded(|| {
            let Some(folder) = self.node(parent) else {
                return reply.error(Errno::ENOENT);
            };
            let (shared, name) = (self.shared.clone(), name.to_owned());
            let guarded = self.deadlines.guard(reply);
            // Some folders must be laid out before anything is in them; then that is done now.
            self.shared.engine.size(folder, move |ready| {
                if ready.is_err() {
                    return guarded.take().into_iter().for_each(|reply| reply.error(Errno::EIO));
                }
                let found = name.to_str().and_then(|name| shared.engine.view().lookup(folder, name));
                let Some(node) = found else {
                    // Inode 0 tells the kernel to remember that there is no such name.
                    let absent = |reply: ReplyEntry| reply.entry(&NAMES_LAST, &ABSENT, Generation(0));
                    return guarded.take().into_iter().for_each(absent);
                };
                shared.with_attributes(node, move |attributes| {
                    let Some(reply) = guarded.take() else { return };
                    match attributes {
                        Ok(attributes) => reply.entry_with_ttls(&BELIEVED, &NAMES_LAST, &attributes, Generation(0)),
                        Err(errno) => reply.error(errno),
                    }
                });
            });
        });
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        shielded(|| {
            let Some(node) = self.node(inode) else {
                return reply.error(Errno::ENOENT);
            };
            let guarded = self.deadlines.guard(reply);
            self.shared.with_attributes(node, move |attributes| {
                let Some(reply) = guarded.take() else { return };
                match attributes {
                    Ok(attributes) => reply.attr(&BELIEVED, &attributes),
                    Err(errno) => reply.error(errno),
                }
            });
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        shielded(|| {
            let Some(node) = self.node(inode) else {
                return reply.error(Errno::ENOENT);
            };
            if flags.acc_mode() != OpenAccMode::O_RDONLY {
                return reply.error(Errno::EROFS);
            }
            let engine = &self.shared.engine;
            let snapshot = (node == Node::Stats).then(|| engine.stats_json());
            let fresh = snapshot.is_some();
            let handle = self.shared.add_handle(Handle { node, snapshot });
            if let Node::TileArray(tile, file) = node {
                let reply = self.deadlines.guard(reply);
                return self
                    .shared
                    .open_array(tile, file, request.pid(), Opening { handle, reply });
            }
            engine.stats().count_open(OpenMode::Fuse);
            // What changes from open to open must not be answered from the kernel's memory of the last one.
            reply.opened(
                handle,
                if fresh {
                    FopenFlags::FOPEN_NOFLUSH
                } else {
                    self.shared.flags(node)
                },
            );
        });
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        shielded(|| {
            let Some(handle) = self.shared.handles().get(&handle.0).cloned() else {
                return reply.error(Errno::EBADF);
            };
            let engine = &self.shared.engine;
            if let Some(snapshot) = &handle.snapshot {
                let start = (offset as usize).min(snapshot.len());
                let end = (start + size as usize).min(snapshot.len());
                engine.stats().count_read((end - start) as u64);
                return reply.data(&snapshot[start..end]);
            }
            let guarded = self.deadlines.guard(reply);
            let shared = self.shared.clone();
            // The size of a text column was asked for before the file could be opened, so this answers at once.
            engine.size(handle.node, move |length| {
                let length = match length {
                    Ok(length) => length,
                    Err(error) => {
                        let code = errno(&error);
                        return guarded.take().into_iter().for_each(|reply| reply.error(code));
                    }
                };
                let range = offset.min(length)..offset.saturating_add(size.into()).min(length);
                let counted = shared.clone();
                shared.engine.read(handle.node, range, move |bytes| {
                    let Some(reply) = guarded.take() else { return };
                    match bytes {
                        Ok(bytes) => {
                            counted.engine.stats().count_read(bytes.len() as u64);
                            reply.data(bytes);
                        }
                        Err(error) => reply.error(errno(&error)),
                    }
                });
            });
        });
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        shielded(|| {
            let handle = self.shared.handles().remove(&handle.0);
            if handle.is_some_and(|handle| matches!(handle.node, Node::TileArray(..))) {
                self.shared.open_files.release(inode.0);
            }
            reply.ok();
        });
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        shielded(|| {
            let Some(folder) = self.node(inode) else {
                return reply.error(Errno::ENOENT);
            };
            let guarded = self.deadlines.guard(reply);
            self.shared.engine.size(folder, move |ready| {
                let Some(reply) = guarded.take() else { return };
                match ready {
                    Ok(_) => reply.opened(
                        FileHandle(0),
                        FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
                    ),
                    Err(_) => reply.error(Errno::EIO),
                }
            });
        });
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        shielded(move || {
            let view = self.shared.engine.view();
            let Some(folder) = view.node(inode.0).filter(|&node| view.is_folder(node)) else {
                return reply.error(Errno::ENOTDIR);
            };
            // Offset n asks for what comes after n entries, the folder itself and its parent being the first two.
            for position in offset.. {
                let (node, name) = match position {
                    0 => (folder, ".".to_owned()),
                    1 => (view.parent(folder), "..".to_owned()),
                    _ => match view.entry(folder, position - 2) {
                        Some(node) => (node, view.name(node)),
                        None => break,
                    },
                };
                let kind = if view.is_folder(node) {
                    FileType::Directory
                } else {
                    FileType::RegularFile
                };
                if reply.add(INodeNo(view.inode(node)), position + 1, kind, name) {
                    break;
                }
            }
            reply.ok();
        });
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let manifest = self.shared.engine.view().dataset().manifest();
        let block = 4096;
        let bytes = manifest.nnz() * 8 + (manifest.n_cells + manifest.n_tiles() as u64) * 8;
        let files = self.shared.engine.view().files();
        reply.statfs(bytes.div_ceil(block), 0, 0, files, 0, block as u32, 255, block as u32);
    }

    fn access(&self, _request: &Request, _inode: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    // What is not there is refused without a word; the kernel asks once and remembers.

    fn getxattr(&self, _request: &Request, _inode: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _request: &Request, _inode: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
