//! What a mount shows and how it lives, through mounts made by the built program.
//!
//! One file a subject; nearly every test runs with `--io passthrough` and with `--io fuse`, and those that read a
//! dataset once more with the dataset in a bucket.

#![cfg(target_os = "linux")]

#[path = "../common/ci.rs"]
mod ci;
#[path = "../common/data.rs"]
mod data;
#[path = "../common/harness.rs"]
mod harness;
#[path = "../ordinary_user/mod.rs"]
mod ordinary_user;
#[path = "../common/python.rs"]
mod python;
#[allow(dead_code, reason = "benches use the rest")]
#[path = "../common/server.rs"]
mod server;
#[path = "../common/skip.rs"]
mod skip;

mod access;
mod arrays;
mod cache;
mod commands;
mod damage;
mod emulators;
mod hung_source;
mod languages;
mod life;
mod listing;
mod matrix;
mod nodes;
mod object;
mod obs;
mod obs_cache;
mod parts;
mod read_ahead;
mod reading;
mod remote;
mod stores;
