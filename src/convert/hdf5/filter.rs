//! Undoing the filters of one HDF5 chunk. Knows bytes and filter numbers, not files or datasets.
//!
//! A chunk is decoded into at most the size that its dataset's shape gives it, and memory grows with what the
//! compressed bytes really hold: a size that a file merely claims is never allocated.

use std::fmt;

use flate2::{Decompress, FlushDecompress, Status};
use thiserror::Error;

const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;
const FLETCHER32: u16 = 3;
const LZF: u16 = 32000;
const ZSTD: u16 = 32015;

/// First allocation for the output of a decompressor; more only as it fills.
const FIRST_RESERVATION: usize = 1 << 20;

/// A filter that this program can undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    Deflate,
    Shuffle { element: usize },
    Fletcher32,
    Lzf,
    Zstd,
}

/// A filter that this program cannot undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unsupported {
    id: u16,
    stored_name: Option<String>,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = match self.id {
            4 => Some("szip"),
            5 => Some("nbit"),
            6 => Some("scaleoffset"),
            307 => Some("bzip2"),
            32001 => Some("blosc"),
            32004 => Some("lz4"),
            32008 => Some("bitshuffle"),
            32013 => Some("zfp"),
            32026 => Some("blosc2"),
            _ => None,
        };
        let name = known.or(self.stored_name.as_deref()).unwrap_or("unknown");
        write!(
            f,
            "compressed with the HDF5 filter \"{name}\" ({}), which is not supported (gzip, lzf, zstd, shuffle and \
             fletcher32 are); save the file again with compression=\"gzip\"",
            self.id
        )
    }
}

