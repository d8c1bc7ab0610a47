//! Folders, and what `stat` and its kin say: complete, stable, and for nothing.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;

use crate::data::{files_below, made_up, manifest_alone};
use crate::harness::{Bucket, Io, Mount, in_every_mode, run, text};
use crate::languages::compiled;

in_every_mode!(
    a_hundred_thousand_tiles_are_listed_once_each,
    crawling_decodes_nothing,
    inode_numbers_are_small_and_unique_and_stay,
    links_and_blocks_are_what_tools_expect,
    questions_about_extended_attributes_are_answered_quietly,
    names_that_are_not_there_stay_away,
    df_shows_the_size_of_the_decoded_data,
);

fn a_hundred_thousand_tiles_are_listed_once_each(io: Io) {
    let dataset = manifest_alone(100_000);
    let mount = Mount::new(dataset.path(), io);
    let resident = mount.daemon().memory("VmRSS");
    assert!(
        resident < 150 << 20,
        "{} MiB for a manifest of 100,000 tiles",
        resident >> 20
    );
    let names: Vec<String> = fs::read_dir(mount.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let distinct: HashSet<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(names.len(), distinct.len());
    assert!((0..100_000).all(|tile| distinct.contains(format!("tile_{tile:06}").as_str())));
    let besides = [
        "manifest.json",
        "README.txt",
        ".dcfs",
        "X",
        "dataset.h5ad",
        "dataset.zarr",
    ];
    assert_eq!(names.len(), 100_000 + besides.len(), "{besides:?} besides");
    // Sizes far into the list, of tiles that need not exist.
    let far = mount.join("tile_099999/data.i32");
    assert_eq!(fs::metadata(far).unwrap().len(), 4 * 47_000_000);
    if let Some(program) = compiled("seek_in_folder", mount.folder()) {
        let said = run(Command::new(program).arg(mount.path()));
        assert_eq!(said, format!("{} entries\n", names.len() + 2), "with . and ..");
    }
    assert_eq!(mount.complaints(), [""; 0]);
}

fn crawling_decodes_nothing(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let crawl = |program: &str, options: &[&str]| run(Command::new(program).arg(mount.path()).args(options));
    let found = crawl("find", &["-ls"]);
    assert_eq!(
        found.lines().count(),
        files_below(mount.path()).len() + folders_below(mount.path()).len()
    );
    crawl("ls", &["-lRa"]);
    crawl("du", &["-a"]);
    crawl("du", &["-a", "--apparent-size"]);
    let stats = mount.stats();
    assert_eq!(stats["decoded"]["chunks"], 0, "{stats}");
    assert_eq!(stats["decoded"]["bytes"], 0, "{stats}");
    assert_eq!(stats["opens"]["passthrough"], 0, "{stats}");
    // The one string column, whose size is in its text: once for all cells, and once for each tile that was asked for before.
    let columns = stats["decoded"]["columns"].as_u64().unwrap();
    assert!(columns <= 1 + dataset.tiles as u64, "{stats}");
}

fn folders_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        folders.extend(
            entries
                .filter(|entry| entry.file_type().unwrap().is_dir())
                .map(|entry| entry.path()),
        );
    }
    folders
}

fn inode_numbers_are_small_and_unique_and_stay(io: Io) {
    let dataset = made_up();
    let numbers = |mount: &Mount| -> HashMap<std::path::PathBuf, u64> {
        let paths = [files_below(mount.path()), folders_below(mount.path())].concat();
        let number = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
        paths
            .iter()
            .map(|path| (path.strip_prefix(mount.path()).unwrap().to_owned(), number(path)))
            .collect()
    };
    let (one, other) = (Mount::new(&dataset.path, io), Mount::new(&dataset.path, io));
    let found = numbers(&one);
    assert_eq!(found, numbers(&other));
    assert_eq!(found.values().collect::<HashSet<_>>().len(), found.len());
    assert!(found.values().all(|&number| number > 0 && number < 1 << 31));
    for folder in folders_below(one.path()) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.ino(), entry.metadata().unwrap().ino(), "{:?}", entry.path());
        }
    }
}

