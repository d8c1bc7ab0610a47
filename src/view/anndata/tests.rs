use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, DictionaryArray, Float32Array, Int8Array, Int64Array, NullArray, StringArray,
    UInt16Array,
};
use arrow::datatypes::{DataType, Field, Int8Type, Schema};
use serde_json::json;

use super::*;

const TILING: Tiling = Tiling {
    n_cells: 25,
    tile_size: 10,
};

fn no_metadata() -> Map<String, Json> {
    Map::new()
}

fn contents(metadata: &Map<String, Json>) -> Contents<'_> {
    Contents {
        tiling: TILING,
        n_genes: 3,
        nnz: 70,
        metadata,
        schema: None,
        facts: &[],
        genes: None,
        gene_names: None,
    }
}

fn schema(columns: &[(&str, ColumnKind)]) -> ObsSchema {
    let column = |(name, kind): &(&str, ColumnKind)| ObsColumn {
        name: (*name).to_owned(),
        kind: kind.clone(),
    };
    ObsSchema::new(columns.iter().map(column).collect()).unwrap()
}

fn facts(has_missing: bool, text_bytes: [u64; 3]) -> ColumnFacts {
    ColumnFacts {
        has_missing,
        longest: text_bytes.into_iter().max().unwrap(),
        text_bytes: text_bytes.to_vec(),
    }
}

fn member<'a>(group: &'a Group, path: &str) -> &'a Member {
    let (first, rest) = path
        .split_once('/')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    match (&group.members[first], rest) {
        (Member::Group(group), Some(rest)) => member(group, rest),
        (member, _) => member,
    }
}

fn array<'a>(group: &'a Group, path: &str) -> &'a ArrayNode {
    match member(group, path) {
        Member::Array(array) => array,
        Member::Group(_) => panic!("{path} is a group"),
    }
}

fn attribute<'a>(member: &'a Member, name: &str) -> &'a Value {
    let attributes = match member {
        Member::Group(group) => &group.attributes,
        Member::Array(array) => &array.attributes,
    };
    let found = attributes.iter().find(|attribute| attribute.name == name);
    &found.unwrap_or_else(|| panic!("no {name}")).value
}

