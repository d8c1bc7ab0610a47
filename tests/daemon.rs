//! The life of the process: going into the background, being ready, being told to stop.
//!
//! This test program is also the program it tests: started with `mount-tiny` it mounts the tiny file system with the same parts that
//! `dcfs mount` is made of, and as it starts itself again in the background, it needs a `main` of its own.

#![cfg(target_os = "linux")]

mod tiny_fs;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use dcfs::cli::detach::{Daemon, Side, detach};
use dcfs::cli::logging::{self, Destination};
use dcfs::cli::serve::{Hangup, StopSignals, announce_ready, await_answer, until_stopped};
use dcfs::cli::umount::{self, UmountArgs};
use dcfs::fs::mount::table::Table;
use dcfs::fs::mount::{MountOptions, join_session, mount, prepare};
use rustix::process::{Pid, Signal, getsid, kill_process};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "mount-tiny") {
        return mount_tiny(&arguments[1], &arguments[2..]);
    }
    if std::env::var_os("DCFS_TEST_NO_FUSE").is_some_and(|value| value == "1") {
        eprintln!("skipped: DCFS_TEST_NO_FUSE=1");
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let mut failed = false;
    for (name, test) in TESTS {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let folder = Folder::new(name);
        let result = catch_unwind(AssertUnwindSafe(|| test(&folder)));
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        failed |= result.is_err();
    }
    ExitCode::from(u8::from(failed))
}

