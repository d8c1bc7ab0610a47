//! The machine that is measured on: bringing its memory to where it stays, and seeing who else uses it.

use std::fmt;
use std::fs;

use crate::Result;

/// Memory that is touched before anything is timed, if half of what is free has as much: a virtual machine gets its memory
/// when it first touches it, which takes ten times as long as filling it.
const WARM_UP_BYTES: u64 = 6 << 30;
/// Processors' worth of other programs beyond which ratios of one thread to several mean nothing.
const DISTURBED: f64 = 0.1;

/// Touches memory and gives it back.
pub fn touch_memory() -> Result<()> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let available = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = available
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    let mut memory = vec![0_u8; WARM_UP_BYTES.min(kib * 1024 / 2) as usize];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    Ok(())
}

/// Time of all processors since the machine started, in ticks.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    all: u64,
    busy: u64,
    /// Of this process and of those it started that have ended.
    own: u64,
}

impl Ticks {
    fn now() -> Result<Self> {
        let all = numbers(&fs::read_to_string("/proc/stat")?, 1, 8)?;
        let own = fs::read_to_string("/proc/self/stat")?;
        // The program's name, in parentheses, may hold anything.
        let after_name = own.rsplit_once(')').ok_or("no name in /proc/self/stat")?.1;
        // Idle, and waiting for a disk, are fourth and fifth.
        Ok(Self {
            all: all.iter().sum(),
            busy: all.iter().sum::<u64>() - all[3] - all[4],
            own: numbers(after_name, 11, 4)?.iter().sum(),
        })
    }
}

/// `length` numbers of a line after the first `skip` words.
fn numbers(line: &str, skip: usize, length: usize) -> Result<Vec<u64>> {
    let words = line.split_whitespace().skip(skip).take(length);
    let numbers: Vec<u64> = words.map(str::parse).collect::<std::result::Result<_, _>>()?;
    if numbers.len() < length {
        return Err("the kernel tells the time of processors in another way than expected".into());
    }
    Ok(numbers)
}

/// What other programs do from now on.
pub struct Others {
    from: Ticks,
    processors: usize,
}

impl Others {
    /// Begins to look.
    pub fn watch() -> Result<Self> {
        let processors = std::thread::available_parallelism()?.get();
        let from = Ticks::now()?;
        Ok(Self { from, processors })
    }

    /// What they did. Daemons that this process started must have ended.
    pub fn report(&self) -> Result<Disturbance> {
        let now = Ticks::now()?;
        let all = (now.all - self.from.all).max(1) as f64;
        let others = (now.busy - self.from.busy).saturating_sub(now.own - self.from.own) as f64;
        Ok(Disturbance {
            taken: others / all * self.processors as f64,
            processors: self.processors,
        })
    }
}

/// How much others took.
pub struct Disturbance {
    taken: f64,
    processors: usize,
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Meanwhile other programs took {:.2} of {} processors",
            self.taken, self.processors
        )?;
        if self.taken > DISTURBED {
            f.write_str(": measure again when they do not")?;
        }
        Ok(())
    }
}
