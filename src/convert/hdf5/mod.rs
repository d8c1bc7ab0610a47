//! HDF5 files, read: the one module that knows the HDF5 library.
//!
//! The library (`hdf5-pure`) is asked for what a file's metadata says: groups, attributes, types, shapes, where the
//! chunks are. Bytes are read and decoded here, chunk by chunk and in parallel, because that closes the library's
//! gaps (half precision, zstd, strings in compressed chunks), bounds memory by what is asked for, and is faster.
//! Whatever a file claims (shapes, chunk sizes, addresses) is held against the file's length before it is believed;
//! a panic of the library on a damaged file is an error here.
//!
//! This module must not know what AnnData or 10x Genomics store where.

mod filter;
mod heap;
mod number;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use arrow::array::{ArrayRef, BooleanArray, StringArray, StringBuilder};
use hdf5_pure::{AttrValue, Datatype, DatatypeByteOrder, FloatingPointLayout, Layout, StringPadding};

pub(crate) use number::{NotACount, StoredNumber};

use super::error::{ConvertError, Result};
use crate::format::obs::NumericType;
use filter::Filter;
use heap::Heap;

/// Bytes of one element that are believed; names and records are far below it.
const MAX_ELEMENT_BYTES: u64 = 1 << 20;
/// Bytes of one read; callers read in windows far below it.
const MAX_READ_BYTES: u64 = 1 << 36;
/// Decoded chunks beside each other that reach beyond a window are kept for the next one up to this size.
const KEPT_BYTES: usize = 128 << 20;

/// An open HDF5 file.
pub(crate) struct H5File {
    library: hdf5_pure::File,
    raw: Arc<RawFile>,
}

/// The file's bytes, and the numbers that say how to read addresses in it.
struct RawFile {
    path: PathBuf,
    file: File,
    length: u64,
    base: u64,
    offset_size: usize,
    length_size: usize,
}

/// What a path in a file names.
pub(crate) enum Node {
    Absent,
    Group,
    Dataset(Box<H5Dataset>),
}

/// What one element of a dataset is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Element {
    Number(StoredNumber),
    /// The enumeration of FALSE and TRUE by which truth values are stored; bytes of one.
    Bool(usize),
    /// A string of this many bytes, padded with NUL or spaces.
    FixedString {
        size: usize,
        space_padded: bool,
    },
    /// A reference into the file's string heap.
    String,
    /// A record.
    Record(Vec<Member>),
    /// Something else, described.
    Other(String),
}

/// A field of a record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) offset: usize,
    pub(crate) size: usize,
    pub(crate) element: Element,
}

/// A dataset of at most two dimensions.
pub(crate) struct H5Dataset {
    raw: Arc<RawFile>,
    name: String,
    shape: Vec<u64>,
    element: Element,
    element_bytes: usize,
    storage: Storage,
    /// Decoded chunks that the last window ended inside, by their place in the grid.
    kept: Mutex<Vec<(u64, Arc<Vec<u8>>)>>,
}

enum Storage {
    /// In the metadata itself.
    Inline(Vec<u8>),
    /// One run of the file, as long as the shape says.
    Contiguous(u64),
    /// Never written: every element is this one.
    Fill(Vec<u8>),
    Chunked(Chunks),
}

struct Chunks {
    /// Rows and columns of one chunk.
    rows: u64,
    columns: u64,
    /// Chunks beside each other.
    across: u64,
    filters: Vec<Filter>,
    /// In increasing order of place.
    stored: Vec<StoredChunk>,
}

#[derive(Clone, Copy)]
struct StoredChunk {
    /// Number in the grid, row by row.
    place: u64,
    address: u64,
    bytes: u64,
    mask: u32,
}

/// The attributes of an object.
pub(crate) struct Attributes {
    values: HashMap<String, AttrValue>,
}

impl RawFile {
    /// `length` bytes at `address`, which must lie in the file.
    fn read(&self, address: u64, length: u64) -> std::result::Result<Vec<u8>, String> {
        let inside = address.checked_add(length).is_some_and(|end| end <= self.length);
        if !inside {
            return Err(format!(
                "{length} bytes at {address} lie outside the file, which has {} bytes: it is cut short or damaged",
                self.length
            ));
        }
        let mut bytes = vec![0; length as usize];
        match self.file.read_exact_at(&mut bytes, address) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(format!("cannot read {length} bytes at {address}: {error}")),
        }
    }
}

