//! Mounts for tests: made by the built program, in a folder of their own, and gone when the test is, however it ends.
//! What is mounted is a folder, or the same folder as a bucket.
//!
//! Knows nothing of what is in a dataset.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use dcfs::fs::mount::may_mount;
use dcfs::fs::mount::table::Table;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::ci::is_ci;
use crate::server::Server;
use crate::skip::skip;

/// How long a daemon that a test is done with may take to end before it is killed.
const LAST_PATIENCE: Duration = Duration::from_secs(30);

/// How bytes reach readers. Every test that mounts is run with passthrough and without it, and nearly every one that only reads on a
/// bucket too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    Passthrough,
    Fuse,
    /// As `Fuse`, which asks the store for the least at a time, with the dataset in a bucket.
    Bucket,
}

impl Io {
    /// As `--io` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Fuse | Self::Bucket => "fuse",
        }
    }

    /// Whether this machine can do it; says so when it cannot.
    pub fn is_possible(self) -> bool {
        if !can_mount() {
            return false;
        }
        if self != Self::Passthrough {
            return true;
        }
        if !may_mount() {
            skip("passthrough needs root");
            return false;
        }
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map_while(|part| part.parse().ok());
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < (6, 9) {
            skip(format_args!("passthrough needs Linux 6.9, this is {release}"));
        }
        version >= (6, 9)
    }
}

/// Makes a test of each function, which takes an [`Io`], on a folder, in both modes.
macro_rules! in_both_modes {
    ($($test:ident),+ $(,)?) => {
        $crate::harness::in_mode!(passthrough, Passthrough, $($test)+);
        $crate::harness::in_mode!(fuse, Fuse, $($test)+);
    };
}
pub(crate) use in_both_modes;

/// Makes a test of each function, which takes an [`Io`], in every mode; those `on_folders` are of what buckets do not have.
macro_rules! in_every_mode {
    ($($test:ident),+ $(,)? $(; on_folders: $($on_folders:ident),+ $(,)?)?) => {
        $crate::harness::in_both_modes!($($test,)+ $($($on_folders,)+)?);
        $crate::harness::in_mode!(bucket, Bucket, $($test)+);
    };
}
pub(crate) use in_every_mode;

/// A module of tests in one mode.
macro_rules! in_mode {
    ($name:ident, $io:ident, $($test:ident)+) => {
        mod $name {
            $(#[test]
            fn $test() {
                let io = $crate::harness::Io::$io;
                if io.is_possible() {
                    super::$test(io);
                }
            })+
        }
    };
}
pub(crate) use in_mode;

/// Says that a program is missing, and which Debian package has it. Under `CI` that is a failure.
pub fn skip_without(program: &str, package: &str) {
    let told = format!("{program} is missing: apt install {package}");
    assert!(!is_ci(), "{told}");
    skip(told);
}

/// Whether tests that mount are to run at all.
///
/// # Panics
/// When they are, but there is no FUSE.
pub fn can_mount() -> bool {
    if std::env::var_os("DCFS_TEST_NO_FUSE").is_some_and(|value| value == "1") {
        skip("DCFS_TEST_NO_FUSE=1");
        return false;
    }
    assert!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing (modprobe fuse); DCFS_TEST_NO_FUSE=1 leaves out the tests that mount"
    );
    if !may_mount() && Command::new("fusermount3").arg("--version").output().is_err() {
        skip_without("fusermount3", "fuse3");
        return false;
    }
    true
}

/// Whether this test, which needs root, can run.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root() && may_mount();
    if !root {
        skip("needs root");
    }
    root
}

/// A fresh folder that everybody may enter. Dropping it takes away what is mounted in it, and then the folder.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "dcfs-test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// A new folder in this one.
    pub fn subfolder(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = Table::read().unwrap();
        let points = table.entries().iter().map(|entry| entry.mount_point.clone());
        points.filter(|point| point.starts_with(&self.0)).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for point in self.mounts().iter().rev() {
            if rustix::mount::unmount(point, UnmountFlags::DETACH).is_err() {
                Command::new("fusermount3").args(["-u", "-z"]).arg(point).output().ok();
            }
        }
        // Never through a mount that could not be taken away.
        if self.mounts().is_empty() {
            fs::remove_dir_all(&self.0).ok();
        }
    }
}

