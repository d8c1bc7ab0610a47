//! Gene tables: the columns that describe genes, and their index as pandas would read it. Knows no file format.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int8Array, Int16Array, Int32Array, RecordBatch, RecordBatchOptions, StringArray,
    UInt32Array,
};
use arrow::datatypes::{DataType, Field, Schema};
use serde_json::{Value, json};

use crate::format::obs::NumericType;

/// The genes of an input or of a dataset, in its order.
#[derive(Debug, Clone)]
pub struct Genes {
    /// The names, which are the index of the table; not necessarily unique.
    pub names: Arc<Vec<String>>,
    /// The name of the index, where it has one.
    pub index_name: Option<String>,
    /// The other columns.
    pub columns: Vec<GeneColumn>,
}

/// A column of a gene table.
#[derive(Debug, Clone)]
pub struct GeneColumn {
    /// Its name.
    pub name: String,
    /// A value for each gene: numbers, truth values, text, or text with a dictionary.
    pub values: ArrayRef,
}

impl Genes {
    /// Only names.
    pub fn named(names: Vec<String>) -> Self {
        Self {
            names: Arc::new(names),
            index_name: None,
            columns: Vec::new(),
        }
    }

    /// Genes.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The text of column `name`, if there is such a column and it holds text.
    pub fn text(&self, name: &str) -> Option<Vec<String>> {
        if self.index_name.as_deref() == Some(name) {
            return Some(self.names.to_vec());
        }
        let column = self.columns.iter().find(|column| column.name == name)?;
        let text = match column.values.data_type() {
            DataType::Utf8 => Arc::clone(&column.values),
            DataType::Dictionary(_, _) => plain(&column.values)?,
            _ => return None,
        };
        let text = text.as_any().downcast_ref::<StringArray>()?;
        Some(text.iter().map(|value| value.unwrap_or_default().to_owned()).collect())
    }

    /// The genes of these places, in this order.
    pub fn take(&self, places: &[u32]) -> Self {
        let indices = UInt32Array::from(places.to_vec());
        let columns = self.columns.iter().map(|column| GeneColumn {
            name: column.name.clone(),
            values: arrow::compute::take(&column.values, &indices, None).expect("every place is a gene's"),
        });
        Self {
            names: Arc::new(places.iter().map(|&place| self.names[place as usize].clone()).collect()),
            index_name: self.index_name.clone(),
            columns: columns.collect(),
        }
    }

    /// The table with its index as the last column, and the metadata by which pandas knows it for one.
    pub fn to_table(&self) -> RecordBatch {
        let taken = |name: &String| self.columns.iter().any(|column| column.name == *name);
        let index_field = match &self.index_name {
            Some(name) if !taken(name) => name.clone(),
            _ => "__index_level_0__".into(),
        };
        let names: ArrayRef = Arc::new(StringArray::from_iter_values(&*self.names));
        let (mut fields, mut arrays, mut described) = (Vec::new(), Vec::new(), Vec::new());
        for column in &self.columns {
            fields.push(Field::new(&column.name, column.values.data_type().clone(), true));
            arrays.push(Arc::clone(&column.values));
            described.push(describe(Some(&column.name), &column.name, &column.values));
        }
        fields.push(Field::new(&index_field, DataType::Utf8, true));
        described.push(describe(self.index_name.as_deref(), &index_field, &names));
        arrays.push(names);
        let pandas = json!({
            "index_columns": [index_field],
            "column_indexes": [{
                "name": null,
                "field_name": null,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }],
            "columns": described,
            "attributes": {},
            "creator": {"library": "dcfs", "version": env!("CARGO_PKG_VERSION")},
            "pandas_version": "2.0.0",
        });
        let schema = Schema::new(fields).with_metadata(HashMap::from([("pandas".to_owned(), pandas.to_string())]));
        let rows = RecordBatchOptions::new().with_row_count(Some(self.len()));
        RecordBatch::try_new_with_options(Arc::new(schema), arrays, &rows)
            .expect("every column has a value for each gene")
    }
}

/// Keeps once what is the same in the gene tables of many inputs.
#[derive(Debug, Default)]
pub struct GenePool {
    names: Vec<Arc<Vec<String>>>,
    columns: Vec<ArrayRef>,
}

impl GenePool {
    /// Different lists of names, and columns, that are remembered: more than the inputs of one dataset have of those
    /// that are worth it.
    const REMEMBERED: usize = 32;

    /// Lets `genes` share what is equal to a part of a table seen before.
    pub fn share(&mut self, genes: &mut Genes) {
        match self.names.iter().find(|known| **known == genes.names) {
            Some(known) => genes.names = Arc::clone(known),
            None if self.names.len() < Self::REMEMBERED => self.names.push(Arc::clone(&genes.names)),
            None => {}
        }
        for column in &mut genes.columns {
            let values: &dyn Array = &*column.values;
            match self.columns.iter().find(|known| &***known == values) {
                Some(known) => column.values = Arc::clone(known),
                None if self.columns.len() < Self::REMEMBERED => self.columns.push(Arc::clone(&column.values)),
                None => {}
            }
        }
    }
}

