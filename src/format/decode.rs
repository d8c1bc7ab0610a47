//! Decoding one chunk: two zstd frames and their exceptions into gene indices and counts.

use zstd_safe::DCtx;

use super::MAX_COUNT;
use super::kernels;
use super::planes::Planes;
use super::tile::{Chunk, Place, Stream, TileError, TileFault, plausible};

/// What a gap or count is stored as when its true value is an exception; also the largest plain one.
const ESCAPE: i32 = 65535;
/// First bytes of a zstd frame; anything else (a skippable frame, a legacy one) is not one of ours.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Gaps of a cell with at most this many nonzeros cannot add up to 2^31.
const NEVER_WRAPS: usize = 32768;

/// Decodes chunks, one after another, with one zstd context and buffers that it keeps.
///
/// Its memory is that of the largest chunk it has decoded: two bytes a nonzero, in whole large pages.
pub struct Decoder {
    context: DCtx<'static>,
    planes: Planes,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            context: DCtx::create(),
            planes: Planes::default(),
        }
    }
}

impl Decoder {
    /// Decodes the gene index of every nonzero of `chunk` (format, "Streams: gaps").
    ///
    /// `indptr` is the whole tile's, as [`super::tile::parse_indptr`] gave it; `gaps` and `exceptions` are the bytes
    /// of the chunk's streams. `out` has one entry a nonzero of the chunk.
    ///
    /// # Errors
    /// When a frame is not what the format asks for, a cell's genes do not increase, or a gene is not below `n_genes`.
    pub fn indices(
        &mut self,
        chunk: &Chunk,
        n_genes: u32,
        indptr: &[i64],
        gaps: &[u8],
        exceptions: Option<&[u8]>,
        out: &mut [i32],
    ) -> Result<(), TileError> {
        let place = Place::Stream(chunk.index, Stream::Gaps);
        let (low, high) = self.planes(chunk, gaps, out.len()).map_err(|fault| fault.at(place))?;
        for cell in chunk.cells.clone() {
            let row = local_row(chunk, indptr, cell);
            let (low, high) = (&low[row.clone()], &high[row.clone()]);
            let row = &mut out[row];
            let fits = row.len() <= NEVER_WRAPS || kernels::row_sum(low, high) < u64::from(n_genes);
            let repeats = kernels::prefix_sum(low, high, row);
            if repeats {
                return Err(TileFault::RepeatedGene { cell }.at(place));
            }
            // Gaps are not negative, so the last gene is the largest.
            if !fits || row.last().is_some_and(|&gene| gene as u32 >= n_genes) {
                let gene = kernels::row_sum(low, high);
                return Err(TileFault::Gene { cell, gene, n_genes }.at(place));
            }
        }
        kernels::finish();
        if let Some(frame) = exceptions {
            let place = Place::Stream(chunk.index, Stream::GapExceptions);
            let payloads = 1..=n_genes - 1;
            let exceptions = self
                .exceptions(frame, out.len(), payloads)
                .map_err(|fault| fault.at(place))?;
            apply_gap_exceptions(chunk, n_genes, indptr, &exceptions, out).map_err(|fault| fault.at(place))?;
        }
        Ok(())
    }

    /// Decodes the count of every nonzero of `chunk` (format, "Streams: vals"). `out` has one entry a nonzero.
    ///
    /// # Errors
    /// When a frame is not what the format asks for, or a count is 0 or beyond 2^31 - 1.
    pub fn values(
        &mut self,
        chunk: &Chunk,
        values: &[u8],
        exceptions: Option<&[u8]>,
        out: &mut [i32],
    ) -> Result<(), TileError> {
        let place = Place::Stream(chunk.index, Stream::Values);
        let (low, high) = self.planes(chunk, values, out.len()).map_err(|fault| fault.at(place))?;
        let zero = kernels::join_planes(low, high, out);
        kernels::finish();
        if zero {
            let index = out.iter().position(|&count| count == 0).unwrap_or(0) as u64;
            return Err(TileFault::StoredZero { index }.at(place));
        }
        if let Some(frame) = exceptions {
            let place = Place::Stream(chunk.index, Stream::ValueExceptions);
            let payloads = ESCAPE as u32 + 1..=MAX_COUNT;
            let exceptions = self
                .exceptions(frame, out.len(), payloads)
                .map_err(|fault| fault.at(place))?;
            for (position, count) in exceptions {
                let stored = &mut out[position];
                escaped(position, *stored).map_err(|fault| fault.at(place))?;
                *stored = count as i32;
            }
        }
        Ok(())
    }

    /// Decompresses a stream of `n` uint16 values and splits it into its low and high bytes.
    fn planes(&mut self, chunk: &Chunk, frame: &[u8], n: usize) -> Result<(&[u8], &[u8]), TileFault> {
        assert_eq!(n as u64, chunk.nnz(), "the caller made room for the chunk's nonzeros");
        let size = frame_content(frame)?;
        if size != 2 * n as u64 {
            let (field, expected) = ("frame content size", 2 * n as u64);
            return Err(TileFault::Mismatch {
                field,
                found: size,
                expected,
                source_of_truth: "two bytes a nonzero",
            });
        }
        Ok(self.decompress(frame, 2 * n)?.split_at(n))
    }

