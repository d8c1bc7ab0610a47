//! HDF5 files whose arrays are given a place but are not there: metadata is written, elements are extents.
//!
//! A file is a superblock (version 2), the global heap with the texts of attributes, an object header (version 2) for each
//! group and array, and then the arrays, contiguous, in the order of the tree. Large ones start at multiples of 4096. No chunks, no filters, no times:
//! the bytes of a file follow from its tree alone. Structures and their names are those of the "HDF5 File Format Specification Version
//! 3.0". Every reader from HDF5 1.8 on understands them.
//!
//! Knows trees of groups and arrays, not what they mean: no AnnData, no store, no FUSE.

mod checksum;
mod heap;
mod message;

use std::ops::Range;
use std::sync::Arc;

use thiserror::Error;

use self::checksum::lookup3;
use self::heap::Heap;
use self::message::{Kind, UNDEFINED};
use super::arrow::Tiling;
use super::hierarchy::{ArrayNode, Attribute, Extent, Group, Member, Pieces};

/// Where the heap starts: after the superblock.
const HEAP_START: u64 = 64;
/// What arrays of at least this size start at a multiple of.
const PAGE: u64 = 4096;
/// What everything else starts at a multiple of.
const WORD: u64 = 8;
/// The most bytes of one object header message, whose length has 16 bits.
const MESSAGE_LIMIT: usize = u16::MAX as usize;

/// Why a tree cannot be an HDF5 file.
#[derive(Debug, Error)]
pub enum Hdf5Error {
    /// An attribute that an object header cannot hold. Attributes beyond are possible in HDF5, by way of structures that few readers have met.
    #[error(
        "attribute {attribute:?} of {object:?} takes {found} bytes, expected at most {MESSAGE_LIMIT} \
         (a list of names takes 16 bytes a name: at most about 4,000 names)"
    )]
    Attribute {
        object: String,
        attribute: &'static str,
        found: usize,
    },
    /// A name that an object header cannot hold.
    #[error("the name of a member of {object:?} takes {found} bytes, expected at most {MESSAGE_LIMIT}")]
    LongName { object: String, found: usize },
    /// A name that no path can reach.
    #[error("{object:?} has a member named {name:?}, expected a name without '/' and NUL that is not \"\" or \".\"")]
    Name { object: String, name: String },
    /// Sizes that no file can have.
    #[error("with {object:?} the HDF5 file would be too large to address")]
    FileTooLarge { object: String },
}

/// One HDF5 file: how long it is, and what each of its bytes is.
#[derive(Debug, Clone)]
pub struct FileLayout {
    metadata: Arc<[u8]>,
    arrays: Vec<Placed>,
    len: u64,
    tiling: Tiling,
}

/// An array and where it starts.
#[derive(Debug, Clone)]
struct Placed {
    start: u64,
    bytes: u64,
    array: ArrayNode,
}

impl FileLayout {
    /// Lays out the tree below `root` as a file. Columns of obs are tiled as `tiling` says.
    ///
    /// # Errors
    /// [`Hdf5Error`] when a name, an attribute or the whole is too large, or a name cannot be one.
    pub fn new(root: &Group, tiling: Tiling) -> Result<Self, Hdf5Error> {
        // Lengths do not depend on addresses: the first draft shows where everything will be.
        let draft = Draft::write(root, HEAP_START, HEAP_START)?;
        let headers_start = HEAP_START + draft.heap.len() as u64;
        let data_start = headers_start + draft.headers.len() as u64;
        let draft = Draft::write(root, headers_start, data_start)?;
        let mut metadata = superblock(draft.root, draft.end);
        metadata.extend_from_slice(&draft.heap);
        metadata.extend_from_slice(&draft.headers);
        Ok(Self {
            metadata: metadata.into(),
            arrays: draft.arrays,
            len: draft.end,
            tiling,
        })
    }

    /// Bytes of the file.
    #[expect(clippy::len_without_is_empty, reason = "a file always has its superblock")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of the file that are kept in memory: all that is not an array.
    pub fn metadata_len(&self) -> u64 {
        self.metadata.len() as u64
    }

    /// What the bytes of `range` are, in order and without gaps; `range` is cut to the file's length.
    pub fn extents(&self, range: Range<u64>) -> Vec<Extent> {
        let range = range.start..range.end.min(self.len);
        let first = self.arrays.partition_point(|placed| placed.start <= range.start);
        // The array before the first that starts later holds the beginning, or the gap after it does.
        let first = first.saturating_sub(1);
        let start = self.arrays.get(first).map_or(0, |placed| placed.start);
        let from_metadata = range.start < start || self.arrays.is_empty();
        let mut pieces = Pieces::new(range.clone(), if from_metadata { 0 } else { start });
        if from_metadata {
            pieces.literal(&self.metadata);
        }
        let touched = self.arrays[first..]
            .iter()
            .take_while(|placed| placed.start < range.end);
        for placed in touched {
            pieces.zeros_to(placed.start);
            pieces.stretch(placed.bytes, |wanted, pieces| {
                placed.array.fixed_extents(self.tiling, wanted, pieces);
            });
        }
        pieces.zeros_to(range.end);
        pieces.done()
    }
}

