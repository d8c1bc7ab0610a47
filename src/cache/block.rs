//! Decoded bytes, wherever they are kept.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::{Advice, Mmap, MmapMut};
use zerocopy::IntoBytes;

use super::Reservation;

/// From this size on, memory comes in pages of 2 MiB.
const HUGE: usize = 2 << 20;

/// Bytes that do not change any more. Dropping the last reference gives memory and budget back.
#[derive(Debug)]
pub struct Block {
    bytes: Bytes,
    reservation: Option<Reservation>,
}

#[derive(Debug)]
enum Bytes {
    Memory(MmapMut),
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
            Bytes::Memory(map) => map,
            Bytes::Words(words, length) => &words.as_bytes()[..*length],
            Bytes::Plain(bytes) => bytes,
            Bytes::File(_, Some(map)) => map,
            Bytes::File(_, None) => &[],
        }
    }
}

/// Memory to decode into, zero at first, on huge pages where it is large.
#[derive(Debug)]
pub struct Buffer(Bytes);

impl Buffer {
    /// `length` bytes, aligned for whole numbers of any width.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(length: usize) -> io::Result<Self> {
        if length < HUGE {
            return Ok(Self(Bytes::Words(vec![0; length.div_ceil(8)], length)));
        }
        let map = MmapMut::map_anon(length)?;
        // Without huge pages it works the same, slower.
        let _ = map.advise(Advice::HugePage);
        Ok(Self(Bytes::Memory(map)))
    }

    /// The memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Bytes::Memory(map) => map,
            Bytes::Words(words, length) => &mut words.as_mut_bytes()[..*length],
            Bytes::Plain(_) | Bytes::File(..) => unreachable!("a buffer is made of memory or words"),
        }
    }
}
