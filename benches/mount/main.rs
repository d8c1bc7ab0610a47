//! What a mount costs, against what the same bytes cost without one: `cargo bench --bench mount`.
//!
//! The speed of a machine that others use changes from minute to minute, so every figure is a ratio of two things that
//! were timed in turns, in this process and the daemons it starts; absolute times are printed beside them. Beyond
//! speed it holds two promises against what really happens: that a dataset of 100,000 tiles mounts at once, and that a cache
//! stays within its size.
//!
//! ```text
//! cargo bench --bench mount -- [--quick | --rounds N] [NAME...]
//! ```
//!
//! Only lines of the table whose name contains one of the `NAME`s are measured. The machine needs `/dev/fuse`; what needs
//! passthrough is left out with a line that says so where the kernel or this user does not have it.

mod daemon;
mod datasets;
mod folder;
mod machine;
mod many_tiles;
mod memory;
mod plain;
mod readers;
mod speed;
mod table;
mod wanted;

use std::error::Error;
use std::process::ExitCode;

use table::Table;
use wanted::Wanted;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rounds unless the command line says otherwise; a median of fewer is not worth its name.
const ROUNDS: usize = 9;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let wanted = Wanted::parse(ROUNDS)?;
    let folder = folder::Folder::lock()?;
    let mut table = Table::default();
    speed::measure(&wanted, &folder, &mut table)?;
    many_tiles::measure(&wanted, &folder, &mut table)?;
    memory::measure(&wanted, &folder, &mut table)?;
    print!("{table}");
    Ok(())
}
