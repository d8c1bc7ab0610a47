//! Decoded bytes, wherever they are kept.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, Mmap, MmapMut};
use zerocopy::IntoBytes;

use super::Reservation;

/// From this size on, memory comes in pages of this size.
const HUGE: usize = 2 << 20;
/// The most bytes of memory, and pieces of it, that are kept for the next blocks.
const SPARE_BYTES: usize = 64 << 20;
const SPARES: usize = 4;
/// How many pieces of memory are made before anybody asks for them.
const PREPARED: usize = 2;

/// Bytes that do not change any more. Dropping the last reference gives memory and budget back.
#[derive(Debug)]
pub struct Block {
    bytes: Bytes,
    reservation: Option<Reservation>,
}

#[derive(Debug)]
enum Bytes {
    Memory(Memory),
    /// Whole words, for their alignment, and how many of their bytes count.
    Words(Vec<u64>, usize),
    Plain(Vec<u8>),
    /// A file of our own that nobody else can name, and its mapping; `None` when it is empty.
    File(File, Option<Mmap>),
}

impl Block {
    /// A block of what was written into `buffer`.
    pub fn from_buffer(buffer: Buffer, reservation: Option<Reservation>) -> Self {
        Self {
            bytes: buffer.0,
            reservation,
        }
    }

    /// A block of bytes that are there already.
    pub fn from_vec(bytes: Vec<u8>, reservation: Option<Reservation>) -> Self {
        Self {
            bytes: Bytes::Plain(bytes),
            reservation,
        }
    }

    /// A block in `file`, mapped as `map`; `None` when it is empty.
    pub fn from_file(file: File, map: Option<Mmap>, reservation: Reservation) -> Self {
        Self {
            bytes: Bytes::File(file, map),
            reservation: Some(reservation),
        }
    }

    /// The file the bytes are in, if they are in one.
    pub fn file(&self) -> Option<&File> {
        match &self.bytes {
            Bytes::File(file, _) => Some(file),
            _ => None,
        }
    }

    /// Whether the budget knows of this block.
    pub fn is_accounted(&self) -> bool {
        self.reservation.is_some()
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Memory(memory) => memory.bytes(),
            Bytes::Words(words, length) => &words.as_bytes()[..*length],
            Bytes::Plain(bytes) => bytes,
            Bytes::File(_, Some(map)) => map,
            Bytes::File(_, None) => &[],
        }
    }
}

/// Memory that goes back to where it came from.
#[derive(Debug)]
struct Memory {
    /// There until this is dropped.
    map: Option<MmapMut>,
    /// How much of it is in use.
    length: usize,
    spares: Arc<Spares>,
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[..self.length])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_mut().map_or(&mut [], |map| &mut map[..self.length])
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            self.spares.give(map);
        }
    }
}

/// Memory of blocks that are gone, for the next ones: getting it from the kernel, which clears it first, can take longer
/// than decoding into it. It comes on top of the budget, and is little.
#[derive(Debug, Default)]
pub struct Spares(Mutex<Vec<MmapMut>>);

impl Spares {
    /// Makes memory for a block of `length` bytes, unless enough is there.
    pub fn prepare(&self, length: usize) {
        let room = Buffer::room(length);
        if length < HUGE || room > SPARE_BYTES / SPARES || self.lock().len() >= PREPARED {
            return;
        }
        let Ok(map) = fresh(room) else { return };
        // Before Linux 5.14 it is filled when it is used.
        let _ = map.advise_range(Advice::PopulateWrite, 0, length);
        self.give(map);
    }

    fn take(&self, length: usize) -> Option<MmapMut> {
        let mut spares = self.lock();
        let fits = |map: &MmapMut| (length..=2 * length).contains(&map.len());
        let at = spares.iter().rposition(fits)?;
        Some(spares.swap_remove(at))
    }

    fn give(&self, map: MmapMut) {
        let mut spares = self.lock();
        let mut dropped = Vec::new();
        if map.len() <= SPARE_BYTES {
            spares.push(map);
        }
        let total = |spares: &[MmapMut]| spares.iter().map(|map| map.len()).sum::<usize>();
        while spares.len() > SPARES || total(&spares) > SPARE_BYTES {
            dropped.push(spares.remove(0));
        }
        // Giving memory back takes the kernel a while.
        drop(spares);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MmapMut>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory from the kernel, on huge pages.
fn fresh(room: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(room)?;
    // Without huge pages it works the same, slower.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

/// Memory to decode into, with anything in it at first, on huge pages where it is large.
#[derive(Debug)]
pub struct Buffer(Bytes);

impl Buffer {
    /// `length` bytes, aligned for whole numbers of any width. Large ones come from `spares` and go back there.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(length: usize, spares: &Arc<Spares>) -> io::Result<Self> {
        if length < HUGE {
            return Ok(Self(Bytes::Words(vec![0; length.div_ceil(8)], length)));
        }
        let room = Self::room(length);
        let map = match spares.take(length) {
            Some(map) => map,
            None => fresh(room)?,
        };
        Ok(Self(Bytes::Memory(Memory {
            map: Some(map),
            length,
            spares: spares.clone(),
        })))
    }

    /// Addresses for `length` bytes, with some to spare for the next block, which may be a little larger. Memory is behind
    /// those alone that were used.
    fn room(length: usize) -> usize {
        (length + length / 16).next_multiple_of(4096)
    }

    /// The memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Bytes::Memory(memory) => memory.bytes_mut(),
            Bytes::Words(words, length) => &mut words.as_mut_bytes()[..*length],
            Bytes::Plain(_) | Bytes::File(..) => unreachable!("a buffer is made of memory or words"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn kept(spares: &Spares) -> Vec<usize> {
        spares.lock().iter().map(|map| map.len()).collect()
    }

    #[test]
    fn memory_of_a_block_that_is_gone_is_that_of_the_next() {
        let spares = Arc::new(Spares::default());
        let mut buffer = Buffer::new(5 * MIB, &spares).unwrap();
        assert_eq!(buffer.bytes().len(), 5 * MIB);
        buffer.bytes().fill(7);
        drop(Block::from_buffer(buffer, None));
        assert_eq!(kept(&spares), [Buffer::room(5 * MIB)]);
        let mut next = Buffer::new(5 * MIB + 1, &spares).unwrap();
        assert_eq!((next.bytes().len(), next.bytes()[0]), (5 * MIB + 1, 7));
        assert_eq!(kept(&spares), [0; 0]);
    }

    #[test]
    fn little_is_kept_and_small_blocks_are_none_of_it() {
        let spares = Arc::new(Spares::default());
        let buffers: Vec<_> = (0..20).map(|_| Buffer::new(30 * MIB, &spares).unwrap()).collect();
        drop(buffers);
        assert_eq!(kept(&spares), [Buffer::room(30 * MIB); 2]);
        drop(Buffer::new(100 * MIB, &spares).unwrap());
        assert_eq!(kept(&spares), [Buffer::room(30 * MIB); 2]);
        drop(Buffer::new(1000, &spares).unwrap());
        let _third = Buffer::new(10 * MIB, &spares).unwrap();
        assert_eq!(
            kept(&spares),
            [Buffer::room(30 * MIB); 2],
            "not out of one three times as large"
        );
    }

    #[test]
    fn memory_is_made_before_it_is_asked_for_but_not_much() {
        let spares = Arc::new(Spares::default());
        for length in [5 * MIB, 5 * MIB, 5 * MIB, 1000] {
            spares.prepare(length);
        }
        assert_eq!(kept(&spares), [Buffer::room(5 * MIB); 2]);
    }
}