/// The built program, with nothing of a service manager that runs the tests.
pub fn dcfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dcfs"));
    command
        .stdin(Stdio::null())
        .env_remove("NOTIFY_SOCKET")
        .env_remove("JOURNAL_STREAM");
    command
}

/// Runs a command to its end, which must be a good one; returns what it said on standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `dcfs mount`, which must fail and leave no mount; returns the reason it gave, which is one line.
pub fn refused(dataset: &Path, mountpoint: &Path, options: &[&str]) -> String {
    let reason = not_mounted(dcfs().arg("mount").args(options).arg(dataset), mountpoint);
    assert_eq!(reason.lines().count(), 1, "{reason:?}");
    reason
}

/// Runs a command that would mount something, which must fail and leave no mount; returns the reason it gave.
pub fn not_mounted(command: &mut Command, mountpoint: &Path) -> String {
    let before = types_at(mountpoint);
    let output = command.arg(mountpoint).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(types_at(mountpoint), before, "the mounts are as they were");
    let reason = text(&output.stderr);
    assert!(reason.starts_with("dcfs: "), "{reason:?}");
    reason
}

/// A dataset as programs are told of it.
pub enum Source {
    Folder(PathBuf),
    Bucket(Bucket),
}

impl Source {
    pub fn new(dataset: &Path, io: Io) -> Self {
        match io {
            Io::Passthrough | Io::Fuse => Self::Folder(dataset.to_owned()),
            Io::Bucket => Self::Bucket(Bucket::of(dataset)),
        }
    }

    /// For commands that mount nothing, which know no modes.
    pub fn both(dataset: &Path) -> [Self; 2] {
        [Io::Fuse, Io::Bucket].map(|io| Self::new(dataset, io))
    }

    /// A command of the built program, told of it.
    pub fn command(&self, command: &str) -> Command {
        let mut dcfs = dcfs();
        dcfs.arg(command);
        match self {
            Self::Folder(path) => dcfs.arg(path),
            Self::Bucket(bucket) => bucket.name_to(&mut dcfs),
        };
        dcfs
    }
}

/// A folder as a bucket, in whatever state the folder is.
pub struct Bucket {
    server: Server,
    /// Of the server, and of a cache that nobody shares.
    folder: Folder,
}

impl Bucket {
    pub const URL: &str = "s3://bucket/dataset.dc";

    fn of(dataset: &Path) -> Self {
        let folder = Folder::new();
        folder.subfolder("cache");
        let root = folder.subfolder("server");
        fs::create_dir(root.join("bucket")).unwrap();
        let dataset = std::path::absolute(dataset).unwrap();
        symlink(dataset, root.join("bucket/dataset.dc")).unwrap();
        let server = Server::new(&root);
        Self { server, folder }
    }

    fn name_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("DELTACELLS_CACHE", self.folder.join("cache")).args([
            "--anonymous",
            "--allow-http",
            "--endpoint",
            &self.server.url(),
            Self::URL,
        ])
    }
}

/// Types of what is mounted at `path`, lowest first.
pub fn types_at(path: &Path) -> Vec<String> {
    let table = Table::read().unwrap();
    table
        .stack(path)
        .iter()
        .map(|entry| entry.fs_type.to_string_lossy().into_owned())
        .collect()
}

/// Waits as long as it takes: whoever runs the tests has more patience or less than any number here.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for waited in 0.. {
        if condition() {
            return;
        }
        if waited == 1000 {
            skip(format_args!("... not, but still waiting until {what}"));
        }
        sleep(Duration::from_millis(10));
    }
}

/// A process that may be gone, under a name that is never another's.
pub struct Process {
    pub pid: Pid,
    descriptor: OwnedFd,
}

impl Process {
    pub fn new(pid: Pid) -> Self {
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        Self { pid, descriptor }
    }

    /// Sends a signal; one that has ended gets none.
    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.descriptor, signal).ok();
    }

    pub fn wait(&self) {
        self.ended_within(None);
    }

    pub fn has_ended(&self) -> bool {
        self.ended_within(Some(Duration::ZERO))
    }

    fn ended_within(&self, time: Option<Duration>) -> bool {
        let mut event = libc::pollfd {
            fd: self.descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let milliseconds = time.map_or(-1, |time| time.as_millis() as i32);
        loop {
            // SAFETY: one structure, which outlives the call.
            match unsafe { libc::poll(&raw mut event, 1, milliseconds) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => panic!("poll: {}", io::Error::last_os_error()),
                ready => return ready > 0,
            }
        }
    }

    /// A field of `/proc/PID/status` that is in kB, in bytes.
    pub fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line
            .and_then(|rest| rest.trim().strip_suffix("kB"))
            .expect("a size")
            .trim();
        kib.parse::<u64>().unwrap() * 1024
    }
}