/// One entry of pandas' list of columns.
fn describe(name: Option<&str>, field: &str, values: &ArrayRef) -> Value {
    let nullable = values.null_count() > 0;
    let (pandas, numpy, metadata) = match values.data_type() {
        DataType::Dictionary(codes, _) => {
            let categories = dictionary_values(values).map_or(0, |values| values.len());
            let numpy = codes.to_string().to_ascii_lowercase();
            (
                "categorical".to_owned(),
                numpy,
                json!({"num_categories": categories, "ordered": false}),
            )
        }
        DataType::Boolean => (
            "bool".into(),
            if nullable { "boolean" } else { "bool" }.into(),
            Value::Null,
        ),
        DataType::Utf8 => ("unicode".into(), "object".into(), Value::Null),
        number => {
            let name = number.to_string();
            // pandas' own integers, capitalised, have missing values; NumPy's have not.
            let whole = number.is_integer();
            let numpy = if nullable && whole {
                name.clone()
            } else {
                name.to_ascii_lowercase()
            };
            (name.to_ascii_lowercase(), numpy, Value::Null)
        }
    };
    json!({"name": name, "field_name": field, "pandas_type": pandas, "numpy_type": numpy, "metadata": metadata})
}

fn dictionary_values(values: &ArrayRef) -> Option<&ArrayRef> {
    use arrow::array::AsArray;
    Some(values.as_any_dictionary_opt()?.values())
}

/// The labels of a dictionary column, gene by gene.
fn plain(values: &ArrayRef) -> Option<ArrayRef> {
    use arrow::array::AsArray;
    let dictionary = values.as_any_dictionary_opt()?;
    let labels = dictionary.values().as_any().downcast_ref::<StringArray>()?;
    let keys = dictionary.normalized_keys();
    let label = |(row, &key): (usize, &usize)| values.is_valid(row).then(|| labels.value(key));
    Some(Arc::new(keys.iter().enumerate().map(label).collect::<StringArray>()))
}

/// The narrowest type of codes for this many categories (format, "Schema").
pub(crate) fn code_type(categories: usize) -> NumericType {
    [NumericType::Int8, NumericType::Int16]
        .into_iter()
        .find(|codes| codes.most_categories().is_some_and(|most| categories as u64 <= most))
        .unwrap_or(NumericType::Int32)
}

/// Codes, null where missing, with their labels.
pub(crate) fn dictionary(codes: &Int32Array, labels: &[String]) -> ArrayRef {
    let labels: ArrayRef = Arc::new(StringArray::from_iter_values(labels));
    // The codes are places of labels, which is all that can be wrong with a dictionary.
    match code_type(labels.len()) {
        NumericType::Int8 => {
            let codes: Int8Array = codes.iter().map(|code| code.map(|code| code as i8)).collect();
            Arc::new(DictionaryArray::new(codes, labels))
        }
        NumericType::Int16 => {
            let codes: Int16Array = codes.iter().map(|code| code.map(|code| code as i16)).collect();
            Arc::new(DictionaryArray::new(codes, labels))
        }
        _ => Arc::new(DictionaryArray::new(codes.clone(), labels)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn genes() -> Genes {
        let labels = ["x".to_owned(), "y".to_owned()];
        let codes = Int32Array::from(vec![Some(1), None, Some(0)]);
        Genes {
            names: Arc::new(["a", "b", "a"].map(str::to_owned).to_vec()),
            index_name: None,
            columns: vec![
                GeneColumn {
                    name: "type".into(),
                    values: dictionary(&codes, &labels),
                },
                GeneColumn {
                    name: "n".into(),
                    values: Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])),
                },
            ],
        }
    }

    #[test]
    fn taking_genes_reorders_every_column() {
        let taken = genes().take(&[2, 0]);
        assert_eq!(*taken.names, ["a", "a"]);
        assert_eq!(taken.text("type").unwrap(), ["x", "y"]);
    }

    #[test]
    fn the_index_is_the_last_column_and_pandas_is_told_so() {
        let table = genes().to_table();
        let schema = table.schema();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["type", "n", "__index_level_0__"]);
        let pandas: Value = serde_json::from_str(&schema.metadata()["pandas"]).unwrap();
        assert_eq!(pandas["index_columns"], json!(["__index_level_0__"]));
        assert_eq!(pandas["columns"][2]["name"], Value::Null);
        assert_eq!(pandas["columns"][0]["pandas_type"], "categorical");
        assert_eq!(pandas["columns"][1]["numpy_type"], "Int32");
    }

    #[test]
    fn a_named_index_keeps_its_name_unless_a_column_has_it() {
        let mut genes = genes();
        genes.index_name = Some("symbol".into());
        assert!(genes.to_table().schema().index_of("symbol").is_ok());
        genes.index_name = Some("n".into());
        assert!(genes.to_table().schema().index_of("__index_level_0__").is_ok());
    }

    #[test]
    fn tables_share_what_is_the_same() {
        let (mut first, mut second) = (genes(), genes());
        second.columns[1].values = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let mut pool = GenePool::default();
        pool.share(&mut first);
        pool.share(&mut second);
        assert!(Arc::ptr_eq(&first.names, &second.names));
        assert!(Arc::ptr_eq(&first.columns[0].values, &second.columns[0].values));
        assert_eq!(second.columns[1].values.null_count(), 0);
    }

    #[test]
    fn codes_are_as_narrow_as_the_vocabulary_allows() {
        assert_eq!([0, 128, 129, 32768, 32769].map(code_type), {
            use NumericType::{Int8, Int16, Int32};
            [Int8, Int8, Int16, Int16, Int32]
        });
    }
}
