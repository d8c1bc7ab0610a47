//! Time: level 19 against zstd, level 3 against reading.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dcfs::convert::open::{InputOptions, open_all};
use dcfs::convert::run::{ConvertOptions, prepare};
use dcfs::convert::source::Reading;
use dcfs::format::manifest::{Manifest, tile_path};

use crate::folder::Folder;
use crate::input::Shape;
use crate::table::{Line, Table, Target, median};
use crate::{Result, Wanted};

/// Few cells: a ratio does not need more, and level 19 is slow.
const SLOW: Shape = Shape {
    cells: 40_000,
    genes: 20_000,
    mean_nonzeros: 600,
};
const FAST: Shape = Shape {
    cells: 100_000,
    genes: 20_000,
    mean_nonzeros: 600,
};
const ROUNDS: usize = 3;

/// Measures all lines.
pub fn measure(wanted: &Wanted, folder: &Folder, table: &mut Table) -> Result<()> {
    let threads = std::thread::available_parallelism()?.get();
    let line = format!("level 19, {threads} threads");
    if wanted.has(&line) {
        let shape = sized(wanted, SLOW);
        let input = folder.h5ad(shape, true)?;
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        for _ in 0..if wanted.quick { ROUNDS } else { 1 } {
            let output = folder.output()?;
            let whole = convert(&input, &output, 19, threads)?;
            let alone = zstd_alone(&output, 19, threads)?;
            ratios.push(whole.as_secs_f64() / alone.as_secs_f64());
            times.push((whole, alone));
        }
        table.add(Line {
            measure: line,
            against: "zstd alone over the same streams".into(),
            found: median(ratios),
            unit: "",
            target: Target::AtMost(1.15),
            details: shown(&times, "zstd"),
        });
    }
    let shape = sized(wanted, FAST);
    for kind in ["gzip h5ad", "h5ad without compression", "matrix.mtx.gz"] {
        let line = format!("level 3, {threads} threads, {kind}");
        if !wanted.has(&line) {
            continue;
        }
        let input = match kind {
            "gzip h5ad" => folder.h5ad(shape, true)?,
            "matrix.mtx.gz" => folder.mtx(shape)?,
            _ => folder.h5ad(shape, false)?,
        };
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let alone = read_alone(&input, threads)?;
            let whole = convert(&input, &folder.output()?, 3, threads)?;
            ratios.push(alone.as_secs_f64() / whole.as_secs_f64());
            times.push((whole, alone));
        }
        table.add(Line {
            measure: line,
            against: "speed of reading the input alone, twice".into(),
            found: median(ratios),
            unit: "",
            target: Target::AtLeast(0.8),
            details: shown(&times, "reading"),
        });
    }
    Ok(())
}

fn sized(wanted: &Wanted, shape: Shape) -> Shape {
    Shape {
        cells: wanted.cells(shape.cells),
        ..shape
    }
}

fn shown(times: &[(Duration, Duration)], what: &str) -> String {
    let middle = |of: fn(&(Duration, Duration)) -> Duration| {
        median(times.iter().map(of).map(|time| time.as_secs_f64()).collect())
    };
    format!(
        "{:.2} s, {what} {:.2} s",
        middle(|times| times.0),
        middle(|times| times.1)
    )
}

/// A whole conversion, as `dcfs convert` does it.
fn convert(input: &Path, output: &Path, level: i32, threads: usize) -> Result<Duration> {
    let begun = Instant::now();
    let reading = Reading::new(threads, Path::new(""));
    let options = ConvertOptions {
        level,
        threads,
        ..ConvertOptions::default()
    };
    let sources = open_all(&[input], &InputOptions::default())?;
    prepare(sources, options, output, &reading)?.write(output, &reading, |_| ())?;
    Ok(begun.elapsed())
}

/// What a conversion reads: everything for the totals of the genes, and everything again in the order of cells.
fn read_alone(input: &Path, threads: usize) -> Result<Duration> {
    let begun = Instant::now();
    let folder = std::env::temp_dir();
    let reading = Reading::new(threads, &folder);
    for source in open_all(&[input], &InputOptions::default())? {
        std::hint::black_box(source.scan(&reading)?);
        for block in source.rows(&reading)? {
            std::hint::black_box(block?);
        }
    }
    Ok(begun.elapsed())
}

/// Compresses the streams of a dataset's tiles again, each as one frame, on as many threads.
fn zstd_alone(dataset: &Path, level: i32, threads: usize) -> Result<Duration> {
    let manifest = Manifest::parse(&fs::read(dataset.join("manifest.json"))?)?;
    let mut streams = Vec::new();
    for tile in 0..manifest.n_tiles() {
        let bytes = fs::read(dataset.join(tile_path(tile)))?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default()) as usize;
        let chunks = word(32) >> 32;
        for chunk in 0..chunks {
            // Offset and length of the gaps and of the counts (format, "Chunk table entry").
            for field in [4, 6] {
                let at = 64 + 96 * chunk + 8 * field;
                let (offset, length) = (word(at), word(at + 8));
                streams.push(zstd::decode_all(&bytes[offset..offset + length])?);
            }
        }
    }
    let turn = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let compressed = zstd::bulk::Compressor::new(level).and_then(|mut zstd| {
                    while let Some(stream) = streams.get(turn.fetch_add(1, Ordering::Relaxed)) {
                        std::hint::black_box(zstd.compress(stream)?);
                    }
                    Ok(())
                });
                if let (Err(error), Ok(mut failed)) = (compressed, failed.lock()) {
                    *failed = Some(error);
                }
            });
        }
    });
    let elapsed = begun.elapsed();
    match failed.into_inner() {
        Ok(None) => Ok(elapsed),
        _ => Err("zstd failed".into()),
    }
}