/// What `dcfs mount` does, with the tiny file system: in the background unless `--foreground` is among the options.
fn mount_tiny(mountpoint: &str, options: &[String]) -> ExitCode {
    let has = |option: &str| options.iter().any(|given| given == option);
    if has("--foreground") {
        logging::init(Destination::Stderr, log::LevelFilter::Info).unwrap();
        return end(serve_tiny(mountpoint, &has, None));
    }
    match detach().unwrap() {
        Side::Launcher(Ok(())) => ExitCode::SUCCESS,
        Side::Launcher(Err(error)) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
        Side::Daemon(daemon) => {
            let mut daemon = Some(daemon);
            let result = serve_tiny(mountpoint, &has, Some(&mut daemon));
            match (result, daemon) {
                (Err(error), Some(daemon)) => {
                    daemon.fail(&error);
                    ExitCode::from(7)
                }
                (result, _) => end(result),
            }
        }
    }
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve_tiny(
    mountpoint: &str,
    has: &dyn Fn(&str) -> bool,
    daemon: Option<&mut Option<Daemon>>,
) -> Result<(), Failure> {
    let hangup = if daemon.is_some() { Hangup::Ignore } else { Hangup::Stop };
    let signals = StopSignals::catch(hangup)?;
    let options = MountOptions {
        source_name: "tiny".into(),
        allow_other: false,
        max_read: None,
    };
    let (device, mounted) = mount(prepare(Path::new(mountpoint), None)?, &options)?;
    if has("--abort") {
        std::process::abort();
    }
    if has("--silent") {
        await_answer(mounted.path(), Duration::from_secs(1))?;
    }
    let session = tiny_fs::serve(device);
    await_answer(mounted.path(), Duration::from_secs(10))?;
    match daemon {
        Some(daemon) => daemon.take().unwrap().ready()?,
        None => announce_ready("tiny is mounted"),
    }
    until_stopped(mounted, signals, || join_session(session))?;
    Ok(())
}

/// A fresh folder with a mountpoint in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir()
            .canonicalize()
            .unwrap()
            .join(format!("dcfs-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("mnt")).unwrap();
        Self(path)
    }

    fn mountpoint(&self) -> PathBuf {
        self.0.join("mnt")
    }

    fn readme(&self) -> PathBuf {
        self.mountpoint().join("README.txt")
    }

    fn is_mounted(&self) -> bool {
        !Table::read().unwrap().stack(&self.mountpoint()).is_empty()
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("mount-tiny").arg(self.mountpoint()).args(options);
        command
            .stdin(Stdio::null())
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM");
        command
    }

    /// Starts the tiny file system in the foreground and waits until it answers.
    fn foreground(&self, configure: impl FnOnce(&mut Command)) -> Child {
        let mut command = self.command(&["--foreground"]);
        configure(&mut command);
        let child = command.spawn().unwrap();
        wait_until("the mount answers", || {
            fs::read(self.readme()).is_ok_and(|text| text == tiny_fs::README)
        });
        child
    }

    /// Starts it in the background and returns the daemon's process id.
    fn background(&self) -> Pid {
        let output = self.command(&[]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            (output.stdout.as_slice(), output.stderr.as_slice()),
            (b"".as_slice(), b"".as_slice())
        );
        self.daemon()
    }

    fn daemon(&self) -> Pid {
        let mountpoint = self.mountpoint();
        let is_daemon = |pid: &i32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command
                .split(|&byte| byte == 0)
                .any(|argument| argument == mountpoint.as_os_str().as_encoded_bytes())
        };
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Pid::from_raw(processes.filter(is_daemon).last().expect("there is a daemon")).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let left = UmountArgs {
            mountpoint: self.mountpoint(),
            lazy: true,
            stale: false,
        };
        umount::run(&left).ok();
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Waits as long as it takes: whoever runs the tests has more patience or less than any number here.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for waited in 0.. {
        if condition() {
            return;
        }
        if waited == 500 {
            eprintln!("still waiting until {what}");
        }
        sleep(Duration::from_millis(20));
    }
}

fn ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.rsplit(')').next().unwrap().starts_with(" Z")
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

type Test = (&'static str, fn(&Folder));

const TESTS: &[Test] = &[
    (
        "the_launcher_ends_when_the_mount_answers",
        the_launcher_ends_when_the_mount_answers,
    ),
    (
        "the_daemon_keeps_nothing_of_its_launcher",
        the_daemon_keeps_nothing_of_its_launcher,
    ),
    ("the_daemon_outlives_its_terminal", the_daemon_outlives_its_terminal),
    ("the_launcher_passes_the_reason_on", the_launcher_passes_the_reason_on),
    (
        "the_launcher_tells_of_a_sudden_death",
        the_launcher_tells_of_a_sudden_death,
    ),
    (
        "a_mount_that_does_not_answer_is_a_failed_start",
        a_mount_that_does_not_answer_is_a_failed_start,
    ),
    (
        "the_service_manager_hears_of_start_and_stop",
        the_service_manager_hears_of_start_and_stop,
    ),
    (
        "every_stop_signal_unmounts_and_ends_with_0",
        every_stop_signal_unmounts_and_ends_with_0,
    ),
    ("a_mount_in_use_stops_too", a_mount_in_use_stops_too),
    ("a_second_signal_ends_at_once", a_second_signal_ends_at_once),
    (
        "unmounting_from_outside_ends_with_0",
        unmounting_from_outside_ends_with_0,
    ),
    ("the_journal_gets_priorities", the_journal_gets_priorities),
];

fn the_launcher_ends_when_the_mount_answers(folder: &Folder) {
    let daemon = folder.background();
    assert_eq!(fs::read(folder.readme()).unwrap(), tiny_fs::README);
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the daemon ends", || ended(daemon));
    assert!(!folder.is_mounted());
}

fn the_daemon_keeps_nothing_of_its_launcher(folder: &Folder) {
    let leak = folder.0.join("leak");
    let output = Command::new("sh")
        .args(["-c", "umask 077; exec 7>\"$1\" 8>&1; shift; exec \"$@\"", "sh"])
        .arg(&leak)
        .arg(std::env::current_exe().unwrap())
        .arg("mount-tiny")
        .arg(folder.mountpoint())
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let daemon = folder.daemon();
    let descriptors: Vec<(i32, PathBuf)> = fs::read_dir(format!("/proc/{daemon}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().to_str().unwrap().parse().unwrap(),
                fs::read_link(entry.path()).unwrap(),
            )
        })
        .collect();
    assert!(!descriptors.iter().any(|(_, path)| path == &leak), "{descriptors:?}");
    let standard: BTreeSet<_> = descriptors
        .iter()
        .filter(|(number, _)| *number <= 2)
        .map(|(_, path)| path)
        .collect();
    assert_eq!(standard, BTreeSet::from([&PathBuf::from("/dev/null")]));
    assert_eq!(fs::read_link(format!("/proc/{daemon}/cwd")).unwrap(), Path::new("/"));
    assert_eq!(getsid(Some(daemon)).unwrap(), daemon);
    assert_eq!(fs::read_to_string(format!("/proc/{daemon}/comm")).unwrap(), "dcfs\n");
    let status = fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
    assert!(status.lines().any(|line| line == "Umask:\t0022"), "{status}");
    kill_process(daemon, Signal::INT).unwrap();
    wait_until("the daemon ends", || ended(daemon));
}

fn the_daemon_outlives_its_terminal(folder: &Folder) {
    let daemon = folder.background();
    kill_process(daemon, Signal::HUP).unwrap();
    // Were SIGHUP to stop it, it would be gone long before.
    sleep(Duration::from_millis(300));
    assert_eq!(fs::read(folder.readme()).unwrap(), tiny_fs::README);
    assert!(!ended(daemon));
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until("the daemon ends", || ended(daemon));
    assert!(!folder.is_mounted());
}

fn the_launcher_passes_the_reason_on(folder: &Folder) {
    fs::write(folder.mountpoint().join("precious"), "").unwrap();
    let output = folder.command(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(
        stderr(&output).contains("is not empty (it holds \"precious\")"),
        "{output:?}"
    );
    assert!(!folder.is_mounted());
}

fn the_launcher_tells_of_a_sudden_death(folder: &Folder) {
    let output = folder.command(&["--abort"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("ended before it was ready: signal: 6"),
        "{output:?}"
    );
}

fn a_mount_that_does_not_answer_is_a_failed_start(folder: &Folder) {
    let output = folder.command(&["--silent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(stderr(&output).contains("did not answer within 1 s"), "{output:?}");
    assert!(!folder.is_mounted());
}

fn the_service_manager_hears_of_start_and_stop(folder: &Folder) {
    let path = folder.0.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let hear = || {
        let mut buffer = [0; 4096];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let mut child = folder
        .command(&["--foreground"])
        .env("NOTIFY_SOCKET", &path)
        .spawn()
        .unwrap();
    let ready = hear();
    assert!(
        ready.contains("READY=1") && ready.contains("STATUS=tiny is mounted"),
        "{ready}"
    );
    assert_eq!(fs::read(folder.readme()).unwrap(), tiny_fs::README);
    signal(&child, Signal::TERM);
    assert!(hear().contains("STOPPING=1"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn every_stop_signal_unmounts_and_ends_with_0(folder: &Folder) {
    for stop in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut child = folder.foreground(|_| {});
        signal(&child, stop);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{stop:?}");
        assert!(!folder.is_mounted());
    }
}

fn a_mount_in_use_stops_too(folder: &Folder) {
    let mut child = folder.foreground(|command| {
        command.stderr(Stdio::piped());
    });
    let held = File::open(folder.readme()).unwrap();
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!folder.is_mounted());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("was in use"), "{said}");
    drop(held);
}

fn a_second_signal_ends_at_once(folder: &Folder) {
    let mut child = folder.foreground(|command| {
        command.stderr(Stdio::null());
    });
    let _held = File::open(folder.readme()).unwrap();
    signal(&child, Signal::TERM);
    wait_until("the first signal has acted", || !folder.is_mounted());
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

fn unmounting_from_outside_ends_with_0(folder: &Folder) {
    let mut child = folder.foreground(|command| {
        command.stderr(Stdio::null());
    });
    let mut unmount = match dcfs::fs::mount::may_mount() {
        true => Command::new("umount"),
        false => Command::new("fusermount3"),
    };
    if !dcfs::fs::mount::may_mount() {
        unmount.arg("-u");
    }
    assert!(unmount.arg(folder.mountpoint()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

fn the_journal_gets_priorities(folder: &Folder) {
    let journal = folder.0.join("journal");
    let file = File::create(&journal).unwrap();
    let metadata = file.metadata().unwrap();
    let mut child = folder.foreground(|command| {
        command
            .env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()))
            .stderr(file);
    });
    let _held = File::open(folder.readme()).unwrap();
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let text = fs::read_to_string(journal).unwrap();
    assert!(text.starts_with("<4>") && text.contains("was in use"), "{text}");
}
