//! The smallest file system worth mounting, for tests of the mount's life cycle: one folder with a `README.txt` in it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, Request, Session, SessionACL,
};

pub const README: &[u8] = b"the smallest file system worth mounting\n";
const README_INODE: INodeNo = INodeNo(2);
/// Long, as the real file system's: a dead mount is then one whose attributes the kernel still remembers.
const TTL: Duration = Duration::from_secs(3600);

pub struct TinyFs;

/// Serves the mounted device until it is unmounted.
pub fn serve(device: OwnedFd) -> BackgroundSession {
    Session::from_fd(TinyFs, device, SessionACL::All, Config::default())
        .unwrap()
        .spawn()
        .unwrap()
}

fn attributes(inode: INodeNo) -> FileAttr {
    let (kind, perm, nlink, size) = match inode {
        INodeNo::ROOT => (FileType::Directory, 0o555, 2, 0),
        _ => (FileType::RegularFile, 0o444, 1, README.len() as u64),
    };
    FileAttr {
        ino: inode,
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for TinyFs {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match (parent, name.to_str()) {
            (INodeNo::ROOT, Some("README.txt")) => reply.entry(&TTL, &attributes(README_INODE), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(inode));
    }

    fn read(
        &self,
        _req: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let start = (offset as usize).min(README.len());
        let end = (start + size as usize).min(README.len());
        reply.data(&README[start..end]);
    }

    fn readdir(&self, _req: &Request, _inode: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (README_INODE, FileType::RegularFile, "README.txt"),
        ];
        for (place, (inode, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(inode, place as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