fn links_and_blocks_are_what_tools_expect(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    for path in files_below(mount.path()) {
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.nlink(), 1, "{}", path.display());
        assert_eq!(metadata.blocks(), metadata.len().div_ceil(512), "{}", path.display());
        assert!(metadata.mtime() > 1_500_000_000, "{}", path.display());
    }
    for path in folders_below(mount.path()) {
        let folders = fs::read_dir(&path)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_dir());
        assert_eq!(
            fs::metadata(&path).unwrap().nlink(),
            2 + folders.count() as u64,
            "{}",
            path.display()
        );
    }
    // So the kernel calls all FUSE to stat; only the table of mounts tells them apart.
    let type_shown = run(Command::new("stat")
        .args(["--file-system", "--format=%T"])
        .arg(mount.path()));
    assert_eq!(type_shown.trim(), "fuseblk");
    let line = run(Command::new("findmnt")
        .args(["-n", "-o", "FSTYPE,SOURCE"])
        .arg(mount.path()));
    let source = match io {
        Io::Bucket => Path::new(Bucket::URL),
        Io::Passthrough | Io::Fuse => &dataset.path,
    };
    assert_eq!(line.trim(), format!("fuse.dcfs {}", source.display()));
}

fn questions_about_extended_attributes_are_answered_quietly(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let questions = [
        c"system.posix_acl_access",
        c"system.posix_acl_default",
        c"security.selinux",
        c"security.capability",
        c"user.anything",
    ];
    for path in files_below(mount.path()).iter().chain(&folders_below(mount.path())) {
        for question in questions {
            let answer = attribute(path, question);
            assert!(
                answer == Err(Errno::OPNOTSUPP) || answer == Err(Errno::NODATA),
                "{question:?}: {answer:?}"
            );
        }
        let names = rustix::fs::listxattr(path, &mut [0u8; 0][..]);
        assert!(names == Ok(0) || names == Err(Errno::OPNOTSUPP), "{names:?}");
    }
    assert_eq!(mount.complaints(), [""; 0]);
    assert_eq!(mount.stats()["errors"], serde_json::json!({}));
}

fn attribute(path: &Path, name: &CStr) -> Result<usize, Errno> {
    rustix::fs::getxattr(path, name, &mut [0u8; 256][..])
}

fn names_that_are_not_there_stay_away(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let absent = [
        "tile_5",
        "tile_0",
        "tile_00000",
        "tile_0000000",
        "tile_000005",
        "tile_+00001",
        "tile_-00001",
        "TILE_000000",
        "tiles",
        "tile_000000/obs_names.arrow",
        "tile_000000/data.i64",
        "obs/obs_0000.parquet",
        "obs/cell_type",
        ".dcfs/stats",
        "README",
        ".Trash",
        ".git",
        ".hidden",
    ];
    for name in absent {
        // The second answer is from the kernel's memory.
        for _ in 0..2 {
            let error = fs::symlink_metadata(mount.join(name)).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{name}");
        }
    }
    let not_utf8 = mount.join(std::ffi::OsStr::from_bytes(b"tile_\xff"));
    assert_eq!(
        fs::symlink_metadata(not_utf8).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    assert!(fs::symlink_metadata(mount.join("x".repeat(256))).is_err());
}

fn df_shows_the_size_of_the_decoded_data(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let statfs = rustix::fs::statvfs(mount.path()).unwrap();
    // Of all that shows the same arrays, those of tiles count.
    let raw = |file: &Path| {
        file.extension()
            .is_some_and(|extension| extension == "i32" || extension == "i64")
    };
    let arrays: u64 = files_below(mount.path())
        .iter()
        .filter(|file| raw(file) && !file.starts_with(mount.join("X")))
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    let size = statfs.f_blocks * statfs.f_frsize;
    assert!(
        size >= arrays && size < arrays + 2 * statfs.f_frsize,
        "{size} for {arrays}"
    );
    assert_eq!(
        (statfs.f_bfree, statfs.f_bavail, statfs.f_ffree),
        (0, 0, 0),
        "nothing can be written"
    );
    assert_eq!(statfs.f_namemax, 255);
    // What is in dataset.zarr is not known before somebody looks.
    let zarr = mount.join("dataset.zarr");
    let all = [files_below(mount.path()), folders_below(mount.path())].concat();
    let entries = all.iter().filter(|path| !path.starts_with(&zarr)).count() + 1;
    assert_eq!(statfs.f_files, entries as u64);
    let output = Command::new("df").arg(mount.path()).output().unwrap();
    assert!(text(&output.stdout).contains("100%"), "{output:?}");
}
