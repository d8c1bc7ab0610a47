use std::collections::BTreeMap;

use super::*;
use crate::dataset::Array;
use crate::format::obs::NumericType;
use crate::view::hierarchy::{Dtype, Part, Shape, Source, Value};
use arrow::array::LargeStringArray;

const TILING: Tiling = Tiling {
    n_cells: 25_000,
    tile_size: 10_000,
};

fn array(dtype: Dtype, length: u64, source: Source) -> Member {
    Member::Array(ArrayNode {
        attributes: Vec::new(),
        dtype,
        shape: Shape::Vector(length),
        source,
    })
}

fn number(number: NumericType, length: u64, source: Source) -> Member {
    array(Dtype::Number(number), length, source)
}

fn group(members: impl IntoIterator<Item = (&'static str, Member)>) -> Group {
    let members = members.into_iter().map(|(name, member)| (name.to_owned(), member));
    Group {
        attributes: Vec::new(),
        members: members.collect(),
    }
}

/// Something of everything.
fn example() -> Group {
    let bytes = |bytes: &[u8]| Source::Bytes(bytes.into());
    let column = |part| Source::Obs { column: 3, part };
    let mut below = group([
        ("codes", number(NumericType::Int16, 25_000, column(Part::Codes))),
        ("mask", array(Dtype::Bool, 25_000, column(Part::Mask))),
        ("names", array(Dtype::Text { longest: 5 }, 25_000, Source::RowNumbers)),
    ]);
    below.attributes.push(Attribute {
        name: "column-order",
        value: Value::Texts(vec!["codes".into(), String::new(), "codes".into()]),
    });
    let labels = LargeStringArray::from_iter_values(["\u{e9}", "xyz"]);
    let mut root = group([
        ("below", Member::Group(below)),
        ("data", number(NumericType::Int32, 7_777, Source::X(Array::Data))),
        ("empty", number(NumericType::Float64, 0, bytes(&[]))),
        ("labels", array(Dtype::Text { longest: 3 }, 2, Source::Text(labels))),
        ("small", number(NumericType::UInt8, 5, bytes(&[1, 2, 3, 4, 5]))),
    ]);
    root.attributes.push(Attribute {
        name: "encoding-type",
        value: Value::Text("anndata".into()),
    });
    root
}

/// The bytes of a piece; those that are not known here follow from where they come from.
fn bytes(extent: &Extent) -> Vec<u8> {
    let made = |seed: usize, range: &Range<u64>| range.clone().map(|at| (at as usize * 31 + seed) as u8).collect();
    match extent {
        Extent::Literal(bytes, range) => bytes[range.clone()].to_vec(),
        Extent::X { array, bytes } => made(*array as usize, bytes),
        Extent::RowStarts { bytes, .. } => made(0, bytes),
        Extent::Obs {
            tile,
            column,
            part,
            bytes,
        } => made(tile * 7 + column + usize::from(*part == Part::Mask), bytes),
    }
}

fn read(layout: &FileLayout, range: Range<u64>) -> Vec<u8> {
    layout.extents(range).iter().flat_map(bytes).collect()
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

/// Messages of the object header at `address`, after its checksum was found right.
fn messages(file: &[u8], address: u64) -> Vec<(u8, Vec<u8>)> {
    let header = &file[address as usize..];
    assert_eq!(&header[..6], b"OHDR\x02\x02");
    let length = u32::from_le_bytes(header[6..10].try_into().unwrap()) as usize;
    let checksum = u32::from_le_bytes(header[10 + length..14 + length].try_into().unwrap());
    assert_eq!(lookup3(&header[..10 + length]), checksum);
    let (mut rest, mut found) = (&header[10..10 + length], Vec::new());
    while let [kind, low, high, _flags, body @ ..] = rest {
        let (body, next) = body.split_at(u16::from_le_bytes([*low, *high]).into());
        found.push((*kind, body.to_vec()));
        rest = next;
    }
    assert!(rest.is_empty());
    found
}

/// Names and addresses of a group's members.
fn links(file: &[u8], address: u64) -> BTreeMap<String, u64> {
    let link = |body: Vec<u8>| {
        let length = u32::from_le_bytes(body[3..7].try_into().unwrap()) as usize;
        let name = String::from_utf8(body[7..7 + length].to_vec()).unwrap();
        (name, u64_at(&body, 7 + length))
    };
    let all = messages(file, address).into_iter();
    all.filter(|(kind, _)| *kind == Kind::Link as u8)
        .map(|(_, body)| link(body))
        .collect()
}

/// Where an array lies, from its layout message.
fn place(file: &[u8], address: u64) -> (u64, u64) {
    let all = messages(file, address);
    let (_, body) = all.iter().find(|(kind, _)| *kind == Kind::Layout as u8).unwrap();
    assert_eq!(body[..2], [3, 1]);
    (u64_at(body, 2), u64_at(body, 10))
}

#[test]
fn every_object_is_reached_from_the_superblock_and_every_checksum_is_right() {
    let layout = FileLayout::new(&example(), TILING).unwrap();
    let file = read(&layout, 0..layout.len());
    assert_eq!(file.len() as u64, layout.len());
    assert_eq!(&file[..12], b"\x89HDF\r\n\x1a\n\x02\x08\x08\0");
    assert_eq!(lookup3(&file[..44]).to_le_bytes(), file[44..48]);
    assert_eq!(u64_at(&file, 28), layout.len(), "end of file");
    let root = links(&file, u64_at(&file, 36));
    assert_eq!(
        root.keys().collect::<Vec<_>>(),
        ["below", "data", "empty", "labels", "small"]
    );
    let below = links(&file, root["below"]);
    assert_eq!(below.keys().collect::<Vec<_>>(), ["codes", "mask", "names"]);
    assert_eq!(place(&file, root["empty"]), (u64::MAX, 0));
    for (address, length) in [
        (root["data"], 4 * 7_777),
        (below["codes"], 50_000),
        (below["mask"], 25_000),
        (below["names"], 125_000),
    ] {
        let (start, bytes) = place(&file, address);
        assert_eq!((start % PAGE, bytes), (0, length));
    }
    let (start, length) = place(&file, root["small"]);
    assert_eq!(file[start as usize..(start + length) as usize], [1, 2, 3, 4, 5]);
    let (start, length) = place(&file, root["labels"]);
    assert_eq!(&file[start as usize..(start + length) as usize], b"\xc3\xa9\0xyz");
    let (start, _) = place(&file, below["names"]);
    assert_eq!(&file[start as usize + 5 * 9_999..][..10], b"9999\x0010000");
}

#[test]
fn attributes_refer_to_texts_in_the_heap() {
    let layout = FileLayout::new(&example(), TILING).unwrap();
    let file = read(&layout, 0..layout.metadata_len());
    let root = links(&file, u64_at(&file, 36));
    let all = messages(&file, root["below"]);
    let (_, body) = all.iter().find(|(kind, _)| *kind == Kind::Attribute as u8).unwrap();
    let elements: Vec<_> = body[body.len() - 48..].chunks_exact(16).collect();
    assert_eq!(elements[0], elements[2]);
    assert_eq!(elements[1], [0; 16], "an empty text lies nowhere");
    assert_eq!(elements[0][..4], [5, 0, 0, 0]);
    let collection = u64_at(elements[0], 4) as usize;
    assert_eq!(&file[collection..collection + 4], b"GCOL");
    assert_eq!(&file[collection + 16..collection + 18], &elements[0][12..14]);
    assert_eq!(&file[collection + 32..collection + 37], b"codes");
}

#[test]
fn every_range_of_a_file_is_the_same_bytes_as_in_the_whole() {
    let layout = FileLayout::new(&example(), TILING).unwrap();
    let whole = read(&layout, 0..layout.len());
    let starts = (0..layout.len()).step_by(997).chain(layout.len() - 20..layout.len());
    for start in starts {
        for length in [1, 4096, 70_001] {
            let end = (start + length).min(layout.len());
            let got = read(&layout, start..start + length);
            assert!(got == whole[start as usize..end as usize], "{start}..{end}");
        }
    }
    assert!(layout.extents(layout.len()..layout.len() + 5).is_empty());
    assert!(layout.extents(5..5).is_empty());
}

#[test]
fn a_file_depends_on_its_tree_alone() {
    let files = [0, 1].map(|_| {
        let layout = FileLayout::new(&example(), TILING).unwrap();
        read(&layout, 0..layout.len())
    });
    assert!(files[0] == files[1]);
}

#[test]
fn a_hundred_billion_nonzeros_take_no_more_metadata_than_one() {
    let tree = |cells, nonzeros| {
        group([
            ("data", number(NumericType::Int32, nonzeros, Source::X(Array::Data))),
            (
                "indices",
                number(NumericType::Int32, nonzeros, Source::X(Array::Indices)),
            ),
            (
                "indptr",
                number(NumericType::Int64, cells + 1, Source::X(Array::Indptr)),
            ),
            ("names", array(Dtype::Text { longest: 8 }, cells, Source::RowNumbers)),
        ])
    };
    let tiling = Tiling {
        n_cells: 100_000_000,
        tile_size: 10_000,
    };
    let small = FileLayout::new(&tree(1, 1), tiling).unwrap();
    let layout = FileLayout::new(&tree(100_000_000, 100_000_000_000), tiling).unwrap();
    assert_eq!(layout.metadata_len(), small.metadata_len());
    let metadata = read(&layout, 0..layout.metadata_len());
    let root = links(&metadata, u64_at(&metadata, 36));
    let (indices, length) = place(&metadata, root["indices"]);
    assert!(indices > 400_000_000_000);
    let last = layout.extents(indices + length - 4..indices + length);
    let array = Array::Indices;
    assert_eq!(
        last,
        [Extent::X {
            array,
            bytes: length - 4..length
        }]
    );
    let end = read(&layout, layout.len() - 16..layout.len());
    assert_eq!(end, b"9999999899999999");
}

#[test]
fn a_header_never_holds_a_message_it_has_no_room_for() {
    let with = |names: usize| {
        let mut root = Group::default();
        root.attributes.push(Attribute {
            name: "column-order",
            value: Value::Texts((0..names).map(|name| name.to_string()).collect()),
        });
        FileLayout::new(&root, TILING)
    };
    assert!(with(4_000).is_ok());
    let error = with(5_000).unwrap_err().to_string();
    assert!(
        error.contains("\"column-order\" of \"/\" takes 80054 bytes, expected at most 65535"),
        "{error}"
    );
    let long = "x".repeat(65_600);
    let mut root = Group::default();
    root.members.insert(long, Member::Group(Group::default()));
    assert!(matches!(
        FileLayout::new(&root, TILING),
        Err(Hdf5Error::LongName { found: 65_600, .. })
    ));
}

#[test]
fn names_that_no_path_reaches_are_refused() {
    for name in ["", ".", "a/b", "a\0"] {
        let mut root = Group::default();
        root.members.insert(name.into(), Member::Group(Group::default()));
        assert!(
            matches!(FileLayout::new(&root, TILING), Err(Hdf5Error::Name { .. })),
            "{name:?}"
        );
    }
}

#[test]
fn a_file_too_large_to_address_is_refused() {
    for length in [u64::MAX, 1 << 61] {
        let root = group([("data", number(NumericType::Int32, length, Source::X(Array::Data)))]);
        assert!(matches!(FileLayout::new(&root, TILING), Err(Hdf5Error::FileTooLarge { object }) if object == "/data"));
    }
}
