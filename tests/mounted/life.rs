//! From the command to the mount and back: where it may be, what is cleaned up, how it ends.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use dcfs::write::synthetic::{Synthetic, SyntheticOptions};
use rustix::mount::MountFlags;
use rustix::process::Signal;

use crate::data::{assert_shows, made_up, map, repeated};
use crate::harness::{
    Folder, Foreground, Io, Mount, dcfs, failed_with, in_both_modes, is_root, refused, run, text, types_at,
};

in_both_modes!(
    mounting_again_clears_what_a_killed_daemon_left,
    umount_clears_what_a_killed_daemon_left,
    a_running_mount_is_not_replaced,
    a_mount_of_another_program_is_never_touched,
    places_that_are_no_empty_folder_are_refused,
    nothing_the_daemon_needs_may_lie_below_the_mountpoint,
    stopping_with_a_file_mapped_leaves_no_mount_and_ends_well,
    umount_refuses_while_a_file_is_open_and_says_who_has_it,
    a_dataset_is_mounted_twice_at_once,
    a_relative_dataset_and_a_link_are_followed_to_where_they_lead,
    a_dataset_whose_name_is_no_text_is_mounted,
    a_low_limit_on_open_files_is_refused_or_kept,
);

fn a_dataset_whose_name_is_no_text_is_mounted(io: Io) {
    let dataset = made_up();
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"caf\xe9.dc");
    let renamed = dataset.path.with_file_name(name);
    fs::rename(&dataset.path, &renamed).unwrap();
    let mount = Mount::new(&renamed, io);
    assert_shows(&mount.join("tile_000001"), &dataset.synthetic.tile(1));
}

fn a_low_limit_on_open_files_is_refused_or_kept(io: Io) {
    /// Takes the mount away however the test ends.
    struct Unmounted<'a>(&'a Path);
    impl Drop for Unmounted<'_> {
        fn drop(&mut self) {
            dcfs().args(["umount", "--lazy"]).arg(self.0).output().ok();
        }
    }
    let folder = Folder::new();
    let dataset = folder.join("small-tiles.dc");
    let options = SyntheticOptions {
        n_cells: 2_000,
        tile_size: 10,
        n_genes: 200,
        mean_nnz_per_cell: 30,
        level: 1,
        ..SyntheticOptions::default()
    };
    Synthetic::new(options).unwrap().write(&dataset).unwrap();
    let point = Folder::new();
    let mount_with = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$1\" && shift && exec \"$@\"", "sh", limit]);
        command.arg(env!("CARGO_BIN_EXE_dcfs"));
        command
            .args(["mount", "--io", io.name()])
            .arg(&dataset)
            .arg(point.path());
        command.output().unwrap()
    };
    let refused = mount_with("64");
    let reason = text(&refused.stderr);
    assert!(
        !refused.status.success() && reason.contains("64 files open"),
        "{reason}"
    );
    assert!(mount_with("256").status.success());
    let _unmounted = Unmounted(point.path());
    for tile in 0..200 {
        let counts = fs::read(point.join(format!("tile_{tile:06}/data.i32")));
        assert!(counts.is_ok(), "tile {tile}: {counts:?}");
    }
}

