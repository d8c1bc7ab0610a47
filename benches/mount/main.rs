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
mod machine;
mod many_tiles;
mod memory;
mod plain;
mod readers;
mod speed;
mod table;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use table::Table;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rounds unless the command line says otherwise; a median of fewer is not worth its name.
const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;

/// What the command line asks for.
struct Wanted {
    rounds: usize,
    names: Vec<String>,
    interrupted: Arc<AtomicBool>,
}

impl Wanted {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut wanted = Self {
            rounds: ROUNDS,
            names: Vec::new(),
            interrupted: Arc::default(),
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // What cargo tells every bench.
                "--bench" => {}
                "--quick" => wanted.rounds = QUICK_ROUNDS,
                "--rounds" => {
                    let rounds = arguments.next().ok_or("--rounds needs a number")?;
                    wanted.rounds = rounds.parse::<usize>().map_err(|_| "--rounds needs a number")?.max(1);
                }
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}; there are --quick, --rounds N and names").into());
                }
                _ => wanted.names.push(argument),
            }
        }
        Ok(wanted)
    }

    /// Whether the line of this name is to be measured.
    fn has(&self, line: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| line.contains(name.as_str()))
    }

    /// An error once somebody wants the bench to stop, so that mounts are taken down on the way out.
    fn go_on(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        Ok(())
    }
}

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
    let wanted = Wanted::parse(std::env::args().skip(1))?;
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, wanted.interrupted.clone())?;
    }
    let folder = datasets::Folder::lock()?;
    let mut table = Table::default();
    speed::measure(&wanted, &folder, &mut table)?;
    many_tiles::measure(&wanted, &folder, &mut table)?;
    memory::measure(&wanted, &folder, &mut table)?;
    print!("{table}");
    Ok(())
}
