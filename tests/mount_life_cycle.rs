//! Mounting and unmounting for real: which places are refused, what is cleaned up, and that nobody else's mount is touched.

#![cfg(target_os = "linux")]

mod ordinary_user;
#[path = "common/skip.rs"]
mod skip;
mod tiny_fs;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use dcfs::cli::umount::{Hold, UmountArgs, UmountError, run};
use dcfs::fs::mount::table::{FS_TYPE, Table};
use dcfs::fs::mount::{
    MountOptions, Mounted, PrepareError, Pulse, ReadAhead, UnmountError, Unmounted, join_session, may_mount, mount,
    prepare, pulse,
};
use rustix::mount::{MountFlags, UnmountFlags};

/// A fresh folder, unmounted and removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "dcfs-mount-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn subfolder(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mounted: Vec<PathBuf> = Table::read()
            .unwrap()
            .entries()
            .iter()
            .map(|entry| entry.mount_point.clone())
            .collect();
        for path in mounted.iter().filter(|path| path.starts_with(&self.0)).rev() {
            if rustix::mount::unmount(path, UnmountFlags::DETACH).is_err() {
                umount(path, true).ok();
            }
        }
        fs::remove_dir_all(&self.0).ok();
    }
}

fn no_fuse() -> bool {
    let told = std::env::var_os("DCFS_TEST_NO_FUSE").is_some_and(|value| value == "1");
    if told {
        skip::skip("DCFS_TEST_NO_FUSE=1");
    }
    told
}

/// Whether this test, which mounts other file systems than ours, cannot run.
fn no_fuse_or_root() -> bool {
    let no_root = !may_mount();
    if no_root {
        skip::skip("mounting other file systems needs root");
    }
    no_fuse() || no_root
}

fn options() -> MountOptions {
    MountOptions {
        source_name: "a test's dataset".into(),
        allow_other: false,
        max_read: None,
    }
}

fn mount_at(path: &Path) -> (OwnedFd, Mounted) {
    mount(prepare(path, None).unwrap(), &options()).unwrap()
}

/// Mounts a FUSE file system of any type by hand, and returns the device, unserved.
fn mount_by_hand(fs_type: &str, path: &Path) -> OwnedFd {
    let device = OwnedFd::from(File::options().read(true).write(true).open("/dev/fuse").unwrap());
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).unwrap();
    rustix::mount::mount("by hand", path, fs_type, MountFlags::empty(), Some(data)).unwrap();
    device
}

fn mount_tmpfs(path: &Path) {
    rustix::mount::mount("none", path, "tmpfs", MountFlags::empty(), None).unwrap();
}

fn types_at(path: &Path) -> Vec<String> {
    let table = Table::read().unwrap();
    table
        .stack(path)
        .iter()
        .map(|entry| entry.fs_type.to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_mount_is_read_and_goes_when_told() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
    assert_eq!(fs::read(folder.0.join("README.txt")).unwrap(), tiny_fs::README);
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Now);
    assert!(types_at(&folder.0).is_empty());
    join_session(session).unwrap();
}

#[test]
fn the_mount_is_read_only_without_devices_and_shows_its_source() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let options = MountOptions {
        source_name: "a,b\\c d\te".into(),
        ..options()
    };
    let (device, mounted) = mount(prepare(&folder.0, None).unwrap(), &options).unwrap();
    let session = tiny_fs::serve(device);
    let table = Table::read().unwrap();
    assert_eq!(table.serving(&folder.0).unwrap().source, options.source_name);
    assert_eq!(
        File::create(folder.0.join("new")).unwrap_err().kind(),
        ErrorKind::ReadOnlyFilesystem
    );
    let text = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = text
        .lines()
        .find(|line| line.contains(folder.0.to_str().unwrap()))
        .unwrap();
    for option in ["ro", "nosuid", "nodev", "default_permissions"] {
        assert!(
            line.split([' ', ',']).any(|word| word == option),
            "{option} is missing from {line}"
        );
    }
    mounted.unmount().unwrap();
    join_session(session).unwrap();
}