/// Why a chunk could not be decoded.
#[derive(Debug, Error)]
pub(super) enum FilterError {
    #[error("the {0} stream is damaged")]
    Damaged(&'static str),
    #[error("the chunk decodes to {found} bytes, expected {expected}")]
    Size { found: usize, expected: usize },
    #[error("the fletcher32 checksum is {found:08x}, expected {expected:08x}")]
    Checksum { found: u32, expected: u32 },
}

impl Filter {
    /// The filter of that number, with its client data and the name that the file gives it.
    pub(super) fn new(id: u16, client_data: &[u32], name: Option<&str>, element: usize) -> Result<Self, Unsupported> {
        match id {
            DEFLATE => Ok(Self::Deflate),
            SHUFFLE => Ok(Self::Shuffle {
                element: client_data.first().map_or(element, |&size| size as usize),
            }),
            FLETCHER32 => Ok(Self::Fletcher32),
            LZF => Ok(Self::Lzf),
            ZSTD => Ok(Self::Zstd),
            _ => Err(Unsupported {
                id,
                stored_name: name.map(str::to_owned),
            }),
        }
    }
}

/// Undoes `filters` (in the order in which they were applied), but those whose bit is set in `mask`.
///
/// The result has exactly `expected` bytes.
pub(super) fn decode(
    mut bytes: Vec<u8>,
    filters: &[Filter],
    mask: u32,
    expected: usize,
) -> Result<Vec<u8>, FilterError> {
    // Checksums stand outside the compressed data or inside it: either way a few bytes more than the chunk.
    let limit = expected + 4 * filters.len();
    for (index, filter) in filters.iter().enumerate().rev() {
        if index < 32 && mask >> index & 1 == 1 {
            continue;
        }
        bytes = match *filter {
            Filter::Deflate => inflate(&bytes, limit)?,
            Filter::Shuffle { element } => unshuffle(bytes, element),
            Filter::Fletcher32 => strip_fletcher32(bytes)?,
            Filter::Lzf => unlzf(&bytes, limit)?,
            Filter::Zstd => unzstd(&bytes, limit)?,
        };
    }
    match bytes.len() == expected {
        true => Ok(bytes),
        false => Err(FilterError::Size {
            found: bytes.len(),
            expected,
        }),
    }
}

fn inflate(input: &[u8], limit: usize) -> Result<Vec<u8>, FilterError> {
    let damaged = || FilterError::Damaged("gzip");
    let mut stream = Decompress::new(true);
    // Deflate expands at most 1032 times, so small inputs need no growth.
    let mut out = Vec::with_capacity(limit.min(FIRST_RESERVATION.max(input.len().saturating_mul(8))));
    loop {
        let before = (stream.total_in(), out.len());
        let rest = input.get(before.0 as usize..).ok_or_else(damaged)?;
        let status = stream
            .decompress_vec(rest, &mut out, FlushDecompress::Finish)
            .map_err(|_| damaged())?;
        if status == Status::StreamEnd {
            return Ok(out);
        }
        if out.len() == out.capacity() {
            if out.len() > limit {
                return Err(FilterError::Size {
                    found: out.len(),
                    expected: limit,
                });
            }
            // One byte above the limit tells a stream that ends there from one that goes on.
            out.reserve_exact(out.len().max(1).min(limit + 1 - out.len()));
        } else if before == (stream.total_in(), out.len()) {
            return Err(damaged());
        }
    }
}

fn unshuffle(bytes: Vec<u8>, element: usize) -> Vec<u8> {
    if element < 2 || bytes.len() < element {
        return bytes;
    }
    let count = bytes.len() / element;
    let mut out = vec![0; bytes.len()];
    match element {
        2 => unshuffle_fixed::<2>(&bytes, &mut out, count),
        4 => unshuffle_fixed::<4>(&bytes, &mut out, count),
        8 => unshuffle_fixed::<8>(&bytes, &mut out, count),
        _ => {
            for (plane, bytes) in bytes.chunks_exact(count).take(element).enumerate() {
                for (index, &byte) in bytes.iter().enumerate() {
                    out[index * element + plane] = byte;
                }
            }
        }
    }
    // What does not fill an element is stored behind the planes as it is.
    out[count * element..].copy_from_slice(&bytes[count * element..]);
    out
}

fn unshuffle_fixed<const N: usize>(bytes: &[u8], out: &mut [u8], count: usize) {
    let planes: [&[u8]; N] = std::array::from_fn(|plane| &bytes[plane * count..(plane + 1) * count]);
    for (index, element) in out.chunks_exact_mut(N).take(count).enumerate() {
        for plane in 0..N {
            element[plane] = planes[plane][index];
        }
    }
}

fn strip_fletcher32(mut bytes: Vec<u8>) -> Result<Vec<u8>, FilterError> {
    let Some(end) = bytes.len().checked_sub(4) else {
        return Err(FilterError::Damaged("fletcher32"));
    };
    let stored = u32::from_le_bytes([bytes[end], bytes[end + 1], bytes[end + 2], bytes[end + 3]]);
    bytes.truncate(end);
    let found = fletcher32(&bytes);
    // Libraries before 1.6.3 stored the two bytes of each half the other way round on little-endian machines.
    let old = found.swap_bytes().rotate_left(16);
    if stored != found && stored != old {
        return Err(FilterError::Checksum {
            found,
            expected: stored,
        });
    }
    Ok(bytes)
}

/// The checksum as HDF5 computes it: over big-endian 16-bit words.
fn fletcher32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (0u32, 0u32);
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().copied();
    for word in words
        .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]))
        .chain(odd.map(|b| u32::from(b) << 8))
    {
        low = (low + word) % 0xffff;
        high = (high + low) % 0xffff;
    }
    high << 16 | low
}

/// liblzf's stream, as h5py stores it: no container around it.
fn unlzf(input: &[u8], limit: usize) -> Result<Vec<u8>, FilterError> {
    let damaged = FilterError::Damaged("lzf");
    let mut out: Vec<u8> = Vec::with_capacity(limit.min(FIRST_RESERVATION.max(input.len().saturating_mul(4))));
    let mut at = 0;
    while let Some(&control) = input.get(at) {
        at += 1;
        let control = usize::from(control);
        if control < 32 {
            let Some(literals) = input.get(at..at + control + 1) else {
                return Err(damaged);
            };
            out.extend_from_slice(literals);
            at += control + 1;
        } else {
            let mut length = control >> 5;
            let extension = usize::from(length == 7);
            let Some(rest) = input.get(at..at + extension + 1) else {
                return Err(damaged);
            };
            if extension == 1 {
                length += usize::from(rest[0]);
            }
            let distance = ((control & 0x1f) << 8 | usize::from(rest[extension])) + 1;
            at += extension + 1;
            let Some(start) = out.len().checked_sub(distance) else {
                return Err(damaged);
            };
            // The source may overlap what it makes: it then repeats.
            for from in start..start + length + 2 {
                out.push(out[from]);
            }
        }
        if out.len() > limit {
            return Err(FilterError::Size {
                found: out.len(),
                expected: limit,
            });
        }
    }
    Ok(out)
}

