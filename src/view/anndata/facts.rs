//! What must be known of a column's content before it has a place in a file.

use arrow::array::{Array, AsArray};

use super::Dtype;
use super::frame::needs_mask;
use crate::format::obs::ColumnKind;

/// What was found in the rows of one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileFacts {
    /// Whether a value is missing.
    pub has_missing: bool,
    /// Bytes of the longest text; 0 for what is no text.
    pub longest: u64,
    /// Bytes of all text; 0 for what is no text.
    pub text_bytes: u64,
}

impl TileFacts {
    /// Looks at the rows of a tile, as they are stored.
    pub fn of(array: &dyn Array) -> Self {
        let mut facts = Self {
            has_missing: array.null_count() > 0,
            ..Self::default()
        };
        if let Some(texts) = array.as_string_opt::<i32>() {
            for text in texts.iter().flatten() {
                facts.longest = facts.longest.max(text.len() as u64);
                facts.text_bytes += text.len() as u64;
            }
        }
        facts
    }
}

/// What is known of a whole column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnFacts {
    /// Whether a value is missing.
    pub has_missing: bool,
    /// Bytes of the longest text.
    pub longest: u64,
    /// Bytes of text in each tile.
    pub text_bytes: Vec<u64>,
}

impl ColumnFacts {
    /// Whether anything must be known of a column of this kind. Categories have a code for what is missing, and
    /// numbers with a fraction have NaN.
    pub fn are_needed(kind: &ColumnKind) -> bool {
        match kind {
            ColumnKind::Category { .. } => false,
            ColumnKind::Numeric(number) => needs_mask(Dtype::Number(*number)),
            ColumnKind::Bool | ColumnKind::String => true,
        }
    }
}

/// The facts of all tiles, in order.
impl FromIterator<TileFacts> for ColumnFacts {
    fn from_iter<T: IntoIterator<Item = TileFacts>>(tiles: T) -> Self {
        let mut facts = Self::default();
        for tile in tiles {
            facts.has_missing |= tile.has_missing;
            facts.longest = facts.longest.max(tile.longest);
            facts.text_bytes.push(tile.text_bytes);
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::obs::NumericType;
    use arrow::array::{Int8Array, StringArray};

    #[test]
    fn missing_text_is_neither_long_nor_bytes() {
        let texts = StringArray::from(vec![Some("a"), None, Some("\u{e9}b")]);
        let facts = TileFacts::of(&texts.slice(1, 2));
        let (has_missing, longest, text_bytes) = (true, 3, 3);
        assert_eq!(
            facts,
            TileFacts {
                has_missing,
                longest,
                text_bytes
            }
        );
        assert!(!TileFacts::of(&texts.slice(2, 1)).has_missing);
        let column: ColumnFacts = [facts, TileFacts::of(&Int8Array::from(vec![1]))].into_iter().collect();
        assert_eq!(
            (column.has_missing, column.longest, column.text_bytes),
            (true, 3, vec![3, 0])
        );
    }

    #[test]
    fn nothing_need_be_known_of_what_can_say_that_it_is_missing() {
        let category = ColumnKind::Category {
            codes: NumericType::Int8,
            categories: vec![],
        };
        assert!(!ColumnFacts::are_needed(&category));
        assert!(!ColumnFacts::are_needed(&ColumnKind::Numeric(NumericType::Float16)));
        assert!(ColumnFacts::are_needed(&ColumnKind::Numeric(NumericType::UInt8)));
        assert!(ColumnFacts::are_needed(&ColumnKind::Bool));
    }
}