/// Runs a call of the library; a panic in it is an error.
fn guarded<T>(call: impl FnOnce() -> std::result::Result<T, hdf5_pure::Error>) -> std::result::Result<T, LibraryError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(LibraryError::Refused(error)),
        Err(_) => Err(LibraryError::Panicked),
    }
}

enum LibraryError {
    Refused(hdf5_pure::Error),
    Panicked,
}

impl LibraryError {
    fn at(self, path: &Path, place: &str) -> ConvertError {
        use hdf5_pure::{Error, FormatError};
        let fault = match self {
            Self::Refused(Error::Format(FormatError::InvalidLayoutVersion(5))) => {
                "is stored as only HDF5 2 does (libver=\"latest\"), which is not supported; save the file again \
                 with libver=\"v114\" or without libver"
                    .into()
            }
            Self::Refused(Error::Format(FormatError::SignatureNotFound)) => not_hdf5(path).into(),
            // No address: the entry is a link by name.
            Self::Refused(Error::Format(FormatError::OffsetOverflow { offset: u64::MAX, .. })) => {
                "is a soft link in an old-style group, which is not supported; save the file again with what it \
                 points at in its place"
                    .into()
            }
            Self::Refused(error) => error.to_string(),
            Self::Panicked => "the file's metadata is damaged".into(),
        };
        ConvertError::input(path, place, fault)
    }
}

/// What a file is instead, for messages.
fn not_hdf5(path: &Path) -> &'static str {
    let mut start = [0; 2];
    match File::open(path).and_then(|file| file.read_exact_at(&mut start, 0)) {
        Ok(()) if start == [0x1f, 0x8b] => "is missing: the file is compressed with gzip; decompress it first",
        Ok(()) => "is missing: the file is neither AnnData (.h5ad) nor 10x Genomics HDF5 (.h5)",
        Err(_) => "is missing: the file is empty",
    }
}

impl H5File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// When it cannot be opened, or is not HDF5.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(ConvertError::io(path, "open"))?;
        let length = file.metadata().map_err(ConvertError::io(path, "stat"))?.len();
        let library = guarded(|| hdf5_pure::File::open_streaming(path)).map_err(|error| match error {
            LibraryError::Refused(hdf5_pure::Error::Io(source)) => ConvertError::Io {
                path: path.to_path_buf(),
                action: "read",
                source,
            },
            other => other.at(path, "HDF5 header"),
        })?;
        let superblock = library.superblock();
        let raw = RawFile {
            path: path.to_path_buf(),
            file,
            length,
            base: superblock.base_address.get(),
            offset_size: superblock.offset_size.into(),
            length_size: superblock.length_size.into(),
        };
        Ok(Self {
            library,
            raw: Arc::new(raw),
        })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.raw.path
    }

    /// The file's size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.raw.length
    }

    /// An error about the object `place`.
    pub(crate) fn fault(&self, place: &str, fault: impl Into<String>) -> ConvertError {
        ConvertError::input(self.path(), place, fault)
    }

    /// What `name` is, with the dataset opened if it is one.
    pub(crate) fn node(&self, name: &str) -> Result<Node> {
        use hdf5_pure::{Error, FormatError};
        match guarded(|| self.library.dataset(name)) {
            Ok(dataset) => Ok(Node::Dataset(Box::new(H5Dataset::new(&self.raw, name, &dataset)?))),
            Err(LibraryError::Refused(Error::NotADataset(_))) => Ok(Node::Group),
            Err(LibraryError::Refused(Error::Format(FormatError::PathNotFound(_)) | Error::NotAGroup(_))) => {
                Ok(Node::Absent)
            }
            Err(error) => Err(error.at(self.path(), name)),
        }
    }

    /// The dataset `name`.
    ///
    /// # Errors
    /// Also when there is none.
    pub(crate) fn dataset(&self, name: &str) -> Result<H5Dataset> {
        match self.node(name)? {
            Node::Dataset(dataset) => Ok(*dataset),
            Node::Group => Err(self.fault(name, "is a group, expected a dataset")),
            Node::Absent => Err(self.fault(name, "there is no such dataset")),
        }
    }

    /// Whether `name` is a group.
    pub(crate) fn is_group(&self, name: &str) -> Result<bool> {
        Ok(matches!(self.node(name)?, Node::Group))
    }

    /// The names of the groups and datasets in the group `name`, sorted.
    pub(crate) fn members(&self, name: &str) -> Result<Vec<String>> {
        let members = guarded(|| {
            let group = if name.is_empty() {
                self.library.root()
            } else {
                self.library.group(name)?
            };
            let mut members = group.groups()?;
            members.extend(group.datasets()?);
            Ok(members)
        });
        let mut members = members.map_err(|error| error.at(self.path(), name))?;
        members.sort();
        Ok(members)
    }

    /// The attributes of the group or dataset `name`.
    pub(crate) fn attributes(&self, name: &str) -> Result<Attributes> {
        use hdf5_pure::Error;
        let values = guarded(|| {
            if name.is_empty() {
                return self.library.root().attrs();
            }
            match self.library.group(name) {
                Err(Error::NotAGroup(_)) => self.library.dataset(name)?.attrs(),
                group => group?.attrs(),
            }
        });
        let values = values.map_err(|error| error.at(self.path(), name))?;
        Ok(Attributes { values })
    }
}

