//! What `stat` shows: who may read a node follows from the files of the dataset that it is made of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};

use crate::store::{Access, Attributes, Store};
use crate::view::{Node, View};

/// How long what the store said is believed; the kernel keeps what it was told for as long again.
pub(super) const BELIEVED: Duration = Duration::from_secs(5);
/// How many files' attributes are remembered.
const REMEMBERED: usize = 20_000;

/// What replaces the dataset's own owners and modes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ownership {
    /// Owner of everything.
    pub uid: Option<u32>,
    /// Group of everything.
    pub gid: Option<u32>,
    /// Mode of every file; folders may be entered by those who may read.
    pub mode: Option<u16>,
}

/// Attributes of nodes, with what the store said of their sources for a while.
pub(super) struct NodeAttributes {
    ownership: Ownership,
    root: Attributes,
    known: Mutex<HashMap<String, (Instant, Attributes)>>,
}

impl NodeAttributes {
    /// `root` is what the store says of the dataset's root.
    pub(super) fn new(ownership: Ownership, root: Attributes) -> Self {
        Self {
            ownership,
            root,
            known: Mutex::default(),
        }
    }

    /// Whether the attributes of `node` are known without asking the store.
    pub(super) fn are_known(&self, view: &View, node: Node) -> bool {
        view.sources(node).iter().all(|path| self.remembered(path).is_some())
    }

    /// Attributes of a node of `size` bytes. May ask the store, which may take its time.
    pub(super) fn of(&self, view: &View, node: Node, size: u64) -> FileAttr {
        let store = view.dataset().store();
        let sources: Vec<Attributes> = view.sources(node).iter().map(|path| self.ask(store, path)).collect();
        let folder = view.is_folder(node);
        let access = sources.iter().map(|source| match folder && !source.is_folder {
            // Who may read a file may list what is in it.
            true => Access {
                mode: source.access.mode | (source.access.mode & 0o444) >> 2,
                ..source.access
            },
            false => source.access,
        });
        let mut access = access.reduce(Access::and).unwrap_or(self.root.access);
        if let (Node::Stored(file), [source]) = (node, &sources[..])
            && source.version != view.stored()[file].version
        {
            // The file is another one by now, and what it was may still be in the kernel's memory.
            access = access.for_nobody();
        }
        let modified = sources
            .iter()
            .map(|source| source.modified)
            .max()
            .unwrap_or(self.root.modified);
        self.attributes(view, node, size, access, modified)
    }

    fn attributes(&self, view: &View, node: Node, size: u64, access: Access, modified: SystemTime) -> FileAttr {
        let folder = view.is_folder(node);
        let (kind, own, nlink) = match folder {
            true => (
                FileType::Directory,
                access.folder_mode(),
                2 + view.folders_in(node).min(u32::MAX as u64 - 2),
            ),
            false => (FileType::RegularFile, access.file_mode(), 1),
        };
        let perm = match self.ownership.mode {
            Some(mode) if folder => mode & 0o555 | (mode & 0o444) >> 2,
            Some(mode) => mode & 0o444,
            None => own,
        };
        FileAttr {
            ino: INodeNo(view.inode(node)),
            size,
            blocks: size.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind,
            perm,
            nlink: nlink as u32,
            uid: self.ownership.uid.unwrap_or(access.uid),
            gid: self.ownership.gid.unwrap_or(access.gid),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn remembered(&self, path: &str) -> Option<Attributes> {
        let known = self.known();
        let &(when, attributes) = known.get(path)?;
        (when.elapsed() < BELIEVED).then_some(attributes)
    }

    /// What the store says of `path`. Of what it does not find, it counts what it said last; if it never said anything,
    /// nobody may read it.
    fn ask(&self, store: &Arc<dyn Store>, path: &str) -> Attributes {
        if let Some(attributes) = self.remembered(path) {
            return attributes;
        }
        let said = store.shown(path);
        let mut known = self.known();
        let attributes = said.unwrap_or_else(|_| match known.get(path) {
            Some(&(_, last)) => last,
            None => Attributes {
                access: self.root.access.for_nobody(),
                ..self.root
            },
        });
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(path.to_owned(), (Instant::now(), attributes));
        attributes
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, (Instant, Attributes)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
