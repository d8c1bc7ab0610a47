//! The manifest's metadata as `uns`.
//!
//! An object is a `dict`; text, numbers and truth values are scalars; a list of nothing but text, of nothing but integers, of
//! nothing but numbers or of nothing but truth values is an array, an empty list an empty array of float64, as in
//! anndata. `null` is left out, for old readers have no word for it. Any other list (mixed, nested, with `null`) is the
//! JSON text of it. Keys that cannot be names are percent-encoded.

use arrow::array::LargeStringArray;
use serde_json::{Map, Value as Json};

use super::frame::{Slash, place};
use super::{ArrayNode, Container, Dtype, Group, Member, Shape, Source, dict, encoding, vector};
use crate::format::obs::NumericType;

/// `uns` of this metadata.
pub(super) fn uns(metadata: &Map<String, Json>, container: Container) -> Group {
    let mut group = dict();
    for (key, value) in metadata {
        let member = match value {
            Json::Null => continue,
            Json::Object(object) => Member::Group(uns(object, container)),
            Json::Array(list) => Member::Array(array(list).unwrap_or_else(|| text(value.to_string()))),
            Json::String(value) => Member::Array(text(value.clone())),
            Json::Bool(_) | Json::Number(_) => Member::Array(number(value)),
        };
        place(&mut group, key, member, container, Slash::IsEncoded);
    }
    group
}

fn text(value: String) -> ArrayNode {
    // Beyond 4 GiB text would not have fitted the manifest.
    let longest = value.len().min(u32::MAX as usize) as u32;
    ArrayNode {
        attributes: encoding("string", "0.2.0"),
        dtype: Dtype::Text { longest },
        shape: Shape::Scalar,
        source: Source::Text(LargeStringArray::from_iter_values([value])),
    }
}

fn number(value: &Json) -> ArrayNode {
    let (dtype, bytes) = elements(std::slice::from_ref(value)).expect("one number is of one type");
    ArrayNode {
        attributes: encoding("numeric-scalar", "0.2.0"),
        dtype,
        shape: Shape::Scalar,
        source: Source::Bytes(bytes.into()),
    }
}

/// The list as an array, if its items are of one type.
fn array(list: &[Json]) -> Option<ArrayNode> {
    let rows = list.len() as u64;
    let texts: Option<Vec<&str>> = list.iter().map(Json::as_str).collect();
    if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let longest = longest.min(u32::MAX as usize) as u32;
        let source = Source::Text(LargeStringArray::from_iter_values(texts));
        return Some(vector(Dtype::Text { longest }, rows, source));
    }
    let (dtype, bytes) = elements(list)?;
    Some(vector(dtype, rows, Source::Bytes(bytes.into())))
}

/// Truth values or numbers of the narrowest of int64, uint64 and float64 that holds them all.
fn elements(list: &[Json]) -> Option<(Dtype, Vec<u8>)> {
    let number = |number, bytes| (Dtype::Number(number), bytes);
    if list.is_empty() {
        return Some(number(NumericType::Float64, Vec::new()));
    }
    if let Some(truths) = list.iter().map(Json::as_bool).collect::<Option<Vec<_>>>() {
        return Some((Dtype::Bool, truths.into_iter().map(u8::from).collect()));
    }
    if let Some(bytes) = each(list, |value| value.as_i64().map(i64::to_le_bytes)) {
        return Some(number(NumericType::Int64, bytes));
    }
    if let Some(bytes) = each(list, |value| value.as_u64().map(u64::to_le_bytes)) {
        return Some(number(NumericType::UInt64, bytes));
    }
    let bytes = each(list, |value| value.as_f64().map(f64::to_le_bytes))?;
    Some(number(NumericType::Float64, bytes))
}

fn each(list: &[Json], bytes: impl Fn(&Json) -> Option<[u8; 8]>) -> Option<Vec<u8>> {
    let elements: Option<Vec<_>> = list.iter().map(bytes).collect();
    Some(elements?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(value: Json) -> Option<ArrayNode> {
        let mut metadata = Map::new();
        metadata.insert("key".into(), value);
        match uns(&metadata, Container::Hdf5).members.remove("key")? {
            Member::Array(array) => Some(array),
            Member::Group(_) => panic!("a group"),
        }
    }

    fn bytes(node: &ArrayNode) -> &[u8] {
        match &node.source {
            Source::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn numbers_keep_their_value_and_their_type() {
        use NumericType::{Float64, Int64, UInt64};
        for (value, number, expected) in [
            (json!(-3), Int64, (-3_i64).to_le_bytes()),
            (json!(u64::MAX), UInt64, u64::MAX.to_le_bytes()),
            (json!(2.5), Float64, 2.5_f64.to_le_bytes()),
        ] {
            let node = shown(value).unwrap();
            assert_eq!((node.dtype, node.shape), (Dtype::Number(number), Shape::Scalar));
            assert_eq!(bytes(&node), expected);
        }
        assert_eq!(shown(json!(true)).unwrap().dtype, Dtype::Bool);
    }

    #[test]
    fn lists_of_one_type_are_arrays_and_others_are_json() {
        let node = shown(json!([1, 2.5])).unwrap();
        assert_eq!(bytes(&node), [1_f64.to_le_bytes(), 2.5_f64.to_le_bytes()].concat());
        assert_eq!(shown(json!([])).unwrap().shape, Shape::Vector(0));
        assert_eq!(shown(json!(["a", "\u{e9}"])).unwrap().dtype, Dtype::Text { longest: 2 });
        assert_eq!(bytes(&shown(json!([true, false])).unwrap()), [1, 0]);
        for list in [
            json!([1, null, "\u{fc}"]),
            json!([[1, 2], [3, 4]]),
            json!([true, 1]),
            json!([{}]),
        ] {
            let text = list.to_string();
            let node = shown(list).unwrap();
            let Source::Text(texts) = &node.source else { panic!() };
            assert_eq!((texts.value(0), node.shape), (text.as_str(), Shape::Scalar));
        }
    }

    #[test]
    fn what_is_null_is_not_there_and_objects_nest() {
        assert!(shown(Json::Null).is_none());
        let Json::Object(metadata) = json!({"a/b": {"deep": {"x": 1}}}) else {
            panic!()
        };
        let group = uns(&metadata, Container::Zarr);
        let Some(Member::Group(outer)) = group.members.get("a%2Fb") else {
            panic!()
        };
        assert!(matches!(outer.members.get("deep"), Some(Member::Group(_))));
    }
}
