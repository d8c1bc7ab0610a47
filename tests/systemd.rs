//! The unit file, under a real systemd: start, another user reads, kill, restart, stop while a file is mapped.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "this one does no harm")]
#[path = "common/server.rs"]
mod server;
#[path = "common/skip.rs"]
mod skip;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What happens inside the sandbox. Arguments: the program, the dataset, the folder of the unit file, and this test program.
const SCRIPT: &str = r#"
dcfs=$1 dataset=$2 units=$3 tests=$4
mkdir -p /run/dcfs-test /mnt/ds
# The machine's own /usr/local and /etc stay as they are.
sed -e "s|=dcfs |=$dcfs |; s|=-dcfs |=-$dcfs |; s|/etc/dcfs/|/run/dcfs-test/|; s|CacheDirectory=dcfs|&-test|; s|%C/dcfs|&-test|" "$units/dcfs@.service" >/etc/systemd/system/dcfs@.service
printf 'DATASET=%s\nMOUNTPOINT=/mnt/ds\nOPTIONS=--allow-other\n' "$dataset" >/run/dcfs-test/edge.conf
systemctl daemon-reload
fail() { echo "FAILED: $*"; systemctl status dcfs@edge --no-pager -l; journalctl -u dcfs@edge --no-pager; exit 1; }
as_other() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
reads() { as_other cat /mnt/ds/README.txt | grep -q . && as_other cat /mnt/ds/manifest.json | grep -q .; }

echo "step: start"
systemctl start dcfs@edge || fail "start"
[ "$(findmnt -no FSTYPE /mnt/ds)" = fuse.dcfs ] || fail "the mount is not visible outside the service"
reads || fail "another user cannot read"

echo "step: kill"
before=$(systemctl show -P MainPID dcfs@edge)
kill -9 "$before"
until now=$(systemctl show -P MainPID dcfs@edge) && [ "$now" != 0 ] && [ "$now" != "$before" ] && systemctl -q is-active dcfs@edge; do
  ! systemctl -q is-failed dcfs@edge || fail "no restart"
  sleep 0.1
done
reads || fail "another user cannot read after the restart"
[ "$(findmnt -no FSTYPE /mnt/ds | wc -l)" = 1 ] || fail "the dead mount is still there"

echo "step: stop while a file is mapped"
mkfifo /run/dcfs-test/mapped
DCFS_TEST_MAP=/mnt/ds/README.txt DCFS_TEST_TELL=/run/dcfs-test/mapped "$tests" --exact holds_a_mapping --ignored >/dev/null &
holder=$!
read -r _ </run/dcfs-test/mapped
systemctl stop dcfs@edge || fail "stop"
[ "$(systemctl show -P Result dcfs@edge)" = success ] || fail "stop was not clean: $(systemctl show -P Result dcfs@edge)"
[ "$(systemctl show -P ExecMainStatus dcfs@edge)" = 0 ] || fail "exit status"
! findmnt /mnt/ds || fail "the mount is still there"
kill -9 "$holder"

