//! `dcfs umount`: takes a mount of this program away, running or dead.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use thiserror::Error;

use crate::fs::mount::table::{Entry, Table, describe};
use crate::fs::mount::{PrepareError, Pulse, Target, UnmountError, When, locate, mount_id, pulse};

/// Unmount a dataset
///
/// Also removes what a killed dcfs left behind ("Transport endpoint is not connected"). Mounts of other programs are never touched.
///
/// Exit status: 0 unmounted; 1 failed; 3 no dcfs is mounted there; 4 in use.
#[derive(Debug, Clone, Args)]
pub struct UmountArgs {
    /// Where the dataset is mounted
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// Unmount even if it is in use: it leaves the tree at once, and programs keep what they have open
    #[arg(short = 'z', long)]
    pub lazy: bool,
    /// Remove only what a killed dcfs left behind; a running mount is left alone, and it is no error if there is nothing to remove
    #[arg(long)]
    pub stale: bool,
}

/// Why nothing was unmounted.
#[derive(Debug, Error)]
pub enum UmountError {
    /// The path leads nowhere.
    #[error(transparent)]
    Path(#[from] PrepareError),
    /// It is an ordinary folder or file.
    #[error("nothing is mounted at {}", path.display())]
    NotMounted { path: PathBuf },
    /// It is another program's mount.
    #[error("what is mounted at {} is no dcfs but {source_name} of type {fs_type}; it was left alone", path.display())]
    NotOurs {
        path: PathBuf,
        source_name: String,
        fs_type: String,
    },
    /// Programs use it.
    #[error("{0} is in use by {1}; end what uses it, or: dcfs umount --lazy {0}", path.display(), Listed(holders))]
    Busy { path: PathBuf, holders: Vec<Holder> },
    /// The table of mounts cannot be read.
    #[error("cannot read the table of mounts: {0}")]
    Table(#[from] std::io::Error),
    /// The system refused.
    #[error(transparent)]
    Unmount(#[from] UnmountError),
}

impl UmountError {
    /// The status with which the program should end.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Path(PrepareError::Missing { .. }) | Self::NotMounted { .. } | Self::NotOurs { .. } => 3,
            Self::Busy { .. } => 4,
            Self::Path(_) | Self::Table(_) | Self::Unmount(_) => 1,
        }
    }
}

/// Unmounts what `args` says, and dead mounts of ours that come to light below it.
///
/// # Errors
/// [`UmountError`]; the mount is still there then.
pub fn run(args: &UmountArgs) -> Result<(), UmountError> {
    let path = locate(&args.mountpoint)?;
    if !args.stale {
        take_down(&ours_at(&path)?, args.lazy)?;
    }
    while let Some(dead) = ours_at(&path).ok().filter(|_| pulse(&path) == Pulse::Dead) {
        take_down(&dead, true)?;
    }
    Ok(())
}

/// The mount of ours that programs see at `path`.
fn ours_at(path: &Path) -> Result<Entry, UmountError> {
    let table = Table::read()?;
    match table.stack(path).last() {
        None => Err(UmountError::NotMounted { path: path.to_owned() }),
        Some(top) if top.is_ours() => Ok((*top).clone()),
        Some(other) => Err(UmountError::NotOurs {
            path: path.to_owned(),
            source_name: describe(&other.source),
            fs_type: describe(&other.fs_type),
        }),
    }
}

fn take_down(entry: &Entry, lazy: bool) -> Result<(), UmountError> {
    let target = Target::new(entry.clone());
    match target.take_down(When::Unused) {
        // From a dead mount nobody can get anything any more, so there is nothing to wait for.
        Err(UnmountError::Busy { path }) if lazy || pulse(&path) == Pulse::Dead => {
            target.take_down(When::Lazily)?;
        }
        Err(UnmountError::Busy { path }) => {
            let holders = holders(Path::new("/proc"), entry);
            return Err(UmountError::Busy { path, holders });
        }
        result => {
            result?;
        }
    }
    Ok(())
}

/// A process that keeps a mount busy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its name, as `ps` shows it.
    pub name: String,
    /// What it holds.
    pub holds: Hold,
}

