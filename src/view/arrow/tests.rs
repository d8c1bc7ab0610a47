use std::io::Cursor;

use arrow::array::{
    AsArray, BooleanArray, Float32Array, Float64Array, Int64Array, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
    new_null_array,
};
use arrow::ipc::reader::FileReader;

use super::*;

/// Enough for two bytes of bitmap, and not a multiple of eight.
const TILE_SIZE: u64 = 11;

fn category(codes: NumericType, labels: &[&str]) -> ObsColumn {
    let categories = labels.iter().map(|label| (*label).to_owned()).collect();
    ObsColumn {
        name: "cell type".into(),
        kind: ColumnKind::Category { codes, categories },
    }
}

fn column(kind: ColumnKind) -> ObsColumn {
    ObsColumn {
        name: "\u{e9}/..".into(),
        kind,
    }
}

fn layout(columns: &[ObsColumn]) -> Arc<BatchLayout> {
    Arc::new(BatchLayout::new(columns).unwrap())
}

/// Column kinds, each with `cells` values of which about one in three is missing, if any are to be.
fn all_kinds(cells: u64, with_missing: bool) -> Vec<(ObsColumn, ArrayRef)> {
    use ColumnKind::Numeric;
    let present = |i: &u64| !with_missing || i % 3 != 1;
    let numbers = || (0..cells).map(|i| present(&i).then_some(i));
    let codes = || (0..cells).map(|i| if present(&i) { i as i32 % 4 } else { -1 });
    let labels = ["", "T cell, na\u{ef}ve", "\u{1f9ec}", "d"];
    let single = Float32Array::from_iter(numbers().map(|n| n.map(|n| n as f32 / 3.0)));
    let half = arrow::compute::cast(&single, &DataType::Float16).unwrap();
    let texts = numbers().map(|n| n.map(|n| "\u{e9}x".repeat(n as usize % 4)));
    vec![
        (
            category(NumericType::Int8, &labels),
            Arc::new(Int8Array::from_iter_values(codes().map(|c| c as i8))),
        ),
        (
            category(NumericType::Int16, &labels),
            Arc::new(Int16Array::from_iter_values(codes().map(|c| c as i16))),
        ),
        (
            category(NumericType::Int32, &labels),
            Arc::new(Int32Array::from_iter_values(codes())),
        ),
        (
            column(Numeric(NumericType::Int8)),
            Arc::new(Int8Array::from_iter(numbers().map(|n| n.map(|n| n as i8)))),
        ),
        (
            column(Numeric(NumericType::Int16)),
            Arc::new(Int16Array::from_iter(numbers().map(|n| n.map(|n| n as i16)))),
        ),
        (
            column(Numeric(NumericType::Int32)),
            Arc::new(Int32Array::from_iter(numbers().map(|n| n.map(|n| n as i32)))),
        ),
        (
            column(Numeric(NumericType::Int64)),
            Arc::new(Int64Array::from_iter(numbers().map(|n| n.map(|n| n as i64)))),
        ),
        (
            column(Numeric(NumericType::UInt8)),
            Arc::new(UInt8Array::from_iter(numbers().map(|n| n.map(|n| n as u8)))),
        ),
        (
            column(Numeric(NumericType::UInt16)),
            Arc::new(UInt16Array::from_iter(numbers().map(|n| n.map(|n| n as u16)))),
        ),
        (
            column(Numeric(NumericType::UInt32)),
            Arc::new(UInt32Array::from_iter(numbers().map(|n| n.map(|n| n as u32)))),
        ),
        (
            column(Numeric(NumericType::UInt64)),
            Arc::new(UInt64Array::from_iter(numbers())),
        ),
        (column(Numeric(NumericType::Float16)), half),
        (column(Numeric(NumericType::Float32)), Arc::new(single)),
        (
            column(Numeric(NumericType::Float64)),
            Arc::new(Float64Array::from_iter(numbers().map(|n| n.map(|n| n as f64 / 3.0)))),
        ),
        (
            column(ColumnKind::Bool),
            Arc::new(BooleanArray::from_iter(numbers().map(|n| n.map(|n| n % 2 == 0)))),
        ),
        (column(ColumnKind::String), Arc::new(StringArray::from_iter(texts))),
    ]
}

/// What the column shows for the stored values: labels instead of codes.
fn shown(column: &ObsColumn, stored: &ArrayRef) -> ArrayRef {
    let ColumnKind::Category { categories, .. } = &column.kind else {
        return stored.clone();
    };
    let codes = arrow::compute::cast(stored, &DataType::Int64).unwrap();
    let labels = codes.as_primitive::<arrow::datatypes::Int64Type>().values().iter();
    Arc::new(StringArray::from_iter(
        labels.map(|&code| usize::try_from(code).ok().map(|code| &categories[code])),
    ))
}

