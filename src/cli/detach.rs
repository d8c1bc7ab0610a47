//! Leaving the terminal: the program starts itself again as a daemon, and waits until that says it is ready.
//!
//! The daemon is a fresh process rather than a fork, because a fork of a program with threads is no place to go on from. It tells its
//! launcher how it went over its standard output, which is a pipe. Knows nothing of mounts.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::Mode;
use thiserror::Error;

/// Names the launcher's process to the daemon, which by that knows that it is one.
const LAUNCHER_VARIABLE: &str = "DCFS_LAUNCHER";
/// What the daemon says when all is well.
const READY: &str = "ready\n";

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Side {
    /// The one that the user started. The daemon is ready, or not, and all that is left to do is to end.
    Launcher(Result<(), LaunchError>),
    /// The one that does the work.
    Daemon(Daemon),
}

/// Why there is no daemon.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// It could not be started.
    #[error("cannot start in the background: {0}")]
    Start(#[from] io::Error),
    /// It said what went wrong.
    #[error("{reason}")]
    Refused {
        /// In the daemon's own words.
        reason: String,
        /// The status with which it ended.
        code: u8,
    },
    /// It ended without a word.
    #[error("the background process ended before it was ready: {0}")]
    Died(ExitStatus),
}

impl LaunchError {
    /// The status with which the launcher should end: the daemon's own where it had one, and never 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused { code, .. } => (*code).max(1),
            Self::Start(_) | Self::Died(_) => 1,
        }
    }
}

/// Starts this program again with the same arguments in the background, unless this already is that process.
///
/// To be called early, before threads are started and files opened.
///
/// # Errors
/// Only in the daemon: it could not make itself independent of the terminal.
pub fn detach() -> io::Result<Side> {
    if is_daemon() {
        Daemon::begin().map(Side::Daemon)
    } else {
        Ok(Side::Launcher(launch()))
    }
}

/// Whether the launcher that the environment names is this process's parent. The variable alone is not enough: whatever the daemon
/// starts inherits it.
fn is_daemon() -> bool {
    let named = env::var(LAUNCHER_VARIABLE).ok().and_then(|pid| pid.parse().ok());
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    let stdout_is_pipe = || fs::metadata("/proc/self/fd/1").is_ok_and(|metadata| metadata.file_type().is_fifo());
    named.is_some() && named == parent && stdout_is_pipe()
}

fn launch() -> Result<(), LaunchError> {
    keep_descriptors_from_children();
    let (reader, writer) = io::pipe()?;
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| OsString::from("dcfs"));
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(name)
        .args(arguments)
        .env(LAUNCHER_VARIABLE, std::process::id().to_string())
        // The service manager waits for the launcher, not for the daemon.
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(writer);
    let mut daemon = command.spawn()?;
    // With it goes this process's copy of the pipe's other end, which would keep the pipe open for ever.
    drop(command);
    let said = listen(reader)?;
    if said == READY {
        return Ok(());
    }
    let status = daemon.wait()?;
    match (said.trim(), status.code()) {
        ("", _) | (_, None) => Err(LaunchError::Died(status)),
        (reason, Some(code)) => Err(LaunchError::Refused {
            reason: reason.to_owned(),
            code: u8::try_from(code).unwrap_or(1),
        }),
    }
}

/// All that the daemon says until it closes the pipe.
fn listen(mut reader: PipeReader) -> io::Result<String> {
    let mut said = Vec::new();
    reader.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Marks every descriptor but the three standard ones to be closed in children. This process may have been given some by a program that forgot
/// to keep them, and a daemon that holds the end of a pipe or a lock holds it for ever.
fn keep_descriptors_from_children() {
    let Ok(folder) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.filter(|&number| number > 2) {
        // SAFETY: F_SETFD touches no memory, and whoever owns the descriptor still does; a number that is not open gives EBADF.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// The daemon's side: what it still owes its launcher.
#[derive(Debug)]
pub struct Daemon(());

impl Daemon {
    /// Leaves the terminal and the session of whoever started it. Paths given on the command line still mean what they meant.
    fn begin() -> io::Result<Self> {
        rustix::process::setsid()?;
        forget_umask();
        // Started through /proc/self/exe, it would show as "exe".
        rustix::thread::set_name(c"dcfs")?;
        Ok(Self(()))
    }

    /// Tells the launcher that all is well, and lets go of the working directory and of the launcher's output.
    ///
    /// # Errors
    /// Nobody listens any more: the launcher was interrupted, and the user wants no daemon.
    pub fn ready(self) -> io::Result<()> {
        env::set_current_dir("/")?;
        let nowhere = File::options().read(true).write(true).open("/dev/null")?;
        io::stdout().write_all(READY.as_bytes())?;
        io::stdout().flush()?;
        rustix::stdio::dup2_stdin(&nowhere)?;
        rustix::stdio::dup2_stdout(&nowhere)?;
        rustix::stdio::dup2_stderr(&nowhere)?;
        Ok(())
    }

    /// Tells the launcher what went wrong. The daemon should then end, with a status other than 0.
    pub fn fail(self, reason: &dyn fmt::Display) {
        let mut stdout = io::stdout();
        // When nobody listens, there is nobody to tell.
        write!(stdout, "{reason}").and_then(|()| stdout.flush()).ok();
    }
}

/// Sets the mask of permissions to the usual one: what files the program makes should not depend on who started it.
pub fn forget_umask() {
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
}