/// What a process may hold of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// An open file or folder.
    Open,
    /// A file mapped into its memory.
    Mapping,
    /// Its working directory.
    WorkingDirectory,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = match self.holds {
            Hold::Open => "an open file",
            Hold::Mapping => "a mapped file",
            Hold::WorkingDirectory => "its working directory",
        };
        write!(f, "{} (process {}: {holds})", self.name, self.pid)
    }
}

/// Holders as part of a sentence.
struct Listed<'a>(&'a [Holder]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// More would not help, and would not fit.
        const NAMED: usize = 8;
        let named: Vec<String> = self.0.iter().take(NAMED).map(Holder::to_string).collect();
        match self.0.len() {
            0 => f.write_str("processes of other users or namespaces"),
            count if count > NAMED => write!(f, "{} and {} more", named.join(", "), count - NAMED),
            _ => f.write_str(&named.join(", ")),
        }
    }
}

/// The processes that hold the mount, as far as `proc` shows them to this user. Looks at what the kernel says of each, never at the files
/// themselves, so that a mount that hangs cannot make it hang.
fn holders(proc: &Path, mount: &Entry) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir(proc) else {
        return Vec::new();
    };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut holders: Vec<Holder> = pids
        .filter_map(|pid: u32| {
            let folder = proc.join(pid.to_string());
            let holds = hold(&folder, mount)?;
            let name = fs::read_to_string(folder.join("comm"))
                .unwrap_or_default()
                .trim()
                .to_owned();
            Some(Holder { pid, name, holds })
        })
        .collect();
    holders.sort_by_key(|holder| holder.pid);
    holders
}

/// What the process of which `folder` tells holds of the mount.
fn hold(folder: &Path, mount: &Entry) -> Option<Hold> {
    let is_below = |link: &str| fs::read_link(folder.join(link)).is_ok_and(|path| path.starts_with(&mount.mount_point));
    if is_below("cwd") || is_below("root") {
        return Some(Hold::WorkingDirectory);
    }
    let descriptors = fs::read_dir(folder.join("fdinfo"))
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let mut texts = descriptors.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    if texts.any(|text| mount_id(&text) == Some(mount.id)) {
        return Some(Hold::Open);
    }
    // 7f00-7f01 r--s 00000000 00:2a 2   /mnt/ds/README.txt
    let device = format!("{:02x}:{:02x}", mount.device.major, mount.device.minor);
    let maps = fs::read(folder.join("maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    maps.lines()
        .any(|line| line.split(' ').nth(3) == Some(&device))
        .then_some(Hold::Mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: u32) -> Holder {
        Holder {
            pid,
            name: "R".to_owned(),
            holds: Hold::Mapping,
        }
    }

    #[test]
    fn a_message_names_some_holders_and_counts_the_rest() {
        let busy = |holders| {
            UmountError::Busy {
                path: "/mnt/ds".into(),
                holders,
            }
            .to_string()
        };
        assert!(busy(vec![holder(7)]).contains("in use by R (process 7: a mapped file); end"));
        let many = busy((0..20).map(holder).collect());
        assert!(
            many.contains("process 7:") && !many.contains("process 8:") && many.contains("and 12 more"),
            "{many}"
        );
        assert!(busy(vec![]).contains("other users"));
    }

    #[test]
    fn scripts_can_tell_the_failures_apart() {
        let path = PathBuf::from("/mnt/ds");
        assert_eq!(UmountError::NotMounted { path: path.clone() }.exit_code(), 3);
        assert_eq!(UmountError::Busy { path, holders: vec![] }.exit_code(), 4);
        assert_eq!(UmountError::Table(std::io::Error::other("x")).exit_code(), 1);
    }
}
