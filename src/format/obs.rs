//! `obs/schema.json`: the columns that describe cells, and what identifies their content.

use std::fmt;

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
