//! Rows of a column as the bytes of an array: one element after another, nothing between.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StringArray};
use arrow::datatypes::{DataType, Int8Type, Int16Type};
use thiserror::Error;

use super::Part;
use crate::format::obs::{ColumnKind, NumericType, ObsColumn};
use crate::view::arrow::fixed_values;

/// Why rows cannot be written as a part of their column.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// The values are not of the column's type.
    #[error("column {column:?} was given values of type {found}, expected {expected}")]
    Type {
        column: String,
        found: DataType,
        expected: DataType,
    },
    /// The column has no such part.
    #[error("column {column:?} of kind {kind} was asked for {part:?}")]
    Part {
        column: String,
        kind: &'static str,
        part: Part,
    },
    /// A code that means no category.
    #[error("column {column:?} has the code {found} at cell {cell}, expected -1 to {most}")]
    Code {
        column: String,
        cell: usize,
        found: String,
        most: i64,
    },
    /// A text longer than the column's longest was found to be.
    #[error("column {column:?} has a text of {found} bytes at cell {cell}, expected at most {most}")]
    LongText {
        column: String,
        cell: usize,
        found: usize,
        most: u32,
    },
}

/// The bytes `range` of [`Part::FixedText`] of `width` bytes a row, made of the same rows as [`Part::CountedText`].
///
/// Only rows in the range are written: padded to the longest, a tile's text could take any amount of room.
/// `range` is cut to what there is.
///
/// # Errors
/// [`EncodeError::LongText`] when a text is longer than `width`.
pub fn pad(column: &str, counted: &[u8], width: u32, range: Range<u64>) -> Result<Vec<u8>, EncodeError> {
    let row_bytes = u64::from(width.max(1));
    let first = range.start / row_bytes;
    let rows = range.end.div_ceil(row_bytes).saturating_sub(first);
    let mut bytes = Vec::new();
    for (cell, text) in texts(counted).enumerate().skip(first as usize).take(rows as usize) {
        if text.len() as u64 > row_bytes {
            return Err(EncodeError::LongText {
                column: column.to_owned(),
                cell,
                found: text.len(),
                most: width,
            });
        }
        bytes.extend_from_slice(text);
        bytes.resize(bytes.len() - text.len() + row_bytes as usize, 0);
    }
    let skipped = ((range.start - first * row_bytes) as usize).min(bytes.len());
    bytes.drain(..skipped);
    bytes.truncate((range.end - range.start) as usize);
    Ok(bytes)
}

/// The texts of [`Part::CountedText`], one after another.
fn texts(counted: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = counted;
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some(text)
    })
}

/// All rows of one tile as `part` of the column, except [`Part::FixedText`], which [`pad`] makes of [`Part::CountedText`].
///
/// `array` has the column's values as stored: of [`ColumnKind::stored_type`].
///
/// # Errors
/// [`EncodeError`] when the values are of another type or mean no category.
pub fn encode(column: &ObsColumn, part: Part, array: &ArrayRef) -> Result<Vec<u8>, EncodeError> {
    let expected = column.kind.stored_type();
    if array.data_type() != &expected {
        return Err(EncodeError::Type {
            column: column.name.clone(),
            found: array.data_type().clone(),
            expected,
        });
    }
    match (&column.kind, part) {
        (ColumnKind::Category { categories, .. }, Part::Codes) => codes(&column.name, array, categories.len() as i64),
        (ColumnKind::Numeric(number), Part::Values) => Ok(numbers(array, *number)),
        (ColumnKind::Bool, Part::Values) => Ok(truths(array.as_boolean())),
        (ColumnKind::Numeric(_) | ColumnKind::Bool | ColumnKind::String, Part::Mask) => Ok(mask(array)),
        (ColumnKind::String, Part::CountedText) => Ok(counted_texts(array.as_string())),
        (kind, part) => Err(EncodeError::Part {
            column: column.name.clone(),
            kind: kind.arrow_name(),
            part,
        }),
    }
}

