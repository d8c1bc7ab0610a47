//! Tiles that are right in everything but what their streams say, held against a decoder that is written from the format's text.
//!
//! A mutation of compressed bytes is hardly ever a zstd frame. Here the input says what is in the frames, so that
//! everything behind zstd is reached: prefix sums, planes, exceptions, and their rules.

use std::cell::RefCell;

use dcfs::format::manifest::TileSpec;
use dcfs::format::tile::{CHUNK_ENTRY_BYTES, Chunk, HEADER_BYTES, Header};
use zstd_safe::CCtx;

use crate::tile::{self, Decoded};

const MOST_CELLS: u8 = 16;
const MOST_CHUNKS: u8 = 4;
/// Enough for cells whose gaps add up to more than 2^32.
const MOST_NONZEROS: u64 = 1 << 17;

/// What is in a tile. Gaps and counts beyond those that are listed are all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub n_genes: u32,
    pub other_gaps: u16,
    pub other_values: u16,
    /// Nonzeros of each cell.
    pub cells: Vec<u16>,
    /// The cell before which each chunk but the first begins.
    pub cuts: Vec<u8>,
    pub chunks: Vec<Streams>,
}

/// The streams of a chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streams {
    pub gaps: Vec<u16>,
    pub values: Vec<u16>,
    /// Positions and payloads.
    pub value_exceptions: Vec<(u32, u32)>,
    pub gap_exceptions: Vec<(u32, u32)>,
}

/// Reads numbers until there are no more, and zeros from then on.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let n = N.min(self.0.len());
        let (these, rest) = self.0.split_at(n);
        bytes[..n].copy_from_slice(these);
        self.0 = rest;
        bytes
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// A list with its length before it. There are no more entries than bytes are left.
    fn list<T>(&mut self, length: u16, mut entry: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let length = usize::from(length).min(self.0.len());
        (0..length).map(|_| entry(self)).collect()
    }
}

impl Plan {
    /// Any bytes are a plan.
    pub fn parse(input: &[u8]) -> Self {
        let mut numbers = Numbers(input);
        let n_genes = numbers.u32().clamp(1, 1 << 31);
        let (other_gaps, other_values) = (numbers.u16(), numbers.u16());
        // Most tiles are small, so that there are many of them in a second.
        let smaller = numbers.u8() % 16;
        let mut room = MOST_NONZEROS;
        let n_cells = 1 + numbers.u8() % MOST_CELLS;
        let cells = (0..n_cells)
            .map(|_| {
                let nonzeros = room.min((numbers.u16() >> smaller).into());
                room -= nonzeros;
                nonzeros as u16
            })
            .collect();
        let n_chunks = 1 + numbers.u8() % MOST_CHUNKS;
        let mut cuts: Vec<u8> = (1..n_chunks).map(|_| numbers.u8() % (n_cells + 1)).collect();
        cuts.sort_unstable();
        let chunks = (0..n_chunks).map(|_| Streams::parse(&mut numbers)).collect();
        Self {
            n_genes,
            other_gaps,
            other_values,
            cells,
            cuts,
            chunks,
        }
    }

    /// The input that [`Plan::parse`] reads as `self`.
    pub fn to_input(&self) -> Vec<u8> {
        let mut input = self.n_genes.to_le_bytes().to_vec();
        for number in [self.other_gaps, self.other_values] {
            input.extend(number.to_le_bytes());
        }
        input.push(0);
        input.push(self.cells.len() as u8 - 1);
        input.extend(self.cells.iter().flat_map(|cell| cell.to_le_bytes()));
        input.push(self.cuts.len() as u8);
        input.extend(&self.cuts);
        for chunk in &self.chunks {
            for list in [&chunk.gaps, &chunk.values] {
                input.extend((list.len() as u16).to_le_bytes());
                input.extend(list.iter().flat_map(|number| number.to_le_bytes()));
            }
            for list in [&chunk.value_exceptions, &chunk.gap_exceptions] {
                input.push(list.len() as u8);
                let numbers = list.iter().flat_map(|&(position, payload)| [position, payload]);
                input.extend(numbers.flat_map(u32::to_le_bytes));
            }
        }
        input
    }

    fn indptr(&self) -> Vec<i64> {
        let mut sum = 0;
        let ends = self.cells.iter().map(|&nonzeros| {
            sum += i64::from(nonzeros);
            sum
        });
        std::iter::once(0).chain(ends).collect()
    }

    /// The cells of each chunk, and what is in its streams.
    fn chunks(&self) -> impl Iterator<Item = (std::ops::Range<usize>, &Streams)> {
        let cuts = self.cuts.iter().map(|&cut| usize::from(cut));
        let starts = std::iter::once(0).chain(cuts.clone());
        let cells = starts.zip(cuts.chain([self.cells.len()]));
        cells.map(|(start, end)| start..end).zip(&self.chunks)
    }

    /// `n` gaps and counts of a chunk.
    fn stored(&self, streams: &Streams, n: usize) -> (Vec<u16>, Vec<u16>) {
        let filled = |listed: &[u16], other| listed.iter().copied().chain(std::iter::repeat(other)).take(n).collect();
        (
            filled(&streams.gaps, self.other_gaps),
            filled(&streams.values, self.other_values),
        )
    }

