//! Programs that read what a mount shows.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memmap2::Mmap;

use crate::Result;

/// How much is read at a time.
pub const PIECE: usize = 1 << 20;
const PAGE: usize = 4096;

/// Maps a file, whole.
pub fn map(file: &File) -> Result<Mmap> {
    // SAFETY: nobody writes or shortens the file: it is in a mount of ours, whose files never change, or has no name.
    Ok(unsafe { Mmap::map(file)? })
}

/// Touches every page of a mapping, in order.
pub fn touch_all(map: &[u8]) {
    let sum = map.iter().step_by(PAGE).fold(0_u64, |sum, &byte| sum + u64::from(byte));
    black_box(sum);
}

/// Touches these pages of a mapping.
pub fn touch(map: &[u8], pages: &[u32]) {
    let sum = pages
        .iter()
        .fold(0_u64, |sum, &page| sum + u64::from(map[page as usize * PAGE]));
    black_box(sum);
}

/// Every page of a file of `bytes` bytes once, in no order, but always the same.
pub fn shuffled_pages(bytes: usize) -> Vec<u32> {
    let mut pages: Vec<u32> = (0..bytes.div_ceil(PAGE) as u32).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..pages.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        pages.swap(last, (state >> 33) as usize % (last + 1));
    }
    pages
}

/// Reads a file from beginning to end, a piece at a time, into one buffer.
pub fn read_through(file: &mut impl Read, buffer: &mut [u8]) -> Result<u64> {
    let mut bytes = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(bytes),
            n => bytes += n as u64,
        }
    }
}

/// The first `bytes` bytes of an open file, a piece at a time, into one buffer.
pub fn read_again(file: &File, bytes: u64, buffer: &mut [u8]) -> Result<()> {
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..length], at)?;
        at += length as u64;
    }
    Ok(())
}

/// An error unless the file holds exactly `expected`.
pub fn check(path: &Path, expected: &[u8]) -> Result<()> {
    if std::fs::read(path)? == expected {
        return Ok(());
    }
    Err(format!("{} is not what the plain algorithm gives", path.display()).into())
}