    /// Decompresses an exception frame and validates positions and payloads (format, "Exceptions").
    fn exceptions(
        &mut self,
        frame: &[u8],
        nonzeros: usize,
        payloads: std::ops::RangeInclusive<u32>,
    ) -> Result<Vec<(usize, u32)>, TileFault> {
        let size = frame_content(frame)?;
        let most = 8 * nonzeros as u64;
        if !size.is_multiple_of(8) || size == 0 || size > most {
            let expected = format!("a multiple of 8 from 8 to {most}, eight bytes an exception");
            return Err(TileFault::Range {
                field: "frame content size",
                found: size,
                expected,
            });
        }
        let (positions, values) = self.decompress(frame, size as usize)?.split_at(size as usize / 2);
        let words = |bytes: &[u8]| {
            let words = bytes
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")));
            words.collect::<Vec<u32>>()
        };
        let mut exceptions = Vec::with_capacity(size as usize / 8);
        let mut least = 0;
        for (index, (position, payload)) in words(positions).into_iter().zip(words(values)).enumerate() {
            let entry = |field, found: u32, expected| {
                Err(TileFault::Entry {
                    field,
                    index: index as u64,
                    found: found.into(),
                    expected,
                })
            };
            if (position as usize) < least || position as usize >= nonzeros {
                return entry("position", position, format!("{least} to {}", nonzeros - 1));
            }
            if !payloads.contains(&payload) {
                return entry(
                    "payload",
                    payload,
                    format!("{} to {}", payloads.start(), payloads.end()),
                );
            }
            least = position as usize + 1;
            exceptions.push((position as usize, payload));
        }
        Ok(exceptions)
    }

    /// Decompresses `frame`, which states `size`, into the kept buffer.
    fn decompress(&mut self, frame: &[u8], size: usize) -> Result<&[u8], TileFault> {
        plausible(frame.len() as u64, size as u64)?;
        let content = self.planes.room(size)?;
        let written = self
            .context
            .decompress(content, frame)
            .map_err(|code| TileFault::Zstd(zstd_safe::get_error_name(code)))?;
        if written != size {
            let (found, expected) = (written as u64, size as u64);
            let source_of_truth = "the frame's content size";
            return Err(TileFault::Mismatch {
                field: "decompressed size",
                found,
                expected,
                source_of_truth,
            });
        }
        Ok(content)
    }
}

/// The content size of the one frame that `stream` must be.
fn frame_content(stream: &[u8]) -> Result<u64, TileFault> {
    if !stream.starts_with(&ZSTD_MAGIC) {
        return Err(TileFault::Zstd("the zstd magic number is missing"));
    }
    let frame = zstd_safe::find_frame_compressed_size(stream)
        .map_err(|code| TileFault::Zstd(zstd_safe::get_error_name(code)))?;
    if frame != stream.len() {
        return Err(TileFault::NotOneFrame {
            stream: stream.len() as u64,
            frame: frame as u64,
        });
    }
    match zstd_safe::get_frame_content_size(stream) {
        Ok(Some(size)) => Ok(size),
        Ok(None) => Err(TileFault::NoContentSize),
        Err(_) => Err(TileFault::Zstd("the frame header is damaged")),
    }
}

/// The nonzeros of `cell` as positions in the chunk.
fn local_row(chunk: &Chunk, indptr: &[i64], cell: u64) -> std::ops::Range<usize> {
    let at = |cell: u64| (indptr[cell as usize] as u64 - chunk.nonzeros.start) as usize;
    at(cell)..at(cell + 1)
}

/// An exception may only stand where the stream says so.
fn escaped(position: usize, stored: i32) -> Result<(), TileFault> {
    if stored == ESCAPE {
        return Ok(());
    }
    let (field, index) = ("stream value at an exception", position as u64);
    Err(TileFault::Entry {
        field,
        index,
        found: stored as u64,
        expected: ESCAPE.to_string(),
    })
}

/// Adds each payload to its nonzero and every later one of the same cell, in one walk over the cells that have any.
fn apply_gap_exceptions(
    chunk: &Chunk,
    n_genes: u32,
    indptr: &[i64],
    exceptions: &[(usize, u32)],
    out: &mut [i32],
) -> Result<(), TileFault> {
    let starts = &indptr[chunk.cells.start as usize..=chunk.cells.end as usize];
    let mut rest = exceptions;
    while let Some(&(position, _)) = rest.first() {
        // The last cell that starts at or before the position: cells without nonzeros share their start.
        let nonzero = (chunk.nonzeros.start + position as u64) as i64;
        let cell = chunk.cells.start + starts.partition_point(|&start| start <= nonzero) as u64 - 1;
        let row = local_row(chunk, indptr, cell);
        let here = rest.partition_point(|&(position, _)| position < row.end);
        let (of_cell, later) = rest.split_at(here);
        check_gap_escapes(&row, of_cell, out)?;
        let total: u64 = of_cell.iter().map(|&(_, payload)| u64::from(payload)).sum();
        let gene = out[row.end - 1] as u64 + total;
        if gene >= n_genes.into() {
            return Err(TileFault::Gene { cell, gene, n_genes });
        }
        let mut shift = 0;
        let ends = of_cell[1..].iter().map(|&(position, _)| position).chain([row.end]);
        for (&(position, payload), end) in of_cell.iter().zip(ends) {
            // At most `total`, which was just held against the genes.
            shift += payload as i32;
            for index in &mut out[position..end] {
                *index += shift;
            }
        }
        rest = later;
    }
    Ok(())
}

/// Before anything is added, an index minus its predecessor is the stored gap.
fn check_gap_escapes(
    row: &std::ops::Range<usize>,
    exceptions: &[(usize, u32)],
    indices: &[i32],
) -> Result<(), TileFault> {
    for &(position, _) in exceptions {
        let before = if position == row.start {
            0
        } else {
            indices[position - 1]
        };
        escaped(position, indices[position] - before)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
