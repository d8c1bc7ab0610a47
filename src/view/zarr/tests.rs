use super::*;
use crate::dataset::Array;
use crate::format::obs::NumericType;
use crate::view::hierarchy::{Attribute, Dtype, Part, Source, Value};
use arrow::array::LargeStringArray;

const TILING: Tiling = Tiling {
    n_cells: 25,
    tile_size: 4,
};

fn array(dtype: Dtype, shape: Shape, source: Source) -> Member {
    Member::Array(ArrayNode {
        attributes: Vec::new(),
        dtype,
        shape,
        source,
    })
}

fn root(members: impl IntoIterator<Item = (&'static str, Member)>) -> Group {
    let members = members.into_iter().map(|(name, member)| (name.to_owned(), member));
    Group {
        attributes: Vec::new(),
        members: members.collect(),
    }
}

fn example() -> Group {
    let labels = LargeStringArray::from_iter_values(["ab", "", "c"]);
    let starts: Arc<[u64]> = [0, 1, 3, 3, 10, 10, 11, 12].into();
    let mut below = root([
        (
            "codes",
            array(
                Dtype::Number(NumericType::Int16),
                Shape::Vector(25),
                Source::Obs {
                    column: 1,
                    part: Part::Codes,
                },
            ),
        ),
        (
            "names",
            array(
                Dtype::Text { longest: 7 },
                Shape::Vector(25),
                Source::ObsText { column: 2, starts },
            ),
        ),
    ]);
    below.attributes.push(Attribute {
        name: "column-order",
        value: Value::Texts(vec!["codes".into()]),
    });
    root([
        ("below", Member::Group(below)),
        (
            "data",
            array(
                Dtype::Number(NumericType::Int32),
                Shape::Vector(23),
                Source::X(Array::Data),
            ),
        ),
        (
            "empty",
            array(Dtype::Bool, Shape::Vector(0), Source::Bytes([].as_slice().into())),
        ),
        (
            "labels",
            array(Dtype::Text { longest: 2 }, Shape::Vector(3), Source::Text(labels)),
        ),
        (
            "one",
            array(
                Dtype::Number(NumericType::Float64),
                Shape::Scalar,
                Source::Bytes(2.5_f64.to_le_bytes().as_slice().into()),
            ),
        ),
    ])
}

fn find(store: &Store, path: &str) -> NodeId {
    let step = |folder, name| {
        store
            .lookup(folder, name)
            .unwrap_or_else(|| panic!("no {name} in {path}"))
    };
    path.split('/').fold(0, step)
}

fn document(store: &Store, path: &str) -> Json {
    let node = find(store, path);
    serde_json::from_slice(&literal(&store.extents(node, 0..store.size(node)))).unwrap()
}

fn literal(extents: &[Extent]) -> Vec<u8> {
    let bytes = |extent: &Extent| match extent {
        Extent::Literal(bytes, range) => bytes[range.clone()].to_vec(),
        other => panic!("{other:?} is not known"),
    };
    extents.iter().flat_map(bytes).collect()
}

#[test]
fn every_number_is_a_node_that_its_folder_lists_and_finds() {
    let store = Store::new(&example(), TILING, 10).unwrap();
    let mut seen = vec![0; store.nodes() as usize];
    for folder in (0..store.nodes()).filter(|&node| store.is_folder(node)) {
        let entries: Vec<_> = (0..).map_while(|position| store.entry(folder, position)).collect();
        let folders = entries.iter().filter(|&&node| store.is_folder(node)).count() as u64;
        assert_eq!(store.folders_in(folder), folders);
        for node in entries {
            assert_eq!(store.parent(node), folder);
            assert_eq!(store.lookup(folder, &store.name(node)), Some(node));
            seen[node as usize] += 1;
        }
    }
    assert_eq!(seen[0], 0, "the root is in no folder but itself");
    assert!(seen[1..].iter().all(|&times| times == 1), "{seen:?}");
    assert_eq!((store.parent(0), store.name(0)), (0, String::new()));
}

#[test]
fn chunks_have_one_spelling_each() {
    let store = Store::new(&example(), TILING, 10).unwrap();
    let chunks = find(&store, "data/c");
    for name in ["3", "00", "+1", "-1", "", " 1", "1 ", "c", "99999999999999999999"] {
        assert_eq!(store.lookup(chunks, name), None, "{name:?}");
    }
    for probe in [".zarray", ".zgroup", ".zattrs", "zarr", "0"] {
        assert_eq!(store.lookup(find(&store, "data"), probe), None);
        assert_eq!(store.lookup(0, probe), None);
    }
}

#[test]
fn every_chunk_is_full_and_the_last_is_padded_with_zeros() {
    let store = Store::new(&example(), TILING, 10).unwrap();
    let last = find(&store, "data/c/2");
    assert_eq!(store.size(last), 40);
    let array = Array::Data;
    let [x, padding] = &store.extents(last, 0..40)[..] else {
        panic!()
    };
    assert_eq!(*x, Extent::X { array, bytes: 80..92 });
    assert_eq!(literal(std::slice::from_ref(padding)), [0; 28]);
    assert_eq!(store.extents(last, 7..9), [Extent::X { array, bytes: 87..89 }]);
    assert_eq!(literal(&store.extents(last, 39..1000)), [0]);
}

#[test]
fn chunks_of_obs_are_whole_tiles() {
    let store = Store::new(&example(), TILING, 10).unwrap();
    let codes = document(&store, "below/codes/zarr.json");
    assert_eq!(
        codes["chunk_grid"]["configuration"]["chunk_shape"],
        serde_json::json!([8])
    );
    let obs = |tile, column, part, bytes| Extent::Obs {
        tile,
        column,
        part,
        bytes,
    };
    let second = find(&store, "below/codes/c/1");
    let tiles = [obs(2, 1, Part::Codes, 0..8), obs(3, 1, Part::Codes, 0..8)];
    assert_eq!(store.extents(second, 0..16), tiles);
    let names = find(&store, "below/names/c/1");
    assert_eq!(store.size(names), 4 + 8 * 4 + 7);
    let extents = store.extents(names, 0..store.size(names));
    assert_eq!(literal(&extents[..1]), [8, 0, 0, 0]);
    let part = Part::CountedText;
    assert_eq!(extents[1..], [obs(2, 2, part, 0..16), obs(3, 2, part, 0..23)]);
    // One cell in the last tile, and seven that are not there.
    let last = find(&store, "below/names/c/3");
    assert_eq!(store.size(last), 4 + 8 * 4 + 1);
    let extents = store.extents(last, 0..store.size(last));
    assert_eq!(extents[1], obs(6, 2, part, 0..5));
    assert_eq!(literal(&extents[2..]), [0; 28]);
}

#[test]
fn text_is_counted_and_a_scalar_is_a_chunk_without_a_number() {
    let store = Store::new(&example(), TILING, 2).unwrap();
    let whole = |path| {
        let node = find(&store, path);
        literal(&store.extents(node, 0..store.size(node)))
    };
    assert_eq!(whole("labels/c/0"), b"\x02\0\0\0\x02\0\0\0ab\0\0\0\0");
    assert_eq!(whole("labels/c/1"), b"\x02\0\0\0\x01\0\0\0c\0\0\0\0");
    assert_eq!(whole("one/c"), 2.5_f64.to_le_bytes());
    assert!(!store.is_folder(find(&store, "one/c")));
    assert_eq!(store.entry(find(&store, "empty/c"), 0), None);
}

#[test]
fn the_roots_document_holds_all_others() {
    let store = Store::new(&example(), TILING, 10).unwrap();
    let root = document(&store, "zarr.json");
    let all = root["consolidated_metadata"]["metadata"].as_object().unwrap();
    let paths = ["below", "below/codes", "below/names", "data", "empty", "labels", "one"];
    assert_eq!(all.keys().collect::<Vec<_>>(), paths);
    for path in paths {
        assert_eq!(all[path], document(&store, &format!("{path}/zarr.json")), "{path}");
    }
    assert_eq!(all["below"]["attributes"]["column-order"], serde_json::json!(["codes"]));
    assert_eq!(
        all["data"]["codecs"].as_array().unwrap().len(),
        1,
        "nothing is compressed"
    );
}

#[test]
fn a_hundred_billion_nonzeros_cost_no_more_than_ten() {
    let nonzeros = 100_000_000_000;
    let dtype = Dtype::Number(NumericType::Int32);
    let tree = root([("data", array(dtype, Shape::Vector(nonzeros), Source::X(Array::Data)))]);
    let store = Store::new(&tree, TILING, DEFAULT_CHUNK).unwrap();
    let chunks = find(&store, "data/c");
    let count = nonzeros.div_ceil(DEFAULT_CHUNK);
    let last = store.entry(chunks, count - 1).unwrap();
    assert_eq!(store.entry(chunks, count), None);
    assert_eq!(store.name(last), (count - 1).to_string());
    assert_eq!(store.size(last), 4 << 18);
    let bytes = 4 * (count - 1) * DEFAULT_CHUNK..4 * (count - 1) * DEFAULT_CHUNK + 4;
    let array = Array::Data;
    assert_eq!(store.extents(last, 0..4), [Extent::X { array, bytes }]);
}

#[test]
fn chunks_that_cannot_be_counted_are_refused() {
    let tiling = Tiling {
        n_cells: 1 << 40,
        tile_size: 1 << 40,
    };
    let starts: Arc<[u64]> = [0, 1].into();
    let text = Source::ObsText { column: 0, starts };
    let tree = root([("names", array(Dtype::Text { longest: 1 }, Shape::Vector(1 << 40), text))]);
    assert!(matches!(Store::new(&tree, tiling, 10), Err(ZarrError::ChunkTooLarge { array }) if array == "names"));
    let many = Source::X(Array::Data);
    let tree = root([("data", array(Dtype::Bool, Shape::Vector(u64::MAX), many))]);
    assert!(matches!(
        Store::new(&tree, tiling, 1),
        Err(ZarrError::TooManyChunks { .. })
    ));
}
