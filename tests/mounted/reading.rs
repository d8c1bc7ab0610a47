//! Every way of reading a file gives the same bytes, at the same size, to any number of readers.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags, flock, statx};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::data::{assert_shows, complaints_but_of_long_names, files_below, made_up, map, repeated, shared};
use crate::harness::{Io, Mount, in_every_mode, run};
use crate::languages::compiled;

in_every_mode!(
    every_way_of_reading_gives_the_same_bytes,
    a_size_is_the_same_wherever_it_is_asked_and_whenever,
    a_mapped_file_survives_the_listing_of_its_folder,
    copies_of_a_mount_are_complete,
    eight_processes_at_once_decode_each_chunk_once,
    eight_forked_readers_of_one_descriptor_decode_each_chunk_once,
    files_are_locked_as_any_others,
    nothing_can_be_written,
);

/// Files whose content does not change from one read to the next.
fn steady_files(mount: &Mount) -> Vec<std::path::PathBuf> {
    let files = files_below(mount.path());
    files
        .into_iter()
        .filter(|file| !file.ends_with(".dcfs/stats.json"))
        .collect()
}

fn every_way_of_reading_gives_the_same_bytes(io: Io) {
    let dataset = shared("edge.dc");
    let made_up = made_up();
    for dataset in [Some(&made_up.path), dataset.as_ref()].into_iter().flatten() {
        let mount = Mount::new(dataset, io);
        for path in steady_files(&mount) {
            let whole = fs::read(&path).unwrap();
            let same = |bytes: &[u8], how: &str| assert!(bytes == whole, "{how} of {}", path.display());
            same(&backwards(&path, whole.len()), "pieces, last one first,");
            same(&directly(&path), "O_DIRECT");
            same(&by_sendfile(&path), "sendfile");
            if !whole.is_empty() {
                same(&map(&path, true), "a shared mapping");
                same(&map(&path, false), "a private mapping");
            }
            let file = File::open(&path).unwrap();
            assert_eq!(
                file.read_at(&mut [0; 10], whole.len() as u64).unwrap(),
                0,
                "past the end"
            );
            assert_eq!(file.read_at(&mut [0; 10], 1 << 40).unwrap(), 0, "far past the end");
        }
        assert_eq!(complaints_but_of_long_names(&mount, io), [""; 0]);
    }
}

/// Read in pieces of a size that divides nothing, from the end to the beginning.
fn backwards(path: &Path, length: usize) -> Vec<u8> {
    const PIECE: usize = 4099;
    let file = File::open(path).unwrap();
    let mut bytes = vec![0; length];
    for piece in (0..length.div_ceil(PIECE)).rev() {
        let start = piece * PIECE;
        let end = length.min(start + PIECE);
        file.read_exact_at(&mut bytes[start..end], start as u64).unwrap();
    }
    bytes
}

/// Read past the page cache, into memory aligned as that asks for.
fn directly(path: &Path) -> Vec<u8> {
    const PIECE: usize = 1 << 16;
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap());
    let mut room = memmap2::MmapMut::map_anon(PIECE).unwrap();
    let mut bytes = Vec::new();
    loop {
        match file.read_at(&mut room, bytes.len() as u64).unwrap() {
            0 => return bytes,
            n => bytes.extend_from_slice(&room[..n]),
        }
    }
}

fn by_sendfile(path: &Path) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let sender = std::thread::spawn(move || while rustix::fs::sendfile(&writer, &file, None, 1 << 16).unwrap() > 0 {});
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    sender.join().unwrap();
    bytes
}

fn a_size_is_the_same_wherever_it_is_asked_and_whenever(io: Io) {
    let made_up = made_up();
    let edge = shared("edge.dc");
    for dataset in [Some(&made_up.path), edge.as_ref()].into_iter().flatten() {
        // Asked of one mount by path, before anything was listed, opened or decoded.
        let first = Mount::new(dataset, io);
        let listed = Mount::new(dataset, io);
        for path in files_below(listed.path()) {
            let name = path.strip_prefix(listed.path()).unwrap();
            let size = fs::metadata(first.join(name)).unwrap().len();
            let same = |found: u64, where_: &str| assert_eq!(found, size, "{} by {where_}", name.display());
            same(fs::metadata(&path).unwrap().len(), "stat after readdir");
            let file = File::open(first.join(name)).unwrap();
            same(file.metadata().unwrap().len(), "fstat");
            let mut bytes = Vec::new();
            (&file).read_to_end(&mut bytes).unwrap();
            same(bytes.len() as u64, "reading to the end");
            same(file.metadata().unwrap().len(), "fstat after decoding");
            let fresh = statx(
                CWD,
                first.join(name),
                AtFlags::STATX_FORCE_SYNC,
                StatxFlags::BASIC_STATS,
            )
            .unwrap();
            same(fresh.stx_size, "statx past the kernel's memory");
            same(
                rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).unwrap(),
                "seeking to the end",
            );
        }
        assert!(!files_below(first.path()).is_empty());
    }
}

fn a_mapped_file_survives_the_listing_of_its_folder(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let path = mount.join("tile_000001/data.i32");
    let expected = fs::read(Mount::new(&dataset.path, io).join("tile_000001/data.i32")).unwrap();
    let mapped = map(&path, true);
    assert_eq!(mapped[0], expected[0]);
    for _ in 0..3 {
        run(Command::new("ls").arg("-lR").arg(mount.path()));
    }
    assert!(mapped[..] == expected[..]);
}

