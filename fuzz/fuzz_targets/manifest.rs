//! The text of `manifest.json`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    dcfs_fuzz::manifest::run(bytes);
});
