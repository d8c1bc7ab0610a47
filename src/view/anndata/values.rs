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

/// The bytes `range` of the rows of one tile as `part` of the column: what [`Extent::Obs`](crate::view::hierarchy::Extent::Obs) stands for.
///
/// Costs what the rows in the range cost, except for [`Part::CountedText`], of which all rows are written to cut a range from
/// them. So the rows, which are compact, are worth keeping, and these bytes are not: text padded to the longest can take
/// far more room than the text. `range` is cut to what there is.
///
/// # Errors
/// As [`encode`].
pub fn encode_range(
    column: &ObsColumn,
    part: Part,
    array: &ArrayRef,
    range: Range<u64>,
) -> Result<Vec<u8>, EncodeError> {
    let Some(width) = width(column, part) else {
        return Ok(cut(encode(column, part, array)?, 0, range));
    };
    let rows = array.len() as u64;
    let first = (range.start / width).min(rows);
    let end = range.end.div_ceil(width).clamp(first, rows);
    let part_of = array.slice(first as usize, (end - first) as usize);
    let encoded = encode(column, part, &part_of).map_err(|error| error.after(first as usize))?;
    Ok(cut(encoded, first * width, range))
}

/// Bytes of a row; `None` where rows have different sizes.
fn width(column: &ObsColumn, part: Part) -> Option<u64> {
    match (part, &column.kind) {
        (Part::CountedText, _) => None,
        (Part::FixedText { width }, _) => Some(width.max(1).into()),
        (Part::Mask, _) => Some(1),
        (Part::Codes, ColumnKind::Category { codes, .. }) => Some(codes.width() as u64),
        (Part::Values, ColumnKind::Numeric(number)) => Some(number.width() as u64),
        (Part::Codes | Part::Values, _) => Some(1),
    }
}

/// Of `bytes`, which start at `start`, those in `range`.
fn cut(mut bytes: Vec<u8>, start: u64, range: Range<u64>) -> Vec<u8> {
    let inside = |at: u64| (at.max(start) - start).min(bytes.len() as u64) as usize;
    let (from, to) = (inside(range.start), inside(range.end));
    bytes.truncate(to.max(from));
    bytes.drain(..from);
    bytes
}

impl EncodeError {
    /// The same of rows that come after `rows` others.
    fn after(mut self, rows: usize) -> Self {
        match &mut self {
            Self::Code { cell, .. } | Self::LongText { cell, .. } => *cell += rows,
            Self::Type { .. } | Self::Part { .. } => {}
        }
        self
    }
}

/// All rows of one tile as `part` of the column.
///
/// `array` has the column's values as stored: of [`ColumnKind::stored_type`].
///
/// # Errors
/// [`EncodeError`] when the values are of another type, mean no category, or are longer than was found before.
pub fn encode(column: &ObsColumn, part: Part, array: &ArrayRef) -> Result<Vec<u8>, EncodeError> {
    let expected = column.kind.stored_type();
    if array.data_type() != &expected {
        return Err(EncodeError::Type {
            column: column.name.clone(),
            found: array.data_type().clone(),
            expected,
        });
    }
    let texts = || array.as_string::<i32>();
    match (&column.kind, part) {
        (ColumnKind::Category { categories, .. }, Part::Codes) => codes(&column.name, array, categories.len() as i64),
        (ColumnKind::Numeric(number), Part::Values) => Ok(numbers(array, *number)),
        (ColumnKind::Bool, Part::Values) => Ok(truths(array.as_boolean())),
        (ColumnKind::Numeric(_) | ColumnKind::Bool | ColumnKind::String, Part::Mask) => Ok(mask(array)),
        (ColumnKind::String, Part::FixedText { width }) => fixed_texts(&column.name, texts(), width),
        (ColumnKind::String, Part::CountedText) => Ok(counted_texts(texts())),
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

fn fixed_texts(column: &str, texts: &StringArray, width: u32) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = vec![0; texts.len() * width as usize];
    for (cell, (text, room)) in texts.iter().zip(bytes.chunks_exact_mut(width as usize)).enumerate() {
        let text = text.unwrap_or_default().as_bytes();
        let Some(room) = room.get_mut(..text.len()) else {
            return Err(EncodeError::LongText {
                column: column.to_owned(),
                cell,
                found: text.len(),
                most: width,
            });
        };
        room.copy_from_slice(text);
    }
    Ok(bytes)
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
        let column = column(ColumnKind::String);
        let fixed = |width| encode(&column, Part::FixedText { width }, &texts);
        assert_eq!(fixed(3).unwrap(), b"\xc3\xa9\0\0\0\0");
        assert!(
            fixed(1)
                .unwrap_err()
                .to_string()
                .contains("2 bytes at cell 0, expected at most 1")
        );
        let counted = encode(&column, Part::CountedText, &texts).unwrap();
        assert_eq!(counted, b"\x02\0\0\0\xc3\xa9\0\0\0\0");
    }

    #[test]
    fn every_range_is_cut_from_the_same_whole() {
        let text = column(ColumnKind::String);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("xyz"), None, Some("\u{e9}"), Some("a")]));
        let codes: ArrayRef = Arc::new(Int16Array::from(vec![1, -1, 0, 2]));
        for (column, part, array) in [
            (&text, Part::FixedText { width: 3 }, &texts),
            (&text, Part::CountedText, &texts),
            (&text, Part::Mask, &texts),
            (&category(NumericType::Int16, 3), Part::Codes, &codes),
        ] {
            let whole = encode(column, part, array).unwrap();
            for start in 0..=whole.len() {
                for end in start..=whole.len() + 2 {
                    let got = encode_range(column, part, array, start as u64..end as u64).unwrap();
                    assert_eq!(got, whole[start..end.min(whole.len())], "{part:?} {start}..{end}");
                }
            }
        }
        let error = encode_range(&category(NumericType::Int16, 2), Part::Codes, &codes, 5..8).unwrap_err();
        assert!(error.to_string().contains("the code 2 at cell 3"), "{error}");
        assert!(encode_range(&category(NumericType::Int16, 2), Part::Codes, &codes, 0..6).is_ok());
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
        assert!(matches!(
            encode(&text, Part::Codes, &texts),
            Err(EncodeError::Part { .. })
        ));
    }
}