fn plain(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Dictionary(_, values) => arrow::compute::cast(array, values).unwrap(),
        _ => array.clone(),
    }
}

/// The array cut into tiles of at most [`TILE_SIZE`] cells.
fn tiles(array: &ArrayRef) -> Vec<ArrayRef> {
    let starts = (0..array.len()).step_by(TILE_SIZE as usize);
    starts
        .map(|start| array.slice(start, (array.len() - start).min(TILE_SIZE as usize)))
        .collect()
}

fn text_of(tiles: &[ArrayRef]) -> Vec<u64> {
    tiles
        .iter()
        .filter_map(|tile| tile.as_string_opt::<i32>().map(text_bytes))
        .collect()
}

/// The bytes `range` of a file, from its extents.
fn read(file: &FileLayout, messages: &[Vec<u8>], range: Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extent in file.extents(range) {
        assert!(!extent.is_empty());
        match extent {
            Extent::Literal(literal) => bytes.extend_from_slice(&literal),
            Extent::Message { batch, range } => {
                bytes.extend_from_slice(&messages[batch as usize][range.start as usize..range.end as usize]);
            }
        }
    }
    bytes
}

/// The file of all tiles of one column.
fn whole_file(column: &ObsColumn, array: &ArrayRef) -> (FileLayout, Vec<Vec<u8>>) {
    let batch = layout(std::slice::from_ref(column));
    let tiles = tiles(array);
    let tiling = Tiling {
        n_cells: array.len() as u64,
        tile_size: TILE_SIZE,
    };
    let text = text_of(&tiles);
    let file = FileLayout::all_tiles(batch.clone(), tiling, &[&text[..]][..batch.n_text_columns()]).unwrap();
    let messages = tiles
        .iter()
        .map(|tile| batch.encode_message(std::slice::from_ref(tile)).unwrap())
        .collect();
    (file, messages)
}

fn read_back(bytes: Vec<u8>) -> (Arc<Schema>, Vec<ArrayRef>) {
    let reader = FileReader::try_new(Cursor::new(bytes), None).unwrap();
    let schema = reader.schema();
    (schema, reader.map(|batch| batch.unwrap().column(0).clone()).collect())
}

#[test]
fn a_file_of_all_tiles_reads_back_as_the_column_it_was_made_of() {
    for (with_missing, cells) in [(true, 1), (true, TILE_SIZE * 3), (false, TILE_SIZE * 2 + 1), (true, 5)] {
        for (column, array) in all_kinds(cells, with_missing) {
            let (file, messages) = whole_file(&column, &array);
            let bytes = read(&file, &messages, 0..u64::MAX);
            assert_eq!(bytes.len() as u64, file.len());
            let (schema, batches) = read_back(bytes);
            let field = Field::new(&column.name, shown_type(&column.kind), true);
            assert_eq!(*schema, Schema::new(vec![field]));
            assert_eq!(batches.len() as u64, cells.div_ceil(TILE_SIZE));
            for (batch, tile) in batches.iter().zip(tiles(&array)) {
                assert_eq!(&plain(batch), &shown(&column, &tile), "{column:?}");
            }
        }
    }
}

#[test]
fn a_file_of_one_tile_holds_the_same_message_as_the_file_of_all() {
    for (column, array) in all_kinds(TILE_SIZE * 2 + 1, true) {
        let (all, messages) = whole_file(&column, &array);
        let batch = layout(std::slice::from_ref(&column));
        for (tile, values) in tiles(&array).iter().enumerate() {
            let text = text_of(std::slice::from_ref(values));
            let one = FileLayout::one_tile(batch.clone(), values.len() as u64, &text).unwrap();
            assert_eq!(one.n_batches(), 1);
            let message = one.message(0);
            assert_eq!(message.end - message.start, messages[tile].len() as u64);
            let in_all = read(&all, &messages, all.message(tile as u64));
            assert_eq!(in_all, messages[tile], "{column:?}");
            let (_, batches) = read_back(read(&one, &messages[tile..=tile], 0..one.len()));
            assert_eq!(&plain(&batches[0]), &shown(&column, values));
        }
    }
}

