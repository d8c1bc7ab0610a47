//! Variable-length strings: references into the file's global heap, and the collections they point at.
//!
//! The layout is that of the HDF5 file format specification, III.E "Global Heap".

use std::collections::HashMap;

use super::RawFile;

/// Bytes of collections kept while the strings that share them are read.
const KEPT_BYTES: usize = 16 << 20;

/// Reads strings by reference. Neighbouring references mostly point into one collection, which is read once.
pub(super) struct Heap<'a> {
    file: &'a RawFile,
    collections: HashMap<u64, Collection>,
    kept: usize,
}

/// One collection: its bytes, and where in them each object lies.
struct Collection {
    bytes: Vec<u8>,
    objects: HashMap<u32, (usize, usize)>,
}

impl<'a> Heap<'a> {
    pub(super) fn new(file: &'a RawFile) -> Self {
        Self {
            file,
            collections: HashMap::new(),
            kept: 0,
        }
    }

    /// The bytes that `reference` (length, collection address, object number) points at; none for a null one.
    pub(super) fn resolve(&mut self, reference: &[u8]) -> Result<&[u8], String> {
        let offset_size = self.file.offset_size;
        let length = number(&reference[..4]) as usize;
        let address = number(&reference[4..4 + offset_size]);
        let object = number(&reference[4 + offset_size..8 + offset_size]) as u32;
        if length == 0 {
            return Ok(&[]);
        }
        if !self.collections.contains_key(&address) {
            let collection = Collection::read(self.file, address)?;
            if self.kept + collection.bytes.len() > KEPT_BYTES {
                self.collections.clear();
                self.kept = 0;
            }
            self.kept += collection.bytes.len();
            self.collections.insert(address, collection);
        }
        let collection = &self.collections[&address];
        let &(start, size) = collection
            .objects
            .get(&object)
            .ok_or_else(|| format!("string heap at {address} has no object {object}"))?;
        if length > size {
            return Err(format!(
                "object {object} of string heap at {address} has {size} bytes, expected {length}"
            ));
        }
        Ok(&collection.bytes[start..start + length])
    }
}

impl Collection {
    fn read(file: &RawFile, address: u64) -> Result<Self, String> {
        let length_size = file.length_size;
        let header_bytes = 8 + length_size;
        let place = address
            .checked_add(file.base)
            .ok_or_else(|| format!("string heap address {address} is beyond any file"))?;
        let header = file.read(place, header_bytes as u64)?;
        if &header[..4] != b"GCOL" {
            return Err(format!("no string heap at {address}"));
        }
        let size = number(&header[8..]);
        if size < header_bytes as u64 {
            return Err(format!(
                "string heap at {address} has {size} bytes, expected at least {header_bytes}"
            ));
        }
        let bytes = file.read(place, size)?;
        let mut objects = HashMap::new();
        let mut at = header_bytes;
        while let Some(header) = bytes.get(at..at + header_bytes) {
            let index = number(&header[..2]) as u32;
            // Object 0 is the free space, which is the last.
            if index == 0 {
                break;
            }
            let size = usize::try_from(number(&header[8..])).unwrap_or(usize::MAX);
            let start = at + header_bytes;
            let end = start.checked_add(size).filter(|&end| end <= bytes.len());
            let Some(end) = end else {
                return Err(format!(
                    "object {index} of string heap at {address} reaches beyond the heap"
                ));
            };
            objects.insert(index, (start, size));
            at = end.next_multiple_of(8);
        }
        Ok(Self { bytes, objects })
    }
}

/// A little-endian number of at most 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}
