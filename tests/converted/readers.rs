//! Every encoding that people's files have, written by Python, is read as Python means it, or refused by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int32Type};
use dcfs::convert::genes::Genes;
use dcfs::convert::h5ad::MatrixChoice;
use dcfs::convert::open::{InputOptions, open};
use dcfs::convert::source::{Reading, Source, SourceKind};
use serde_json::{Value, json};

use crate::python;

/// Has Python write the inputs into `folder`; whether there is a Python that can.
fn write_variants(folder: &Path) -> bool {
    let Some(mut script) = python::script("convert_variants.py") else {
        return false;
    };
    let output = script.arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

#[test]
fn every_variant_is_read_as_python_wrote_it_or_refused_by_name() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("convert_variants");
    if !write_variants(&folder) {
        return;
    }
    let mut expectations: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    expectations.sort();
    assert!(expectations.len() > 150, "{} variants", expectations.len());
    let mut failures = Vec::new();
    for expectation in &expectations {
        let expected: Value = serde_json::from_slice(&std::fs::read(expectation).unwrap()).unwrap();
        if let Err(difference) = check(&folder, &expected) {
            failures.push(format!(
                "{}: {difference}",
                expectation.file_stem().unwrap().to_string_lossy()
            ));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        expectations.len(),
        failures.join("\n")
    );
}

#[test]
fn damaged_files_are_errors_or_read_but_never_a_panic() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("convert_damaged");
    if !write_variants(&folder) {
        return;
    }
    let mut random = 88172645463325252_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below.max(1) as u64) as usize
    };
    let mut refused = 0;
    for name in [
        "csr_gzip_shuffle.h5ad",
        "csc_lzf_shuffle_fletcher32.h5ad",
        "csr_unlimited_v114.h5ad",
        "csr_zstd.h5ad",
        "dense_lzf_le_f4.h5ad",
        "anndata_frames.h5ad",
        "anndata_0_6.h5ad",
        "strings.h5ad",
        "tenx_v3_types.h5",
    ] {
        let whole = std::fs::read(folder.join(name)).unwrap();
        let path = folder.join(format!("damaged_{name}"));
        for turn in 0..150 {
            let mut bytes = whole.clone();
            // Mostly where the metadata is, which comes first; sometimes the end is missing.
            let within = if turn % 3 == 0 {
                whole.len()
            } else {
                whole.len().min(12_000)
            };
            for _ in 0..1 + turn % 4 {
                let at = next(within);
                bytes[at] = match turn % 2 {
                    0 => next(256) as u8,
                    _ => bytes[at] ^ 1 << next(8),
                };
            }
            if turn % 10 == 9 {
                bytes.truncate(next(whole.len()));
            }
            std::fs::write(&path, &bytes).unwrap();
            let result = open(&path, &InputOptions::default()).and_then(|source| read_quietly(&*source, &folder));
            refused += u64::from(result.is_err());
        }
    }
    assert!(refused > 100, "only {refused} damaged files were refused");
}

/// Reads everything; what a damaged file holds is anybody's guess.
fn read_quietly(source: &dyn Source, folder: &Path) -> dcfs::convert::error::Result<()> {
    let reading = Reading::new(1, folder);
    source.scan(&reading)?;
    for block in source.rows(&reading)? {
        block?;
    }
    for (at, column) in source.columns().iter().enumerate() {
        if !matches!(column.kind, SourceKind::Unsupported(_)) {
            source.column(at, 0..source.n_cells())?;
        }
    }
    source.cell_names(0..source.n_cells()).map(|_| ())
}

fn check(folder: &Path, expected: &Value) -> Result<(), String> {
    let text = |key: &str| expected["options"][key].as_str();
    let matrix = match (text("layer"), &expected["options"]["raw"]) {
        (Some(layer), _) => MatrixChoice::Layer(layer.to_owned()),
        (None, Value::Bool(true)) => MatrixChoice::Raw,
        _ => MatrixChoice::X,
    };
    let options = InputOptions {
        matrix,
        genome: text("genome").map(str::to_owned),
        feature_type: text("feature_type").unwrap_or("Gene Expression").to_owned(),
    };
    let path = folder.join(expected["path"].as_str().unwrap());
    let read = open(&path, &options).and_then(|source| read(&*source, folder));
    match (read, expected["error"].as_str()) {
        (Ok(_), Some(error)) => Err(format!("was read, expected an error with {error:?}")),
        (Err(error), Some(part)) if error.to_string().contains(part) => Ok(()),
        (Err(error), Some(part)) => Err(format!("is refused with {error}\n    expected {part:?}")),
        (Err(error), None) => Err(format!("is refused: {error}")),
        (Ok(found), None) => compare(&found, expected),
    }
}

