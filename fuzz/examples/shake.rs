//! Damages inputs at random, for where there is no nightly compiler to let coverage lead the way.
//!
//! ```text
//! cargo run --release --example shake -- TARGET ROUNDS [SEED]
//! ```
//!
//! Starts from `corpus/TARGET`. An input that makes the target panic is kept in `artifacts/TARGET`, and ends the run.

use std::error::Error;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use dcfs_fuzz::{chunks, manifest, obs_schema, shard, tile};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Numbers at which something changes.
const EDGES: [u64; 14] = [
    0,
    1,
    7,
    8,
    64,
    96,
    127,
    255,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    u64::MAX,
];
/// Inputs grow no longer than this.
const MOST_BYTES: usize = 16 << 10;

fn target(name: &str) -> Option<fn(&[u8])> {
    Some(match name {
        "tile" => |bytes| {
            let mut bytes = bytes.to_vec();
            tile::mend(&mut bytes);
            tile::decode(&bytes);
        },
        "chunks" => chunks::run,
        "manifest" => manifest::run,
        "obs_schema" => obs_schema::run,
        "shard" => shard::run,
        _ => return None,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, rounds, seed @ ..] = &arguments[..] else {
        return Err("expected TARGET ROUNDS [SEED]".into());
    };
    let run = target(name).ok_or("expected tile, chunks, manifest, obs_schema or shard")?;
    let seed = seed.first().map_or(Ok(0), |seed| seed.parse())?;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut seeds = Vec::new();
    for entry in fs::read_dir(Path::new("corpus").join(name))? {
        seeds.push(fs::read(entry?.path())?);
    }
    seeds.sort();
    // The Parquet library's panics are caught, and would fill the terminal.
    std::panic::set_hook(Box::new(|_| {}));
    for round in 0..rounds.parse::<u64>()? {
        let input = damage(&seeds, &mut random);
        if catch_unwind(AssertUnwindSafe(|| run(&input))).is_err() {
            let folder = Path::new("artifacts").join(name);
            fs::create_dir_all(&folder)?;
            let file = folder.join(format!("shaken-{seed}-{round}"));
            fs::write(&file, &input)?;
            let _ = std::panic::take_hook();
            eprintln!("round {round}: {} makes the target panic:", file.display());
            run(&input);
        }
    }
    println!("{name}: {rounds} rounds from seed {seed}, nothing found");
    Ok(())
}

/// One of the seeds, with some damage.
fn damage(seeds: &[Vec<u8>], random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let mut below = |most: usize| (random.next_u64() % most.max(1) as u64) as usize;
    let mut input = seeds[below(seeds.len())].clone();
    for _ in 0..1 + below(5) {
        let at = below(input.len());
        match below(7) {
            _ if input.is_empty() => input.push(below(256) as u8),
            0 => input[at] ^= 1 << below(8),
            1 => input[at] = below(256) as u8,
            2 => {
                let number = EDGES[below(EDGES.len())].wrapping_add(below(3) as u64).wrapping_sub(1);
                let number = &number.to_le_bytes()[..[1, 2, 4, 8][below(4)]];
                let end = input.len().min(at + number.len());
                input[at..end].copy_from_slice(&number[..end - at]);
            }
            3 => input.truncate(at),
            4 => drop(input.drain(at..input.len().min(at + 1 + below(16)))),
            5 => {
                let other = &seeds[below(seeds.len())];
                let from = below(other.len());
                let piece = &other[from..other.len().min(from + 1 + below(64))];
                input.splice(at..at, piece.iter().copied());
            }
            _ => {
                let digit = b"0123456789-\"[]{},.eE"[below(20)];
                input[at] = digit;
            }
        }
    }
    input.truncate(MOST_BYTES);
    input
}
