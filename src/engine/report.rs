//! Says once what is wrong with a file, however often it is read.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// How many different faults are remembered; past that the oldest memory is given up, not the new message.
const REMEMBERED: usize = 10_000;

/// The faults that were told already.
#[derive(Default)]
pub(super) struct Report {
    told: Mutex<HashSet<String>>,
}

impl Report {
    /// Logs `error`, unless that was done before.
    pub(super) fn tell(&self, error: &dyn Display) {
        let message = error.to_string();
        // How often and how long a server was asked differs each time.
        let fault = message.split_once(" (").map_or(&*message, |(fault, _)| fault);
        self.tell_as(fault, &message);
    }

    /// Logs `message`, unless something of the same `fault` was.
    pub(super) fn tell_as(&self, fault: &str, message: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= REMEMBERED {
            told.clear();
        }
        if told.insert(fault.to_owned()) {
            log::error!("{message}");
        }
    }
}
