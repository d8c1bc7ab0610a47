//! Storage that does not answer: every request ends, and what does not need the storage does not wait for it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::UNIX_EPOCH;

use dcfs::fs::mount::{MountOptions, Mounted, mount, prepare};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, Request, Session, SessionACL,
};
use rustix::process::Signal;

use crate::data::{assert_shows, int32s, made_up};
use crate::harness::{Folder, Foreground, Io, Mount, in_both_modes, is_root, run, types_at, wait_until};

in_both_modes!(
    a_read_that_the_storage_does_not_answer_ends_in_an_error_and_can_be_tried_again,
    what_needs_no_decoding_does_not_wait_for_storage,
    a_mount_on_hung_storage_can_be_stopped,
);

const HUNG: &str = "tile_000001.dct";

/// A folder in memory, as a file system whose reads of one file are kept waiting until it is told to answer.
struct HungSource {
    parked: Arc<Mutex<Parked>>,
    session: Option<BackgroundSession>,
    mounted: Option<Mounted>,
    folder: Folder,
}

struct Parked {
    hangs: bool,
    replies: Vec<(ReplyData, Vec<u8>)>,
}

impl HungSource {
    fn new(dataset: &Path) -> Self {
        let folder = Folder::new();
        let options = MountOptions {
            source_name: "hung".into(),
            allow_other: true,
            max_read: None,
        };
        let parked = Arc::new(Mutex::new(Parked {
            hangs: true,
            replies: Vec::new(),
        }));
        let mut nodes = Vec::new();
        read_all(dataset, 0, String::new(), &mut nodes);
        let fs = InMemory {
            nodes,
            parked: parked.clone(),
        };
        let (device, mounted) = mount(prepare(folder.path(), None).unwrap(), &options).unwrap();
        let session = Session::from_fd(fs, device, SessionACL::All, Config::default())
            .unwrap()
            .spawn()
            .unwrap();
        Self {
            parked,
            session: Some(session),
            mounted: Some(mounted),
            folder,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Whether somebody waits for an answer.
    fn keeps_waiting(&self) -> bool {
        !self.parked.lock().unwrap().replies.is_empty()
    }

    /// Answers what waits, and everything from now on.
    fn answer(&self) {
        let mut parked = self.parked.lock().unwrap();
        parked.hangs = false;
        for (reply, bytes) in parked.replies.drain(..) {
            reply.data(&bytes);
        }
    }
}

impl Drop for HungSource {
    fn drop(&mut self) {
        self.answer();
        drop(self.mounted.take());
        if let Some(session) = self.session.take() {
            session.join().ok();
        }
    }
}

struct Node {
    parent: usize,
    name: String,
    /// `None` for folders.
    content: Option<Vec<u8>>,
}

/// Inode `i` is `nodes[i - 1]`.
struct InMemory {
    nodes: Vec<Node>,
    parked: Arc<Mutex<Parked>>,
}

fn read_all(path: &Path, parent: usize, name: String, nodes: &mut Vec<Node>) {
    let content = path.is_file().then(|| fs::read(path).unwrap());
    let folder = content.is_none();
    nodes.push(Node { parent, name, content });
    let inode = nodes.len();
    if folder {
        for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap()) {
            read_all(&entry.path(), inode, entry.file_name().into_string().unwrap(), nodes);
        }
    }
}

impl InMemory {
    fn attributes(&self, inode: usize) -> FileAttr {
        let content = self.nodes[inode - 1].content.as_ref();
        let size = content.map_or(0, Vec::len) as u64;
        FileAttr {
            ino: INodeNo(inode as u64),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if content.is_some() {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if content.is_some() { 0o444 } else { 0o555 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for InMemory {
    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = |node: &Node| node.parent as u64 == parent.0 && OsStr::new(&node.name) == name;
        match self.nodes.iter().position(found) {
            Some(node) => reply.entry(&std::time::Duration::ZERO, &self.attributes(node + 1), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&std::time::Duration::ZERO, &self.attributes(inode.0 as usize));
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let node = &self.nodes[inode.0 as usize - 1];
        let content = node.content.as_deref().unwrap_or_default();
        let start = content.len().min(offset as usize);
        let bytes = &content[start..content.len().min(start + size as usize)];
        let mut parked = self.parked.lock().unwrap();
        if parked.hangs && node.name == HUNG {
            parked.replies.push((reply, bytes.to_vec()));
        } else {
            reply.data(bytes);
        }
    }

    fn readdir(&self, _request: &Request, _inode: INodeNo, _handle: FileHandle, _offset: u64, reply: ReplyDirectory) {
        reply.ok();
    }
}

fn a_read_that_the_storage_does_not_answer_ends_in_an_error_and_can_be_tried_again(io: Io) {
    if !is_root() {
        return;
    }
    let dataset = made_up();
    let source = HungSource::new(&dataset.path);
    let mount = Mount::with(source.path(), io, &["--request-timeout", "1", "--threads", "2"]);
    let error = fs::read(mount.join("tile_000001/data.i32")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(source.keeps_waiting());
    assert!(mount.stat("/errors/timeout") > 0);
    let complaints = mount.complaints();
    assert!(
        complaints.iter().any(|line| line.contains("without an answer")),
        "{complaints:?}"
    );
    source.answer();
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));
}

fn what_needs_no_decoding_does_not_wait_for_storage(io: Io) {
    if !is_root() {
        return;
    }
    let dataset = made_up();
    let source = HungSource::new(&dataset.path);
    let mount = Mount::with(source.path(), io, &["--request-timeout", "86400", "--threads", "2"]);
    let path = mount.join("tile_000001/data.i32");
    let reader = thread::spawn(move || int32s(&path));
    wait_until("the reader waits for storage", || source.keeps_waiting());
    // Every one of these would wait for ever.
    assert!(rustix::fs::statvfs(mount.path()).unwrap().f_blocks > 0);
    run(std::process::Command::new("ls")
        .arg("-l")
        .arg(mount.join("tile_000001")));
    run(std::process::Command::new("ls").arg("-l").arg(mount.path()));
    assert!(!fs::read(mount.join("README.txt")).unwrap().is_empty());
    assert_eq!(mount.stat("/decoded/bytes"), 0);
    let other = dataset.synthetic.tile(2);
    assert_eq!(
        int32s(&mount.join("tile_000002/data.i32")),
        other.counts,
        "the other thread decodes"
    );
    source.answer();
    assert!(reader.join().unwrap() == dataset.synthetic.tile(1).counts);
}

fn a_mount_on_hung_storage_can_be_stopped(io: Io) {
    if !is_root() {
        return;
    }
    let dataset = made_up();
    let source = HungSource::new(&dataset.path);
    let mut mount = Foreground::new(source.path(), io, &["--request-timeout", "86400"]);
    let path = mount.join("tile_000001/data.i32");
    let reader = thread::spawn(move || -> io::Result<Vec<u8>> { fs::read(path) });
    wait_until("the reader waits for storage", || source.keeps_waiting());
    mount.signal(Signal::TERM);
    wait_until("the mount is gone", || types_at(mount.path()).is_empty());
    assert!(reader.join().unwrap().is_err());
    // A thread that the kernel keeps in a read ends with it.
    source.answer();
    assert_eq!(mount.wait(), Some(0), "{}", mount.stderr());
}