/// All that a source gives, as the script describes it.
fn read(source: &dyn Source, folder: &Path) -> dcfs::convert::error::Result<Value> {
    let mut reading = Reading::new(2, folder);
    let ticked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&ticked);
    reading.progress = Arc::new(move |entries| {
        count.fetch_add(entries, Ordering::Relaxed);
    });
    let scan = source.scan(&reading)?;
    let mut totals = vec![0; source.genes().len()];
    let (mut rows, mut nonzeros) = (Vec::new(), 0);
    for block in source.rows(&reading)? {
        let block = block?;
        assert_eq!(block.first, rows.len() as u64);
        nonzeros += block.counts.len() as u64 + block.duplicates;
        for row in 0..block.n_cells() {
            let (genes, counts) = block.row(row);
            for (&gene, &count) in genes.iter().zip(counts) {
                totals[gene as usize] += u64::from(count);
            }
            rows.push(json!([genes, counts]));
        }
    }
    assert_eq!(rows.len() as u64, source.n_cells());
    assert_eq!(scan.totals, totals, "the scan and the rows have the same totals");
    assert_eq!(scan.nonzeros.iter().sum::<u64>(), nonzeros);
    if let Some(entries) = source.entries() {
        assert_eq!(
            ticked.load(Ordering::Relaxed),
            entries,
            "progress is told of every entry"
        );
    }
    let mut obs = serde_json::Map::new();
    for (at, column) in source.columns().iter().enumerate() {
        // In pieces, as a conversion reads them.
        let middle = source.n_cells() / 3;
        let pieces = [
            source.column(at, 0..middle)?,
            source.column(at, middle..source.n_cells())?,
        ];
        let values = arrow::compute::concat(&[&*pieces[0], &*pieces[1]]).unwrap();
        obs.insert(column.name.clone(), describe(&column.kind, &values));
    }
    let cells: Vec<Option<String>> = source
        .cell_names(0..source.n_cells())?
        .iter()
        .map(|n| n.map(str::to_owned))
        .collect();
    Ok(
        json!({"cells": cells, "genes": *source.genes().names, "rows": rows, "obs": obs, "var": describe_genes(source.genes())}),
    )
}

fn describe(kind: &SourceKind, values: &ArrayRef) -> Value {
    match kind {
        SourceKind::Category(labels) => {
            let codes = values.as_primitive::<Int32Type>();
            let label = |code: Option<i32>| code.map(|code| labels[code as usize].clone());
            json!({"kind": "category", "categories": labels, "values": codes.iter().map(label).collect::<Vec<_>>()})
        }
        SourceKind::Numeric(number) => {
            let wide = cast(values, &DataType::Float64).unwrap();
            let values: Vec<Option<f64>> = wide.as_primitive::<Float64Type>().iter().collect();
            let name = match number.arrow_name() {
                "halffloat" => "float16",
                "float" => "float32",
                "double" => "float64",
                other => other,
            };
            json!({"kind": "numeric", "type": name, "values": values})
        }
        SourceKind::Bool => json!({"kind": "bool", "values": values.as_boolean().iter().collect::<Vec<_>>()}),
        SourceKind::String => {
            json!({"kind": "string", "values": values.as_string::<i32>().iter().collect::<Vec<_>>()})
        }
        SourceKind::Unsupported(what) => json!({"kind": "unsupported", "what": what}),
    }
}

fn describe_genes(genes: &Genes) -> Value {
    let mut columns = serde_json::Map::new();
    for column in &genes.columns {
        let values = &column.values;
        let described = match values.data_type() {
            DataType::Dictionary(_, _) => {
                let dictionary = values.as_any_dictionary();
                let labels: Vec<String> = dictionary
                    .values()
                    .as_string::<i32>()
                    .iter()
                    .map(|l| l.unwrap().to_owned())
                    .collect();
                let codes = cast(dictionary.keys(), &DataType::Int32).unwrap();
                describe(&SourceKind::Category(labels), &codes)
            }
            DataType::Boolean => describe(&SourceKind::Bool, values),
            DataType::Utf8 => describe(&SourceKind::String, values),
            number => {
                let name = number.to_string().to_lowercase();
                let number = dcfs::format::obs::NumericType::from_arrow_name(&name).unwrap();
                describe(&SourceKind::Numeric(number), values)
            }
        };
        columns.insert(column.name.clone(), described);
    }
    columns.into()
}

fn compare(found: &Value, expected: &Value) -> Result<(), String> {
    for part in ["cells", "genes", "rows"] {
        differ(part, &found[part], &expected[part])?;
    }
    for part in ["obs", "var"] {
        let Some(columns) = expected[part].as_object().filter(|columns| !columns.is_empty()) else {
            continue;
        };
        let names = |value: &Value| {
            value
                .as_object()
                .map(|o| o.keys().cloned().collect::<Vec<_>>())
                .unwrap_or_default()
        };
        differ(part, &json!(names(&found[part])), &json!(names(&expected[part])))?;
        for (name, column) in columns {
            for key in ["kind", "type", "categories", "values"] {
                differ(&format!("{part} {name:?} {key}"), &found[part][name][key], &column[key])?;
            }
        }
    }
    Ok(())
}

fn differ(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if same(found, expected) {
        return Ok(());
    }
    if let (Some(found), Some(expected)) = (found.as_array(), expected.as_array()) {
        if found.len() != expected.len() {
            return Err(format!("{what}: {} entries, expected {}", found.len(), expected.len()));
        }
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            if !same(found, expected) {
                return Err(format!("{what}[{at}]: {found}, expected {expected}"));
            }
        }
    }
    Err(format!("{what}: {found}, expected {expected}"))
}

/// Equal, where a number is equal however it is written.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            // serde_json may be off by the last bit of what Python printed.
            (Some(a), Some(b)) => (a - b).abs() <= 4.0 * f64::EPSILON * a.abs(),
            _ => false,
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (a, b) => a == b,
    }
}
