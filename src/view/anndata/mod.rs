//! A dataset as one AnnData object, as a tree of groups and arrays.
//!
//! What AnnData 0.1.0 asks for (anndata's "On-disk format"): `X` as `csr_matrix`; `obs` and `var` as `dataframe`, with
//! columns that are `categorical`, `array`, `string-array` or, where integers, truth values or text are missing,
//! `nullable-integer`, `nullable-boolean` or `nullable-string-array`; `uns`, and the mappings that are empty here. Which of these a column of obs becomes
//! depends on what is in it: see [`ColumnFacts`]. Only `nullable-string-array` is younger than anndata 0.8: it takes 0.11.
//!
//! Knows what the groups mean, not how they are laid out: that is for `hdf5` and `zarr`.

mod facts;
mod frame;
mod uns;
mod values;
mod var;

use arrow::array::{LargeStringArray, RecordBatch};
use serde_json::{Map, Value as Json};
use thiserror::Error;

pub use self::facts::{ColumnFacts, TileFacts};
use self::frame::Frame;
pub use self::values::{EncodeError, encode, pad};
use super::arrow::Tiling;
use super::hierarchy::{ArrayNode, Attribute, Dtype, Group, Member, Part, Shape, Source, Value, longest_number};
use crate::dataset::Array;
use crate::format::manifest::Manifest;
use crate::format::obs::{ColumnKind, NumericType, ObsColumn, ObsSchema};

/// The column of obs that holds the cells' names, if it is text (format notes, "The default writer settings").
pub const OBS_NAMES: &str = "obs_names";

/// What the tree is written into, which decides what members can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Any name but `.`, without NUL.
    Hdf5,
    /// Names that a folder can hold and that Zarr does not use itself.
    Zarr,
}

/// What is known of the dataset.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// Cells, and cells of a tile.
    pub tiling: Tiling,
    /// Genes.
    pub n_genes: u32,
    /// Nonzeros of the matrix.
    pub nnz: u64,
    /// The manifest's free-form metadata, which becomes `uns`.
    pub metadata: &'a Map<String, Json>,
    /// The columns of obs.
    pub schema: Option<&'a ObsSchema>,
    /// One entry a column; those of columns that need none ([`ColumnFacts::are_needed`]) are not looked at.
    pub facts: &'a [ColumnFacts],
    /// The gene table: `var.parquet` with its schema's metadata.
    pub genes: Option<&'a RecordBatch>,
    /// The genes' names: `var_names.txt`. They are the index of `var` unless the gene table has one.
    pub gene_names: Option<&'a [String]>,
}

impl<'a> Contents<'a> {
    /// What the manifest says, without obs and genes.
    pub fn new(manifest: &'a Manifest) -> Self {
        Self {
            tiling: manifest.into(),
            n_genes: manifest.n_genes,
            nnz: manifest.nnz(),
            metadata: &manifest.metadata,
            schema: None,
            facts: &[],
            genes: None,
            gene_names: None,
        }
    }
}

/// Why a dataset cannot be shown as AnnData.
#[derive(Debug, Error)]
pub enum AnnDataError {
    /// A table of another length than the dataset.
    #[error("{table} has {found} rows, expected {expected}, one per gene")]
    Genes {
        table: &'static str,
        found: u64,
        expected: u32,
    },
    /// Facts are not those of the columns.
    #[error("the facts of column {column:?} are of {found} tiles, expected {expected}")]
    Facts { column: String, found: u64, expected: u64 },
    /// A text longer than one can be.
    #[error("column {column:?} has a text of {found} bytes, expected at most {}", u32::MAX)]
    LongText { column: String, found: u64 },
    /// More text than can be addressed.
    #[error("column {column:?} has too much text to address")]
    MuchText { column: String },
    /// A column of genes that Arrow can neither convert nor print.
    #[error("column {column:?} of the gene table cannot be shown: {source}")]
    GeneColumn {
        column: String,
        source: arrow::error::ArrowError,
    },
}

/// The dataset as a tree, named for `container`.
///
/// # Errors
/// [`AnnDataError`] when tables or facts are not those of this dataset, or a text is longer than one can be.
pub fn tree(contents: &Contents<'_>, container: Container) -> Result<Group, AnnDataError> {
    let mut root = group("anndata", "0.1.0");
    let members = [
        ("X", matrix(contents)),
        ("obs", obs(contents, container)?),
        ("var", var::var(contents, container)?),
        ("uns", uns::uns(contents.metadata, container)),
    ];
    let empty = ["layers", "obsm", "obsp", "varm", "varp"].map(|name| (name, dict()));
    for (name, member) in members.into_iter().chain(empty) {
        root.members.insert(name.to_owned(), Member::Group(member));
    }
    Ok(root)
}

/// What anndata calls an encoding: two attributes.
fn encoding(kind: &str, version: &str) -> Vec<Attribute> {
    vec![text("encoding-type", kind), text("encoding-version", version)]
}

fn text(name: &'static str, value: &str) -> Attribute {
    let value = Value::Text(value.to_owned());
    Attribute { name, value }
}

fn group(kind: &str, version: &str) -> Group {
    Group {
        attributes: encoding(kind, version),
        ..Group::default()
    }
}

fn dict() -> Group {
    group("dict", "0.1.0")
}

/// A vector with the encoding that its type has in anndata.
fn vector(dtype: Dtype, rows: u64, source: Source) -> ArrayNode {
    let attributes = match dtype {
        Dtype::Text { .. } => encoding("string-array", "0.2.0"),
        Dtype::Number(_) | Dtype::Bool => encoding("array", "0.2.0"),
    };
    let shape = Shape::Vector(rows);
    ArrayNode {
        attributes,
        dtype,
        shape,
        source,
    }
}