impl Attributes {
    /// A text attribute.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.as_str()
    }

    /// A list of texts. An attribute of another kind, as which empty lists are stored, is an empty list.
    pub(crate) fn texts(&self, name: &str) -> Option<&[String]> {
        Some(self.values.get(name)?.as_strings().unwrap_or_default())
    }

    /// Whether there is a truth value of this name and it is true.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.integers(name).is_some_and(|values| values == [1])
    }

    /// A list of integers.
    pub(crate) fn integers(&self, name: &str) -> Option<Vec<i64>> {
        self.values.get(name)?.to_i64s()
    }
}

impl Element {
    fn new(datatype: &Datatype) -> Self {
        let number = |kind, byte_order: &DatatypeByteOrder| match byte_order {
            DatatypeByteOrder::LittleEndian => Self::Number(StoredNumber {
                kind,
                big_endian: false,
            }),
            DatatypeByteOrder::BigEndian => Self::Number(StoredNumber { kind, big_endian: true }),
            DatatypeByteOrder::Vax => Self::Other("numbers in VAX byte order".into()),
        };
        match datatype {
            Datatype::FixedPoint {
                size,
                byte_order,
                layout,
            } => {
                let whole = layout.bit_offset == 0 && u32::from(layout.bit_precision) == 8 * size;
                let kind = match (size, layout.signed) {
                    (1, true) => NumericType::Int8,
                    (2, true) => NumericType::Int16,
                    (4, true) => NumericType::Int32,
                    (8, true) => NumericType::Int64,
                    (1, false) => NumericType::UInt8,
                    (2, false) => NumericType::UInt16,
                    (4, false) => NumericType::UInt32,
                    (8, false) => NumericType::UInt64,
                    _ => return Self::Other(format!("integers of {size} bytes")),
                };
                match whole {
                    true => number(kind, byte_order),
                    false => Self::Other(format!("integers of {} bits in {size} bytes", layout.bit_precision)),
                }
            }
            Datatype::FloatingPoint {
                size: 4,
                byte_order,
                layout,
            } if *layout == FloatingPointLayout::IEEE754_BINARY32 => number(NumericType::Float32, byte_order),
            Datatype::FloatingPoint {
                size: 8,
                byte_order,
                layout,
            } if *layout == FloatingPointLayout::IEEE754_BINARY64 => number(NumericType::Float64, byte_order),
            Datatype::FloatingPoint {
                size: 2,
                byte_order,
                layout,
            } if (layout.exponent_size, layout.mantissa_size, layout.exponent_bias) == (5, 10, 15) => {
                number(NumericType::Float16, byte_order)
            }
            Datatype::FloatingPoint { size, .. } => Self::Other(format!("floating-point numbers of {size} bytes")),
            Datatype::String { size, padding, .. } => Self::FixedString {
                size: *size as usize,
                space_padded: *padding == StringPadding::SpacePad,
            },
            Datatype::VariableLength { is_string: true, .. } => Self::String,
            // h5py's `bytes` objects and some writers' strings are sequences of characters.
            Datatype::VariableLength { base_type, .. } if matches!(**base_type, Datatype::String { size: 1, .. }) => {
                Self::String
            }
            Datatype::Enumeration { size, members, .. } => {
                let is = |name: &str, value: u8| {
                    members.iter().any(|member| {
                        member.name.eq_ignore_ascii_case(name)
                            && member.value.iter().any(|&byte| byte != 0) == (value != 0)
                    })
                };
                match members.len() == 2 && is("FALSE", 0) && is("TRUE", 1) {
                    true => Self::Bool(*size as usize),
                    false => Self::Other("an enumeration".into()),
                }
            }
            Datatype::Compound { members, .. } => Self::Record(
                members
                    .iter()
                    .map(|member| Member {
                        name: member.name.clone(),
                        offset: usize::try_from(member.byte_offset).unwrap_or(usize::MAX),
                        size: member.datatype.type_size() as usize,
                        element: Self::new(&member.datatype),
                    })
                    .collect(),
            ),
            Datatype::VariableLength { .. } => Self::Other("lists of varying length".into()),
            Datatype::Reference { .. } => Self::Other("references".into()),
            Datatype::Time { .. } => Self::Other("times".into()),
            Datatype::BitField { .. } => Self::Other("bit fields".into()),
            Datatype::Opaque { .. } => Self::Other("opaque values".into()),
            Datatype::Array { .. } => Self::Other("arrays".into()),
            _ => Self::Other("an unknown type".into()),
        }
    }
}

