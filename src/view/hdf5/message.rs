//! Object header messages (HDF5 File Format Specification, IV.A.2): what an object says of itself.
//!
//! Each function gives the body of one message. Bodies have a length that does not depend on any address in them.

use super::heap::Heap;
use crate::format::obs::NumericType;
use crate::view::hierarchy::{Attribute, Dtype, Shape, Value};

/// An address that is nowhere.
pub(super) const UNDEFINED: u64 = u64::MAX;

/// A message's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Dataspace = 0x01,
    LinkInfo = 0x02,
    Datatype = 0x03,
    FillValue = 0x05,
    Link = 0x06,
    Layout = 0x08,
    GroupInfo = 0x0a,
    Attribute = 0x0c,
}

/// Dataspace of version 2.
pub(super) fn dataspace(shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Scalar => vec![2, 0, 0, 0],
        Shape::Vector(length) => [&[2, 1, 0, 1], &length.to_le_bytes()[..]].concat(),
    }
}

/// Datatype of an array's elements: version 1, which every reader knows.
pub(super) fn datatype(dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::Number(number) => numeric(number),
        Dtype::Bool => boolean(),
        // Padded with zeros (1), UTF-8 (1).
        Dtype::Text { .. } => [&[0x13, 0x11, 0, 0], &(dtype.width() as u32).to_le_bytes()[..]].concat(),
    }
}

fn numeric(number: NumericType) -> Vec<u8> {
    use NumericType::*;
    let size = number.width() as u32;
    let bits = 8 * size as u16;
    let signed = match number {
        Int8 | Int16 | Int32 | Int64 => 0x08,
        UInt8 | UInt16 | UInt32 | UInt64 => 0x00,
        Float16 => return float(size, 10, 5, 15),
        Float32 => return float(size, 23, 8, 127),
        Float64 => return float(size, 52, 11, 1023),
    };
    let mut message = vec![0x10, signed, 0, 0];
    message.extend_from_slice(&size.to_le_bytes());
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(&bits.to_le_bytes());
    message
}

/// IEEE: sign, exponent and mantissa from the top, the mantissa's first bit implied.
fn float(size: u32, mantissa_bits: u8, exponent_bits: u8, bias: u32) -> Vec<u8> {
    let bits = 8 * size as u16;
    let mut message = vec![0x11, 0x20, (bits - 1) as u8, 0];
    message.extend_from_slice(&size.to_le_bytes());
    message.extend_from_slice(&[0, 0]);
    message.extend_from_slice(&bits.to_le_bytes());
    message.extend_from_slice(&[mantissa_bits, exponent_bits, 0, mantissa_bits]);
    message.extend_from_slice(&bias.to_le_bytes());
    message
}

/// The enumeration of int8 that h5py takes for truth values.
fn boolean() -> Vec<u8> {
    let mut message = vec![0x18, 2, 0, 0, 1, 0, 0, 0];
    message.extend_from_slice(&numeric(NumericType::Int8));
    message.extend_from_slice(b"FALSE\0\0\0TRUE\0\0\0\0\0\x01");
    message
}

/// UTF-8 text of variable length.
fn variable_text() -> Vec<u8> {
    let mut message = vec![0x19, 0x01, 0x01, 0, 16, 0, 0, 0];
    message.extend_from_slice(&numeric(NumericType::UInt8));
    message
}

/// Fill value of version 3: none, allocated late, written if set.
pub(super) fn fill_value() -> Vec<u8> {
    vec![3, 0x0a]
}

/// Layout of version 3: contiguous, `bytes` bytes at `address`.
pub(super) fn layout(address: u64, bytes: u64) -> Vec<u8> {
    [&[3, 1][..], &address.to_le_bytes(), &bytes.to_le_bytes()].concat()
}

/// Link info of version 0 for links that are messages.
pub(super) fn link_info() -> Vec<u8> {
    [&[0, 0][..], &UNDEFINED.to_le_bytes(), &UNDEFINED.to_le_bytes()].concat()
}

/// Group info of version 0, all defaults.
pub(super) fn group_info() -> Vec<u8> {
    vec![0, 0]
}

/// A hard link of version 1 to the object at `address`, its name in UTF-8.
pub(super) fn link(name: &str, address: u64) -> Vec<u8> {
    // The length of the name has 4 bytes (2 in the lowest bits); the character set is given (0x10).
    let mut message = vec![1, 0x12, 1];
    message.extend_from_slice(&(name.len() as u32).to_le_bytes());
    message.extend_from_slice(name.as_bytes());
    message.extend_from_slice(&address.to_le_bytes());
    message
}

/// Attribute of version 3, its name in UTF-8. Texts go to the heap.
pub(super) fn attribute(attribute: &Attribute, heap: &mut Heap) -> Vec<u8> {
    let (datatype, shape, data) = match &attribute.value {
        Value::Text(text) => (variable_text(), Shape::Scalar, reference(heap, text).to_vec()),
        Value::Texts(texts) => (
            variable_text(),
            Shape::Vector(texts.len() as u64),
            texts.iter().flat_map(|text| reference(heap, text)).collect(),
        ),
        Value::Integers(numbers) => (
            numeric(NumericType::Int64),
            Shape::Vector(numbers.len() as u64),
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        ),
        Value::Bool(truth) => (boolean(), Shape::Scalar, vec![u8::from(*truth)]),
    };
    let dataspace = dataspace(shape);
    let mut message = vec![3, 0];
    for length in [attribute.name.len() + 1, datatype.len(), dataspace.len()] {
        message.extend_from_slice(&(length as u16).to_le_bytes());
    }
    message.push(1);
    message.extend_from_slice(attribute.name.as_bytes());
    message.push(0);
    message.extend_from_slice(&datatype);
    message.extend_from_slice(&dataspace);
    message.extend_from_slice(&data);
    message
}

/// An element of variable length: how long it is and where it lies.
fn reference(heap: &mut Heap, text: &str) -> [u8; 16] {
    let mut reference = [0; 16];
    if !text.is_empty() {
        let id = heap.place(text);
        reference[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
        reference[4..12].copy_from_slice(&id.collection.to_le_bytes());
        reference[12..14].copy_from_slice(&id.index.to_le_bytes());
    }
    reference
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes as HDF5 1.14 encodes the same types, except that it may choose a later version of the message.
    #[test]
    fn types_are_encoded_as_the_library_encodes_them() {
        for (dtype, expected) in [
            (Dtype::Number(NumericType::Int8), "10080000010000000000 0800"),
            (Dtype::Number(NumericType::UInt64), "10000000080000000000 4000"),
            (
                Dtype::Number(NumericType::Float16),
                "11200f0002000000000010000a05000a0f000000",
            ),
            (
                Dtype::Number(NumericType::Float32),
                "11201f000400000000002000170800177f000000",
            ),
            (
                Dtype::Number(NumericType::Float64),
                "11203f000800000000004000340b0034ff030000",
            ),
            (Dtype::Text { longest: 5 }, "1311000005000000"),
            (
                Dtype::Bool,
                "1802000001000000 100800000100000000000800 46414c5345000000 5452554500000000 0001",
            ),
        ] {
            let hex: String = datatype(dtype).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected.replace(' ', ""), "{dtype:?}");
        }
    }

    #[test]
    fn no_text_takes_less_than_a_byte() {
        assert_eq!(datatype(Dtype::Text { longest: 0 })[4..], [1, 0, 0, 0]);
    }
}
