//! Running a program as an ordinary user from a test that runs as root.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The user and group whom every system has and nobody logs in as.
pub const NOBODY: u32 = 65534;

/// Runs a program as [`NOBODY`], with a `/dev/fuse` that ordinary users may open: usual everywhere, but not in bare containers and virtual machines. There
/// the program gets its own mount namespace with such a device in it, and the machine's stays as it is.
///
/// Add the program and its arguments to what is returned. `None`, after a line that says why, when a tool for this is missing; under `CI` that is a failure.
pub fn command() -> Option<Command> {
    for (program, package) in [
        ("fusermount3", "fuse3"),
        ("setpriv", "util-linux"),
        ("unshare", "util-linux"),
    ] {
        if Command::new(program).arg("--version").output().is_err() {
            assert!(
                std::env::var_os("CI").is_none(),
                "{program} is missing: apt install {package}"
            );
            crate::skip::skip(format_args!("{program} is missing: apt install {package}"));
            return None;
        }
    }
    let mode = std::fs::metadata("/dev/fuse").expect("/dev/fuse").permissions().mode();
    let mut command;
    if mode & 0o006 == 0o006 {
        command = Command::new("setpriv");
    } else {
        command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-ec"]);
        command.arg(
            "d=$(mktemp -d); mount -t tmpfs tmpfs $d; mknod -m 666 $d/fuse c 10 229; mount --bind $d/fuse /dev/fuse; \
             umount -l $d; rmdir $d; exec setpriv \"$@\"",
        );
        command.arg("sh");
    }
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    command.args(["--clear-groups", "--"]).current_dir("/");
    Some(command)
}