fn encoding_of<'a>(group: &'a Group, path: &str) -> &'a str {
    match attribute(member(group, path), "encoding-type") {
        Value::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

fn texts(node: &ArrayNode) -> Vec<&str> {
    match &node.source {
        Source::Text(texts) => texts.iter().map(Option::unwrap).collect(),
        other => panic!("{other:?}"),
    }
}

fn bytes(node: &ArrayNode) -> &[u8] {
    match &node.source {
        Source::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_root_has_what_anndata_knows_and_nothing_else() {
    let metadata = no_metadata();
    let root = tree(&contents(&metadata), Container::Hdf5).unwrap();
    let names: Vec<_> = root.members.keys().collect();
    assert_eq!(
        names,
        ["X", "layers", "obs", "obsm", "obsp", "uns", "var", "varm", "varp"]
    );
    assert_eq!(encoding_of(&root, "X"), "csr_matrix");
    assert_eq!(*attribute(&root.members["X"], "shape"), Value::Integers(vec![25, 3]));
    assert_eq!(array(&root, "X/data").shape, Shape::Vector(70));
    assert_eq!(array(&root, "X/indptr").shape, Shape::Vector(26));
    for empty in ["layers", "obsm", "obsp", "uns", "varm", "varp"] {
        assert_eq!(encoding_of(&root, empty), "dict");
    }
}

#[test]
fn row_starts_are_as_wide_as_genes_as_long_as_they_fit() {
    let metadata = no_metadata();
    for (nnz, width) in [(70, 4), (i32::MAX as u64, 4), (1 << 31, 8)] {
        let contents = Contents {
            nnz,
            ..contents(&metadata)
        };
        let root = tree(&contents, Container::Hdf5).unwrap();
        assert_eq!(array(&root, "X/indptr").dtype.width(), width, "{nnz}");
        assert_eq!(array(&root, "X/indices").dtype.width(), 4);
    }
}

#[test]
fn without_names_rows_are_numbered() {
    let metadata = no_metadata();
    let root = tree(&contents(&metadata), Container::Hdf5).unwrap();
    for (frame, rows, longest) in [("obs", 25, 2), ("var", 3, 1)] {
        assert_eq!(*attribute(member(&root, frame), "_index"), Value::Text("_index".into()));
        assert_eq!(*attribute(member(&root, frame), "column-order"), Value::Texts(vec![]));
        let index = array(&root, &format!("{frame}/_index"));
        assert_eq!(
            (index.shape, index.dtype),
            (Shape::Vector(rows), Dtype::Text { longest })
        );
        assert!(matches!(index.source, Source::RowNumbers));
    }
}

#[test]
fn a_column_is_encoded_as_what_is_missing_in_it_asks_for() {
    let number = ColumnKind::Numeric;
    let category = ColumnKind::Category {
        codes: NumericType::Int8,
        categories: vec!["B".into(), "T cell".into()],
    };
    let schema = schema(&[
        ("whole", number(NumericType::Int32)),
        ("holes", number(NumericType::Int32)),
        ("float", number(NumericType::Float32)),
        ("truth", ColumnKind::Bool),
        ("some truth", ColumnKind::Bool),
        ("text", ColumnKind::String),
        ("some text", ColumnKind::String),
        ("kind", category),
        ("obs_names", ColumnKind::String),
    ]);
    let missing = [false, true, true, false, true, false, true, false, false];
    let facts: Vec<_> = missing.into_iter().map(|missing| facts(missing, [7, 0, 9])).collect();
    let metadata = no_metadata();
    let contents = Contents {
        schema: Some(&schema),
        facts: &facts,
        ..contents(&metadata)
    };
    let root = tree(&contents, Container::Hdf5).unwrap();
    for (path, encoding) in [
        ("whole", "array"),
        ("holes", "nullable-integer"),
        ("holes/values", "array"),
        ("float", "array"),
        ("truth", "array"),
        ("some truth", "nullable-boolean"),
        ("text", "string-array"),
        ("some text", "nullable-string-array"),
        ("some text/values", "string-array"),
        ("kind", "categorical"),
        ("kind/categories", "string-array"),
        ("_index", "string-array"),
    ] {
        assert_eq!(encoding_of(&root, &format!("obs/{path}")), encoding, "{path}");
    }
    let part = |path| match array(&root, path).source {
        Source::Obs { column, part } => (column, part),
        ref other => panic!("{other:?}"),
    };
    assert_eq!(part("obs/whole"), (0, Part::Values));
    assert_eq!(part("obs/holes/mask"), (1, Part::Mask));
    assert_eq!(part("obs/kind/codes"), (7, Part::Codes));
    assert_eq!(texts(array(&root, "obs/kind/categories")), ["B", "T cell"]);
    assert_eq!(*attribute(member(&root, "obs/kind"), "ordered"), Value::Bool(false));
    let index = array(&root, "obs/_index");
    assert_eq!(index.dtype, Dtype::Text { longest: 9 });
    assert!(matches!(&index.source, Source::ObsText { column: 8, starts } if starts[..] == [0, 7, 7, 16]));
    let Value::Texts(order) = attribute(member(&root, "obs"), "column-order") else {
        panic!()
    };
    assert_eq!(order.len(), 8, "the index is no column: {order:?}");
    assert_eq!(order[..2], ["whole", "holes"]);
}

#[test]
fn names_of_cells_are_their_index_only_if_they_are_text() {
    let schema = schema(&[
        ("obs_names", ColumnKind::Numeric(NumericType::Float64)),
        ("_index", ColumnKind::Bool),
    ]);
    let facts = [facts(false, [0; 3]), facts(false, [0; 3])];
    let metadata = no_metadata();
    let contents = Contents {
        schema: Some(&schema),
        facts: &facts,
        ..contents(&metadata)
    };
    let root = tree(&contents, Container::Zarr).unwrap();
    assert_eq!(
        *attribute(member(&root, "obs"), "_index"),
        Value::Text("_index_".into())
    );
    assert!(matches!(array(&root, "obs/_index_").source, Source::RowNumbers));
    let order = Value::Texts(vec!["obs_names".into(), "_index".into()]);
    assert_eq!(*attribute(member(&root, "obs"), "column-order"), order);
}

#[test]
fn facts_of_another_dataset_are_refused() {
    let schema = schema(&[("text", ColumnKind::String)]);
    let few = [ColumnFacts {
        text_bytes: vec![1],
        ..ColumnFacts::default()
    }];
    let long = [ColumnFacts {
        longest: 1 << 32,
        ..facts(false, [1, 2, 3])
    }];
    let much = [ColumnFacts {
        longest: 1,
        ..facts(false, [u64::MAX / 2, u64::MAX / 2, 9])
    }];
    let metadata = no_metadata();
    for (facts, expected) in [
        (&[][..], "facts of column \"text\" are of 0 tiles, expected 3"),
        (&few, "of 1 tiles, expected 3"),
        (&long, "a text of 4294967296 bytes, expected at most 4294967295"),
        (&much, "too much text"),
    ] {
        let contents = Contents {
            schema: Some(&schema),
            facts,
            ..contents(&metadata)
        };
        let error = tree(&contents, Container::Hdf5).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A gene table with this index in pandas' metadata.
fn genes(columns: Vec<(&str, ArrayRef)>, pandas: Json) -> RecordBatch {
    let field = |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
    let fields: Vec<_> = columns.iter().map(field).collect();
    let metadata = HashMap::from([("pandas".to_owned(), pandas.to_string())]);
    let schema = Schema::new(fields).with_metadata(metadata);
    RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, array)| array).collect()).unwrap()
}

fn var_of(table: &RecordBatch, names: Option<&[String]>) -> Group {
    let metadata = no_metadata();
    let contents = Contents {
        genes: Some(table),
        gene_names: names,
        ..contents(&metadata)
    };
    match tree(&contents, Container::Hdf5).unwrap().members.remove("var") {
        Some(Member::Group(group)) => group,
        other => panic!("{other:?}"),
    }
}

fn strings<const N: usize>(texts: [&str; N]) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(texts))
}

