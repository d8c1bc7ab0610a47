//! Mappings of our own files, and the `unsafe` that mapping takes.
//!
//! A mapping is sound as long as nobody shrinks the file under it. The files mapped here have no name: they were made
//! with `O_TMPFILE` on a file system that is mounted nowhere, the kernel hands them to readers read-only,
//! and nothing in this crate truncates one. Files of a dataset are never mapped.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapMut, MmapOptions};

/// Offsets of mappings are multiples of this.
const PAGE: u64 = 4096;

/// A part of a file of ours, for writing.
#[derive(Debug)]
pub struct Window {
    map: MmapMut,
    skip: usize,
}

impl Window {
    /// Maps `length` bytes at `offset`, which need not be that of a page.
    ///
    /// Windows that are open at the same time may share a page but not a byte.
    ///
    /// # Errors
    /// When the kernel does not map it.
    pub fn open(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        let skip = (offset % PAGE) as usize;
        // SAFETY: the file is ours alone and is not truncated, see above; its memory was set aside when it was made.
        let map = unsafe {
            MmapOptions::new()
                .offset(offset - skip as u64)
                .len(skip + length)
                .map_mut(file)?
        };
        Ok(Self { map, skip })
    }

    /// The bytes from `offset` on.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.map[self.skip..]
    }
}

/// Maps a whole file of ours, to which nobody writes any more.
///
/// # Errors
/// When the kernel does not map it.
pub fn map_finished(file: &File) -> io::Result<Mmap> {
    // SAFETY: the file is ours alone, is not truncated and no longer written, see above.
    unsafe { Mmap::map(file) }
}
