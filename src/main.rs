//! The `dcfs` command.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    dcfs::cli::Cli::parse().run()
}