#[test]
fn genes_have_the_index_of_their_table() {
    let stored = || strings(["g0", "g1", "g2"]);
    let other = ["x", "y", "z"].map(String::from);
    for (index, pandas, expected) in [
        (
            "gene_id",
            json!({"index_columns": ["gene_id"], "columns": [{"name": "gene_id", "field_name": "gene_id"}]}),
            "gene_id",
        ),
        (
            "__index_level_0__",
            json!({"index_columns": ["__index_level_0__"], "columns": [{"name": null, "field_name": "__index_level_0__"}]}),
            "_index",
        ),
        // Named as a column is.
        (
            "__index_level_0__",
            json!({"index_columns": ["__index_level_0__"], "columns": [{"name": "n", "field_name": "__index_level_0__"}]}),
            "_index",
        ),
    ] {
        let table = genes(
            vec![("n", Arc::new(Int64Array::from(vec![1, 2, 3]))), (index, stored())],
            pandas,
        );
        let group = var_of(&table, Some(&other));
        let name = |name: &str| {
            group
                .attributes
                .iter()
                .find(|attribute| attribute.name == name)
                .unwrap()
                .value
                .clone()
        };
        assert_eq!(name("_index"), Value::Text(expected.into()));
        assert_eq!(name("column-order"), Value::Texts(vec!["n".into()]));
        assert_eq!(texts(array(&group, expected)), ["g0", "g1", "g2"]);
    }
}

#[test]
fn genes_without_an_index_have_the_names_beside_the_table_or_numbers() {
    let column = || vec![("a", strings(["p", "q", "r"])), ("b", strings(["s", "t", "u"]))];
    let names = ["x", "y", "z"].map(String::from);
    let range = json!({"index_columns": [{"kind": "range", "name": null, "start": 0, "stop": 3, "step": 1}]});
    for pandas in [
        range,
        json!({"index_columns": ["a", "b"]}),
        json!({"index_columns": ["gone"]}),
        json!(7),
    ] {
        let table = genes(column(), pandas);
        let group = var_of(&table, Some(&names));
        assert_eq!(texts(array(&group, "_index")), ["x", "y", "z"]);
        assert_eq!(group.members.len(), 3);
        assert!(matches!(
            array(&var_of(&table, None), "_index").source,
            Source::RowNumbers
        ));
    }
}