/// Codes as they are, once each is known to mean a category or -1.
fn codes(column: &str, array: &ArrayRef, n_categories: i64) -> Result<Vec<u8>, EncodeError> {
    let wrong = |cell, found: Option<i64>| EncodeError::Code {
        column: column.to_owned(),
        cell,
        found: found.map_or_else(|| "null".into(), |code| code.to_string()),
        most: n_categories - 1,
    };
    if let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) {
        let cell = (0..array.len()).find(|&cell| nulls.is_null(cell)).unwrap_or(0);
        return Err(wrong(cell, None));
    }
    let (bytes, width) = match array.data_type() {
        DataType::Int8 => (fixed_values(array, 1), 1),
        DataType::Int16 => (fixed_values(array, 2), 2),
        _ => (fixed_values(array, 4), 4),
    };
    let code = |cell: usize| -> i64 {
        match width {
            1 => array.as_primitive::<Int8Type>().value(cell).into(),
            2 => array.as_primitive::<Int16Type>().value(cell).into(),
            _ => array.as_primitive::<arrow::datatypes::Int32Type>().value(cell).into(),
        }
    };
    match (0..array.len()).find(|&cell| !(-1..n_categories).contains(&code(cell))) {
        Some(cell) => Err(wrong(cell, Some(code(cell)))),
        None => Ok(bytes.to_vec()),
    }
}

/// Numbers, with NaN or 0 for those that are missing.
pub(super) fn numbers(array: &ArrayRef, number: NumericType) -> Vec<u8> {
    let width = number.width();
    let mut bytes = fixed_values(array, width).to_vec();
    // Quiet NaNs; what is stored where a value is missing is not for anyone to see.
    let missing = match number {
        NumericType::Float16 => 0x7e00_u64,
        NumericType::Float32 => 0x7fc0_0000,
        NumericType::Float64 => 0x7ff8_0000_0000_0000,
        _ => 0,
    }
    .to_le_bytes();
    for row in missing_rows(array) {
        bytes[row * width..(row + 1) * width].copy_from_slice(&missing[..width]);
    }
    bytes
}

/// Truth values, a byte each; 0 for those that are missing.
pub(super) fn truths(array: &BooleanArray) -> Vec<u8> {
    array.iter().map(|truth| u8::from(truth == Some(true))).collect()
}

/// A byte a row: 1 where the value is missing.
pub(super) fn mask(array: &dyn Array) -> Vec<u8> {
    let mut mask = vec![0; array.len()];
    for row in missing_rows(array) {
        mask[row] = 1;
    }
    mask
}

fn missing_rows(array: &dyn Array) -> impl Iterator<Item = usize> + '_ {
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    nulls
        .into_iter()
        .flat_map(|nulls| (0..nulls.len()).filter(|&row| nulls.is_null(row)))
}

