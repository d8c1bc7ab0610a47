//! A billion cells: what a manifest of 100,000 tiles costs before anything is read.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Result;
use crate::daemon::Mount;
use crate::datasets::MANY_TILES;
use crate::folder::Folder;
use crate::table::{Line, Table, Target, median};
use crate::wanted::Wanted;

const MOUNT: &str = "100,000 tiles: until the mount answers";
const RESIDENT: &str = "100,000 tiles: resident after listing";
const LIST: &str = "100,000 tiles: ls -f of the root";

/// Mounts it, lists it, and looks at the daemon.
pub fn measure(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    if ![MOUNT, RESIDENT, LIST].iter().any(|line| wanted.has(line)) {
        return Ok(());
    }
    let dataset = folder.many_tiles()?;
    let (mut ready, mut resident, mut listing) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..wanted.rounds {
        wanted.go_on()?;
        let mount = Mount::start(&dataset, &[])?;
        ready.push(mount.ready_after().as_secs_f64());
        listing.push(list(&mount.path())?);
        resident.push(kib(&mount.process(), "VmRSS")? / 1024.0);
        mount.stop()?;
    }
    let highest = resident.iter().copied().fold(0.0, f64::max);
    for (measure, unit, found, most) in [
        (MOUNT, " s", median(ready), 0.5),
        (RESIDENT, " MiB", highest, 150.0),
        (LIST, " s", median(listing), 1.0),
    ] {
        if wanted.has(measure) {
            table.add(Line {
                measure: measure.into(),
                against: "-".into(),
                found,
                unit,
                target: Target::AtMost(most),
                details: format!("{} mounts", wanted.rounds),
            });
        }
    }
    Ok(())
}

/// Seconds that `ls -f` takes.
fn list(root: &Path) -> Result<f64> {
    let started = Instant::now();
    let output = Command::new("ls")
        .arg("-f")
        .arg(root)
        .stderr(Stdio::inherit())
        .output()?;
    let time = started.elapsed().as_secs_f64();
    let tiles = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter(|line| line.starts_with(b"tile_"))
        .count();
    if tiles != MANY_TILES {
        return Err(format!("ls -f showed {tiles} tiles, expected {MANY_TILES}").into());
    }
    Ok(time)
}

/// A figure of a process's `status`, in KiB.
pub fn kib(process: &Path, field: &str) -> Result<f64> {
    let status = fs::read_to_string(process.join("status"))?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
    Ok(number.ok_or_else(|| format!("no {field} in the status of a process"))?)
}
