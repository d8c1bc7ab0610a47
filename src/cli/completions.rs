//! `dcfs completions`: what a shell needs to complete commands and options.

use std::io;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// Print completions for a shell
///
/// For example: dcfs completions bash > /etc/bash_completion.d/dcfs
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dcfs", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)
}
