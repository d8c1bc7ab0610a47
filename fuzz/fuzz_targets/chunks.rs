//! What the streams of a tile say, held against a plain decoder.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    dcfs_fuzz::chunks::run(bytes);
});