fn kill(mount: &Mount) {
    mount.daemon().signal(Signal::KILL);
    mount.daemon().wait();
    let error = File::open(mount.join("README.txt")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
}

fn mount_again(mount: &Mount, dataset: &Path, io: Io) {
    run(dcfs().args(["mount", "--io", io.name()]).arg(dataset).arg(mount.path()));
}

fn mounting_again_clears_what_a_killed_daemon_left(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let held = File::open(mount.join("tile_000000/data.i32")).unwrap();
    kill(&mount);
    mount_again(&mount, &dataset.path, io);
    assert_eq!(types_at(mount.path()), ["fuse.dcfs"], "one mount, not two");
    assert_shows(&mount.join("tile_000000"), &dataset.synthetic.tile(0));
    drop(held);
    run(dcfs().arg("umount").arg(mount.path()));
}

fn umount_clears_what_a_killed_daemon_left(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    kill(&mount);
    run(dcfs().arg("umount").arg(mount.path()));
    assert_eq!(types_at(mount.path()), [""; 0]);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    let again = dcfs().arg("umount").arg(mount.path()).output().unwrap();
    assert!(failed_with(&again, 3).contains("nothing is mounted"));
}

fn a_running_mount_is_not_replaced(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let reason = refused(&dataset.path, mount.path(), &["--io", io.name()]);
    assert!(reason.contains("dcfs umount"), "{reason}");
    assert_shows(&mount.join("tile_000000"), &dataset.synthetic.tile(0));
}

fn a_mount_of_another_program_is_never_touched(io: Io) {
    if !is_root() {
        return;
    }
    let dataset = made_up();
    let folder = Folder::new();
    rustix::mount::mount("none", folder.path(), "tmpfs", MountFlags::empty(), None).unwrap();
    let reason = refused(&dataset.path, folder.path(), &["--io", io.name()]);
    assert!(reason.contains("tmpfs"), "{reason}");
    for options in [&[][..], &["--lazy"]] {
        let output = dcfs().arg("umount").args(options).arg(folder.path()).output().unwrap();
        assert!(failed_with(&output, 3).contains("left alone"), "{output:?}");
    }
    assert_eq!(types_at(folder.path()), ["tmpfs"]);
}

fn places_that_are_no_empty_folder_are_refused(io: Io) {
    let dataset = made_up();
    let folder = Folder::new();
    let refused = |place: &Path| refused(&dataset.path, place, &["--io", io.name()]);
    let full = folder.subfolder("full");
    fs::write(full.join("precious"), "").unwrap();
    assert!(refused(&full).contains("not empty"));
    fs::write(folder.join("file"), "").unwrap();
    assert!(
        refused(&folder.join("file")).contains("not a folder")
            || refused(&folder.join("file")).contains("not a directory")
    );
    assert!(refused(&folder.join("missing")).contains("missing"));
    let inside = dataset.path.join("inside");
    fs::create_dir(&inside).unwrap();
    assert!(refused(&inside).contains("dataset"));
    assert!(refused(dataset.folder.path()).contains("not empty") || refused(dataset.folder.path()).contains("dataset"));
    fs::remove_dir(&inside).unwrap();
    assert_eq!(fs::read_dir(&full).unwrap().count(), 1);
}

fn nothing_the_daemon_needs_may_lie_below_the_mountpoint(io: Io) {
    let dataset = made_up();
    let folder = Folder::new();
    let log = folder.join("log");
    let reason = refused(
        &dataset.path,
        folder.path(),
        &["--io", io.name(), "--log-file", log.to_str().unwrap()],
    );
    assert!(reason.contains("below the mountpoint"), "{reason}");
    assert!(!log.exists());
}

fn stopping_with_a_file_mapped_leaves_no_mount_and_ends_well(io: Io) {
    let dataset = repeated(1);
    let mut mount = Foreground::new(&dataset.path, io, &[]);
    let mapped = map(&mount.join("tile_000000/data.i32"), true);
    let truth: Vec<u8> = dataset
        .tile
        .counts
        .iter()
        .flat_map(|count| count.to_le_bytes())
        .collect();
    assert_eq!(mapped[0], truth[0]);
    mount.signal(Signal::TERM);
    assert_eq!(mount.wait(), Some(0), "{}", mount.stderr());
    assert_eq!(types_at(mount.path()), [""; 0]);
    if io == Io::Passthrough {
        // Pages that were never touched while the daemon lived: the kernel has the decoded file.
        assert!(mapped[..] == truth[..]);
    }
    // What is mounted next is another mount.
    run(dcfs()
        .args(["mount", "--io", io.name()])
        .arg(&dataset.path)
        .arg(mount.path()));
    assert_shows(&mount.join("tile_000000"), &dataset.tile);
    run(dcfs().arg("umount").arg(mount.path()));
}

fn umount_refuses_while_a_file_is_open_and_says_who_has_it(io: Io) {
    let dataset = made_up();
    let mount = Mount::new(&dataset.path, io);
    let held = File::open(mount.join("tile_000000/data.i32")).unwrap();
    let output = dcfs().arg("umount").arg(mount.path()).output().unwrap();
    let reason = failed_with(&output, 4);
    assert!(reason.contains(&std::process::id().to_string()), "{reason}");
    assert_shows(&mount.join("tile_000000"), &dataset.synthetic.tile(0));
    drop(held);
    mount.unmount();
}

fn a_dataset_is_mounted_twice_at_once(io: Io) {
    let dataset = made_up();
    let (one, other) = (Mount::new(&dataset.path, io), Mount::new(&dataset.path, io));
    for mount in [&one, &other] {
        assert_shows(&mount.join("tile_000003"), &dataset.synthetic.tile(3));
    }
    one.unmount();
    assert_shows(&other.join("tile_000004"), &dataset.synthetic.tile(4));
}

fn a_relative_dataset_and_a_link_are_followed_to_where_they_lead(io: Io) {
    let dataset = made_up();
    let folder = Folder::new();
    let point = folder.subfolder("mount point, with signs: 'é' \"q\" \\ ");
    std::os::unix::fs::symlink(&point, folder.join("link")).unwrap();
    run(dcfs()
        .current_dir(dataset.folder.path())
        .args(["mount", "--io", io.name(), "made-up.dc"])
        .arg(folder.join("link")));
    assert_eq!(types_at(&point), ["fuse.dcfs"]);
    assert_shows(&point.join("tile_000000"), &dataset.synthetic.tile(0));
    run(dcfs().current_dir(folder.path()).args(["umount", "link"]));
    assert_eq!(types_at(&point), [""; 0]);
}

/// The kernel's own tool, and the one of every FUSE user.
#[test]
fn other_tools_unmount_it_too() {
    if !crate::harness::can_mount() || !is_root() {
        return;
    }
    let dataset = made_up();
    for tool in [&["umount"][..], &["fusermount3", "-u"]] {
        let mount = Mount::new(&dataset.path, Io::Fuse);
        let output = Command::new(tool[0]).args(&tool[1..]).arg(mount.path()).output();
        let Ok(output) = output else {
            crate::harness::skip_without(tool[0], "fuse3");
            continue;
        };
        assert!(output.status.success(), "{tool:?}: {}", text(&output.stderr));
        mount.daemon().wait();
        assert_eq!(types_at(mount.path()), [""; 0]);
        let mode = fs::metadata(mount.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "the mountpoint is what it was");
    }
}
