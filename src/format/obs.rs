//! `obs/schema.json`: the columns that describe cells.
//!
//! Knows the schema's text and its rules, not how a shard stores the columns nor how a view shows them.

use std::collections::HashMap;
use std::fmt;

use arrow::datatypes::DataType;
use serde::Deserialize;
use serde::de::Error as _;
use thiserror::Error;

use super::json;

/// The `format` key of every obs schema.
pub const FORMAT: &str = "deltacells-obs";
/// The obs schema version this crate reads and writes.
pub const VERSION: u64 = 1;

/// The number types a column can have (format, "Schema"; `arrow_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NumericType {
    /// `int8`
    Int8,
    /// `int16`
    Int16,
    /// `int32`
    Int32,
    /// `int64`
    Int64,
    /// `uint8`
    UInt8,
    /// `uint16`
    UInt16,
    /// `uint32`
    UInt32,
    /// `uint64`
    UInt64,
    /// `halffloat`, also `float16`
    Float16,
    /// `float`, also `float32`
    Float32,
    /// `double`, also `float64`
    Float64,
}

impl NumericType {
    /// The name as pyarrow prints it, which is how it is stored.
    pub fn arrow_name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
            Self::Float16 => "halffloat",
            Self::Float32 => "float",
            Self::Float64 => "double",
        }
    }

    /// The Arrow type.
    pub fn arrow_type(self) -> DataType {
        match self {
            Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::UInt8 => DataType::UInt8,
            Self::UInt16 => DataType::UInt16,
            Self::UInt32 => DataType::UInt32,
            Self::UInt64 => DataType::UInt64,
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        }
    }

    /// The type that `name` means: one of pyarrow's names, or of NumPy's for floats, which some writers use.
    pub fn from_arrow_name(name: &str) -> Option<Self> {
        Some(match name {
            "int8" => Self::Int8,
            "int16" => Self::Int16,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "uint8" => Self::UInt8,
            "uint16" => Self::UInt16,
            "uint32" => Self::UInt32,
            "uint64" => Self::UInt64,
            "halffloat" | "float16" => Self::Float16,
            "float" | "float32" => Self::Float32,
            "double" | "float64" => Self::Float64,
            _ => return None,
        })
    }

    /// How many categories codes of this type can tell apart; `None` when codes cannot have it
    /// (format, "Schema": int8, int16 or int32).
    pub fn most_categories(self) -> Option<u64> {
        match self {
            Self::Int8 => Some(1 << 7),
            Self::Int16 => Some(1 << 15),
            Self::Int32 => Some(1 << 31),
            _ => None,
        }
    }

    /// Bytes of one value.
    pub fn width(self) -> usize {
        match self {
            Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 => 8,
        }
    }
}

/// What a column holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnKind {
    /// Codes of type `codes` (int8, int16 or int32) into one vocabulary for the whole dataset; -1 is missing.
    Category {
        /// Stored type of the codes.
        codes: NumericType,
        /// The vocabulary: code `i` means `categories[i]`.
        categories: Vec<String>,
    },
    /// Numbers; missing values are nulls.
    Numeric(NumericType),
    /// Truth values; missing values are nulls.
    Bool,
    /// UTF-8 text; missing values are nulls.
    String,
}

impl ColumnKind {
    /// The `arrow_type` of the column as pyarrow prints it: the type its values are stored with.
    pub fn arrow_name(&self) -> &'static str {
        match self {
            Self::Category { codes, .. } => codes.arrow_name(),
            Self::Numeric(number) => number.arrow_name(),
            Self::Bool => "bool",
            Self::String => "string",
        }
    }

    /// The Arrow type its values are stored with; for a category column that is its codes' type.
    pub fn stored_type(&self) -> DataType {
        match self {
            Self::Category { codes, .. } => codes.arrow_type(),
            Self::Numeric(number) => number.arrow_type(),
            Self::Bool => DataType::Boolean,
            Self::String => DataType::Utf8,
        }
    }
}

