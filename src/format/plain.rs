//! A reader of tiles written plainly from the format's text, sharing nothing with the encoder or the decoder: what
//! tests hold both against. It trusts its input and panics on anything odd.

/// A decoded tile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainTile {
    pub n_genes: u32,
    pub indptr: Vec<i64>,
    pub indices: Vec<i64>,
    pub counts: Vec<i64>,
    /// `cell_lo, cell_hi` of each chunk.
    pub chunks: Vec<(u64, u64)>,
}

fn u64_at(bytes: &[u8], offset: u64) -> u64 {
    u64::from_le_bytes(bytes[offset as usize..offset as usize + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], offset: u64) -> u32 {
    u32::from_le_bytes(bytes[offset as usize..offset as usize + 4].try_into().unwrap())
}

fn stream(bytes: &[u8], offset: u64, length: u64, content: u64) -> Vec<u8> {
    assert_eq!(offset % 8, 0, "streams start on 8 bytes");
    let frame = &bytes[offset as usize..(offset + length) as usize];
    assert_eq!(
        zstd_safe::find_frame_compressed_size(frame).unwrap(),
        frame.len(),
        "one frame"
    );
    assert_eq!(
        zstd_safe::get_frame_content_size(frame).unwrap(),
        Some(content),
        "the content size"
    );
    let mut out = Vec::with_capacity(content as usize);
    assert_eq!(zstd_safe::decompress(&mut out, frame).unwrap() as u64, content);
    out
}

fn planes(bytes: &[u8]) -> Vec<i64> {
    let n = bytes.len() / 2;
    (0..n)
        .map(|i| i64::from(bytes[i]) + 256 * i64::from(bytes[n + i]))
        .collect()
}

fn exceptions(bytes: &[u8], entry: u64, n: u64) -> Vec<(usize, i64)> {
    let (offset, length) = (u64_at(bytes, entry), u64_at(bytes, entry + 8));
    if length == 0 {
        assert_eq!(offset, 0, "writers store 0 for an absent frame");
        return Vec::new();
    }
    let frame = &bytes[offset as usize..(offset + length) as usize];
    let size = zstd_safe::get_frame_content_size(frame).unwrap().unwrap();
    let k = size / 8;
    assert!(size.is_multiple_of(8) && k > 0 && k <= n);
    let words = stream(bytes, offset, length, size);
    let listed: Vec<(usize, i64)> = (0..k)
        .map(|i| (u32_at(&words, 4 * i) as usize, u32_at(&words, 4 * (k + i)).into()))
        .collect();
    assert!(
        listed.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "positions increase"
    );
    listed
}

/// Decodes a tile, checking the rules a writer could break.
pub fn read(bytes: &[u8]) -> PlainTile {
    assert_eq!(&bytes[..8], b"DELTACEL");
    assert_eq!((u32_at(bytes, 8), u32_at(bytes, 12), u32_at(bytes, 60)), (2, 0, 0));
    let (n_cells, nnz, n_genes) = (u64_at(bytes, 16), u64_at(bytes, 24), u32_at(bytes, 32));
    let (n_chunks, indptr_off) = (u64::from(u32_at(bytes, 36)), u64_at(bytes, 40));
    assert_eq!(u64_at(bytes, 48), bytes.len() as u64);
    assert_eq!(u32_at(bytes, 56), crc32fast::hash(&bytes[64..]));
    assert!(indptr_off.is_multiple_of(8) && indptr_off >= 64 + 96 * n_chunks);
    let indptr: Vec<i64> = (0..=n_cells)
        .map(|i| u64_at(bytes, indptr_off + 8 * i) as i64)
        .collect();
    assert_eq!((indptr[0], indptr[n_cells as usize]), (0, nnz as i64));
    let mut tile = PlainTile {
        n_genes,
        indptr,
        indices: Vec::new(),
        counts: Vec::new(),
        chunks: Vec::new(),
    };
    let (mut cell, mut nonzero) = (0, 0);
    for chunk in 0..n_chunks {
        let entry = 64 + 96 * chunk;
        let field = |i: u64| u64_at(bytes, entry + 8 * i);
        assert_eq!((field(0), field(2)), (cell, nonzero), "chunks are contiguous");
        (cell, nonzero) = (field(1), field(3));
        let n = field(3) - field(2);
        let gaps = planes(&stream(bytes, field(4), field(5), 2 * n));
        let mut counts = planes(&stream(bytes, field(6), field(7), 2 * n));
        for (position, count) in exceptions(bytes, entry + 64, n) {
            assert_eq!(counts[position], 65535);
            assert!(count > 65535);
            counts[position] = count;
        }
        let mut gaps_left = gaps;
        for (position, more) in exceptions(bytes, entry + 80, n) {
            assert_eq!(gaps_left[position], 65535);
            assert!(more > 0);
            gaps_left[position] += more;
        }
        for c in field(0)..field(1) {
            let row = (tile.indptr[c as usize] as u64 - field(2)) as usize
                ..(tile.indptr[c as usize + 1] as u64 - field(2)) as usize;
            let mut gene = 0;
            for gap in &gaps_left[row] {
                gene += gap;
                assert!(gene < i64::from(n_genes));
                tile.indices.push(gene);
            }
        }
        tile.counts.extend(counts);
        tile.chunks.push((field(0), field(1)));
    }
    assert_eq!((cell, nonzero), (n_cells, nnz), "chunks cover the tile");
    tile
}