fn matrix(contents: &Contents<'_>) -> Group {
    let mut matrix = group("csr_matrix", "0.1.0");
    matrix.attributes.push(Attribute {
        name: "shape",
        value: Value::Integers(vec![contents.tiling.n_cells as i64, contents.n_genes.into()]),
    });
    // SciPy works in place only where indptr and indices have one type.
    let starts = if i32::try_from(contents.nnz).is_ok() {
        NumericType::Int32
    } else {
        NumericType::Int64
    };
    let arrays = [
        ("data", Array::Data, NumericType::Int32, contents.nnz),
        ("indices", Array::Indices, NumericType::Int32, contents.nnz),
        ("indptr", Array::Indptr, starts, contents.tiling.n_cells + 1),
    ];
    for (name, array, number, length) in arrays {
        let member = Member::Array(ArrayNode {
            attributes: Vec::new(),
            dtype: Dtype::Number(number),
            shape: Shape::Vector(length),
            source: Source::X(array),
        });
        matrix.members.insert(name.to_owned(), member);
    }
    matrix
}

fn obs(contents: &Contents<'_>, container: Container) -> Result<Group, AnnDataError> {
    let cells = contents.tiling.n_cells;
    let columns = contents.schema.map_or(&[][..], |schema| &schema.columns);
    let is_index = |column: &ObsColumn| column.name == OBS_NAMES && column.kind == ColumnKind::String;
    let index = columns.iter().position(is_index);
    let taken = |name: &str| {
        columns
            .iter()
            .enumerate()
            .any(|(at, column)| Some(at) != index && column.name == name)
    };
    let names = match index {
        Some(index) => text_column(contents, index, &columns[index].name)?,
        None => row_numbers(cells),
    };
    let mut frame = Frame::new(frame::index_name(taken), vector(names.0, cells, names.1), container);
    for (at, column) in columns.iter().enumerate() {
        if Some(at) != index {
            frame.add(&column.name, obs_column(contents, at, column)?);
        }
    }
    Ok(frame.finish())
}

/// The numbers of rows as their names.
fn row_numbers(rows: u64) -> (Dtype, Source) {
    let longest = longest_number(rows);
    (Dtype::Text { longest }, Source::RowNumbers)
}

fn obs_column(contents: &Contents<'_>, at: usize, column: &ObsColumn) -> Result<Member, AnnDataError> {
    let cells = contents.tiling.n_cells;
    let part = |part| Source::Obs { column: at, part };
    let missing = || facts(contents, at, &column.name).map(|facts| facts.has_missing);
    Ok(match &column.kind {
        ColumnKind::Category { codes, categories } => {
            let codes = vector(Dtype::Number(*codes), cells, part(Part::Codes));
            let labels = LargeStringArray::from_iter_values(categories);
            frame::categorical(codes, labels_array(&column.name, labels)?, false)
        }
        ColumnKind::Numeric(number) => {
            let missing = frame::needs_mask(Dtype::Number(*number)) && missing()?;
            frame::plain(Dtype::Number(*number), cells, part(Part::Values), missing, || {
                part(Part::Mask)
            })
        }
        ColumnKind::Bool => frame::plain(Dtype::Bool, cells, part(Part::Values), missing()?, || part(Part::Mask)),
        ColumnKind::String => {
            let (dtype, source) = text_column(contents, at, &column.name)?;
            frame::plain(dtype, cells, source, missing()?, || part(Part::Mask))
        }
    })
}

fn facts<'a>(contents: &Contents<'a>, at: usize, name: &str) -> Result<&'a ColumnFacts, AnnDataError> {
    let found = contents.facts.get(at).map_or(0, |facts| facts.text_bytes.len() as u64);
    let expected = contents.tiling.n_tiles();
    let facts = contents.facts.get(at).filter(|_| found == expected);
    facts.ok_or_else(|| AnnDataError::Facts {
        column: name.to_owned(),
        found,
        expected,
    })
}

fn text_column(contents: &Contents<'_>, at: usize, name: &str) -> Result<(Dtype, Source), AnnDataError> {
    let facts = facts(contents, at, name)?;
    let longest = longest_text(name, facts.longest)?;
    let much = || AnnDataError::MuchText {
        column: name.to_owned(),
    };
    let mut starts = Vec::with_capacity(facts.text_bytes.len() + 1);
    let mut start = 0_u64;
    starts.push(start);
    for bytes in &facts.text_bytes {
        start = start
            .checked_add(*bytes)
            .filter(|&sum| sum <= i64::MAX as u64 / 2)
            .ok_or_else(much)?;
        starts.push(start);
    }
    let starts = starts.into();
    Ok((Dtype::Text { longest }, Source::ObsText { column: at, starts }))
}

fn longest_text(column: &str, found: u64) -> Result<u32, AnnDataError> {
    u32::try_from(found).map_err(|_| AnnDataError::LongText {
        column: column.to_owned(),
        found,
    })
}

/// Known texts as an array.
fn labels_array(column: &str, labels: LargeStringArray) -> Result<ArrayNode, AnnDataError> {
    let lengths = labels.value_offsets().windows(2).map(|ends| (ends[1] - ends[0]) as u64);
    let longest = longest_text(column, lengths.max().unwrap_or(0))?;
    let rows = arrow::array::Array::len(&labels) as u64;
    Ok(vector(Dtype::Text { longest }, rows, Source::Text(labels)))
}

#[cfg(test)]
mod tests;
