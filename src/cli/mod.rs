//! What the user types and sees, one file per command.

pub mod cache_size;
mod completions;
mod convert;
mod demo;
pub mod detach;
mod info;
pub mod logging;
mod mount;
mod obs;
pub mod serve;
mod source;
pub mod umount;
mod verify;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Mounts single-cell datasets in the deltacells format as plain files
///
/// A dataset is compressed on disk; a mount shows it decoded, as files of raw numbers and Arrow tables that any
/// language reads or maps. Try it without any data: dcfs demo
#[derive(Debug, Parser)]
#[command(name = "dcfs", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Info(info::InfoArgs),
    Verify(verify::VerifyArgs),
    Obs(obs::ObsArgs),
    Convert(Box<convert::ConvertArgs>),
    Demo(demo::DemoArgs),
    Completions(completions::CompletionsArgs),
}

impl Cli {
    /// Runs the command; what it says is on standard output, and why it failed on standard error.
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Mount(args) => mount::run(&args),
            Command::Umount(args) => report(umount::run(&args), umount::UmountError::exit_code),
            Command::Info(args) => report(info::run(&args), |_| 1),
            Command::Verify(args) => verify::run(&args),
            Command::Obs(args) => report(obs::run(&args), obs::ObsError::exit_code),
            Command::Convert(args) => report(convert::run(&args), convert::exit_code),
            Command::Demo(args) => report(demo::run(&args), |_| 1),
            Command::Completions(args) => report(completions::run(&args), |_| 1),
        }
    }
}

/// The exit status of a command, with the reason on standard error when it failed.
fn report<E: Display>(result: Result<(), E>, code: impl FnOnce(&E) -> u8) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(code(&error))
        }
    }
}

/// Says on standard error why something failed.
fn complain(error: &dyn Display) {
    // With nobody to read it, there is nothing left to do.
    let _ = writeln!(io::stderr(), "dcfs: {error}");
}

/// A number with a comma at every thousand.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
