//! `dataset.h5ad` and `dataset.zarr`: the whole dataset as one AnnData object, in two containers.
//!
//! What is in them is laid out once, when one of them is first looked at and what it depends on is known.

use std::sync::{Arc, OnceLock};

use super::anndata::{self, ColumnFacts, Container, Contents};
use super::arrays::{self, Elements};
use super::columns::ColumnFiles;
use super::hierarchy::{self, Group};
use super::{Extent, Need, Rows, ViewError, hdf5, zarr};
use crate::dataset::{Array, Dataset};
use crate::format::manifest::Manifest;
use arrow::array::RecordBatch;

/// What the files about genes say.
#[derive(Debug, Clone, Default)]
pub struct Genes {
    /// `var.parquet`
    pub table: Option<RecordBatch>,
    /// `var_names.txt`
    pub names: Option<Vec<String>>,
}

type Laid<T> = OnceLock<Result<T, Arc<ViewError>>>;

/// The object, in both containers.
pub(super) struct Object {
    zarr_chunk: u64,
    genes: OnceLock<Genes>,
    h5ad: Laid<hdf5::FileLayout>,
    zarr: Laid<zarr::Store>,
}

/// Whether a container is laid out.
pub(super) enum Layout<'a, T> {
    There(&'a T),
    Needs(Need),
    Failed(Arc<ViewError>),
}

impl Object {
    /// Not laid out yet. Chunks of the Zarr store have about `zarr_chunk` elements.
    pub(super) fn new(zarr_chunk: u64) -> Self {
        Self {
            zarr_chunk,
            genes: OnceLock::new(),
            h5ad: OnceLock::new(),
            zarr: OnceLock::new(),
        }
    }

    pub(super) fn learn(&self, genes: Genes) {
        let _ = self.genes.set(genes);
    }

    /// What must be found out before there is a layout.
    fn need(&self, dataset: &Dataset, columns: &[ColumnFiles]) -> Option<Need> {
        let schema = dataset.schema().map_or(&[][..], |schema| &schema.columns);
        let unknown = schema
            .iter()
            .zip(columns)
            .enumerate()
            .filter(|(_, (column, files))| ColumnFacts::are_needed(&column.kind) && files.facts().is_none());
        let unknown: Vec<usize> = unknown.map(|(at, _)| at).collect();
        match self.genes.get() {
            _ if !unknown.is_empty() => Some(Need::Columns(unknown)),
            None => Some(Need::Genes),
            Some(_) => None,
        }
    }

    /// `dataset.h5ad`
    pub(super) fn h5ad(&self, dataset: &Dataset, columns: &[ColumnFiles]) -> Layout<'_, hdf5::FileLayout> {
        self.laid(&self.h5ad, dataset, columns, || {
            let tree = self.tree(dataset, columns, Container::Hdf5)?;
            Ok(hdf5::FileLayout::new(&tree, dataset.manifest().into())?)
        })
    }

    /// `dataset.zarr`
    pub(super) fn zarr(&self, dataset: &Dataset, columns: &[ColumnFiles]) -> Layout<'_, zarr::Store> {
        self.laid(&self.zarr, dataset, columns, || {
            let tree = self.tree(dataset, columns, Container::Zarr)?;
            Ok(zarr::Store::new(&tree, dataset.manifest().into(), self.zarr_chunk)?)
        })
    }

    /// `dataset.zarr`, if it was laid out.
    pub(super) fn zarr_if_there(&self) -> Option<&zarr::Store> {
        self.zarr.get()?.as_ref().ok()
    }

    /// `dataset.h5ad`, if it was laid out.
    pub(super) fn h5ad_if_there(&self) -> Option<&hdf5::FileLayout> {
        self.h5ad.get()?.as_ref().ok()
    }

    fn laid<'a, T>(
        &self,
        place: &'a Laid<T>,
        dataset: &Dataset,
        columns: &[ColumnFiles],
        lay: impl FnOnce() -> Result<T, ViewError>,
    ) -> Layout<'a, T> {
        if place.get().is_none()
            && let Some(need) = self.need(dataset, columns)
        {
            return Layout::Needs(need);
        }
        match place.get_or_init(|| lay().map_err(Arc::new)) {
            Ok(layout) => Layout::There(layout),
            Err(error) => Layout::Failed(error.clone()),
        }
    }

    fn tree(&self, dataset: &Dataset, columns: &[ColumnFiles], container: Container) -> Result<Group, ViewError> {
        let facts: Vec<ColumnFacts> = columns
            .iter()
            .map(|column| column.facts().cloned().unwrap_or_default())
            .collect();
        let genes = self.genes.get();
        let contents = Contents {
            schema: dataset.schema(),
            facts: &facts,
            genes: genes.and_then(|genes| genes.table.as_ref()),
            gene_names: genes.and_then(|genes| genes.names.as_deref()),
            ..Contents::new(dataset.manifest())
        };
        Ok(anndata::tree(&contents, container)?)
    }
}

/// Pieces of a container as pieces of tiles.
pub(super) fn extents(manifest: &Manifest, pieces: Vec<hierarchy::Extent>) -> Vec<Extent> {
    let mut extents = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match piece {
            hierarchy::Extent::Literal(bytes, range) => extents.push(Extent::Literal(bytes, range)),
            hierarchy::Extent::X { array, bytes } => {
                let elements = match array {
                    Array::Data => Elements::Counts,
                    Array::Indices | Array::Indptr => Elements::Indices,
                };
                arrays::of_matrix(manifest, elements, bytes, &mut extents);
            }
            hierarchy::Extent::RowStarts { width, bytes } => arrays::row_starts(manifest, width, bytes, &mut extents),
            hierarchy::Extent::Obs {
                tile,
                column,
                part,
                bytes,
            } => extents.push(Extent::Rows {
                tile,
                rows: Rows::Part(column, part),
                bytes,
            }),
        }
    }
    extents
}