fn unzstd(input: &[u8], limit: usize) -> Result<Vec<u8>, FilterError> {
    use std::io::Read;
    let damaged = |_| FilterError::Damaged("zstd");
    let reader = zstd::stream::read::Decoder::with_buffer(input).map_err(damaged)?;
    let mut out = Vec::new();
    // One byte above the limit tells a stream that ends there from one that goes on.
    reader.take(limit as u64 + 1).read_to_end(&mut out).map_err(damaged)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(4));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_gzip_chunk_of_any_size_decodes_to_its_bytes() {
        for size in [
            0,
            1,
            100,
            FIRST_RESERVATION,
            FIRST_RESERVATION + 1,
            5 * FIRST_RESERVATION,
        ] {
            let bytes: Vec<u8> = (0..size).map(|i| (i / 1000) as u8).collect();
            let decoded = decode(deflate(&bytes), &[Filter::Deflate], 0, size).unwrap();
            assert!(decoded == bytes, "{size} bytes");
        }
    }

    #[test]
    fn a_gzip_chunk_that_holds_more_or_less_than_its_shape_is_refused() {
        let bytes = vec![7; 100_000];
        for expected in [99_990, 100_001, 10] {
            let error = decode(deflate(&bytes), &[Filter::Deflate], 0, expected).unwrap_err();
            assert!(matches!(error, FilterError::Size { .. }), "{expected}: {error}");
        }
        let cut = deflate(&bytes);
        assert!(decode(cut[..cut.len() / 2].to_vec(), &[Filter::Deflate], 0, 100_000).is_err());
    }

    #[test]
    fn a_masked_filter_is_not_undone() {
        let bytes = vec![1, 2, 3, 4];
        let filters = [Filter::Shuffle { element: 2 }, Filter::Deflate];
        assert_eq!(decode(bytes.clone(), &filters, 0b11, 4).unwrap(), bytes);
        assert_eq!(decode(deflate(&bytes), &filters, 0b01, 4).unwrap(), bytes);
        assert_eq!(decode(deflate(&bytes), &filters, 0, 4).unwrap(), [1, 3, 2, 4]);
    }

    #[test]
    fn shuffled_bytes_behind_the_last_whole_element_stay_in_place() {
        assert_eq!(unshuffle(vec![1, 2, 3, 4, 5, 6, 9], 3), [1, 3, 5, 2, 4, 6, 9]);
        assert_eq!(unshuffle(vec![1, 2, 3, 4, 9], 2), [1, 3, 2, 4, 9]);
    }

    #[test]
    fn an_lzf_back_reference_may_overlap_its_output_and_not_reach_before_it() {
        // One literal, then 9 bytes from distance 1.
        assert_eq!(unlzf(&[0, b'a', 7 << 5, 0, 0], 100).unwrap(), b"aaaaaaaaaa");
        assert!(unlzf(&[0, b'a', 1 << 5, 1], 100).is_err());
        assert!(unlzf(&[5, b'a'], 100).is_err());
        assert!(unlzf(&[0, b'a', 7 << 5, 255, 0], 100).is_err());
    }

    #[test]
    fn the_fletcher32_checksum_guards_the_chunk() {
        let mut bytes = b"abcde".to_vec();
        let sum = fletcher32(&bytes);
        bytes.extend(sum.to_le_bytes());
        assert_eq!(decode(bytes.clone(), &[Filter::Fletcher32], 0, 5).unwrap(), b"abcde");
        bytes[0] ^= 1;
        assert!(matches!(
            decode(bytes, &[Filter::Fletcher32], 0, 5),
            Err(FilterError::Checksum { .. })
        ));
    }

    #[test]
    fn an_unsupported_filter_is_named() {
        let message = Filter::new(32001, &[], None, 4).unwrap_err().to_string();
        assert!(message.contains("\"blosc\" (32001)"), "{message}");
        let message = Filter::new(40000, &[], Some("mine"), 4).unwrap_err().to_string();
        assert!(message.contains("\"mine\" (40000)"), "{message}");
    }
}
