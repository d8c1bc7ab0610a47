//! What `dcfs convert` reads and makes.

#[path = "../common/harness.rs"]
#[allow(dead_code, reason = "nothing is mounted here")]
mod harness;
#[path = "../common/python.rs"]
mod python;

mod end_to_end;
mod readers;
