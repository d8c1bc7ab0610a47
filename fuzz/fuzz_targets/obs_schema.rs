//! The text of `obs/schema.json`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    dcfs_fuzz::obs_schema::run(bytes);
});