impl fmt::Display for ColumnKind {
    /// The kind's name in the schema.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Category { .. } => "category",
            Self::Numeric(_) => "numeric",
            Self::Bool => "bool",
            Self::String => "string",
        })
    }
}

/// One column of obs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsColumn {
    /// Its name, any text; unique in the schema.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
}

/// A validated `obs/schema.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObsSchema {
    /// The columns, in stored order.
    pub columns: Vec<ObsColumn>,
    /// The text as stored; the fingerprint covers it to the byte.
    pub text: String,
}

/// Why an obs schema was refused.
#[derive(Debug, Error)]
pub enum ObsSchemaError {
    /// The text is not the JSON object the format asks for; serde's message names key and place.
    #[error("not an obs schema: {0}")]
    Json(#[from] serde_json::Error),
    /// `format` is something else.
    #[error("\"format\" is {0:?}, expected {FORMAT:?}")]
    Format(String),
    /// A version of the future.
    #[error("version {0} is not supported, expected {VERSION}")]
    Version(u64),
    /// Two columns have one name.
    #[error("column {name:?} appears twice, at {first} and {second}")]
    ColumnTwice { name: String, first: usize, second: usize },
    /// A kind that this version of the format does not have.
    #[error("column {column:?} is of kind {found:?}, expected category, numeric, bool or string")]
    Kind { column: String, found: String },
    /// An `arrow_type` that the column's kind cannot have.
    #[error("column {column:?} of kind {kind} has arrow_type {found:?}, expected {expected}")]
    ArrowType {
        column: String,
        kind: &'static str,
        found: String,
        expected: &'static str,
    },
    /// A category column without a vocabulary.
    #[error("column {column:?} of kind category has no categories, expected a list of labels")]
    CategoriesMissing { column: String },
    /// A vocabulary where there can be none.
    #[error("column {column:?} of kind {kind} has {found} categories, expected null")]
    CategoriesUnexpected {
        column: String,
        kind: &'static str,
        found: usize,
    },
    /// A vocabulary that the codes cannot count through.
    #[error("column {column:?} has {found} categories, expected at most {most}, what {codes} codes can name")]
    CategoriesTooMany {
        column: String,
        codes: &'static str,
        found: usize,
        most: u64,
    },
    /// Two codes with one label.
    #[error("column {column:?} has the category {label:?} twice, as code {first} and {second}")]
    CategoryTwice {
        column: String,
        label: String,
        first: usize,
        second: usize,
    },
}

/// What [`NumericType::from_arrow_name`] accepts, for messages.
const NUMERIC_NAMES: &str = "int8 to int64, uint8 to uint64, halffloat, float or double";

/// Only the keys that say whether the rest can be understood.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    version: u64,
}

#[derive(Deserialize)]
struct Stored {
    columns: Vec<StoredColumn>,
}

/// A column as stored. `categories` says nothing in a column of another kind than category, so it may be absent there.
#[derive(Deserialize)]
struct StoredColumn {
    name: String,
    kind: String,
    arrow_type: String,
    #[serde(default)]
    categories: Option<Vec<String>>,
}

impl ObsSchema {
    /// Reads and validates the text of `obs/schema.json` (format, "Schema").
    ///
    /// Column names are unique, and so are the labels of a vocabulary: it is a union, hence a set, and no
    /// reader that shows categories (pandas, R) can hold a label twice. A schema may have no columns.
    ///
    /// # Errors
    /// [`ObsSchemaError`] names the column and says what was found and what was expected.
    pub fn parse(text: &[u8]) -> Result<Self, ObsSchemaError> {
        let Preamble { format, version } = serde_json::from_slice(text)?;
        if format != FORMAT {
            return Err(ObsSchemaError::Format(format));
        }
        if version != VERSION {
            return Err(ObsSchemaError::Version(version));
        }
        let stored: Stored = serde_json::from_slice(text)?;
        let columns = stored
            .columns
            .into_iter()
            .map(read_column)
            .collect::<Result<Vec<_>, _>>()?;
        check_columns(&columns)?;
        // serde_json checks the strings it decodes, but not those of keys it passes over.
        let text = String::from_utf8(text.to_vec()).map_err(|_| serde_json::Error::custom("the text is not UTF-8"))?;
        Ok(Self { columns, text })
    }