impl H5Dataset {
    fn new(raw: &Arc<RawFile>, name: &str, dataset: &hdf5_pure::Dataset) -> Result<Self> {
        let fault = |fault: String| ConvertError::input(&raw.path, name, fault);
        let failed = |error: LibraryError| error.at(&raw.path, name);
        let (shape, datatype, layout) =
            guarded(|| Ok((dataset.shape()?, dataset.datatype()?, dataset.layout()?))).map_err(failed)?;
        if shape.len() > 2 {
            return Err(fault(format!("has {} dimensions, expected at most 2", shape.len())));
        }
        let element_bytes = u64::from(datatype.type_size());
        if element_bytes == 0 || element_bytes > MAX_ELEMENT_BYTES {
            return Err(fault(format!(
                "has elements of {element_bytes} bytes, expected 1 to {MAX_ELEMENT_BYTES}"
            )));
        }
        let total = shape.iter().try_fold(element_bytes, |bytes, &n| bytes.checked_mul(n));
        let Some(total) = total.filter(|&total| total <= i64::MAX as u64) else {
            return Err(fault(format!("has the shape {shape:?}, which is beyond any file")));
        };
        let element = Element::new(&datatype);
        if let Element::Record(members) = &element {
            let outside = |m: &&Member| {
                m.offset
                    .checked_add(m.size)
                    .is_none_or(|end| end as u64 > element_bytes)
            };
            if let Some(member) = members.iter().find(outside) {
                return Err(fault(format!("field {:?} lies outside its record", member.name)));
            }
        }
        if element == Element::String && element_bytes as usize != 8 + raw.offset_size {
            return Err(fault(format!("has string references of {element_bytes} bytes")));
        }
        let storage = match layout {
            Layout::Compact { size } => {
                let bytes = guarded(|| dataset.read_raw()).map_err(failed)?;
                if size < total || (bytes.len() as u64) < total {
                    return Err(fault(format!("stores {size} bytes, expected {total}")));
                }
                Storage::Inline(bytes)
            }
            Layout::Contiguous {
                address: Some(address), ..
            } => {
                if address.checked_add(total).is_none_or(|end| end > raw.length) {
                    return Err(fault(format!(
                        "{total} bytes at {address} lie outside the file, which has {} bytes: it is cut short or damaged",
                        raw.length
                    )));
                }
                Storage::Contiguous(address)
            }
            Layout::Contiguous { address: None, .. } => {
                Storage::Fill(fill(dataset, &shape, element_bytes).map_err(failed)?)
            }
            Layout::Chunked { chunk_shape, .. } => Storage::Chunked(
                Chunks::new(dataset, &shape, &chunk_shape, element_bytes).map_err(|error| match error {
                    ChunksError::Library(error) => failed(error),
                    ChunksError::Fault(what) => fault(what),
                })?,
            ),
            _ => {
                return Err(fault(
                    "is a virtual dataset, which is not supported; save the file again".into(),
                ));
            }
        };
        Ok(Self {
            raw: Arc::clone(raw),
            name: name.to_owned(),
            shape,
            element,
            element_bytes: element_bytes as usize,
            storage,
            kept: Mutex::new(Vec::new()),
        })
    }

