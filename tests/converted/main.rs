//! What `dcfs convert` reads and makes.

#[path = "../common/ci.rs"]
mod ci;
#[path = "../common/python.rs"]
mod python;
#[path = "../common/skip.rs"]
mod skip;

mod end_to_end;
mod readers;
