//! A tile file of any content, its size and checksum mended.

#![no_main]

use dcfs_fuzz::tile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    tile::mend(&mut bytes);
    tile::decode(&bytes);
});
