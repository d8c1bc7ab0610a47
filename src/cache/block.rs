//! Decoded bytes, wherever they are kept.

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::{Advice, Mmap, MmapMut};

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
    Small(Vec<u8>),
    /// A file of our own that nobody else can name, and its mapping; `None` when it is empty.
    File(File, Option<Mmap>),
}

impl Block {
    /// A block of `length` bytes that `fill` writes, kept as long as `reservation` allows.
    ///
    /// # Errors
    /// When there is no memory, or what `fill` says.
    pub fn fill<E: From<io::Error>>(
        length: usize,
        reservation: Option<Reservation>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let bytes = if length < HUGE {
            let mut bytes = Vec::new();
            bytes
                .try_reserve_exact(length)
                .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
            bytes.resize(length, 0);
            fill(&mut bytes)?;
            Bytes::Small(bytes)
        } else {
            let mut map = MmapMut::map_anon(length)?;
            // Without huge pages it works the same, slower.
            let _ = map.advise(Advice::HugePage);
            fill(&mut map)?;
            Bytes::Memory(map)
        };
        Ok(Self { bytes, reservation })
    }

    /// A block of bytes that are there already.
    pub fn from_vec(bytes: Vec<u8>, reservation: Option<Reservation>) -> Self {
        Self {
            bytes: Bytes::Small(bytes),
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
            Bytes::Small(bytes) => bytes,
            Bytes::File(_, Some(map)) => map,
            Bytes::File(_, None) => &[],
        }
    }
}