    /// The extent of each dimension.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// What an element is.
    pub(crate) fn element(&self) -> &Element {
        &self.element
    }

    /// Elements along the first dimension; 1 for a scalar.
    pub(crate) fn rows(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements along the second dimension; 1 where there is none.
    pub(crate) fn columns(&self) -> u64 {
        self.shape.get(1).copied().unwrap_or(1)
    }

    /// Bytes of one element.
    pub(crate) fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Rows and columns of one chunk, when the dataset has chunks.
    pub(crate) fn chunk(&self) -> Option<(u64, u64)> {
        match &self.storage {
            Storage::Chunked(chunks) => Some((chunks.rows, chunks.columns)),
            _ => None,
        }
    }

    /// An error about this dataset.
    pub(crate) fn fault(&self, fault: impl Into<String>) -> ConvertError {
        ConvertError::input(&self.raw.path, self.name.as_str(), fault)
    }

    /// The number type of the elements.
    ///
    /// # Errors
    /// When they are not numbers.
    pub(crate) fn number(&self) -> Result<StoredNumber> {
        match &self.element {
            Element::Number(number) => Ok(*number),
            other => Err(self.fault(format!("holds {}, expected numbers", other.describe()))),
        }
    }

    /// The bytes of all columns of `rows`, row by row.
    pub(crate) fn read(&self, rows: Range<u64>, threads: usize) -> Result<Vec<u8>> {
        self.read_block(rows, 0..self.columns(), threads)
    }

    /// The bytes of `columns` of `rows`, row by row. Chunks are decoded by up to `threads` threads.
    pub(crate) fn read_block(&self, rows: Range<u64>, columns: Range<u64>, threads: usize) -> Result<Vec<u8>> {
        if rows.start > rows.end
            || rows.end > self.rows()
            || columns.start > columns.end
            || columns.end > self.columns()
        {
            return Err(self.fault(format!(
                "has the shape {:?}; rows {rows:?} and columns {columns:?} lie outside it",
                self.shape
            )));
        }
        let width = (columns.end - columns.start) * self.element_bytes as u64;
        let bytes = width
            .checked_mul(rows.end - rows.start)
            .filter(|&bytes| bytes <= MAX_READ_BYTES);
        let Some(bytes) = bytes else {
            return Err(self.fault(format!("{rows:?} are more rows than can be read at once")));
        };
        let stride = self.columns() * self.element_bytes as u64;
        let whole = columns == (0..self.columns());
        let start = rows.start * stride + columns.start * self.element_bytes as u64;
        match &self.storage {
            Storage::Contiguous(address) if whole => {
                self.raw.read(address + start, bytes).map_err(|fault| self.fault(fault))
            }
            Storage::Contiguous(address) => {
                let mut out = Vec::with_capacity(bytes as usize);
                for row in 0..rows.end - rows.start {
                    let row = self.raw.read(address + start + row * stride, width);
                    out.extend(row.map_err(|fault| self.fault(fault))?);
                }
                Ok(out)
            }
            Storage::Inline(stored) => {
                let rows = (0..rows.end - rows.start).map(|row| (start + row * stride) as usize);
                Ok(rows
                    .flat_map(|at| stored[at..at + width as usize].iter().copied())
                    .collect())
            }
            Storage::Fill(element) => Ok(element.iter().copied().cycle().take(bytes as usize).collect()),
            Storage::Chunked(chunks) => self.read_chunks(chunks, rows, columns, threads),
        }
    }

    fn read_chunks(&self, chunks: &Chunks, rows: Range<u64>, columns: Range<u64>, threads: usize) -> Result<Vec<u8>> {
        let width = (columns.end - columns.start) as usize * self.element_bytes;
        let mut out = vec![0; (rows.end - rows.start) as usize * width];
        if out.is_empty() {
            return Ok(out);
        }
        let wanted = chunks.overlapping(&rows, &columns);
        let mut kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let mut missing = Vec::new();
        let mut next = Vec::new();
        let mut use_chunk = |place: u64, chunk: Arc<Vec<u8>>| {
            chunks.copy(place, &chunk, &rows, &columns, self.element_bytes, &mut out);
            if chunks.first_row(place) + chunks.rows > rows.end {
                next.push((place, chunk));
            }
        };
        for chunk in wanted {
            match kept.iter().position(|(place, _)| *place == chunk.place) {
                Some(at) => {
                    let (place, chunk) = kept.swap_remove(at);
                    use_chunk(place, chunk);
                }
                None => missing.push(chunk),
            }
        }
        drop(kept);
        self.decode_all(chunks, &missing, threads, use_chunk)?;
        // One has just been in memory, however large it is, and must not be decoded again for every window.
        if next.len() == 1 || next.iter().map(|(_, chunk)| chunk.len()).sum::<usize>() <= KEPT_BYTES {
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = next;
        }
        Ok(out)
    }

    /// Decodes `missing` on up to `threads` threads and gives each chunk to `take`, in any order.
    fn decode_all(
        &self,
        chunks: &Chunks,
        missing: &[StoredChunk],
        threads: usize,
        mut take: impl FnMut(u64, Arc<Vec<u8>>),
    ) -> Result<()> {
        if threads < 2 || missing.len() < 2 {
            for chunk in missing {
                take(chunk.place, Arc::new(self.decode(chunks, chunk)?));
            }
            return Ok(());
        }
        let turn = AtomicUsize::new(0);
        let threads = threads.min(missing.len());
        let (send, receive) = mpsc::sync_channel(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (send, turn) = (send.clone(), &turn);
                scope.spawn(move || {
                    while let Some(chunk) = missing.get(turn.fetch_add(1, Ordering::Relaxed)) {
                        let decoded = self.decode(chunks, chunk);
                        // Nobody receives any more after the first failure.
                        if send.send((chunk.place, decoded)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            // The receiver moves in, so that it is gone, and the senders stop, before the scope waits for them.
            for (place, decoded) in receive {
                take(place, Arc::new(decoded?));
            }
            Ok(())
        })
    }

    fn decode(&self, chunks: &Chunks, chunk: &StoredChunk) -> Result<Vec<u8>> {
        let stored = self
            .raw
            .read(chunk.address, chunk.bytes)
            .map_err(|fault| self.fault(fault))?;
        let expected = (chunks.rows * chunks.columns) as usize * self.element_bytes;
        filter::decode(stored, &chunks.filters, chunk.mask, expected)
            .map_err(|error| self.fault(format!("chunk at {}: {error}", chunk.address)))
    }

    /// The strings of `rows` of a dataset with one dimension; `missing` marks values that are none.
    ///
    /// # Errors
    /// When the elements are not strings, or not UTF-8.
    pub(crate) fn strings(&self, rows: Range<u64>, missing: Option<&[bool]>) -> Result<StringArray> {
        let bytes = self.read(rows.clone(), 1)?;
        self.strings_of(&self.element, &bytes, self.element_bytes, 0, rows.start, missing)
    }

    /// The strings of a field of the records in `bytes`.
    ///
    /// `first` is the row of the first record, for messages.
    pub(crate) fn member_strings(&self, member: &Member, bytes: &[u8], first: u64) -> Result<StringArray> {
        self.strings_of(&member.element, bytes, self.element_bytes, member.offset, first, None)
    }

    fn strings_of(
        &self,
        element: &Element,
        bytes: &[u8],
        stride: usize,
        offset: usize,
        first: u64,
        missing: Option<&[bool]>,
    ) -> Result<StringArray> {
        let mut out = StringBuilder::new();
        let mut heap = Heap::new(&self.raw);
        for (index, bytes) in bytes.chunks_exact(stride).enumerate() {
            if missing.is_some_and(|missing| missing.get(index) == Some(&true)) {
                out.append_null();
                continue;
            }
            let bytes = &bytes[offset..];
            let text = match element {
                Element::FixedString { size, space_padded } => trim(&bytes[..*size], *space_padded),
                Element::String => {
                    let resolved = heap.resolve(bytes).map_err(|fault| self.fault(fault))?;
                    trim(resolved, false)
                }
                other => return Err(self.fault(format!("holds {}, expected strings", other.describe()))),
            };
            let text = std::str::from_utf8(text).map_err(|_| {
                let shown = String::from_utf8_lossy(text);
                self.fault(format!("row {}: {shown:?} is not UTF-8", first + index as u64))
            })?;
            if out.values_slice().len() + text.len() > i32::MAX as usize {
                return Err(self.fault("more than 2 GiB of text in one read"));
            }
            out.append_value(text);
        }
        Ok(out.finish())
    }

    /// The truth values of `rows`; `missing` marks values that are none.
    pub(crate) fn bools(&self, rows: Range<u64>, missing: Option<&[bool]>) -> Result<BooleanArray> {
        let bytes = self.read(rows, 1)?;
        let size = match &self.element {
            Element::Bool(size) => *size,
            // Some writers store truth values as bytes.
            Element::Number(StoredNumber {
                kind: NumericType::Int8 | NumericType::UInt8,
                ..
            }) => 1,
            other => return Err(self.fault(format!("holds {}, expected truth values", other.describe()))),
        };
        Ok(bools(&bytes, size, size, 0, missing))
    }

    /// The numbers of `rows` as an Arrow array of their own type; `missing` and NaN are nulls.
    pub(crate) fn numbers(&self, rows: Range<u64>, missing: Option<&[bool]>) -> Result<ArrayRef> {
        let bytes = self.read(rows, 1)?;
        Ok(self.number()?.array(&bytes, missing))
    }

    /// The numbers of `rows` as offsets or sizes.
    pub(crate) fn offsets(&self, rows: Range<u64>) -> Result<Vec<u64>> {
        let first = rows.start;
        let bytes = self.read(rows, 1)?;
        self.number()?
            .offsets(&bytes)
            .map_err(|(index, value)| self.fault(format!("entry {} is {value}", first + index as u64)))
    }

    /// One field of the records in `bytes`, as if it were stored by itself.
    pub(crate) fn member_bytes(&self, member: &Member, bytes: &[u8]) -> Vec<u8> {
        let records = bytes.chunks_exact(self.element_bytes);
        records
            .flat_map(|record| record[member.offset..member.offset + member.size].iter().copied())
            .collect()
    }
}

/// Truth values of `size` bytes each, `stride` apart.
pub(crate) fn bools(bytes: &[u8], size: usize, stride: usize, offset: usize, missing: Option<&[bool]>) -> BooleanArray {
    bytes
        .chunks_exact(stride)
        .enumerate()
        .map(|(index, bytes)| {
            let value = bytes[offset..offset + size].iter().any(|&byte| byte != 0);
            missing
                .is_none_or(|missing| missing.get(index) != Some(&true))
                .then_some(value)
        })
        .collect()
}

impl Element {
    /// For messages: what it holds.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Number(number) => format!("{} numbers", number.kind.arrow_name()),
            Self::Bool(_) => "truth values".into(),
            Self::FixedString { .. } | Self::String => "strings".into(),
            Self::Record(_) => "records".into(),
            Self::Other(what) => what.clone(),
        }
    }
}

fn trim(bytes: &[u8], space_padded: bool) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let bytes = &bytes[..end];
    match space_padded {
        true => bytes.trim_ascii_end(),
        false => bytes,
    }
}

/// The element that a dataset consists of which was never written.
fn fill(dataset: &hdf5_pure::Dataset, shape: &[u64], element_bytes: u64) -> std::result::Result<Vec<u8>, LibraryError> {
    let row_bytes = shape.iter().skip(1).product::<u64>() * element_bytes;
    let zeros = vec![0; element_bytes as usize];
    if shape.contains(&0) || row_bytes > MAX_READ_BYTES {
        return Ok(zeros);
    }
    // Reading, rather than asking for the fill value, also finds data in other files, which are refused.
    let mut row = guarded(|| dataset.read_raw_rows(0, 1))?;
    row.truncate(element_bytes as usize);
    match row.len() as u64 == element_bytes {
        true => Ok(row),
        false => Ok(zeros),
    }
}

enum ChunksError {
    Library(LibraryError),
    Fault(String),
}

impl Chunks {
    fn new(
        dataset: &hdf5_pure::Dataset,
        shape: &[u64],
        chunk_shape: &[u64],
        element_bytes: u64,
    ) -> std::result::Result<Self, ChunksError> {
        let fault = |what: String| Err(ChunksError::Fault(what));
        let bytes = chunk_shape
            .iter()
            .try_fold(element_bytes, |bytes, &n| bytes.checked_mul(n));
        // The format's own limit on a chunk.
        if chunk_shape.len() != shape.len() || bytes.is_none_or(|bytes| bytes == 0 || bytes > u64::from(u32::MAX)) {
            return fault(format!("has chunks of the shape {chunk_shape:?}"));
        }
        let mut filters = Vec::new();
        for filter in dataset.filter_pipeline() {
            match Filter::new(
                filter.id,
                &filter.client_data,
                filter.name.as_deref(),
                element_bytes as usize,
            ) {
                Ok(filter) => filters.push(filter),
                Err(unsupported) => return fault(unsupported.to_string()),
            }
        }
        let (rows, columns) = (
            chunk_shape.first().copied().unwrap_or(1),
            chunk_shape.get(1).copied().unwrap_or(1),
        );
        let across = shape.get(1).copied().unwrap_or(1).div_ceil(columns);
        let listed = guarded(|| dataset.chunks()).map_err(ChunksError::Library)?;
        let mut stored = Vec::with_capacity(listed.len());
        for chunk in listed {
            let row = chunk.offset.first().copied().unwrap_or(0);
            let column = chunk.offset.get(1).copied().unwrap_or(0);
            let inside = chunk.offset.iter().zip(shape).all(|(at, extent)| at < extent);
            // Chunks outside the shape are left behind when a dataset is made smaller.
            if !inside {
                continue;
            }
            if row % rows != 0 || column % columns != 0 {
                return fault(format!(
                    "has a chunk at {:?}, which is not a multiple of {chunk_shape:?}",
                    chunk.offset
                ));
            }
            stored.push(StoredChunk {
                place: row / rows * across + column / columns,
                address: chunk.address,
                bytes: chunk.storage_size,
                mask: chunk.filter_mask,
            });
        }
        stored.sort_by_key(|chunk| chunk.place);
        let all = shape
            .first()
            .copied()
            .unwrap_or(1)
            .div_ceil(rows)
            .saturating_mul(across);
        if (stored.len() as u64) < all && !shape.contains(&0) && !fills_with_zero(dataset) {
            return fault("has chunks that were never written, and a fill value that is not zero".into());
        }
        Ok(Self {
            rows,
            columns,
            across,
            filters,
            stored,
        })
    }