/// Signature to checksum, and padding to where the heap starts.
fn superblock(root: u64, end: u64) -> Vec<u8> {
    // Version 2; offsets and lengths of 8 bytes; no consistency flags.
    let mut bytes = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00".to_vec();
    for address in [0, UNDEFINED, end, root] {
        bytes.extend_from_slice(&address.to_le_bytes());
    }
    bytes.extend_from_slice(&lookup3(&bytes).to_le_bytes());
    bytes.resize(HEAP_START as usize, 0);
    bytes
}

/// A file being written, whose headers and arrays start where they are supposed to.
struct Draft {
    heap: Vec<u8>,
    headers: Vec<u8>,
    arrays: Vec<Placed>,
    root: u64,
    end: u64,
}

impl Draft {
    fn write(root: &Group, headers_start: u64, data_start: u64) -> Result<Self, Hdf5Error> {
        let mut writer = Writer {
            heap: Heap::new(HEAP_START),
            headers: Vec::new(),
            headers_start,
            arrays: Vec::new(),
            end: data_start,
        };
        let root = writer.group("/", root)?;
        Ok(Self {
            heap: writer.heap.into_bytes(),
            headers: writer.headers,
            arrays: writer.arrays,
            root,
            end: writer.end,
        })
    }
}

struct Writer {
    heap: Heap,
    headers: Vec<u8>,
    headers_start: u64,
    arrays: Vec<Placed>,
    /// Where the last array so far ends.
    end: u64,
}

impl Writer {
    /// Writes what is in the group, then the group; returns its address.
    fn group(&mut self, path: &str, group: &Group) -> Result<u64, Hdf5Error> {
        let mut header = Header::new(path);
        header.push(Kind::LinkInfo, &message::link_info());
        header.push(Kind::GroupInfo, &message::group_info());
        for (name, member) in &group.members {
            if name.contains(['/', '\0']) || ["", "."].contains(&name.as_str()) {
                return Err(Hdf5Error::Name {
                    object: path.to_owned(),
                    name: name.clone(),
                });
            }
            let below = format!("{}/{name}", path.trim_end_matches('/'));
            let address = match member {
                Member::Group(group) => self.group(&below, group)?,
                Member::Array(array) => self.array(&below, array)?,
            };
            let link = message::link(name, address);
            if link.len() > MESSAGE_LIMIT {
                return Err(Hdf5Error::LongName {
                    object: path.to_owned(),
                    found: name.len(),
                });
            }
            header.push(Kind::Link, &link);
        }
        self.finish(header, &group.attributes)
    }

    /// Gives the array its place and writes its header; returns the header's address.
    fn array(&mut self, path: &str, array: &ArrayNode) -> Result<u64, Hdf5Error> {
        let too_large = || Hdf5Error::FileTooLarge {
            object: path.to_owned(),
        };
        let bytes = array.fixed_bytes().ok_or_else(too_large)?;
        let mut start = UNDEFINED;
        if bytes > 0 {
            let alignment = if bytes < PAGE { WORD } else { PAGE };
            start = self.end.checked_next_multiple_of(alignment).ok_or_else(too_large)?;
            let end = start.checked_add(bytes).filter(|&end| end <= i64::MAX as u64);
            self.end = end.ok_or_else(too_large)?;
            self.arrays.push(Placed {
                start,
                bytes,
                array: array.clone(),
            });
        }
        let mut header = Header::new(path);
        header.push(Kind::Dataspace, &message::dataspace(array.shape));
        header.push(Kind::Datatype, &message::datatype(array.dtype));
        header.push(Kind::FillValue, &message::fill_value());
        header.push(Kind::Layout, &message::layout(start, bytes));
        self.finish(header, &array.attributes)
    }

    fn finish(&mut self, mut header: Header, attributes: &[Attribute]) -> Result<u64, Hdf5Error> {
        for attribute in attributes {
            let message = message::attribute(attribute, &mut self.heap);
            if message.len() > MESSAGE_LIMIT {
                return Err(Hdf5Error::Attribute {
                    object: header.path.to_owned(),
                    attribute: attribute.name,
                    found: message.len(),
                });
            }
            header.push(Kind::Attribute, &message);
        }
        let address = self.headers_start + self.headers.len() as u64;
        header.write_to(&mut self.headers)?;
        Ok(address)
    }
}

/// The messages of an object header.
struct Header<'a> {
    path: &'a str,
    messages: Vec<u8>,
}

impl<'a> Header<'a> {
    fn new(path: &'a str) -> Self {
        let messages = Vec::new();
        Self { path, messages }
    }

    /// Adds a message of at most [`MESSAGE_LIMIT`] bytes.
    fn push(&mut self, kind: Kind, body: &[u8]) {
        self.messages.push(kind as u8);
        self.messages.extend_from_slice(&(body.len() as u16).to_le_bytes());
        self.messages.push(0);
        self.messages.extend_from_slice(body);
    }

    /// Writes the header in one chunk, padded to a word.
    fn write_to(&self, headers: &mut Vec<u8>) -> Result<(), Hdf5Error> {
        let length = u32::try_from(self.messages.len()).map_err(|_| Hdf5Error::FileTooLarge {
            object: self.path.to_owned(),
        })?;
        let start = headers.len();
        // Version 2; the length of the chunk has 4 bytes (2 in the lowest bits); no times.
        headers.extend_from_slice(b"OHDR\x02\x02");
        headers.extend_from_slice(&length.to_le_bytes());
        headers.extend_from_slice(&self.messages);
        let checksum = lookup3(&headers[start..]);
        headers.extend_from_slice(&checksum.to_le_bytes());
        headers.resize(headers.len().next_multiple_of(WORD as usize), 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
