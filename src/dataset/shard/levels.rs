//! Whether values of a column chunk are missing: from its definition levels alone, which come first in every page
//! (Parquet, "Data Pages"; "RLE / Bit-Packing Hybrid"). No value is decoded, and no dictionary decompressed.

use std::sync::Arc;

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::Window;

/// What the levels of a column chunk say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Levels {
    /// How many values there are, missing ones included.
    pub(super) values: u64,
    /// Whether one is missing.
    pub(super) has_missing: bool,
}

/// Reads the levels of a column chunk; `None` where they are not those of a flat column, or written in a way that nobody uses any more.
pub(super) fn read(window: Window, chunk: &ColumnChunkMetaData, cells: u64) -> Result<Option<Levels>, ParquetError> {
    let description = chunk.column_descr();
    if description.max_rep_level() != 0 || description.max_def_level() != 1 {
        return Ok(None);
    }
    let mut pages = SerializedPageReader::new(Arc::new(window), chunk, cells as usize, None)?;
    let mut levels = Levels {
        values: 0,
        has_missing: false,
    };
    while let Some(next) = pages.peek_next_page()? {
        if next.is_dict {
            pages.skip_next_page()?;
            continue;
        }
        match pages.get_next_page()? {
            Some(Page::DataPageV2 {
                num_values, num_nulls, ..
            }) => {
                levels.values += u64::from(num_values);
                levels.has_missing |= num_nulls > 0;
            }
            Some(Page::DataPage {
                buf,
                num_values,
                def_level_encoding: Encoding::RLE,
                ..
            }) => {
                let damaged = || ParquetError::General("a page's definition levels are damaged".into());
                levels.values += u64::from(num_values);
                levels.has_missing |= !all_ones(&buf, num_values.into()).ok_or_else(damaged)?;
            }
            Some(Page::DataPage { .. }) => return Ok(None),
            Some(Page::DictionaryPage { .. }) | None => {}
        }
    }
    Ok(Some(levels))
}

/// Whether the `count` levels at the beginning of a page are all 1; `None` when they are not there.
fn all_ones(page: &[u8], count: u64) -> Option<bool> {
    let (length, rest) = page.split_first_chunk()?;
    let mut runs = rest.get(..u32::from_le_bytes(*length) as usize)?;
    let mut left = count;
    while left > 0 {
        let header = varint(&mut runs)?;
        if header & 1 == 0 {
            let (&level, rest) = runs.split_first()?;
            runs = rest;
            let length = (header >> 1).min(left);
            if length == 0 {
                return None;
            }
            if level == 0 {
                return Some(false);
            }
            left -= length;
            continue;
        }
        // Groups of eight levels, a byte each.
        let bytes = runs.get(..usize::try_from(header >> 1).ok()?)?;
        runs = &runs[bytes.len()..];
        if bytes.is_empty() {
            return None;
        }
        let mut levels = bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1));
        let length = (8 * bytes.len() as u64).min(left);
        if levels.by_ref().take(length as usize).any(|level| level == 0) {
            return Some(false);
        }
        left -= length;
    }
    Some(true)
}

/// A number of seven bits a byte, lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(runs: &[u8]) -> Vec<u8> {
        let mut page = (runs.len() as u32).to_le_bytes().to_vec();
        page.extend_from_slice(runs);
        page.extend_from_slice(b"values");
        page
    }

    #[test]
    fn runs_and_bits_are_looked_at_as_far_as_there_are_levels() {
        // A run of 300 ones: 600 in two bytes.
        let ones = [0xd8, 0x04, 1];
        assert_eq!(all_ones(&page(&ones), 300), Some(true));
        assert_eq!(all_ones(&page(&ones), 301), None);
        assert_eq!(all_ones(&page(&[0xd8, 0x04, 0]), 300), Some(false));
        // Then two bytes of bits, the last of which is not all in use.
        let bits = |last| [&ones[..], &[0b101, 0xff, last]].concat();
        assert_eq!(all_ones(&page(&bits(0x0f)), 312), Some(true));
        assert_eq!(all_ones(&page(&bits(0x0f)), 313), Some(false));
        assert_eq!(all_ones(&page(&bits(0x0e)), 312), Some(false));
        assert_eq!(all_ones(&page(&[]), 0), Some(true));
    }

    #[test]
    fn levels_that_are_not_there_are_no_levels() {
        for runs in [&[][..], &[0x80], &[0xff; 20], &[0], &[0, 1], &[1], &[0x05, 0xff]] {
            assert_eq!(all_ones(&page(runs), 100), None, "{runs:?}");
        }
        assert_eq!(all_ones(&[9, 0, 0, 0, 1], 1), None);
        assert_eq!(all_ones(&[9, 0], 1), None);
    }
}