/// A mount by `dcfs mount`, in the background, as users have it.
pub struct Mount {
    point: PathBuf,
    log: PathBuf,
    daemon: Process,
    /// Goes on while the mount needs it.
    source: Option<Source>,
    /// Dropped last.
    folder: Folder,
}

impl Mount {
    pub fn new(dataset: &Path, io: Io) -> Self {
        Self::with(dataset, io, &[])
    }

    pub fn with(dataset: &Path, io: Io, options: &[&str]) -> Self {
        let source = Source::new(dataset, io);
        let mut command = source.command("mount");
        command.args(options);
        let mut mount = Self::by(command, io);
        mount.source = Some(source);
        mount
    }

    /// By a command that has been told of the dataset, but not where to mount it.
    pub fn by(mut command: Command, io: Io) -> Self {
        let folder = Folder::new();
        let point = folder.subfolder("mount");
        let log = folder.join("log");
        run(command.arg(&point).args(["--io", io.name(), "--log-file"]).arg(&log));
        assert_eq!(types_at(&point), ["fuse.dcfs"]);
        let pid = stats_at(&point)["pid"].as_i64().unwrap();
        let daemon = Process::new(Pid::from_raw(pid as i32).unwrap());
        Self {
            point,
            log,
            daemon,
            source: None,
            folder,
        }
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    pub fn daemon(&self) -> &Process {
        &self.daemon
    }

    /// What `.dcfs/stats.json` says now.
    pub fn stats(&self) -> Value {
        stats_at(&self.point)
    }

    /// A number of the statistics, such as `/decoded/chunks`.
    pub fn stat(&self, pointer: &str) -> u64 {
        let stats = self.stats();
        let number = stats.pointer(pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no {pointer} in {stats}"))
    }

    /// Lines of the log that are warnings or errors.
    pub fn complaints(&self) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap();
        let complaints = log
            .lines()
            .filter(|line| line.contains("] error: ") || line.contains("] warning: "));
        complaints.map(str::to_owned).collect()
    }

    /// Unmounts with `dcfs umount`, which must work, and waits until the daemon is gone.
    pub fn unmount(&self) {
        run(dcfs().arg("umount").arg(&self.point));
        assert_eq!(types_at(&self.point), [""; 0]);
        self.daemon.wait();
    }

    /// The folder in which the mountpoint and the log are.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("log of {}:\n{log}", self.point.display());
        }
        self.daemon.signal(Signal::CONT);
        self.daemon.signal(Signal::TERM);
        if !self.daemon.ended_within(Some(LAST_PATIENCE)) {
            eprintln!("the daemon of {} had to be killed", self.point.display());
            self.daemon.signal(Signal::KILL);
        }
    }
}

fn stats_at(point: &Path) -> Value {
    serde_json::from_slice(&fs::read(point.join(".dcfs/stats.json")).unwrap()).unwrap()
}

/// A mount by `dcfs mount --foreground`, for those who want to know how it ends.
pub struct Foreground {
    point: PathBuf,
    child: std::process::Child,
    stderr: PathBuf,
    _folder: Folder,
}

impl Foreground {
    pub fn new(dataset: &Path, io: Io, options: &[&str]) -> Self {
        let folder = Folder::new();
        let point = folder.subfolder("mount");
        let stderr = folder.join("stderr");
        let child = dcfs()
            .args(["mount", "--foreground", "--io", io.name()])
            .args(options)
            .arg(dataset)
            .arg(&point)
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let mut mount = Self {
            point,
            child,
            stderr,
            _folder: folder,
        };
        wait_until("the mount answers", || {
            let ended = mount.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", mount.stderr());
            mount.point.join("README.txt").exists()
        });
        mount
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its exit status, when it has ended by itself.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Asserts that a command failed with a status, and returns what it said on standard error.
pub fn failed_with(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    text(&output.stderr)
}
