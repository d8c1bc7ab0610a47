//! `dcfs info`: what a dataset holds, from its small files alone.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Value, json};
use thiserror::Error;

use super::grouped;
use super::source::{OpenError, StoreFlags, open_dataset};
use crate::dataset::{Array, Dataset};
use crate::format::obs::{ColumnKind, ObsColumn};

/// Say what a dataset holds
///
/// Reads manifest and obs schema only, whatever the dataset's size.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Folder or URL of the dataset
    dataset: PathBuf,
    #[command(flatten)]
    store: StoreFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Error)]
pub(super) enum InfoError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

pub(super) fn run(args: &InfoArgs) -> Result<(), InfoError> {
    let dataset = open_dataset(&args.dataset, &args.store)?;
    let text = match args.json {
        true => format!("{:#}\n", as_json(&dataset)),
        false => as_text(&dataset),
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn stored_bytes(dataset: &Dataset) -> u64 {
    dataset.manifest().tile_bytes.iter().sum()
}

fn decoded_bytes(dataset: &Dataset) -> u64 {
    let manifest = dataset.manifest();
    let of_tile = |tile| {
        Array::ALL
            .map(|array| array.bytes(&manifest.tile(tile)))
            .iter()
            .sum::<u64>()
    };
    (0..manifest.n_tiles()).map(of_tile).sum()
}

/// `None` when there are no nonzeros.
fn bytes_per_nonzero(dataset: &Dataset) -> Option<f64> {
    let nnz = dataset.manifest().nnz();
    (nnz > 0).then(|| stored_bytes(dataset) as f64 / nnz as f64)
}

fn type_name(column: &ObsColumn) -> &'static str {
    column.kind.arrow_name()
}

fn n_categories(column: &ObsColumn) -> Option<usize> {
    match &column.kind {
        ColumnKind::Category { categories, .. } => Some(categories.len()),
        _ => None,
    }
}

fn as_json(dataset: &Dataset) -> Value {
    let manifest = dataset.manifest();
    let column = |column: &ObsColumn| {
        json!({
            "name": column.name,
            "kind": column.kind.to_string(),
            "type": type_name(column),
            "categories": n_categories(column),
        })
    };
    let obs = manifest.obs.as_ref().zip(dataset.schema()).map(|(obs, schema)| {
        json!({
            "columns": schema.columns.iter().map(column).collect::<Vec<_>>(),
            "shards": obs.shard_bytes.len(),
            "bytes": obs.shard_bytes.iter().sum::<u64>(),
            "fingerprint": obs.fingerprint,
        })
    });
    json!({
        "location": dataset.store().location(),
        "n_cells": manifest.n_cells,
        "n_genes": manifest.n_genes,
        "n_tiles": manifest.n_tiles(),
        "tile_size": manifest.tile_size,
        "n_chunks": manifest.n_chunks,
        "zstd_level": manifest.zstd_level,
        "nnz": manifest.nnz(),
        "tile_bytes": stored_bytes(dataset),
        "decoded_bytes": decoded_bytes(dataset),
        "bytes_per_nonzero": bytes_per_nonzero(dataset),
        "has_gene_order": manifest.has_gene_order,
        "has_var_names": manifest.has_var_names,
        "has_var_table": manifest.has_var_table,
        "obs": obs,
        "metadata": manifest.metadata,
    })
}

fn as_text(dataset: &Dataset) -> String {
    let manifest = dataset.manifest();
    let mut lines = vec![
        format!("dataset    {}", dataset.store().location()),
        format!("cells      {}", grouped(manifest.n_cells)),
        format!(
            "genes      {}{}",
            grouped(manifest.n_genes.into()),
            known_of_genes(dataset)
        ),
        format!(
            "tiles      {} of {} cells, {} chunks each, zstd level {}",
            grouped(manifest.n_tiles() as u64),
            grouped(manifest.tile_size),
            manifest.n_chunks,
            manifest.zstd_level
        ),
        format!("nonzeros   {}{}", grouped(manifest.nnz()), density(dataset)),
        format!(
            "stored     {}{}; decoded {}",
            HumanBytes(stored_bytes(dataset)),
            bytes_per_nonzero(dataset).map_or(String::new(), |bytes| format!(", {bytes:.3} bytes per nonzero")),
            HumanBytes(decoded_bytes(dataset))
        ),
    ];
    if let (Some(obs), Some(schema)) = (&manifest.obs, dataset.schema()) {
        let (columns, shards) = (schema.columns.len(), obs.shard_bytes.len());
        let bytes = HumanBytes(obs.shard_bytes.iter().sum());
        lines.push(format!("obs        {columns} columns in {shards} files, {bytes}"));
        let width = schema
            .columns
            .iter()
            .map(|c| c.name.chars().count())
            .max()
            .unwrap_or(0)
            .clamp(4, 40);
        for column in &schema.columns {
            let categories =
                n_categories(column).map_or(String::new(), |n| format!("  {} categories", grouped(n as u64)));
            // Names are the dataset's own text and may hold anything, terminal controls included.
            let name = column.name.escape_debug().to_string();
            let kind = column.kind.to_string();
            lines.push(
                format!("  {name:width$}  {kind:8}  {:6}{categories}", type_name(column))
                    .trim_end()
                    .to_owned(),
            );
        }
    }
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

fn known_of_genes(dataset: &Dataset) -> String {
    let manifest = dataset.manifest();
    let files = [
        (manifest.has_var_names, "names"),
        (manifest.has_var_table, "table"),
        (manifest.has_gene_order, "source order"),
    ];
    let known: Vec<&str> = files
        .iter()
        .filter(|(there, _)| *there)
        .map(|&(_, what)| what)
        .collect();
    if known.is_empty() {
        String::new()
    } else {
        format!(" (with {})", known.join(", "))
    }
}

fn density(dataset: &Dataset) -> String {
    let manifest = dataset.manifest();
    if manifest.n_cells == 0 {
        return String::new();
    }
    let per_cell = manifest.nnz() as f64 / manifest.n_cells as f64;
    format!(
        ", {per_cell:.1} a cell, {:.2} % of the matrix",
        100.0 * per_cell / f64::from(manifest.n_genes)
    )
}