echo "step: a dataset that is not there"
printf 'DATASET=/nonexistent\nMOUNTPOINT=/mnt/ds\n' >/run/dcfs-test/absent.conf
! systemctl start dcfs@absent || fail "started without a dataset"
systemctl stop dcfs@absent
! findmnt /mnt/ds || fail "a failed start left a mount"
echo "step: a dataset behind a server"
mkfifo /run/dcfs-test/address
DCFS_TEST_SERVE=$dataset DCFS_TEST_TELL=/run/dcfs-test/address "$tests" --exact serves_a_folder --ignored >/dev/null &
server=$!
read -r address </run/dcfs-test/address
printf 'DATASET=%s\nMOUNTPOINT=/mnt/ds\nOPTIONS=--allow-other --mode 444 --disk-cache /var/cache/dcfs-test/tiles\n' "$address" >/run/dcfs-test/remote.conf
systemctl start dcfs@remote || { systemctl status dcfs@remote --no-pager -l; exit 1; }
reads || fail "another user cannot read a remote dataset"
cmp /mnt/ds/manifest.json "$dataset/manifest.json" || fail "another manifest"
for tile in /mnt/ds/tile_*; do cat "$tile/data.i32"; done | cmp - "$dataset/data.i32" || fail "other counts"
cat /mnt/ds/obs/*.arrow >/dev/null || fail "obs"
kill -9 "$server"
systemctl stop dcfs@remote || fail "stop without a server"
[ "$(stat -c %a /var/cache/dcfs-test /var/cache/dcfs-test/tiles | uniq)" = 700 ] || fail "the caches are open to others"
find /var/cache/dcfs-test/obs -name '*.arrow' | grep -q . || fail "obs was not kept"
rm -rf /var/cache/dcfs-test
echo "step: done"
"#;

fn beside_the_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path)
}

/// What is missing to run the test, if anything.
fn missing(sandbox: &Path, dataset: &Path) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root".to_owned());
    }
    if std::env::var_os("DCFS_TEST_NO_FUSE").is_some_and(|value| value == "1") {
        return Some("DCFS_TEST_NO_FUSE=1".to_owned());
    }
    let absent = [sandbox, dataset].into_iter().find(|path| !path.exists());
    absent.map(|path| format!("{} is absent", path.display()))
}

/// A folder that the sandbox shows as it is. It has its own /tmp, /run, /var/tmp and /mnt, and the repository may be in any of them.
struct Visible(PathBuf);

impl Visible {
    fn new() -> Self {
        let path = PathBuf::from(format!("/var/lib/dcfs-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.0.join(name);
        let copied = Command::new("cp").arg("-rL").arg(from).arg(&to).status().unwrap();
        assert!(copied.success(), "{} was not copied", from.display());
        to
    }
}

impl Drop for Visible {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn the_unit_starts_restarts_and_stops() {
    let sandbox = beside_the_repository("tools/systemd-sandbox");
    let data = std::env::var_os("DCFS_SHARED_DATA").map_or_else(|| beside_the_repository("data"), PathBuf::from);
    let dataset = data.join("edge.dc");
    if let Some(reason) = missing(&sandbox, &dataset) {
        skip::skip(reason);
        return;
    }
    let visible = Visible::new();
    let copied = visible.copy(&dataset, "dataset");
    // The counts of all cells, for comparison with what a mount shows.
    let counts = std::fs::read(data.join("edge.expected/data.npy")).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([counts[8], counts[9]]));
    std::fs::write(copied.join("data.i32"), &counts[header..]).unwrap();
    let output = Command::new(sandbox)
        .args(["bash", "-euc", SCRIPT, "script"])
        .arg(visible.copy(Path::new(env!("CARGO_BIN_EXE_dcfs")), "dcfs"))
        .arg(&copied)
        .arg(visible.copy(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd")), "systemd"))
        .arg(visible.copy(&std::env::current_exe().unwrap(), "test"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(125) && std::env::var_os("CI").is_none() {
        skip::skip(format_args!("systemd does not run here: {complained}"));
        return;
    }
    assert!(
        output.status.success() && said.contains("step: done"),
        "{said}{complained}"
    );
}

#[test]
#[ignore = "the part of another test that serves a dataset"]
fn serves_a_folder() {
    let server = server::Server::new(Path::new(&std::env::var_os("DCFS_TEST_SERVE").unwrap()));
    writeln!(
        File::create(std::env::var_os("DCFS_TEST_TELL").unwrap()).unwrap(),
        "{}",
        server.url()
    )
    .unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "the part of another test that holds a mapped file"]
fn holds_a_mapping() {
    let mut file = File::open(std::env::var_os("DCFS_TEST_MAP").unwrap()).unwrap();
    // SAFETY: files of a dataset never change.
    let map = unsafe { memmap2::Mmap::map(&file).unwrap() };
    let mut text = Vec::new();
    file.read_to_end(&mut text).unwrap();
    assert_eq!(&*map, text);
    drop(file);
    writeln!(
        File::create(std::env::var_os("DCFS_TEST_TELL").unwrap()).unwrap(),
        "mapped"
    )
    .unwrap();
    loop {
        std::thread::park();
    }
}
