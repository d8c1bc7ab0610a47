//! The format's algorithm, written plainly: what anyone would write who has read the format and nothing else.
//!
//! One thread, from the file to fresh arrays: read it, compute the checksum, decompress each chunk, add up gaps, join planes,
//! apply exceptions. It trusts the file, which is one of our own.

use std::fs;
use std::path::Path;

use crate::Result;

/// A decoded tile.
pub struct Tile {
    pub indptr: Vec<i64>,
    pub indices: Vec<i32>,
    pub data: Vec<i32>,
}

fn u64_at(file: &[u8], at: usize) -> usize {
    u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes")) as usize
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Where the streams of each chunk are, gaps and values, for those who want them alone.
pub fn streams(file: &[u8]) -> Vec<&[u8]> {
    let entries = (0..u32_at(file, 36) as usize).map(|chunk| 64 + 96 * chunk);
    let of = |entry: usize, field: usize| {
        let (offset, length) = (u64_at(file, entry + 8 * field), u64_at(file, entry + 8 * field + 8));
        &file[offset..offset + length]
    };
    let gaps = entries.clone().map(|entry| of(entry, 4));
    gaps.chain(entries.map(|entry| of(entry, 6))).collect()
}

fn decompress(file: &[u8], entry: usize, field: usize) -> Result<Vec<u8>> {
    let (offset, length) = (u64_at(file, entry + 8 * field), u64_at(file, entry + 8 * field + 8));
    if length == 0 {
        return Ok(Vec::new());
    }
    let frame = &file[offset..offset + length];
    let size = zstd_safe::get_frame_content_size(frame).map_err(|_| "a damaged frame")?;
    let mut content = Vec::with_capacity(size.ok_or("no content size")? as usize);
    zstd_safe::decompress(&mut content, frame).map_err(zstd_safe::get_error_name)?;
    Ok(content)
}

/// Positions and payloads of an exception frame.
fn exceptions(content: &[u8]) -> impl Iterator<Item = (usize, u32)> + '_ {
    let k = content.len() / 8;
    (0..k).map(move |i| (u32_at(content, 4 * i) as usize, u32_at(content, 4 * (k + i))))
}

/// Decodes the tile in the file at `path`.
pub fn decode(path: &Path) -> Result<Tile> {
    let file = fs::read(path)?;
    if crc32fast::hash(&file[64..]) != u32_at(&file, 56) {
        return Err("the checksum is wrong".into());
    }
    let (n_cells, nnz) = (u64_at(&file, 16), u64_at(&file, 24));
    let indptr_offset = u64_at(&file, 40);
    let indptr: Vec<i64> = (0..=n_cells)
        .map(|cell| u64_at(&file, indptr_offset + 8 * cell) as i64)
        .collect();
    let mut indices = vec![0; nnz];
    let mut data = vec![0; nnz];
    for chunk in 0..u32_at(&file, 36) as usize {
        let entry = 64 + 96 * chunk;
        let (first_cell, last_cell) = (u64_at(&file, entry), u64_at(&file, entry + 8));
        let (first, last) = (u64_at(&file, entry + 16), u64_at(&file, entry + 24));
        let n = last - first;

        let gaps = decompress(&file, entry, 4)?;
        let (low, high) = gaps.split_at(n);
        let genes: &mut [i32] = &mut indices[first..last];
        for cell in first_cell..last_cell {
            let row = indptr[cell] as usize - first..indptr[cell + 1] as usize - first;
            let mut gene = 0;
            let stored = low[row.clone()].iter().zip(&high[row.clone()]);
            for (index, (&low, &high)) in genes[row].iter_mut().zip(stored) {
                gene += i32::from(low) + 256 * i32::from(high);
                *index = gene;
            }
        }
        for (position, more) in exceptions(&decompress(&file, entry, 10)?) {
            let cell = indptr.partition_point(|&start| start as usize <= first + position) - 1;
            for index in &mut indices[first + position..indptr[cell + 1] as usize] {
                *index += more as i32;
            }
        }

        let values = decompress(&file, entry, 6)?;
        let (low, high) = values.split_at(n);
        let counts: &mut [i32] = &mut data[first..last];
        for (count, (&low, &high)) in counts.iter_mut().zip(low.iter().zip(high)) {
            *count = i32::from(low) + 256 * i32::from(high);
        }
        for (position, count) in exceptions(&decompress(&file, entry, 8)?) {
            counts[position] = count as i32;
        }
    }
    Ok(Tile { indptr, indices, data })
}
