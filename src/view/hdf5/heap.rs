//! The global heap, where texts of variable length lie (HDF5 File Format Specification, III.E).
//!
//! Knows bytes and addresses, not who refers to them.

use std::collections::HashMap;

/// Collection header: signature, version, three reserved bytes, size.
const COLLECTION_HEADER: usize = 16;
/// Object header: index, reference count, four reserved bytes, size.
const OBJECT_HEADER: usize = 16;
/// Collections are multiples of this; the library reads no smaller ones.
const COLLECTION_STEP: usize = 4096;
/// A collection is closed when it has grown to this, for the library reads collections whole. Long before, no object's index needs more than its 16 bits.
const COLLECTION_FULL: usize = 1 << 18;
const _: () = assert!(COLLECTION_FULL / OBJECT_HEADER < u16::MAX as usize);

/// Where a text lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeapId {
    /// Address of its collection.
    pub(super) collection: u64,
    /// Its index there.
    pub(super) index: u16,
}

/// Collections one after another, each text in them once.
#[derive(Debug)]
pub(super) struct Heap {
    start: u64,
    closed: Vec<u8>,
    open: Vec<u8>,
    objects: u16,
    known: HashMap<String, HeapId>,
}

impl Heap {
    /// A heap whose first collection is at address `start`.
    pub(super) fn new(start: u64) -> Self {
        Self {
            start,
            closed: Vec::new(),
            open: Vec::new(),
            objects: 0,
            known: HashMap::new(),
        }
    }

    /// Where `text` lies.
    pub(super) fn place(&mut self, text: &str) -> HeapId {
        if let Some(&id) = self.known.get(text) {
            return id;
        }
        if self.open.len() >= COLLECTION_FULL {
            self.close();
        }
        self.objects += 1;
        let id = HeapId {
            collection: self.start + self.closed.len() as u64,
            index: self.objects,
        };
        if self.open.is_empty() {
            self.open.resize(COLLECTION_HEADER, 0);
        }
        push_object(&mut self.open, self.objects, 1, text.len() as u64);
        self.open.extend_from_slice(text.as_bytes());
        self.open.resize(self.open.len().next_multiple_of(8), 0);
        self.known.insert(text.to_owned(), id);
        id
    }

    /// Writes the header of the open collection and the free space after its objects.
    fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let size = (self.open.len() + OBJECT_HEADER).next_multiple_of(COLLECTION_STEP);
        let free = size - self.open.len();
        push_object(&mut self.open, 0, 0, free as u64);
        self.open.resize(size, 0);
        self.open[..8].copy_from_slice(b"GCOL\x01\0\0\0");
        self.open[8..COLLECTION_HEADER].copy_from_slice(&(size as u64).to_le_bytes());
        self.closed.append(&mut self.open);
        self.objects = 0;
    }

    /// All collections.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.close();
        self.closed
    }
}

fn push_object(collection: &mut Vec<u8>, index: u16, references: u16, size: u64) {
    collection.extend_from_slice(&index.to_le_bytes());
    collection.extend_from_slice(&references.to_le_bytes());
    collection.extend_from_slice(&[0; 4]);
    collection.extend_from_slice(&size.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_stored_once() {
        let mut heap = Heap::new(64);
        let first = heap.place("array");
        let second = heap.place("0.2.0");
        assert_eq!(heap.place("array"), first);
        assert_eq!((first.collection, first.index, second.index), (64, 1, 2));
        let bytes = heap.into_bytes();
        assert_eq!(bytes.len(), 4096);
        assert_eq!(&bytes[..16], b"GCOL\x01\0\0\0\0\x10\0\0\0\0\0\0");
        assert_eq!(&bytes[16..40], b"\x01\0\x01\0\0\0\0\0\x05\0\0\0\0\0\0\0array\0\0\0");
        // The free space counts its own header.
        assert_eq!(&bytes[64..80], b"\0\0\0\0\0\0\0\0\xc0\x0f\0\0\0\0\0\0");
    }

    #[test]
    fn a_full_collection_is_followed_by_another() {
        let mut heap = Heap::new(64);
        let ids: Vec<_> = (0..70_000).map(|text| heap.place(&format!("{text}"))).collect();
        let bytes = heap.into_bytes();
        let mut at = 0;
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 4], b"GCOL");
            let first = ids.iter().position(|id| id.collection == 64 + at as u64).unwrap();
            assert_eq!(ids[first].index, 1);
            assert!(bytes[at + 32..].starts_with(first.to_string().as_bytes()));
            at += u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap()) as usize;
        }
        assert!(ids.last().unwrap().collection > 64 + COLLECTION_FULL as u64);
    }

    #[test]
    fn nothing_takes_no_room() {
        assert!(Heap::new(64).into_bytes().is_empty());
    }
}
