//! Mounting and unmounting through `fusermount3`, the setuid helper that lets ordinary users do so.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{MountError, MountOptions};

/// The helper of libfuse 3, looked for in `PATH`.
const HELPER: &str = "fusermount3";
/// The helper sends the opened `/dev/fuse` over the descriptor that this variable names.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Why the helper did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// It is not installed.
    #[error("{HELPER} is not installed; without it only root can mount (Debian and Ubuntu: apt install fuse3)")]
    Missing,
    /// It cannot be run or spoken with.
    #[error("cannot use {HELPER}: {0}")]
    Io(#[from] io::Error),
    /// It said no, in its own words.
    #[error("{HELPER}: {0}")]
    Refused(String),
}

/// Has the helper mount at `path`; returns the opened `/dev/fuse`.
pub fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let explain = |error| explain(error, path);
    let (ours, theirs) = UnixStream::pair().map_err(HelperError::from).map_err(explain)?;
    // The helper's end becomes its standard input: the one descriptor a child is given without marking it inheritable for every other child as well.
    let child = spawn(
        Command::new(HELPER)
            .arg("-o")
            .arg(mount_options(options))
            .arg("--")
            .arg(path)
            .env(SOCKET_VARIABLE, "0")
            .stdin(Stdio::from(OwnedFd::from(theirs))),
    )
    .map_err(explain)?;
    let device = receive_device(&ours);
    // The helper may wait for its socket to be closed before it ends.
    drop(ours);
    let verdict = verdict(child);
    match device {
        Ok(Some(device)) => {
            verdict.map_err(explain)?;
            Ok(device)
        }
        Ok(None) => {
            verdict.map_err(explain)?;
            Err(explain(HelperError::Refused(
                "it ended without handing over /dev/fuse".to_owned(),
            )))
        }
        Err(error) => {
            verdict.map_err(explain)?;
            Err(explain(HelperError::Io(error)))
        }
    }
}

/// Has the helper unmount `path`; `lazily` also while it is in use.
pub fn unmount(path: &Path, lazily: bool) -> Result<(), HelperError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    verdict(spawn(command.arg("--").arg(path).stdin(Stdio::null()))?)
}

/// Starts the helper, and leaves no copy of the descriptors it is given behind in this process.
fn spawn(command: &mut Command) -> Result<Child, HelperError> {
    let child = command
        .env("LC_ALL", "C")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    command.stdin(Stdio::null());
    match child {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(HelperError::Missing),
        child => Ok(child?),
    }
}

/// Waits for the helper to end, and reads why it failed.
fn verdict(mut child: Child) -> Result<(), HelperError> {
    let mut said = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_end(&mut said)?;
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said);
    let said = said.trim().replace(&format!("{HELPER}: "), "");
    Err(HelperError::Refused(if said.is_empty() {
        status.to_string()
    } else {
        said
    }))
}

/// Takes the descriptor that the helper sends, or nothing when it closes the socket instead.
fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let mut received = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received.next())
}

fn mount_options(options: &MountOptions) -> OsString {
    let mut text = b"ro,nosuid,nodev,default_permissions,subtype=dcfs,fsname=".to_vec();
    text.extend(escape(&options.source_name));
    if options.allow_other {
        text.extend(b",allow_other");
    }
    if let Some(max_read) = options.max_read {
        text.extend(format!(",max_read={max_read}").bytes());
    }
    OsString::from_vec(text)
}

/// Writes a value so that the helper's option parser gives it back: commas end an option, backslashes escape.
fn escape(value: &OsStr) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

/// Turns what the helper says into what a person can do.
fn explain(error: HelperError, path: &Path) -> MountError {
    let path = path.to_owned();
    let HelperError::Refused(said) = &error else {
        return MountError::Helper { path, source: error };
    };
    if said.contains("user_allow_other") {
        MountError::AllowOtherForbidden
    } else if said.contains("user has no write access to mountpoint") || said.contains("not owner of") {
        MountError::NotOwner { path }
    } else if said.contains("/dev/fuse: Permission denied") {
        MountError::device(Errno::ACCESS)
    } else if said.contains("fuse device not found") || said.contains("/dev/fuse: No such file") {
        MountError::device(Errno::NOENT)
    } else {
        MountError::Helper { path, source: error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_name_with_commas_and_backslashes_stays_one_option() {
        let options = MountOptions {
            source_name: OsString::from(r"a,allow_other\b"),
            allow_other: false,
            max_read: Some(1 << 20),
        };
        assert_eq!(
            mount_options(&options),
            r"ro,nosuid,nodev,default_permissions,subtype=dcfs,fsname=a\,allow_other\\b,max_read=1048576"
        );
    }

    #[test]
    fn the_helpers_refusals_become_advice() {
        let advice = |said: &str| explain(HelperError::Refused(said.to_owned()), Path::new("/m")).to_string();
        assert!(
            advice("option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf")
                .contains("/etc/fuse.conf")
        );
        assert!(advice("user has no write access to mountpoint /m").contains("/m"));
        assert!(advice("failed to open /dev/fuse: Permission denied").contains("may not be opened"));
        assert!(advice("fuse device not found, try 'modprobe fuse' first").contains("modprobe fuse"));
        assert!(advice("too many FUSE filesystems mounted").contains("too many"));
        assert!(
            explain(HelperError::Missing, Path::new("/m"))
                .to_string()
                .contains("apt install fuse3")
        );
    }
}
