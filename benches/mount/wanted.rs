//! What the command line of a bench asks for, until somebody wants it to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Result;

/// Rounds of those in a hurry.
const QUICK_ROUNDS: usize = 3;

/// What the command line asks for.
pub struct Wanted {
    /// How often everything is measured.
    pub rounds: usize,
    names: Vec<String>,
    interrupted: Arc<AtomicBool>,
}

impl Wanted {
    /// What this process was asked for; `rounds` unless that says otherwise.
    pub fn parse(rounds: usize) -> Result<Self> {
        let mut arguments = std::env::args().skip(1);
        let mut wanted = Self {
            rounds,
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
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, wanted.interrupted.clone())?;
        }
        Ok(wanted)
    }

    /// Whether the line of this name is to be measured.
    pub fn has(&self, line: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| line.contains(name.as_str()))
    }

    /// An error once somebody wants the bench to stop, so that mounts are taken down on the way out.
    pub fn go_on(&self) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        Ok(())
    }
}