#[test]
fn a_mount_in_use_leaves_the_tree_and_serves_its_last_reader() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    let mut reader = File::open(folder.0.join("README.txt")).unwrap();
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Lazily);
    assert!(types_at(&folder.0).is_empty());
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert_eq!(text, tiny_fs::README);
    drop(reader);
    join_session(session).unwrap();
}

#[test]
fn a_mount_that_was_never_handed_on_is_gone_with_its_owner() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    drop(mounted);
    assert!(types_at(&folder.0).is_empty());
    drop(device);
}

#[test]
fn unmounting_what_others_unmounted_is_no_error() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    rustix::mount::unmount(&folder.0, UnmountFlags::empty()).unwrap();
    join_session(session).unwrap();
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Before);
}

#[test]
fn a_file_system_that_replaced_ours_is_not_unmounted() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    let (_device, mounted) = mount_at(&folder.0);
    rustix::mount::unmount(&folder.0, UnmountFlags::DETACH).unwrap();
    let _other = mount_by_hand(FS_TYPE, &folder.0);
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Before);
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
}

#[test]
fn what_is_mounted_over_ours_is_not_unmounted() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    mount_tmpfs(&folder.0);
    assert!(matches!(mounted.unmount(), Err(UnmountError::Covered { fs_type, .. }) if fs_type == "tmpfs"));
    assert_eq!(types_at(&folder.0), [FS_TYPE, "tmpfs"]);
    drop(folder);
    join_session(session).unwrap();
}

#[test]
fn dead_mounts_of_ours_are_cleared_however_many_lie_there() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    for _ in 0..3 {
        drop(mount_by_hand(FS_TYPE, &folder.0));
    }
    assert_eq!(types_at(&folder.0).len(), 3);
    assert_eq!(pulse(&folder.0), Pulse::Dead);
    assert_eq!(fs::read_dir(&folder.0).unwrap_err().raw_os_error(), Some(107));
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
    mounted.unmount().unwrap();
    join_session(session).unwrap();
}

#[test]
fn a_mount_whose_attributes_the_kernel_remembers_is_still_known_to_be_dead() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let status = command
        .args(["--exact", "mounts_and_dies", "--ignored", "--nocapture"])
        .env("DCFS_TEST_FOLDER", &folder.0)
        .status()
        .unwrap();
    assert!(!status.success());
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
    assert!(
        fs::symlink_metadata(&folder.0).is_ok(),
        "the attributes were expected to be remembered"
    );
    assert_eq!(pulse(&folder.0), Pulse::Dead);
    prepare(&folder.0, None).unwrap();
    assert!(types_at(&folder.0).is_empty());
}

#[test]
#[ignore = "the part of another test that runs in its own process"]
fn mounts_and_dies() {
    let folder = PathBuf::from(std::env::var_os("DCFS_TEST_FOLDER").unwrap());
    let (device, _mounted) = mount_at(&folder);
    let _session = tiny_fs::serve(device);
    assert_eq!(fs::read(folder.join("README.txt")).unwrap(), tiny_fs::README);
    fs::symlink_metadata(&folder).unwrap();
    std::process::abort();
}

#[test]
fn a_dead_mount_under_a_foreign_one_stays_and_the_place_is_refused() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    drop(mount_by_hand(FS_TYPE, &folder.0));
    mount_tmpfs(&folder.0);
    assert!(matches!(prepare(&folder.0, None), Err(PrepareError::Occupied { fs_type, .. }) if fs_type == "tmpfs"));
    assert_eq!(types_at(&folder.0), [FS_TYPE, "tmpfs"]);
}

#[test]
fn a_dead_mount_that_is_not_ours_is_refused_and_stays() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    drop(mount_by_hand("fuse.other", &folder.0));
    assert!(matches!(prepare(&folder.0, None), Err(PrepareError::Occupied { fs_type, .. }) if fs_type == "fuse.other"));
    assert_eq!(types_at(&folder.0), ["fuse.other"]);
}

#[test]
fn a_foreign_mount_that_hangs_is_refused_without_waiting_for_it() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    // Nobody answers the kernel's first request, so whoever looks at the mount waits for ever.
    let _device = mount_by_hand("fuse.other", &folder.0);
    assert!(matches!(prepare(&folder.0, None), Err(PrepareError::Occupied { .. })));
}

