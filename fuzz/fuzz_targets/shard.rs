//! An obs shard.

#![no_main]

use libfuzzer_sys::fuzz_target;

// The Parquet library panics at times and `dcfs` catches it: the hook that ends the process at once must not be there. A
// panic that leaves the target ends it all the same.
fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| {
        dcfs_fuzz::shard::run(bytes);
    }
);
