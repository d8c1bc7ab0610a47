//! What a conversion costs, against what cannot be avoided: `cargo bench --bench convert`.
//!
//! Speed is a ratio of two things that were timed in turns: a whole conversion, and zstd alone over the same streams, or
//! reading the inputs alone as often as a conversion has to. Memory is what the kernel says of the process.
//!
//! ```text
//! cargo bench --bench convert -- [--quick] [NAME...]
//! ```
//!
//! Only lines of the table whose name contains one of the `NAME`s are measured. `--quick` makes the inputs ten times smaller.

#[path = "../mount/folder.rs"]
mod folder;
mod input;
mod memory;
mod speed;
#[path = "../mount/table.rs"]
#[allow(dead_code, reason = "not every bench has remarks")]
mod table;

use std::error::Error;
use std::process::ExitCode;

use table::Table;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the command line asks for.
struct Wanted {
    quick: bool,
    names: Vec<String>,
}

impl Wanted {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut wanted = Self {
            quick: false,
            names: Vec::new(),
        };
        for argument in arguments {
            match argument.as_str() {
                // What cargo tells every bench.
                "--bench" => {}
                "--quick" => wanted.quick = true,
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}; there are --quick and names").into());
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

    /// Cells of an input that has `cells` when there is time.
    fn cells(&self, cells: u64) -> u64 {
        if self.quick { cells / 10 } else { cells }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("convert: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let wanted = Wanted::parse(std::env::args().skip(1))?;
    let folder = folder::Folder::lock()?;
    let mut table = Table::default();
    speed::measure(&wanted, &folder, &mut table)?;
    memory::measure(&wanted, &folder, &mut table)?;
    print!("{table}");
    Ok(())
}