#[test]
fn a_mount_of_ours_that_hangs_is_refused_as_silent() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    let device = mount_by_hand(FS_TYPE, &folder.0);
    assert!(matches!(prepare(&folder.0, None), Err(PrepareError::Silent { .. })));
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
    drop(device);
}

#[test]
fn a_running_mount_is_refused_and_the_message_says_how_to_end_it() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    let error = prepare(&folder.0, None).unwrap_err();
    assert!(matches!(error, PrepareError::Mounted { .. }));
    assert!(error.to_string().contains("dcfs umount"), "{error}");
    mounted.unmount().unwrap();
    join_session(session).unwrap();
}

#[test]
fn a_place_is_locked_while_it_is_being_mounted_on() {
    let folder = Folder::new();
    let first = prepare(&folder.0, None).unwrap();
    assert!(matches!(prepare(&folder.0, None), Err(PrepareError::Contended { .. })));
    drop(first);
    prepare(&folder.0, None).unwrap();
}

#[test]
fn places_that_are_no_empty_folder_are_refused() {
    let folder = Folder::new();
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(
        prepare(&folder.0.join("absent"), None),
        Err(PrepareError::Missing { .. })
    ));
    assert!(matches!(
        prepare(&folder.0.join("absent/deeper"), None),
        Err(PrepareError::Missing { .. })
    ));
    assert!(matches!(prepare(&file, None), Err(PrepareError::NotDirectory { .. })));
    assert!(matches!(prepare(&folder.0, None), Err(PrepareError::NotEmpty { entry, .. }) if entry == "file"));
    std::os::unix::fs::symlink("circle", folder.0.join("circle")).unwrap();
    assert!(matches!(
        prepare(&folder.0.join("circle"), None),
        Err(PrepareError::Io { .. })
    ));
}

#[test]
fn a_mountpoint_is_taken_by_its_real_path() {
    let folder = Folder::new();
    let real = folder.subfolder("real");
    std::os::unix::fs::symlink("real", folder.0.join("link")).unwrap();
    std::os::unix::fs::symlink("./link/", folder.0.join("link to link")).unwrap();
    for name in ["link", "link to link", "real/.", "real/", "link/../real"] {
        assert_eq!(prepare(&folder.0.join(name), None).unwrap().path(), real, "{name}");
    }
}

#[test]
fn a_mountpoint_around_or_inside_the_dataset_is_refused() {
    let folder = Folder::new();
    let dataset = folder.subfolder("ds");
    let inside = dataset.join("tiles");
    fs::create_dir(&inside).unwrap();
    assert!(matches!(
        prepare(&inside, Some(&dataset)),
        Err(PrepareError::InsideDataset { .. })
    ));
    for around in [&dataset, &folder.0] {
        assert!(matches!(
            prepare(around, Some(&dataset)),
            Err(PrepareError::ContainsDataset { .. })
        ));
    }
    let beside = folder.subfolder("ds.mount");
    prepare(&beside, Some(&dataset)).unwrap();
}

#[test]
fn a_bind_mount_does_not_disguise_that_the_mountpoint_lies_inside_the_dataset() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    let dataset = folder.subfolder("ds");
    fs::create_dir(dataset.join("empty")).unwrap();
    let alias = folder.subfolder("alias");
    rustix::mount::mount_bind(&dataset, &alias).unwrap();
    assert!(matches!(
        prepare(&alias.join("empty"), Some(&dataset)),
        Err(PrepareError::InsideDataset { .. })
    ));
}

#[test]
fn read_ahead_is_raised_on_the_mount_itself() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    match mounted.raise_read_ahead(2048) {
        ReadAhead::Raised { from } => {
            assert!(from < 2048);
            assert!(matches!(
                mounted.raise_read_ahead(2048),
                ReadAhead::Enough { kib: 2048 }
            ));
        }
        other => panic!("{other:?}"),
    }
    mounted.unmount().unwrap();
    join_session(session).unwrap();
}

