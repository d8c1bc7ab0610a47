//! A mount by the real program, from its start to its end.

use std::fs;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::Result;

/// How long a mount may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running mount. Dropped, it is taken down, and so it is when this process dies.
pub struct Mount {
    child: Child,
    scratch: Scratch,
    ready_after: Duration,
}

impl Mount {
    /// Mounts `dataset` with these options of `dcfs mount`, and waits until the mount says that it answers.
    ///
    /// Call it on the main thread: the daemon lives as long as the thread that started it.
    pub fn start(dataset: &Path, options: &[&str]) -> Result<Self> {
        let scratch = Scratch::new()?;
        let socket = UnixDatagram::bind(scratch.socket())?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_dcfs"));
        command.args(["mount", "--foreground"]).args(options);
        command.arg(dataset).arg(scratch.mountpoint());
        command.env("NOTIFY_SOCKET", scratch.socket());
        command.stdin(Stdio::null()).stderr(fs::File::create(scratch.log())?);
        // SAFETY: between fork and exec it makes one system call and touches no memory.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
        let started = Instant::now();
        let child = command.spawn()?;
        let mut mount = Self {
            child,
            scratch,
            ready_after: Duration::ZERO,
        };
        mount.await_ready(&socket, started)?;
        mount.ready_after = started.elapsed();
        Ok(mount)
    }

    fn await_ready(&mut self, socket: &UnixDatagram, started: Instant) -> Result<()> {
        let mut message = [0; 512];
        loop {
            match socket.recv(&mut message) {
                Ok(n) if message[..n].starts_with(b"READY=1") => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || started.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.scratch.log()).unwrap_or_default();
                return Err(format!("there is no mount: {log}").into());
            }
        }
    }

    /// Time from starting the program until the mount answered.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// The root of the mount.
    pub fn path(&self) -> PathBuf {
        self.scratch.mountpoint()
    }

    /// The file of an array of a tile.
    pub fn array(&self, tile: usize, name: &str) -> PathBuf {
        self.path().join(format!("tile_{tile:06}")).join(name)
    }

    /// The daemon's folder in `/proc`.
    pub fn process(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.child.id()))
    }

    /// Takes the mount down and waits for the end of the daemon, so that it takes no time from what is measured next.
    ///
    /// An error when the daemon ended otherwise than it should.
    pub fn stop(mut self) -> Result<()> {
        self.terminate();
        let ended = self.await_end();
        match ended {
            Some(status) if status.success() => Ok(()),
            _ => {
                let log = fs::read_to_string(self.scratch.log()).unwrap_or_default();
                Err(format!("the daemon did not end as it should ({ended:?}): {log}").into())
            }
        }
    }

    fn terminate(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn await_end(&mut self) -> Option<std::process::ExitStatus> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
            if self.await_end().is_none() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// The mountpoint and what else a mount needs. Dropped after the mount is gone, it leaves nothing.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("dcfs-bench-{}-{number}", std::process::id());
        let scratch = Self(std::env::temp_dir().canonicalize()?.join(name));
        fs::create_dir(&scratch.0)?;
        fs::create_dir(scratch.mountpoint())?;
        Ok(scratch)
    }

    fn mountpoint(&self) -> PathBuf {
        self.0.join("mnt")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("notify")
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for file in [self.socket(), self.log()] {
            let _ = fs::remove_file(file);
        }
        // A daemon that was killed leaves its mount, which is then no empty folder.
        if fs::remove_dir(self.mountpoint()).is_err() {
            let mut umount = Command::new(env!("CARGO_BIN_EXE_dcfs"));
            let _ = umount.args(["umount", "--lazy"]).arg(self.mountpoint()).output();
            let _ = fs::remove_dir(self.mountpoint());
        }
        let _ = fs::remove_dir(&self.0);
    }
}