    /// The schema of these columns, with the text that the format's other writers give it: Python's `json.dumps` with its defaults, in one line.
    ///
    /// # Errors
    /// [`ObsSchemaError`] when [`ObsSchema::parse`] would refuse the text.
    pub fn new(columns: Vec<ObsColumn>) -> Result<Self, ObsSchemaError> {
        check_columns(&columns)?;
        let text = to_json(&columns);
        Ok(Self { columns, text })
    }

    /// Where the column of this name stands.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}

fn read_column(stored: StoredColumn) -> Result<ObsColumn, ObsSchemaError> {
    let StoredColumn {
        name,
        kind,
        arrow_type,
        categories,
    } = stored;
    let number = NumericType::from_arrow_name(&arrow_type);
    let (kind, read, expected) = match kind.as_str() {
        "category" => {
            let Some(categories) = categories else {
                return Err(ObsSchemaError::CategoriesMissing { column: name });
            };
            let codes = number.filter(|number| number.most_categories().is_some());
            let read = codes.map(|codes| ColumnKind::Category { codes, categories });
            return with_kind(name, arrow_type, "category", read, "int8, int16 or int32");
        }
        "numeric" => ("numeric", number.map(ColumnKind::Numeric), NUMERIC_NAMES),
        "bool" => ("bool", (arrow_type == "bool").then_some(ColumnKind::Bool), "bool"),
        "string" => (
            "string",
            (arrow_type == "string").then_some(ColumnKind::String),
            "string",
        ),
        _ => {
            return Err(ObsSchemaError::Kind {
                column: name,
                found: kind,
            });
        }
    };
    if let Some(categories) = categories {
        return Err(ObsSchemaError::CategoriesUnexpected {
            column: name,
            kind,
            found: categories.len(),
        });
    }
    with_kind(name, arrow_type, kind, read, expected)
}

/// The column, unless its `arrow_type` was none that the kind can have.
fn with_kind(
    name: String,
    arrow_type: String,
    kind: &'static str,
    read: Option<ColumnKind>,
    expected: &'static str,
) -> Result<ObsColumn, ObsSchemaError> {
    match read {
        Some(kind) => Ok(ObsColumn { name, kind }),
        None => Err(ObsSchemaError::ArrowType {
            column: name,
            kind,
            found: arrow_type,
            expected,
        }),
    }
}

fn check_columns(columns: &[ObsColumn]) -> Result<(), ObsSchemaError> {
    if let Some((first, second)) = first_repeated(columns.iter().map(|column| column.name.as_str())) {
        let name = columns[second].name.clone();
        return Err(ObsSchemaError::ColumnTwice { name, first, second });
    }
    columns.iter().try_for_each(check_vocabulary)
}

fn check_vocabulary(column: &ObsColumn) -> Result<(), ObsSchemaError> {
    let ColumnKind::Category { codes, categories } = &column.kind else {
        return Ok(());
    };
    let Some(most) = codes.most_categories() else {
        return Err(ObsSchemaError::ArrowType {
            column: column.name.clone(),
            kind: "category",
            found: codes.arrow_name().into(),
            expected: "int8, int16 or int32",
        });
    };
    if categories.len() as u64 > most {
        return Err(ObsSchemaError::CategoriesTooMany {
            column: column.name.clone(),
            codes: codes.arrow_name(),
            found: categories.len(),
            most,
        });
    }
    match first_repeated(categories.iter().map(String::as_str)) {
        None => Ok(()),
        Some((first, second)) => Err(ObsSchemaError::CategoryTwice {
            column: column.name.clone(),
            label: categories[second].clone(),
            first,
            second,
        }),
    }
}

/// The places of the first text that stands in the list a second time.
fn first_repeated<'a>(texts: impl Iterator<Item = &'a str>) -> Option<(usize, usize)> {
    let mut seen = HashMap::new();
    texts
        .enumerate()
        .find_map(|(index, text)| seen.insert(text, index).map(|first| (first, index)))
}