fn counted_texts(texts: &StringArray) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * texts.len() + texts.value_data().len());
    for text in texts {
        let text = text.unwrap_or_default();
        bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float32Array, Int8Array, Int16Array, Int64Array};
    use arrow::buffer::{NullBuffer, ScalarBuffer};

    use super::*;

    fn column(kind: ColumnKind) -> ObsColumn {
        ObsColumn { name: "c".into(), kind }
    }

    fn category(codes: NumericType, n_categories: usize) -> ObsColumn {
        let categories = (0..n_categories).map(|label| label.to_string()).collect();
        column(ColumnKind::Category { codes, categories })
    }

    #[test]
    fn codes_are_copied_and_held_against_the_vocabulary() {
        let codes: ArrayRef = Arc::new(Int16Array::from(vec![9, -1, 2, 0]));
        let column = category(NumericType::Int16, 3);
        let bytes = encode(&column, Part::Codes, &codes.slice(1, 3)).unwrap();
        assert_eq!(bytes, [0xff, 0xff, 2, 0, 0, 0]);
        let error = encode(&column, Part::Codes, &codes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "column \"c\" has the code 9 at cell 0, expected -1 to 2"
        );
        let null: ArrayRef = Arc::new(Int8Array::from(vec![Some(0), None]));
        let error = encode(&category(NumericType::Int8, 3), Part::Codes, &null).unwrap_err();
        assert!(error.to_string().contains("the code null at cell 1"), "{error}");
    }

    #[test]
    fn what_is_missing_is_nan_or_nothing_whatever_is_stored_there() {
        let nulls = Some(NullBuffer::from(vec![true, false]));
        let floats: ArrayRef = Arc::new(Float32Array::new(ScalarBuffer::from(vec![1.5, 7.0]), nulls.clone()));
        let kind = ColumnKind::Numeric(NumericType::Float32);
        let bytes = encode(&column(kind), Part::Values, &floats).unwrap();
        assert_eq!(bytes[..4], 1.5_f32.to_le_bytes());
        assert!(f32::from_le_bytes(bytes[4..].try_into().unwrap()).is_nan());
        let integers: ArrayRef = Arc::new(Int64Array::new(ScalarBuffer::from(vec![-1, 7]), nulls));
        let kind = column(ColumnKind::Numeric(NumericType::Int64));
        let bytes = encode(&kind, Part::Values, &integers).unwrap();
        assert_eq!(bytes, [(-1_i64).to_le_bytes(), [0; 8]].concat());
        assert_eq!(encode(&kind, Part::Mask, &integers).unwrap(), [0, 1]);
        assert_eq!(encode(&kind, Part::Mask, &integers.slice(1, 1)).unwrap(), [1]);
        let truths: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
        assert_eq!(
            encode(&column(ColumnKind::Bool), Part::Values, &truths).unwrap(),
            [1, 0, 0]
        );
        assert_eq!(
            encode(&column(ColumnKind::Bool), Part::Mask, &truths).unwrap(),
            [0, 1, 0]
        );
    }

    #[test]
    fn text_is_padded_or_counted() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("xyz"), Some("\u{e9}"), None]));
        let texts = texts.slice(1, 2);
        let counted = encode(&column(ColumnKind::String), Part::CountedText, &texts).unwrap();
        assert_eq!(counted, b"\x02\0\0\0\xc3\xa9\0\0\0\0");
        assert_eq!(pad("c", &counted, 3, 0..6).unwrap(), b"\xc3\xa9\0\0\0\0");
        let error = pad("c", &counted, 1, 0..2).unwrap_err();
        assert!(
            error.to_string().contains("2 bytes at cell 0, expected at most 1"),
            "{error}"
        );
        assert_eq!(
            pad("c", &counted, 1, 1..2).unwrap(),
            [0],
            "the long one is not in the range"
        );
    }

    #[test]
    fn every_range_of_padded_text_is_cut_from_the_same_whole() {
        let counted = b"\x03\0\0\0xyz\0\0\0\0\x02\0\0\0\xc3\xa9\x01\0\0\0a";
        let whole = b"xyz\0\0\0\xc3\xa9\0a\0\0";
        for start in 0..=whole.len() {
            for end in start..=whole.len() + 2 {
                let got = pad("c", counted, 3, start as u64..end as u64).unwrap();
                assert_eq!(got, whole[start..end.min(whole.len())], "{start}..{end}");
            }
        }
    }

    #[test]
    fn other_types_and_other_parts_are_refused() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
        let number = column(ColumnKind::Numeric(NumericType::Int8));
        assert!(matches!(
            encode(&number, Part::Values, &texts),
            Err(EncodeError::Type { .. })
        ));
        let text = column(ColumnKind::String);
        for part in [Part::Codes, Part::FixedText { width: 1 }] {
            assert!(matches!(encode(&text, part, &texts), Err(EncodeError::Part { .. })));
        }
    }
}
