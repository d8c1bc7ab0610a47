use proptest::prelude::*;
use zstd_safe::{CCtx, CParameter};

use super::super::encode::{CsrRows, encode_tile};
use super::super::manifest::TileSpec;
use super::super::tile::{HEADER_BYTES, Header, Layout, parse_indptr};
use super::*;

/// Compresses as the format asks for: one frame that states its content size.
fn frame(content: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    CCtx::create().compress(&mut frame, content, 1).unwrap();
    frame
}

fn frame_without_content_size(content: &[u8]) -> Vec<u8> {
    let mut zstd = CCtx::create();
    zstd.set_parameter(CParameter::ContentSizeFlag(false)).unwrap();
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(content.len()));
    zstd.compress2(&mut frame, content).unwrap();
    frame
}

fn planes(numbers: &[u16]) -> Vec<u8> {
    let low = numbers.iter().map(|number| number.to_le_bytes()[0]);
    low.chain(numbers.iter().map(|number| number.to_le_bytes()[1]))
        .collect()
}

fn exception_frame(exceptions: &[(u32, u32)]) -> Vec<u8> {
    let positions = exceptions.iter().map(|&(position, _)| position);
    let numbers = positions.chain(exceptions.iter().map(|&(_, payload)| payload));
    frame(&numbers.flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
}

/// The third chunk of a tile, which begins at its cell 2 and nonzero 10. `cells` are the nonzeros of each of its cells.
fn chunk(cells: &[u64]) -> (Chunk, Vec<i64>) {
    let mut indptr = vec![0, 4, 10];
    for nonzeros in cells {
        indptr.push(indptr[indptr.len() - 1] + *nonzeros as i64);
    }
    let chunk = Chunk {
        index: 2,
        cells: 2..2 + cells.len() as u64,
        nonzeros: 10..indptr[indptr.len() - 1] as u64,
        gaps: 0..0,
        values: 0..0,
        value_exceptions: None,
        gap_exceptions: None,
    };
    (chunk, indptr)
}

fn indices(cells: &[u64], n_genes: u32, gaps: &[u8], exceptions: Option<&[u8]>) -> Result<Vec<i32>, TileError> {
    let (chunk, indptr) = chunk(cells);
    let mut out = vec![-1; chunk.nnz() as usize];
    Decoder::default().indices(&chunk, n_genes, &indptr, gaps, exceptions, &mut out)?;
    Ok(out)
}

fn values(values: &[u8], n: u64, exceptions: Option<&[u8]>) -> Result<Vec<i32>, TileError> {
    let (chunk, _) = chunk(&[n]);
    let mut out = vec![-1; n as usize];
    Decoder::default().values(&chunk, values, exceptions, &mut out)?;
    Ok(out)
}

/// What is said of gap exceptions: the fault, at the place where it must be.
fn gap_fault(cells: &[u64], n_genes: u32, gaps: &[u16], exceptions: &[(u32, u32)]) -> TileFault {
    let error = indices(
        cells,
        n_genes,
        &frame(&planes(gaps)),
        Some(&exception_frame(exceptions)),
    )
    .unwrap_err();
    assert_eq!(error.place, Place::Stream(2, Stream::GapExceptions));
    error.fault
}

fn value_fault(stored: &[u16], exceptions: &[u8]) -> TileFault {
    let error = values(&frame(&planes(stored)), stored.len() as u64, Some(exceptions)).unwrap_err();
    assert_eq!(error.place, Place::Stream(2, Stream::ValueExceptions));
    error.fault
}

#[test]
fn exceptions_at_both_ends_of_cells_and_chunks_are_applied() {
    let gaps = planes(&[65535, 1, 65535, 65535, 65535, 3]);
    let exceptions = exception_frame(&[(0, 5), (2, 100), (3, 1), (4, 7)]);
    let found = indices(&[2, 0, 3, 1], 300_000, &frame(&gaps), Some(&exceptions)).unwrap();
    assert_eq!(found, [65540, 65541, 65635, 131_171, 196_713, 3]);
    let stored = planes(&[65535, 65535, 9, 65535]);
    let exceptions = exception_frame(&[(0, 65536), (3, MAX_COUNT)]);
    let found = values(&frame(&stored), 4, Some(&exceptions)).unwrap();
    assert_eq!(found, [65536, 65535, 9, i32::MAX]);
}

#[test]
fn a_chunk_without_nonzeros_decodes_to_nothing() {
    assert_eq!(indices(&[0, 0], 5, &frame(&[]), None).unwrap(), [0_i32; 0]);
    assert_eq!(values(&frame(&[]), 0, None).unwrap(), [0_i32; 0]);
}

#[test]
fn a_stream_that_is_not_one_whole_frame_is_refused() {
    let content = planes(&[1, 2, 3]);
    let good = frame(&content);
    let fault = |stream: &[u8]| {
        let error = values(stream, 3, None).unwrap_err();
        assert_eq!(error.place, Place::Stream(2, Stream::Values));
        error.fault
    };
    assert!(matches!(fault(&[]), TileFault::Zstd(_)));
    assert!(matches!(fault(b"no frame at all"), TileFault::Zstd(_)));
    for length in 1..good.len() {
        assert!(
            matches!(fault(&good[..length]), TileFault::Zstd(_)),
            "{length} of {} bytes",
            good.len()
        );
    }
    let two = [&good[..], &good].concat();
    let NotOne { stream, frame: first } = not_one(fault(&two));
    assert_eq!((stream, first), (two.len() as u64, good.len() as u64));
    not_one(fault(&[&good[..], b"\0"].concat()));
    // A frame that decoders skip, of no bytes, then a good one.
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0][..], &good].concat();
    assert!(matches!(fault(&skippable), TileFault::Zstd(_)));
    assert_eq!(fault(&frame_without_content_size(&content)), TileFault::NoContentSize);
}