fn umount(path: &Path, lazy: bool) -> Result<(), UmountError> {
    run(&UmountArgs {
        mountpoint: path.to_owned(),
        lazy,
        stale: false,
    })
}

fn umount_stale(path: &Path) -> Result<(), UmountError> {
    run(&UmountArgs {
        mountpoint: path.to_owned(),
        lazy: false,
        stale: true,
    })
}

#[test]
fn the_umount_command_told_to_remove_dead_mounts_leaves_running_ones() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    umount_stale(&folder.0).unwrap();
    drop(mount_by_hand(FS_TYPE, &folder.0));
    umount_stale(&folder.0).unwrap();
    assert!(types_at(&folder.0).is_empty());
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    umount_stale(&folder.0).unwrap();
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
    mounted.unmount().unwrap();
    join_session(session).unwrap();
}

#[test]
fn the_umount_command_ends_a_running_mount() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    umount(&folder.0, false).unwrap();
    assert!(types_at(&folder.0).is_empty());
    join_session(session).unwrap();
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Before);
}

#[test]
fn the_umount_command_removes_dead_mounts_however_many() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    for _ in 0..3 {
        drop(mount_by_hand(FS_TYPE, &folder.0));
    }
    umount(&folder.0, false).unwrap();
    assert!(types_at(&folder.0).is_empty());
}

#[test]
fn the_umount_command_leaves_what_is_not_ours_alone() {
    if no_fuse_or_root() {
        return;
    }
    let folder = Folder::new();
    assert_eq!(umount(&folder.0, true).unwrap_err().exit_code(), 3);
    assert_eq!(umount(&folder.0.join("absent"), true).unwrap_err().exit_code(), 3);
    drop(mount_by_hand(FS_TYPE, &folder.0));
    mount_tmpfs(&folder.0);
    let error = umount(&folder.0, true).unwrap_err();
    assert!(
        matches!(&error, UmountError::NotOurs { fs_type, .. } if fs_type == "tmpfs"),
        "{error}"
    );
    assert_eq!(error.exit_code(), 3);
    assert_eq!(types_at(&folder.0), [FS_TYPE, "tmpfs"]);
}

#[test]
fn the_umount_command_names_who_uses_the_mount_and_is_lazy_only_when_told() {
    if no_fuse() {
        return;
    }
    let folder = Folder::new();
    let (device, mounted) = mount_at(&folder.0);
    let session = tiny_fs::serve(device);
    let readme = folder.0.join("README.txt");
    let mut users = [
        Command::new("tail")
            .args(["-f", "-s", "1000"])
            .arg(&readme)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap(),
        Command::new("sleep")
            .arg("1000")
            .current_dir(&folder.0)
            .spawn()
            .unwrap(),
    ];
    let map = map(&readme);
    let holds = |pid: u32| match umount(&folder.0, false) {
        Err(UmountError::Busy { holders, .. }) => {
            holders.iter().find(|holder| holder.pid == pid).map(|found| found.holds)
        }
        other => panic!("{other:?}"),
    };
    while holds(users[0].id()) != Some(Hold::Open) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(holds(users[1].id()), Some(Hold::WorkingDirectory));
    assert_eq!(holds(std::process::id()), Some(Hold::Mapping));
    assert_eq!(umount(&folder.0, false).unwrap_err().exit_code(), 4);
    assert_eq!(types_at(&folder.0), [FS_TYPE]);
    umount(&folder.0, true).unwrap();
    assert!(types_at(&folder.0).is_empty());
    for user in &mut users {
        user.kill().unwrap();
        user.wait().unwrap();
    }
    drop(map);
    join_session(session).unwrap();
    mounted.unmount().unwrap();
}

fn map(path: &Path) -> memmap2::Mmap {
    let file = File::open(path).unwrap();
    // SAFETY: the file belongs to the tiny file system, whose files never change.
    unsafe { memmap2::Mmap::map(&file).unwrap() }
}