#[test]
fn sizes_do_not_depend_on_what_is_missing() {
    let without: Vec<_> = all_kinds(TILE_SIZE, false);
    for ((column, none), (_, some)) in without.into_iter().zip(all_kinds(TILE_SIZE, true)) {
        let batch = layout(std::slice::from_ref(&column));
        let all: ArrayRef = match &column.kind {
            ColumnKind::Category {
                codes: NumericType::Int8,
                ..
            } => Arc::new(Int8Array::from(vec![-1; 11])),
            ColumnKind::Category {
                codes: NumericType::Int16,
                ..
            } => Arc::new(Int16Array::from(vec![-1; 11])),
            ColumnKind::Category { .. } => Arc::new(Int32Array::from(vec![-1; 11])),
            other => new_null_array(&other.stored_type(), TILE_SIZE as usize),
        };
        for array in [none, some, all] {
            let text = text_of(std::slice::from_ref(&array));
            let file = FileLayout::one_tile(batch.clone(), TILE_SIZE, &text).unwrap();
            let message = file.message(0);
            let encoded = batch.encode_message(&[array]).unwrap();
            assert_eq!(encoded.len() as u64, message.end - message.start, "{column:?}");
        }
    }
}

#[test]
fn every_range_of_a_file_is_the_same_bytes_as_in_the_whole() {
    for (column, array) in all_kinds(TILE_SIZE * 3 + 2, true) {
        let (file, messages) = whole_file(&column, &array);
        let whole = read(&file, &messages, 0..file.len());
        for step in [1, 7, 64, 1000] {
            let mut bytes = Vec::new();
            for start in (0..file.len() + step).step_by(step as usize) {
                bytes.extend(read(&file, &messages, start..start + step));
            }
            assert_eq!(bytes, whole, "{column:?} in steps of {step}");
        }
    }
}

#[test]
fn buffers_and_messages_start_at_multiples_of_64_and_nothing_is_compressed() {
    for (column, array) in all_kinds(TILE_SIZE * 2 + 1, true) {
        let (file, messages) = whole_file(&column, &array);
        for (index, bytes) in messages.iter().enumerate() {
            assert_eq!(file.message(index as u64).start % 64, 0);
            assert_eq!(bytes.len() % 64, 0);
            let message = ipc::root_as_message(&bytes[8..]).unwrap();
            let batch = message.header_as_record_batch().unwrap();
            assert!(batch.compression().is_none());
            let body = bytes.len() as i64 - message.bodyLength();
            assert_eq!(body % 64, 0);
            let buffers = batch.buffers().unwrap();
            assert!(buffers.iter().all(|buffer| buffer.offset() % 64 == 0));
            assert_eq!(
                buffers.get(0).length() as usize,
                (array.len() - index * 11).min(11).div_ceil(8)
            );
        }
    }
}

#[test]
fn bytes_after_the_last_value_are_zero_whatever_the_array_holds_there() {
    // A slice has bits of its neighbours in its last byte.
    let bools: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true); 16]).slice(3, 9));
    let batch = layout(&[column(ColumnKind::Bool)]);
    let message = batch.encode_message(&[bools]).unwrap();
    let body = &message[batch.metadata_len as usize..];
    assert_eq!(body[..3], [0xff, 1, 0]);
    assert_eq!(body[64..67], [0xff, 1, 0]);
}

