//! Telling what is not tested.

use std::fmt::Display;
use std::io::{self, Write};

/// Says that a test, or a part of it, is not run, and why.
pub fn skip(why: impl Display) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not by eprintln: what a test that passes says with it is never shown.
    let _ = writeln!(io::stderr(), "skipped {test}: {why}");
}
