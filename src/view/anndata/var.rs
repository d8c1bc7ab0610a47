//! The gene table as `var`.
//!
//! Knows Arrow tables and the metadata that pandas leaves in them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, RecordBatch};
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Deserialize;
use serde_json::Value as Json;

use super::frame::{Frame, categorical, index_name, plain};
use super::values::{mask, numbers, truths};
use super::{AnnDataError, ArrayNode, Container, Contents, Dtype, Group, Member, Source, labels_array, vector};
use crate::format::obs::NumericType;

/// The part of pandas' metadata that says what the index is.
#[derive(Debug, Default, Deserialize)]
struct Pandas {
    /// Names of stored columns, or descriptions of ranges.
    #[serde(default)]
    index_columns: Vec<Json>,
    #[serde(default)]
    columns: Vec<PandasColumn>,
}

#[derive(Debug, Deserialize)]
struct PandasColumn {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    field_name: Option<String>,
}

impl Pandas {
    /// What the table says; nothing if it was not written by pandas or says it in a way unknown.
    fn of(table: &RecordBatch) -> Self {
        let text = table.schema_ref().metadata().get("pandas");
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// The one stored column that is the index.
    fn index(&self, table: &RecordBatch) -> Option<usize> {
        match &self.index_columns[..] {
            [Json::String(column)] => table.schema_ref().index_of(column).ok(),
            _ => None,
        }
    }

    /// What pandas called the column that is stored as `field`.
    fn name_of(&self, field: &str) -> Option<&str> {
        let is_it = |column: &&PandasColumn| column.field_name.as_deref() == Some(field);
        self.columns.iter().find(is_it)?.name.as_deref()
    }
}

/// `var`: the gene table with its index, else with the genes' names, else with their numbers. An index of several
/// levels is none; its levels are columns.
pub(super) fn var(contents: &Contents<'_>, container: Container) -> Result<Group, AnnDataError> {
    let rows = |table, found: usize| {
        let (found, expected) = (found as u64, contents.n_genes);
        if found == u64::from(expected) {
            return Ok(());
        }
        Err(AnnDataError::Genes { table, found, expected })
    };
    if let Some(names) = contents.gene_names {
        rows("var_names.txt", names.len())?;
    }
    let Some(table) = contents.genes else {
        return Ok(Frame::new("_index".into(), names(contents)?, container).finish());
    };
    rows("var.parquet", table.num_rows())?;
    let pandas = Pandas::of(table);
    let index = pandas.index(table);
    let fields = table.schema_ref().fields();
    let taken = |name: &str| {
        fields
            .iter()
            .enumerate()
            .any(|(at, field)| Some(at) != index && field.name() == name)
    };
    let own_name = index.and_then(|index| pandas.name_of(fields[index].name()));
    let index_called = own_name
        .filter(|name| !taken(name))
        .map_or_else(|| index_name(taken), str::to_owned);
    let names = match index {
        Some(index) => {
            let name = fields[index].name();
            labels_array(name, known(name, texts(table.column(index)))?)?
        }
        None => names(contents)?,
    };
    let mut frame = Frame::new(index_called, names, container);
    for (at, (field, array)) in fields.iter().zip(table.columns()).enumerate() {
        if Some(at) != index {
            frame.add(field.name(), column(field, array)?);
        }
    }
    Ok(frame.finish())
}

/// Names from elsewhere than the table.
fn names(contents: &Contents<'_>) -> Result<ArrayNode, AnnDataError> {
    match contents.gene_names {
        Some(names) => labels_array("var_names.txt", LargeStringArray::from_iter_values(names)),
        None => {
            let (dtype, source) = super::row_numbers(contents.n_genes.into());
            Ok(vector(dtype, contents.n_genes.into(), source))
        }
    }
}

fn known<T>(column: &str, result: Result<T, ArrowError>) -> Result<T, AnnDataError> {
    result.map_err(|source| AnnDataError::GeneColumn {
        column: column.to_owned(),
        source,
    })
}

/// A column of the table. Types that anndata has no array for (times, lists, decimals) are shown as text; a column in
/// which pandas knew no type is float64, all missing.
fn column(field: &Field, array: &ArrayRef) -> Result<Member, AnnDataError> {
    let name = field.name();
    let rows = array.len() as u64;
    let has_missing = array.logical_null_count() > 0;
    let known_bytes = |bytes: Vec<u8>| Source::Bytes(bytes.into());
    if let Some(number) = numeric_type(array.data_type()) {
        let values = known_bytes(numbers(array, number));
        return Ok(plain(Dtype::Number(number), rows, values, has_missing, || {
            known_bytes(mask(array))
        }));
    }
    match array.data_type() {
        DataType::Boolean => {
            let values = known_bytes(truths(array.as_boolean()));
            Ok(plain(Dtype::Bool, rows, values, has_missing, || {
                known_bytes(mask(array))
            }))
        }
        DataType::Null => column(field, &known(name, cast(array, &DataType::Float64))?),
        DataType::Dictionary(_, values) if is_text(values) => {
            let (codes, labels) = known(name, factorised(array))?;
            let ordered = field.dict_is_ordered().unwrap_or(false);
            Ok(categorical(codes, labels_array(name, labels)?, ordered))
        }
        DataType::Dictionary(_, values) => column(field, &known(name, cast(array, values))?),
        _ => {
            let texts = known(name, texts(array))?;
            let ArrayNode { dtype, source, .. } = labels_array(name, texts)?;
            Ok(plain(dtype, rows, source, has_missing, || known_bytes(mask(array))))
        }
    }
}

fn numeric_type(arrow: &DataType) -> Option<NumericType> {
    use NumericType::*;
    let all = [
        Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64,
    ];
    all.into_iter().find(|number| number.arrow_type() == *arrow)
}

fn is_text(arrow: &DataType) -> bool {
    matches!(arrow, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Every value as text; a missing one is empty.
fn texts(array: &ArrayRef) -> Result<LargeStringArray, ArrowError> {
    if can_cast_types(array.data_type(), &DataType::LargeUtf8) {
        let texts = cast(array, &DataType::LargeUtf8)?;
        let texts = texts.as_string::<i64>().iter();
        return Ok(LargeStringArray::from_iter_values(texts.map(Option::unwrap_or_default)));
    }
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(array, &options)?;
    let text = |row| formatter.value(row).try_to_string();
    let texts = (0..array.len()).map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(LargeStringArray::from_iter_values(texts))
}

/// Codes and labels of a dictionary of text. Labels are those of the dictionary, each once, in its order.
fn factorised(array: &ArrayRef) -> Result<(ArrayNode, LargeStringArray), ArrowError> {
    let dictionary = array.as_any_dictionary();
    let values = cast(dictionary.values(), &DataType::LargeUtf8)?;
    let values = values.as_string::<i64>();
    let mut labels = Vec::new();
    let mut known = HashMap::new();
    let mut code_of = |value: Option<&str>| -> i32 {
        value.map_or(-1, |label| {
            *known.entry(label.to_owned()).or_insert_with(|| {
                labels.push(label.to_owned());
                labels.len() as i32 - 1
            })
        })
    };
    let meanings: Vec<i32> = values.iter().map(&mut code_of).collect();
    let keys = cast(dictionary.keys(), &DataType::Int64)?;
    let keys = keys.as_primitive::<arrow::datatypes::Int64Type>();
    let codes = keys.iter().map(|key| {
        let key = key.and_then(|key| usize::try_from(key).ok());
        key.and_then(|key| meanings.get(key).copied()).unwrap_or(-1)
    });
    let number = [NumericType::Int8, NumericType::Int16]
        .into_iter()
        .find(|number| number.most_categories().is_some_and(|most| labels.len() as u64 <= most))
        .unwrap_or(NumericType::Int32);
    let bytes: Vec<u8> = codes
        .flat_map(|code| code.to_le_bytes().into_iter().take(number.width()))
        .collect();
    let source = Source::Bytes(Arc::from(bytes));
    let codes = vector(Dtype::Number(number), array.len() as u64, source);
    Ok((codes, LargeStringArray::from_iter_values(labels)))
}