    fn first_row(&self, place: u64) -> u64 {
        place / self.across * self.rows
    }

    fn first_column(&self, place: u64) -> u64 {
        place % self.across * self.columns
    }

    /// The stored chunks that hold something of the window; both ranges hold something.
    fn overlapping(&self, rows: &Range<u64>, columns: &Range<u64>) -> Vec<StoredChunk> {
        let (first, last) = (
            rows.start / self.rows * self.across,
            rows.end.div_ceil(self.rows) * self.across,
        );
        let from = self.stored.partition_point(|chunk| chunk.place < first);
        let to = self.stored.partition_point(|chunk| chunk.place < last);
        let beside = |chunk: &&StoredChunk| {
            let column = self.first_column(chunk.place);
            column < columns.end && column + self.columns > columns.start
        };
        self.stored[from..to].iter().filter(beside).copied().collect()
    }

    /// Copies what a chunk has of the window into the window's bytes.
    fn copy(&self, place: u64, chunk: &[u8], rows: &Range<u64>, columns: &Range<u64>, element: usize, out: &mut [u8]) {
        let (row, column) = (self.first_row(place), self.first_column(place));
        let (top, bottom) = (row.max(rows.start), (row + self.rows).min(rows.end));
        let (left, right) = (column.max(columns.start), (column + self.columns).min(columns.end));
        let length = (right - left) as usize * element;
        let width = (columns.end - columns.start) as usize * element;
        let chunk_width = self.columns as usize * element;
        let mut from = (top - row) as usize * chunk_width + (left - column) as usize * element;
        let mut to = (top - rows.start) as usize * width + (left - columns.start) as usize * element;
        if length == width && length == chunk_width {
            let length = length * (bottom - top) as usize;
            out[to..to + length].copy_from_slice(&chunk[from..from + length]);
            return;
        }
        for _ in top..bottom {
            out[to..to + length].copy_from_slice(&chunk[from..from + length]);
            from += chunk_width;
            to += width;
        }
    }
}

/// Whether elements that were never written read as zero.
fn fills_with_zero(dataset: &hdf5_pure::Dataset) -> bool {
    match guarded(|| dataset.fill_value::<f64>()) {
        Ok(None) => true,
        Ok(Some(value)) => value == 0.0,
        // Not a number: strings and references are then null.
        Err(_) => true,
    }
}