    /// The tile's file.
    pub fn tile(&self) -> Vec<u8> {
        let indptr = self.indptr();
        let indptr_offset = (HEADER_BYTES + self.chunks.len() * CHUNK_ENTRY_BYTES) as u64;
        let mut streams = indptr.iter().flat_map(|start| start.to_le_bytes()).collect::<Vec<u8>>();
        let mut add = |content: &[u8]| {
            streams.resize(streams.len().next_multiple_of(8), 0);
            let start = indptr_offset + streams.len() as u64;
            streams.extend(frame(content));
            start..indptr_offset + streams.len() as u64
        };
        let mut table = Vec::new();
        for (index, (cells, of_chunk)) in self.chunks().enumerate() {
            let nonzeros = indptr[cells.start] as u64..indptr[cells.end] as u64;
            let (gaps, values) = self.stored(of_chunk, (nonzeros.end - nonzeros.start) as usize);
            let mut exceptions = |list: &[(u32, u32)]| (!list.is_empty()).then(|| add(&pairs(list)));
            let (value_exceptions, gap_exceptions) = (
                exceptions(&of_chunk.value_exceptions),
                exceptions(&of_chunk.gap_exceptions),
            );
            let chunk = Chunk {
                index,
                cells: cells.start as u64..cells.end as u64,
                nonzeros,
                gaps: add(&planes(&gaps)),
                values: add(&planes(&values)),
                value_exceptions,
                gap_exceptions,
            };
            table.extend(chunk.to_bytes());
        }
        let header = Header {
            spec: TileSpec {
                id: 0,
                n_cells: self.cells.len() as u64,
                nnz: indptr[self.cells.len()] as u64,
                n_genes: self.n_genes,
                bytes: 0,
            },
            crc32: 0,
            n_chunks: self.chunks.len(),
            indptr_offset,
        };
        let mut tile = [&header.to_bytes()[..], &table, &streams].concat();
        tile::mend(&mut tile);
        tile
    }

    /// What the tile decodes to; `None` when it must be refused.
    pub fn expected(&self) -> Option<Decoded> {
        let mut decoded = Decoded {
            indptr: self.indptr(),
            indices: Vec::new(),
            data: Vec::new(),
        };
        for (cells, streams) in self.chunks() {
            let first = decoded.indptr[cells.start];
            let n = (decoded.indptr[cells.end] - first) as usize;
            let (gaps, values) = self.stored(streams, n);
            let mut counts: Vec<i64> = values.iter().map(|&value| value.into()).collect();
            for &(position, count) in listed(&streams.value_exceptions, &values, 65536..=i32::MAX as u32)? {
                counts[position as usize] = count.into();
            }
            if counts.contains(&0) {
                return None;
            }
            let mut true_gaps: Vec<i64> = gaps.iter().map(|&gap| gap.into()).collect();
            for &(position, more) in listed(&streams.gap_exceptions, &gaps, 1..=self.n_genes - 1)? {
                true_gaps[position as usize] += i64::from(more);
            }
            for cell in cells {
                let row = (decoded.indptr[cell] - first) as usize..(decoded.indptr[cell + 1] - first) as usize;
                let mut gene = 0;
                for (position, &gap) in true_gaps[row].iter().enumerate() {
                    gene += gap;
                    if gene >= i64::from(self.n_genes) || (gap == 0 && position > 0) {
                        return None;
                    }
                    decoded.indices.push(gene as i32);
                }
            }
            decoded.data.extend(counts.iter().map(|&count| count as i32));
        }
        Some(decoded)
    }
}

impl Streams {
    fn parse(numbers: &mut Numbers<'_>) -> Self {
        let mut plane = || {
            let length = numbers.u16();
            numbers.list(length, Numbers::u16)
        };
        let (gaps, values) = (plane(), plane());
        let mut exceptions = || {
            let length = numbers.u8().into();
            numbers.list(length, |numbers| (numbers.u32(), numbers.u32()))
        };
        Self {
            gaps,
            values,
            value_exceptions: exceptions(),
            gap_exceptions: exceptions(),
        }
    }
}

/// The exceptions, if they may stand where they do.
fn listed<'a>(
    exceptions: &'a [(u32, u32)],
    stored: &[u16],
    payloads: std::ops::RangeInclusive<u32>,
) -> Option<&'a [(u32, u32)]> {
    let increasing = exceptions.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let right = exceptions
        .iter()
        .all(|&(position, payload)| stored.get(position as usize) == Some(&u16::MAX) && payloads.contains(&payload));
    (increasing && right).then_some(exceptions)
}

fn planes(numbers: &[u16]) -> Vec<u8> {
    let low = numbers.iter().map(|number| number.to_le_bytes()[0]);
    low.chain(numbers.iter().map(|number| number.to_le_bytes()[1]))
        .collect()
}

fn pairs(exceptions: &[(u32, u32)]) -> Vec<u8> {
    let positions = exceptions.iter().map(|&(position, _)| position);
    let numbers = positions.chain(exceptions.iter().map(|&(_, payload)| payload));
    numbers.flat_map(u32::to_le_bytes).collect()
}

fn frame(content: &[u8]) -> Vec<u8> {
    thread_local! {
        static ZSTD: RefCell<CCtx<'static>> = RefCell::new(CCtx::create());
    }
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    ZSTD.with_borrow_mut(|zstd| zstd.compress(&mut frame, content, 1).expect("there is room"));
    frame
}

/// The target: tiles are refused that must be, and all others decode to what is in them.
pub fn run(input: &[u8]) {
    let plan = Plan::parse(input);
    let found = tile::decode(&plan.tile());
    match (plan.expected(), found) {
        (None, None | Some(Err(_))) => {}
        (Some(expected), Some(Ok(found))) => assert_eq!(found, expected),
        (Some(_), found) => panic!("a good tile was refused: {found:?}"),
        (None, Some(Ok(found))) => panic!("a bad tile was accepted: {found:?}"),
    }
}