/// Runs one of the ignored tests below as an ordinary user, in a folder that is theirs.
fn as_ordinary_user(test: &str, path_variable: Option<&str>) {
    if no_fuse_or_root() {
        return;
    }
    let Some(mut command) = ordinary_user::command() else {
        return;
    };
    let folder = Folder::new();
    let theirs = folder.subfolder("theirs");
    let nobody = Some(ordinary_user::NOBODY);
    std::os::unix::fs::chown(&theirs, nobody, nobody).unwrap();
    let not_theirs = folder.subfolder("not theirs");
    fs::set_permissions(&not_theirs, fs::Permissions::from_mode(0o755)).unwrap();
    // The build folder may be closed to others.
    let program = folder.0.join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    if let Some(path) = path_variable {
        command.arg("env").arg(format!("PATH={path}"));
    }
    let output = command
        .arg(&program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("DCFS_TEST_FOLDER", &folder.0)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(types_at(&theirs).is_empty());
}

fn their_folder() -> PathBuf {
    PathBuf::from(std::env::var_os("DCFS_TEST_FOLDER").unwrap()).join("theirs")
}

#[test]
fn an_ordinary_user_mounts_reads_and_unmounts() {
    as_ordinary_user("ordinary_user_mounts", None);
}

#[test]
#[ignore = "the part of another test that runs as an ordinary user"]
fn ordinary_user_mounts() {
    assert!(!may_mount());
    let options = MountOptions {
        source_name: r"a,allow_other\b c".into(),
        max_read: Some(1 << 20),
        ..options()
    };
    let folder = their_folder();
    let (device, mounted) = mount(prepare(&folder, None).unwrap(), &options).unwrap();
    let session = tiny_fs::serve(device);
    assert_eq!(types_at(&folder), [FS_TYPE]);
    assert_eq!(
        Table::read().unwrap().serving(&folder).unwrap().source,
        options.source_name
    );
    let mut reader = File::open(folder.join("README.txt")).unwrap();
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Lazily);
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert_eq!(text, tiny_fs::README);
    drop(reader);
    join_session(session).unwrap();

    let (device, mounted) = mount_at(&folder);
    let session = tiny_fs::serve(device);
    assert_eq!(mounted.unmount().unwrap(), Unmounted::Now);
    join_session(session).unwrap();
}

#[test]
fn an_ordinary_users_dead_mount_is_cleared() {
    as_ordinary_user("ordinary_user_clears", None);
}

#[test]
#[ignore = "the part of another test that runs as an ordinary user"]
fn ordinary_user_clears() {
    let folder = their_folder();
    let (device, mounted) = mount_at(&folder);
    std::mem::forget(mounted);
    drop(device);
    assert_eq!(pulse(&folder), Pulse::Dead);
    let (device, mounted) = mount_at(&folder);
    let session = tiny_fs::serve(device);
    mounted.unmount().unwrap();
    join_session(session).unwrap();
}

#[test]
fn an_ordinary_user_is_told_what_they_may_not_do() {
    as_ordinary_user("ordinary_user_is_refused", None);
}

#[test]
#[ignore = "the part of another test that runs as an ordinary user"]
fn ordinary_user_is_refused() {
    let folder = their_folder();
    let refusal = |path: &Path, options: &MountOptions| match mount(prepare(path, None).unwrap(), options) {
        Ok(_) => panic!("{} was mounted on", path.display()),
        Err(error) => error.to_string(),
    };
    let not_theirs = folder.with_file_name("not theirs");
    let said = refusal(&not_theirs, &options());
    assert!(said.contains("you may not write to the mountpoint"), "{said}");
    let permitted = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    if !permitted {
        let options = MountOptions {
            allow_other: true,
            ..options()
        };
        assert!(refusal(&folder, &options).contains("user_allow_other in /etc/fuse.conf"));
    }
}

#[test]
fn without_the_helper_an_ordinary_user_learns_which_package_has_it() {
    as_ordinary_user("ordinary_user_lacks_helper", Some("/nonexistent"));
}

#[test]
#[ignore = "the part of another test that runs as an ordinary user"]
fn ordinary_user_lacks_helper() {
    let error = mount(prepare(&their_folder(), None).unwrap(), &options()).unwrap_err();
    assert!(error.to_string().contains("fuse3"), "{error}");
}