#[test]
fn columns_of_genes_become_what_anndata_has_for_their_types() {
    let dictionary: DictionaryArray<Int8Type> = [Some("b"), None, Some("a")].into_iter().collect();
    let twice = DictionaryArray::new(Int8Array::from(vec![0, 1, 2]), strings(["x", "y", "x"]));
    let numbers = DictionaryArray::new(Int8Array::from(vec![1, 0, 1]), Arc::new(Int64Array::from(vec![5, 6])));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("float", Arc::new(Float32Array::from(vec![Some(1.0), None, Some(3.0)]))),
        ("some", Arc::new(UInt16Array::from(vec![Some(1), None, Some(3)]))),
        ("truth", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("nothing", Arc::new(NullArray::new(3))),
        ("date", Arc::new(Date32Array::from(vec![0, 1, 2]))),
        ("labels", Arc::new(dictionary)),
        ("twice", Arc::new(twice)),
        ("numbers", Arc::new(numbers)),
        ("holes", Arc::new(StringArray::from(vec![Some("t"), None, Some("")]))),
    ];
    let group = var_of(&genes(columns, json!({})), None);
    assert_eq!(array(&group, "float").dtype, Dtype::Number(NumericType::Float32));
    assert!(f32::from_le_bytes(bytes(array(&group, "float"))[4..8].try_into().unwrap()).is_nan());
    assert_eq!(encoding_of(&group, "some"), "nullable-integer");
    assert_eq!(bytes(array(&group, "some/values")), [1, 0, 0, 0, 3, 0]);
    assert_eq!(bytes(array(&group, "some/mask")), [0, 1, 0]);
    assert_eq!(bytes(array(&group, "truth")), [1, 0, 1]);
    assert_eq!(array(&group, "nothing").dtype, Dtype::Number(NumericType::Float64));
    assert!(
        bytes(array(&group, "nothing"))
            .chunks(8)
            .all(|b| f64::from_le_bytes(b.try_into().unwrap()).is_nan())
    );
    assert_eq!(texts(array(&group, "date")), ["1970-01-01", "1970-01-02", "1970-01-03"]);
    assert_eq!(texts(array(&group, "labels/categories")), ["b", "a"]);
    assert_eq!(bytes(array(&group, "labels/codes")), [0, 0xff, 1]);
    assert_eq!(texts(array(&group, "twice/categories")), ["x", "y"]);
    assert_eq!(bytes(array(&group, "twice/codes")), [0, 1, 0]);
    assert_eq!(
        bytes(array(&group, "numbers")),
        [6_i64, 5, 6].map(i64::to_le_bytes).concat()
    );
    assert_eq!(encoding_of(&group, "holes"), "nullable-string-array");
    assert_eq!(texts(array(&group, "holes/values")), ["t", "", ""]);
}

#[test]
fn an_ordered_dictionary_stays_ordered() {
    let dictionary: DictionaryArray<Int8Type> = ["low", "high", "low"].into_iter().collect();
    let kind = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    #[expect(deprecated, reason = "the only way to say that a dictionary is ordered")]
    let field = Field::new_dict("grade", kind, true, 0, true);
    let table = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(dictionary)]).unwrap();
    let group = var_of(&table, None);
    assert_eq!(*attribute(&group.members["grade"], "ordered"), Value::Bool(true));
}

#[test]
fn tables_of_another_length_are_refused() {
    let table = genes(vec![("a", strings(["p", "q"]))], json!({}));
    let names = ["x".to_owned()];
    let metadata = no_metadata();
    let with_table = Contents {
        genes: Some(&table),
        ..contents(&metadata)
    };
    let with_names = Contents {
        gene_names: Some(&names),
        ..contents(&metadata)
    };
    for (contents, expected) in [
        (with_table, "var.parquet has 2 rows, expected 3, one per gene"),
        (with_names, "var_names.txt has 1 rows, expected 3, one per gene"),
    ] {
        assert_eq!(tree(&contents, Container::Hdf5).unwrap_err().to_string(), expected);
    }
}