#[test]
fn a_missing_code_has_the_index_0() {
    let batch = layout(&[category(NumericType::Int16, &["a", "b"])]);
    let message = batch
        .encode_message(&[Arc::new(Int16Array::from(vec![1, -1, 0]))])
        .unwrap();
    let body = &message[batch.metadata_len as usize..];
    assert_eq!(body[0], 0b101);
    assert_eq!(body[64..70], [1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_vocabulary_without_labels_reads_back() {
    let column = category(NumericType::Int8, &[]);
    let array: ArrayRef = Arc::new(Int8Array::from(vec![-1; 3]));
    let (file, messages) = whole_file(&column, &array);
    let (_, batches) = read_back(read(&file, &messages, 0..file.len()));
    assert_eq!(plain(&batches[0]).null_count(), 3);
}

#[test]
fn several_columns_make_one_batch() {
    let (columns, arrays): (Vec<_>, Vec<_>) = all_kinds(TILE_SIZE, true)
        .into_iter()
        .enumerate()
        .map(|(i, (mut column, array))| {
            column.name = i.to_string();
            (column, array)
        })
        .unzip();
    let batch = layout(&columns);
    let file = FileLayout::one_tile(batch.clone(), TILE_SIZE, &text_of(&arrays)).unwrap();
    let messages = [batch.encode_message(&arrays).unwrap()];
    let bytes = read(&file, &messages, 0..file.len());
    let read = FileReader::try_new(Cursor::new(bytes), None)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    for ((column, array), found) in columns.iter().zip(&arrays).zip(read.columns()) {
        assert_eq!(&plain(found), &shown(column, array));
    }
}

#[test]
fn a_dataset_without_tiles_is_an_arrow_file_without_batches() {
    let tiling = Tiling {
        n_cells: 0,
        tile_size: 10,
    };
    for kind in [ColumnKind::Bool, ColumnKind::String] {
        let batch = layout(&[column(kind)]);
        let file = FileLayout::all_tiles(batch.clone(), tiling, &[&[][..]][..batch.n_text_columns()]).unwrap();
        let (_, batches) = read_back(read(&file, &[], 0..file.len()));
        assert!(batches.is_empty());
    }
}

#[test]
fn a_billion_cells_are_laid_out_by_arithmetic_and_their_footer_is_right() {
    let tiling = Tiling {
        n_cells: 999_999_990,
        tile_size: 10_000,
    };
    let text = vec![123_456; 100_000];
    for (kind, texts) in [
        (ColumnKind::Numeric(NumericType::Int64), &[][..]),
        (ColumnKind::String, &[&text[..]][..]),
    ] {
        let file = FileLayout::all_tiles(layout(&[column(kind)]), tiling, texts).unwrap();
        assert_eq!(file.n_batches(), 100_000);
        assert!(file.len() > 8_000_000_000);
        // Made in pieces of a page, as a reader would ask for it.
        let tail_start = file.message(99_999).end;
        let mut tail = Vec::new();
        for start in (tail_start..file.len()).step_by(4096) {
            tail.extend(read(&file, &[], start..(start + 4096).min(file.len())));
        }
        assert_eq!(tail, read(&file, &[], tail_start..file.len()));
        let end = tail.len() - 10;
        assert_eq!(&tail[end + 4..], b"ARROW1");
        let length = i32::from_le_bytes(tail[end..end + 4].try_into().unwrap()) as usize;
        assert_eq!(&tail[..8], &END_OF_STREAM);
        assert_eq!(length, end - 8);
        let footer = ipc::root_as_footer(&tail[8..end]).unwrap();
        let blocks = footer.recordBatches().unwrap();
        assert_eq!(blocks.len(), 100_000);
        for (index, block) in blocks.iter().enumerate() {
            let message = file.message(index as u64);
            assert_eq!(block.offset() as u64, message.start);
            assert_eq!(
                block.offset() as u64 + block.metaDataLength() as u64 + block.bodyLength() as u64,
                message.end
            );
        }
        // The byte before, at and after the border of two messages far beyond 4 GiB.
        let border = file.message(90_000).start;
        let extents: Vec<_> = file.extents(border - 1..border + 1).collect();
        let before = file.message(89_999);
        let last = before.end - before.start - 1;
        assert_eq!(
            extents,
            [
                Extent::Message {
                    batch: 89_999,
                    range: last..last + 1
                },
                Extent::Message {
                    batch: 90_000,
                    range: 0..1
                }
            ]
        );
    }
}

#[test]
fn a_file_too_large_to_address_is_refused() {
    let batch = layout(&[column(ColumnKind::Numeric(NumericType::Float64))]);
    for tiling in [
        Tiling {
            n_cells: u64::MAX / 2,
            tile_size: u64::MAX / 2,
        },
        Tiling {
            n_cells: i64::MAX as u64 / 16,
            tile_size: 1,
        },
    ] {
        let error = FileLayout::all_tiles(batch.clone(), tiling, &[]).unwrap_err();
        assert!(matches!(error, LayoutError::FileTooLarge { .. }), "{error}");
    }
}

#[test]
fn codes_that_mean_no_category_are_refused_with_cell_and_code() {
    let batch = layout(&[category(NumericType::Int8, &["a", "b"])]);
    for (codes, cell, code) in [
        (Int8Array::from(vec![0, 2]), 1, "2"),
        (Int8Array::from(vec![-2, 0]), 0, "-2"),
        (Int8Array::from(vec![Some(1), Some(-1), None]), 2, "null"),
    ] {
        let message = batch.encode_message(&[Arc::new(codes)]).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("column \"cell type\" has the code {code} at cell {cell}, expected -1 to 1")
        );
    }
}

#[test]
fn arrays_of_other_types_or_numbers_are_refused() {
    let batch = layout(&[column(ColumnKind::Bool), category(NumericType::Int8, &["a"])]);
    let bools: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
    let two: ArrayRef = Arc::new(Int8Array::from(vec![0, 0]));
    assert!(matches!(
        batch.encode_message(std::slice::from_ref(&bools)),
        Err(EncodeError::Columns { found: 1, .. })
    ));
    assert!(matches!(
        batch.encode_message(&[bools.clone(), bools.clone()]),
        Err(EncodeError::Type { .. })
    ));
    assert!(matches!(
        batch.encode_message(&[bools, two]),
        Err(EncodeError::Cells { found: 2, .. })
    ));
}