fn copies_of_a_mount_are_complete(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let folder = mount.folder();
    // cp looks for holes and tries to share blocks; tar trusts the size it was told first. Copied folders that nobody may write to would
    // outlive the test.
    run(Command::new("cp")
        .args(["-r", "--no-preserve=mode"])
        .arg(mount.path())
        .arg(folder.join("copy")));
    run(Command::new("tar")
        .arg("-C")
        .arg(mount.path())
        .args(["--mode=u+w", "-cf"])
        .arg(folder.join("tar"))
        .arg("."));
    folder.subfolder("untarred");
    run(Command::new("tar")
        .arg("-C")
        .arg(folder.join("untarred"))
        .arg("-xf")
        .arg(folder.join("tar")));
    for path in steady_files(&mount) {
        let name = path.strip_prefix(mount.path()).unwrap();
        let expected = fs::read(&path).unwrap();
        for copy in ["copy", "untarred"] {
            assert!(
                fs::read(folder.join(copy).join(name)).unwrap() == expected,
                "{copy} of {}",
                name.display()
            );
        }
    }
}

fn eight_processes_at_once_decode_each_chunk_once(io: Io) {
    let dataset = repeated(2);
    let mount = Mount::new(&dataset.path, io);
    // All that there is to decode, so that nobody's reading ahead adds to it.
    let files = ["data.i32", "indices.i32"].map(|file| [0, 1].map(|tile| format!("tile_{tile:06}/{file}")));
    let files = files.as_flattened();
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let mut command = Command::new("cat");
            command.args(files.iter().map(|file| mount.join(file)));
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .map(|child| std::thread::spawn(move || child.wait_with_output().unwrap()))
        .collect();
    let (counts, genes) = (&dataset.tile.counts, &dataset.tile.indices);
    let expected: Vec<u8> = [counts, counts, genes, genes]
        .into_iter()
        .flat_map(|array| array.iter().flat_map(|entry| entry.to_le_bytes()))
        .collect();
    for reader in readers {
        let output = reader.join().unwrap();
        assert!(output.status.success() && output.stdout == expected);
    }
    assert_eq!(mount.stat("/decoded/chunks"), 4 * dataset.chunks);
}

fn eight_forked_readers_of_one_descriptor_decode_each_chunk_once(io: Io) {
    let dataset = repeated(1);
    let mount = Mount::new(&dataset.path, io);
    let Some(program) = compiled("forked_readers", mount.folder()) else {
        return;
    };
    let said = run(Command::new(program).arg("8").arg(mount.join("tile_000000/data.i32")));
    let sum: i64 = dataset.tile.counts.iter().map(|&count| i64::from(count)).sum();
    assert_eq!(said, format!("{sum}\n").repeat(8));
    assert_eq!(mount.stat("/decoded/chunks"), dataset.chunks);
}

/// As HDF5 and SQLite do before they read.
fn files_are_locked_as_any_others(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    for path in steady_files(&mount) {
        let (one, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        let lock = |file: &File, operation| flock(file.as_fd(), operation);
        lock(&one, FlockOperation::NonBlockingLockShared).unwrap();
        lock(&other, FlockOperation::NonBlockingLockShared).unwrap();
        assert_eq!(
            lock(&one, FlockOperation::NonBlockingLockExclusive),
            Err(Errno::WOULDBLOCK)
        );
        lock(&other, FlockOperation::Unlock).unwrap();
        lock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
        record_lock(&one, libc::F_SETLK).unwrap();
        record_lock(&one, libc::F_OFD_SETLK).unwrap();
        record_lock(&other, libc::F_OFD_SETLK).unwrap();
    }
}

/// Locks the whole file for reading.
fn record_lock(file: &File, command: i32) -> std::io::Result<()> {
    // SAFETY: all zero is a value of this structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: these commands read and write the structure, which outlives the call.
    match unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(file), command, &mut lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn nothing_can_be_written(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let file = mount.join("tile_000000/data.i32");
    let refused = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    refused(File::create(mount.join("new")).map(drop));
    refused(File::options().write(true).open(&file).map(drop));
    refused(File::options().append(true).open(mount.join("README.txt")).map(drop));
    refused(fs::create_dir(mount.join("new")));
    refused(fs::remove_file(&file));
    refused(fs::rename(&file, mount.join("tile_000000/other")));
    refused(fs::hard_link(&file, mount.join("link")));
    refused(std::os::unix::fs::symlink("README.txt", mount.join("link")));
    refused(fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions()));
    refused(std::os::unix::fs::chown(&file, Some(1), None));
    let opened = File::open(&file).unwrap();
    let length = opened.metadata().unwrap().size() as usize;
    // SAFETY: the mapping is not to come about.
    let writable = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &opened, 0)
    };
    assert_eq!(writable.unwrap_err(), Errno::ACCESS);
    // SAFETY: as above, to be written to by nobody else.
    let mut copy = unsafe { memmap2::MmapOptions::new().map_copy(&opened).unwrap() };
    copy.fill(0xff);
    drop(copy);
    assert_shows(&mount.join("tile_000000"), &dataset.synthetic.tile(0));
}