fn to_json(columns: &[ObsColumn]) -> String {
    let mut text = format!("{{\"format\": \"{FORMAT}\", \"version\": {VERSION}, \"columns\": ");
    json::push_list(&mut text, columns, |text, column| {
        text.push_str("{\"name\": ");
        json::push_string(text, &column.name);
        let (kind, arrow_type) = (&column.kind, column.kind.arrow_name());
        text.push_str(&format!(
            ", \"kind\": \"{kind}\", \"arrow_type\": \"{arrow_type}\", \"categories\": "
        ));
        match kind {
            ColumnKind::Category { categories, .. } => {
                json::push_list(text, categories, |text, label| json::push_string(text, label));
            }
            _ => text.push_str("null"),
        }
        text.push('}');
    });
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(columns: &str) -> Result<ObsSchema, ObsSchemaError> {
        let text = format!(r#"{{"format": "deltacells-obs", "version": 1, "columns": [{columns}]}}"#);
        ObsSchema::parse(text.as_bytes())
    }

    /// The message that refuses a schema of these columns.
    fn refusal(columns: &str) -> String {
        parse(columns).expect_err("the schema should be refused").to_string()
    }

    fn category(codes: NumericType, n: usize) -> ObsColumn {
        ObsColumn {
            name: "c".into(),
            kind: ColumnKind::Category {
                codes,
                categories: (0..n).map(|i| i.to_string()).collect(),
            },
        }
    }

    #[test]
    fn writing_what_was_parsed_reproduces_the_stored_text() {
        for dataset in crate::testdata::datasets() {
            let text = std::fs::read(dataset.join("obs/schema.json")).unwrap();
            let parsed = ObsSchema::parse(&text).unwrap();
            assert_eq!(parsed.text.as_bytes(), text, "{dataset:?}");
            let written = ObsSchema::new(parsed.columns.clone()).unwrap();
            assert_eq!(written, parsed, "{dataset:?}");
        }
    }

    #[test]
    fn hard_names_and_labels_survive_a_round_trip() {
        let labels = ["", "\u{7f}", "\u{0}\u{8}\u{c}\n\r\t", "\"\\/", "\u{2028}é\u{1f9ec}"];
        let columns = vec![ObsColumn {
            name: "\u{1f9ec}\u{1}".into(),
            kind: ColumnKind::Category {
                codes: NumericType::Int32,
                categories: labels.map(String::from).to_vec(),
            },
        }];
        let written = ObsSchema::new(columns).unwrap();
        assert!(written.text.is_ascii());
        assert_eq!(ObsSchema::parse(written.text.as_bytes()).unwrap(), written);
    }

    #[test]
    fn both_spellings_of_float_types_are_accepted() {
        for (name, number) in [
            ("halffloat", NumericType::Float16),
            ("float16", NumericType::Float16),
            ("float", NumericType::Float32),
            ("float32", NumericType::Float32),
            ("double", NumericType::Float64),
            ("float64", NumericType::Float64),
        ] {
            let schema = parse(&format!(
                r#"{{"name": "x", "kind": "numeric", "arrow_type": "{name}", "categories": null}}"#
            ));
            assert_eq!(schema.unwrap().columns[0].kind, ColumnKind::Numeric(number), "{name}");
        }
    }

    #[test]
    fn every_numeric_type_is_read_by_the_name_it_is_written_with() {
        use NumericType::*;
        for number in [
            Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64,
        ] {
            assert_eq!(NumericType::from_arrow_name(number.arrow_name()), Some(number));
        }
    }

    #[test]
    fn a_vocabulary_may_fill_the_code_type_and_not_exceed_it() {
        assert!(ObsSchema::new(vec![category(NumericType::Int8, 128)]).is_ok());
        assert!(ObsSchema::new(vec![category(NumericType::Int16, 32_768)]).is_ok());
        for (codes, n) in [(NumericType::Int8, 129), (NumericType::Int16, 32_769)] {
            let error = ObsSchema::new(vec![category(codes, n)]).unwrap_err();
            assert!(matches!(error, ObsSchemaError::CategoriesTooMany { found, .. } if found == n));
        }
    }

    #[test]
    fn what_the_format_does_not_allow_is_refused_with_the_column_named() {
        for (columns, expected) in [
            (
                r#"{"name": "t", "kind": "datetime", "arrow_type": "timestamp[ns]", "categories": null}"#,
                r#"column "t" is of kind "datetime", expected category, numeric, bool or string"#,
            ),
            (
                r#"{"name": "t", "kind": "numeric", "arrow_type": "decimal128(3, 2)", "categories": null}"#,
                r#"column "t" of kind numeric has arrow_type "decimal128(3, 2)""#,
            ),
            (
                r#"{"name": "t", "kind": "string", "arrow_type": "large_string", "categories": null}"#,
                r#"column "t" of kind string has arrow_type "large_string", expected string"#,
            ),
            (
                r#"{"name": "t", "kind": "bool", "arrow_type": "uint8", "categories": null}"#,
                r#"column "t" of kind bool has arrow_type "uint8", expected bool"#,
            ),
            (
                r#"{"name": "t", "kind": "category", "arrow_type": "int64", "categories": ["a"]}"#,
                r#"column "t" of kind category has arrow_type "int64", expected int8, int16 or int32"#,
            ),
            (
                r#"{"name": "t", "kind": "category", "arrow_type": "int8", "categories": null}"#,
                r#"column "t" of kind category has no categories"#,
            ),
            (
                r#"{"name": "t", "kind": "numeric", "arrow_type": "int8", "categories": []}"#,
                r#"column "t" of kind numeric has 0 categories, expected null"#,
            ),
            (
                r#"{"name": "t", "kind": "category", "arrow_type": "int8", "categories": ["a", "b", "a"]}"#,
                r#"column "t" has the category "a" twice, as code 0 and 2"#,
            ),
            (
                r#"{"name": "t", "kind": "bool", "arrow_type": "bool"}, {"name": "t", "kind": "bool", "arrow_type": "bool"}"#,
                r#"column "t" appears twice, at 0 and 1"#,
            ),
            (
                r#"{"name": "t", "kind": "category", "arrow_type": "int8", "categories": ["a", null]}"#,
                "invalid type: null, expected a string",
            ),
            (
                r#"{"name": 3, "kind": "bool", "arrow_type": "bool"}"#,
                "invalid type: integer",
            ),
            (r#"{"kind": "bool", "arrow_type": "bool"}"#, "missing field `name`"),
        ] {
            let message = refusal(columns);
            assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        }
    }

    #[test]
    fn new_refuses_codes_that_are_not_signed_integers_of_at_most_32_bits() {
        for codes in [NumericType::Int64, NumericType::UInt8, NumericType::Float32] {
            let error = ObsSchema::new(vec![category(codes, 1)]).unwrap_err();
            assert!(matches!(error, ObsSchemaError::ArrowType { .. }), "{error}");
        }
    }

    #[test]
    fn another_format_or_version_is_said_before_anything_else() {
        let other = ObsSchema::parse(br#"{"format": "deltacells-obs", "version": 2, "tables": 7}"#).unwrap_err();
        assert_eq!(other.to_string(), "version 2 is not supported, expected 1");
        let other = ObsSchema::parse(br#"{"format": "something", "version": 1}"#).unwrap_err();
        assert_eq!(
            other.to_string(),
            r#""format" is "something", expected "deltacells-obs""#
        );
    }

    #[test]
    fn text_that_is_not_json_or_not_utf8_is_refused() {
        for text in [
            &b""[..],
            b"[]",
            b"{\"format\": \"deltacells-obs\", \"version\": 1, \"columns\": []",
            b"{\"format\": \"deltacells-obs\", \"version\": 1, \"columns\": [], \"x\": \"\xff\"}",
            b"{\"format\": \"deltacells-obs\", \"version\": 1, \"columns\": []} x",
        ] {
            let error = ObsSchema::parse(text).unwrap_err();
            assert!(matches!(error, ObsSchemaError::Json(_)), "{error}");
        }
    }
}