struct NotOne {
    stream: u64,
    frame: u64,
}

fn not_one(fault: TileFault) -> NotOne {
    match fault {
        TileFault::NotOneFrame { stream, frame } => NotOne { stream, frame },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stream_of_another_length_than_the_chunk_is_refused() {
    for n in [0, 2, 4] {
        let error = values(&frame(&planes(&vec![1; n])), 3, None).unwrap_err();
        assert!(
            matches!(error.fault, TileFault::Mismatch { found, expected: 6, .. } if found == 2 * n as u64),
            "{error}"
        );
    }
}

#[test]
fn no_memory_is_set_aside_for_what_a_frame_cannot_hold() {
    // A frame of one empty block that says it holds 2 MiB: single segment, content size in eight bytes.
    let n = 1_u64 << 20;
    let lie = [&ZSTD_MAGIC[..], &[0b1110_0000], &(2 * n).to_le_bytes(), &[1, 0, 0]].concat();
    let (chunk, _) = chunk(&[n]);
    let mut decoder = Decoder::default();
    let fault = decoder
        .values(&chunk, &lie, None, &mut vec![0; n as usize])
        .unwrap_err()
        .fault;
    let compressed = lie.len() as u64;
    assert_eq!(
        fault,
        TileFault::Implausible {
            compressed,
            content: 2 * n
        }
    );
    assert_eq!(decoder.planes.capacity(), 0);
}

#[test]
fn a_stored_zero_is_refused_wherever_it_is() {
    for at in [0, 1, 40, 69] {
        let mut stored = [3; 70];
        stored[at] = 0;
        let fault = values(&frame(&planes(&stored)), 70, None).unwrap_err().fault;
        assert_eq!(fault, TileFault::StoredZero { index: at as u64 });
    }
}

#[test]
fn a_gap_of_zero_is_a_gene_only_at_the_start_of_a_cell() {
    assert_eq!(
        indices(&[2, 1], 5, &frame(&planes(&[0, 4, 0])), None).unwrap(),
        [0, 4, 0]
    );
    let error = indices(&[1, 2], 5, &frame(&planes(&[1, 1, 0])), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "chunk 2, gaps: cell 3 of the tile names the same gene twice"
    );
}

#[test]
fn the_last_gene_is_the_limit_of_every_cell() {
    assert_eq!(
        indices(&[2, 1], 8, &frame(&planes(&[3, 4, 7])), None).unwrap(),
        [3, 7, 7]
    );
    let error = indices(&[2, 1], 8, &frame(&planes(&[3, 5, 7])), None).unwrap_err();
    let gene = TileFault::Gene {
        cell: 2,
        gene: 8,
        n_genes: 8,
    };
    assert_eq!(error, gene.at(Place::Stream(2, Stream::Gaps)));
}

#[test]
fn gaps_that_wrap_back_below_the_number_of_genes_are_refused() {
    // 65,537 gaps that add up to 2^32 - 1, and one more that makes it gene 5 in 32 bits.
    let mut gaps = vec![65_535_u16; 65_537];
    gaps.push(6);
    let sum = gaps.iter().map(|&gap| u64::from(gap)).sum::<u64>();
    assert_eq!(sum % (1 << 32), 5);
    let n = gaps.len() as u64;
    let error = indices(&[n], 1 << 31, &frame(&planes(&gaps)), None).unwrap_err();
    assert!(
        matches!(error.fault, TileFault::Gene { gene, .. } if gene == sum),
        "{error}"
    );
}

#[test]
fn gap_exceptions_are_held_against_the_genes_of_the_cell_they_are_in() {
    let gaps = [65535, 1, 65535];
    let reached = |n_genes| gap_fault(&[2, 1], n_genes, &gaps, &[(0, 10), (2, 11)]);
    assert!(
        matches!(
            reached(65546),
            TileFault::Gene {
                cell: 2,
                gene: 65546,
                ..
            }
        ),
        "{:?}",
        reached(65546)
    );
    let ok = indices(
        &[2, 1],
        65547,
        &frame(&planes(&gaps)),
        Some(&exception_frame(&[(0, 10), (2, 11)])),
    );
    assert_eq!(ok.unwrap(), [65545, 65546, 65546]);
    // Payloads that add up to more than 2^32.
    let many = [(0, 1 << 30), (1, 1 << 30), (2, 1 << 30), (3, 1 << 30), (4, 1 << 30)];
    let fault = gap_fault(&[5], 1 << 31, &[65535; 5], &many);
    assert!(
        matches!(fault, TileFault::Gene { gene, .. } if gene == 5 * 65535 + (5 << 30)),
        "{fault:?}"
    );
}

#[test]
fn exceptions_stand_only_where_the_stream_says_so() {
    let gaps = gap_fault(&[3], 200_000, &[65535, 7, 65534], &[(1, 9)]);
    assert!(matches!(gaps, TileFault::Entry { index: 1, found: 7, .. }), "{gaps:?}");
    let counts = value_fault(&[65535, 65534], &exception_frame(&[(1, 65536)]));
    assert!(
        matches!(
            counts,
            TileFault::Entry {
                index: 1,
                found: 65534,
                ..
            }
        ),
        "{counts:?}"
    );
}

#[test]
fn positions_increase_and_are_those_of_nonzeros() {
    for (list, index, found) in [
        (&[(2_u32, 70_000_u32)][..], 0, 2),
        (&[(0, 70_000), (0, 70_000)], 1, 0),
        (&[(1, 70_000), (0, 70_000)], 1, 0),
        (&[(u32::MAX, 70_000)], 0, u64::from(u32::MAX)),
    ] {
        let fault = value_fault(&[65535, 65535], &exception_frame(list));
        let TileFault::Entry {
            field: "position",
            index: at,
            found: what,
            ..
        } = fault
        else {
            panic!("{fault:?}")
        };
        assert_eq!((at, what), (index, found));
    }
}

#[test]
fn payloads_are_what_a_stream_cannot_hold() {
    for payload in [0, 65535, 1 << 31, u32::MAX] {
        let fault = value_fault(&[65535], &exception_frame(&[(0, payload)]));
        assert!(matches!(fault, TileFault::Entry { field: "payload", found, .. } if found == u64::from(payload)));
    }
    for (n_genes, payload) in [(100_000, 0), (100_000, 100_000), (65_536, u32::MAX)] {
        let fault = gap_fault(&[1], n_genes, &[65535], &[(0, payload)]);
        assert!(matches!(fault, TileFault::Entry { field: "payload", found, .. } if found == u64::from(payload)));
    }
}

#[test]
fn an_exception_frame_holds_at_least_one_exception_and_at_most_one_a_nonzero() {
    for bytes in [0, 1, 7, 9, 12, 24] {
        let fault = value_fault(&[65535, 65535], &frame(&vec![0; bytes]));
        assert!(
            matches!(fault, TileFault::Range { found, .. } if found == bytes as u64),
            "{fault:?}"
        );
    }
    not_one(value_fault(
        &[65535],
        &[exception_frame(&[(0, 65536)]), vec![0]].concat(),
    ));
}

#[test]
fn a_decoder_is_as_good_as_new_after_a_fault() {
    let mut decoder = Decoder::default();
    let (chunk, indptr) = chunk(&[3]);
    let mut out = [-1; 3];
    let mut broken = frame(&planes(&[300, 1, 2]));
    let last = broken.len() - 1;
    broken.truncate(last);
    assert!(decoder.indices(&chunk, 1000, &indptr, &broken, None, &mut out).is_err());
    assert!(decoder.values(&chunk, b"nothing", None, &mut out).is_err());
    let good = frame(&planes(&[300, 1, 2]));
    decoder.indices(&chunk, 1000, &indptr, &good, None, &mut out).unwrap();
    assert_eq!(out, [300, 301, 303]);
}

/// A tile of four cells and three chunks with exceptions of both kinds, and what the manifest says of it.
fn tile() -> (Vec<u8>, TileSpec) {
    let genes = [0, 65_535, 131_071, 199_999, 65_536, 65_537, 131_073, 9];
    let counts = [1, 65_535, 65_536, i32::MAX, 2, 70_000, 1, 1];
    let rows = CsrRows::new(200_000, &[0, 4, 4, 7, 8], &genes, &counts).unwrap();
    let bytes = encode_tile(&rows, 3, 3).unwrap();
    let spec = TileSpec {
        id: 0,
        n_cells: 4,
        nnz: 8,
        n_genes: 200_000,
        bytes: bytes.len() as u64,
    };
    (bytes, spec)
}

/// Row starts, genes, counts.
type Arrays = (Vec<i64>, Vec<i32>, Vec<i32>);

/// Decodes a tile without looking at its checksum, which would hide every other fault.
fn read(bytes: &[u8], spec: TileSpec) -> Result<Arrays, TileError> {
    let part = |range: &std::ops::Range<u64>| &bytes[range.start as usize..range.end as usize];
    let header = Header::parse(&bytes[..HEADER_BYTES.min(bytes.len())], bytes.len() as u64, spec)?;
    let layout = Layout::parse(&header, part(&header.table()))?;
    let indptr = parse_indptr(&layout, part(&header.indptr()))?;
    let (mut genes, mut counts) = (vec![-1; spec.nnz as usize], vec![-1; spec.nnz as usize]);
    let mut decoder = Decoder::default();
    for chunk in &layout.chunks {
        let nonzeros = chunk.nonzeros.start as usize..chunk.nonzeros.end as usize;
        let exceptions = chunk.gap_exceptions.as_ref().map(part);
        let out = &mut genes[nonzeros.clone()];
        decoder.indices(chunk, spec.n_genes, &indptr, part(&chunk.gaps), exceptions, out)?;
        let exceptions = chunk.value_exceptions.as_ref().map(part);
        decoder.values(chunk, part(&chunk.values), exceptions, &mut counts[nonzeros])?;
    }
    Ok((indptr, genes, counts))
}

/// What must hold of a tile that was not refused.
fn keeps_the_rules(indptr: &[i64], genes: &[i32], counts: &[i32], n_genes: u32) -> bool {
    let rows = indptr.windows(2).map(|pair| &genes[pair[0] as usize..pair[1] as usize]);
    let mut rows = rows.map(|row| row.windows(2).all(|pair| pair[0] < pair[1]));
    let exist = genes.iter().all(|&gene| gene >= 0 && (gene as u32) < n_genes);
    exist && rows.all(|increase| increase) && counts.iter().all(|&count| count >= 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_damaged_tile_is_refused_or_keeps_the_rules(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (mut bytes, spec) = tile();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok((indptr, genes, counts)) = read(&bytes, spec) {
            prop_assert!(keeps_the_rules(&indptr, &genes, &counts, spec.n_genes));
        }
    }

    #[test]
    fn a_table_of_large_numbers_is_refused_or_keeps_the_rules(
        fields in prop::collection::vec((0_usize..8 + 3 * 12 + 5, prop::sample::select(vec![
            0, 1, 7, 8, 64, 65_535, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 7, u64::MAX,
        ])), 1..4),
    ) {
        let (mut bytes, spec) = tile();
        for (field, number) in fields {
            bytes[8 * field..8 * field + 8].copy_from_slice(&number.to_le_bytes());
        }
        if let Ok((indptr, genes, counts)) = read(&bytes, spec) {
            prop_assert!(keeps_the_rules(&indptr, &genes, &counts, spec.n_genes));
        }
    }

    #[test]
    fn a_tile_cut_short_is_refused(length in 0_usize..tile().0.len()) {
        let (bytes, spec) = tile();
        // Both what its own header and what the manifest says of its size may be right, for all a decoder knows.
        let cut = TileSpec { bytes: length as u64, ..spec };
        let mut short = bytes[..length].to_vec();
        if length >= HEADER_BYTES {
            short[48..56].copy_from_slice(&(length as u64).to_le_bytes());
        }
        prop_assert!(read(&short, cut).is_err());
        prop_assert!(read(&bytes[..length], spec).is_err());
    }
}
