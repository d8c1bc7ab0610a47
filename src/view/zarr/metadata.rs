//! `zarr.json`: what Zarr v3 says of a group or an array.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::chunks::Chunks;
use crate::format::obs::NumericType;
use crate::view::hierarchy::{Attribute, Dtype, Shape, Value};

/// The document of a group.
pub(super) fn group(attributes: &[Attribute]) -> Json {
    json!({
        "zarr_format": 3,
        "node_type": "group",
        "attributes": attributes_json(attributes),
    })
}

/// The document of an array.
pub(super) fn array(chunks: &Chunks) -> Json {
    let array = &chunks.array;
    let shape: Vec<u64> = match array.shape {
        Shape::Scalar => Vec::new(),
        Shape::Vector(length) => vec![length],
    };
    let chunk_shape: Vec<u64> = chunks.shape().into_iter().collect();
    let (data_type, fill_value) = data_type(array.dtype);
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "attributes": attributes_json(&array.attributes),
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [codec(array.dtype)],
        "storage_transformers": [],
    })
}

/// Adds to the root's document those of everything below it, by path.
pub(super) fn consolidate(root: &mut Json, documents: BTreeMap<String, Json>) {
    root["consolidated_metadata"] = json!({
        "kind": "inline",
        "must_understand": false,
        "metadata": documents,
    });
}

fn attributes_json(attributes: &[Attribute]) -> Map<String, Json> {
    let value = |value: &Value| match value {
        Value::Text(text) => json!(text),
        Value::Texts(texts) => json!(texts),
        Value::Integers(numbers) => json!(numbers),
        Value::Bool(truth) => json!(truth),
    };
    let entry = |attribute: &Attribute| (attribute.name.to_owned(), value(&attribute.value));
    attributes.iter().map(entry).collect()
}

/// Name of the type and the value of what is not there.
fn data_type(dtype: Dtype) -> (&'static str, Json) {
    use NumericType::*;
    let name = match dtype {
        Dtype::Bool => return ("bool", json!(false)),
        Dtype::Text { .. } => return ("string", json!("")),
        Dtype::Number(Float16) => return ("float16", json!(0.0)),
        Dtype::Number(Float32) => return ("float32", json!(0.0)),
        Dtype::Number(Float64) => return ("float64", json!(0.0)),
        // Integers are called in Zarr as in Arrow.
        Dtype::Number(integer) => integer.arrow_name(),
    };
    (name, json!(0))
}

/// How elements become bytes; single bytes have no order.
fn codec(dtype: Dtype) -> Json {
    match dtype {
        Dtype::Text { .. } => json!({"name": "vlen-utf8", "configuration": {}}),
        _ if dtype.width() == 1 => json!({"name": "bytes"}),
        _ => json!({"name": "bytes", "configuration": {"endian": "little"}}),
    }
}
