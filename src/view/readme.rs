//! `README.txt` in the root of a mount: what is here and how to read it, for somebody who has never heard of it.

use super::{ColumnFiles, Families, Family, tile_name};
use crate::dataset::Dataset;

/// The text, which depends on nothing but manifest, schema and what is shown.
pub(super) fn text(dataset: &Dataset, columns: &[ColumnFiles], families: Families) -> String {
    let manifest = dataset.manifest();
    let mut text = format!(
        "\
This folder shows a single-cell count matrix of {cells} cells x {genes} genes with {nnz} nonzeros.
The data lies compressed elsewhere; files here look decoded and are decoded when they are read. Nothing can be written.

WHAT IS HERE

",
        cells = manifest.n_cells,
        genes = manifest.n_genes,
        nnz = manifest.nnz(),
    );
    let shows = |family| families.has(family);
    let arrays = shows(Family::Raw) || shows(Family::Npy);
    let obs = !columns.is_empty() && shows(Family::Arrow);
    let of_dataset = [
        (
            shows(Family::H5ad),
            "dataset.h5ad",
            "everything as one AnnData file: X, obs, var, uns",
        ),
        (shows(Family::Zarr), "dataset.zarr/", "the same as a Zarr v3 store"),
        (
            obs,
            "obs.arrow",
            "all columns that describe cells, one record batch a tile (Arrow IPC file)",
        ),
        (obs, "obs/<column>.arrow", "one column for all cells"),
        (
            !columns.is_empty(),
            "obs/schema.json",
            "the columns: name, kind, type, categories",
        ),
        (
            manifest.has_var_table && shows(Family::Arrow),
            "var.arrow",
            "the gene table (Arrow IPC file)",
        ),
        (
            manifest.has_var_table,
            "var.parquet",
            "the gene table as stored, a row a gene in column order",
        ),
        (
            manifest.has_var_names,
            "var_names.txt",
            "a gene name a line, in column order",
        ),
        (
            manifest.has_gene_order,
            "gene_order.npy",
            "column j was column gene_order[j] of the source",
        ),
        (true, "manifest.json", "sizes of everything, as stored"),
        (true, ".dcfs/stats.json", "what the daemon has done so far"),
    ];
    for (there, name, what) in of_dataset {
        if there {
            text.push_str(&format!("  {name:<28} {what}\n"));
        }
    }
    if arrays || obs {
        text.push_str(&arrays_text(dataset, arrays, obs, families));
    }
    text.push_str("\nHOW TO READ IT (run in this folder)\n");
    text.push_str(&object_examples(families));
    if arrays {
        text.push_str(&array_examples(dataset, families));
    }
    if let Some(column) = columns.first().filter(|_| obs) {
        text.push_str(&column_examples(column.file_name()));
    }
    let tables = [
        (obs, "obs.arrow"),
        (manifest.has_var_table && shows(Family::Arrow), "var.arrow"),
    ];
    if let Some((_, table)) = tables.into_iter().find(|(there, _)| *there) {
        text.push_str(&format!(
            "
Tables of cells and of genes
  Python   import polars; polars.scan_ipc('{table}').head().collect()   # or pyarrow as above, pandas.read_feather
  R        arrow::read_feather('{table}')
"
        ));
    }
    text
}

/// The files of tiles and of `X`.
fn arrays_text(dataset: &Dataset, arrays: bool, obs: bool, families: Families) -> String {
    let manifest = dataset.manifest();
    let tiles = manifest.n_tiles();
    let tile_size = manifest.tile_size;
    let mut text = String::new();
    if arrays {
        text.push_str(
            "  X/                           the matrix in CSR form, all cells; files as in a tile's folder\n",
        );
    }
    text.push_str(&format!(
        "  {first} ... {last}   {tiles} tiles: blocks of {tile_size} consecutive cells (the last may be shorter).
                               Cell c of the dataset is row c % {tile_size} of tile c / {tile_size}.
",
        first = tile_name(0),
        last = tile_name(tiles.saturating_sub(1)),
    ));
    if families.has(Family::Raw) {
        text.push_str(
            "    indptr.i64                 int64, one more than there are cells: the nonzeros of row r are
                               entries indptr[r] to indptr[r+1] - 1 of the other files
    indices.i32                int32, one a nonzero: the gene (column), from 0, increasing within a row
    data.i32                   int32, one a nonzero: the count
    data.f32                   the count as float32, exact up to 2^24
                               (raw little-endian numbers without any header)
",
        );
    }
    if families.has(Family::Npy) {
        text.push_str(
            "    indptr.npy indices.npy data.npy data_f32.npy
                               the same four for NumPy
",
        );
    }
    if obs {
        text.push_str("    obs/<column>.arrow         the tile's rows of a column that describes cells\n");
    }
    text
}

fn object_examples(families: Families) -> String {
    let mut text = String::new();
    if families.has(Family::H5ad) {
        text.push_str(
            "
One AnnData object
  Python   import anndata; a = anndata.read_h5ad('dataset.h5ad', backed='r')   # without backed: all of it in memory
           import h5py; h5py.File('dataset.h5ad')['X/data'][:10]
  R        rhdf5::h5read('dataset.h5ad', 'X/data', start = 1, count = 10)
           zellkonverter::readH5AD('dataset.h5ad')
",
        );
    }
    if families.has(Family::Zarr) {
        text.push_str(
            "
One Zarr store
  Python   import anndata; a = anndata.io.read_zarr('dataset.zarr')            # zarr 3
  R        Rarr::read_zarr_array('dataset.zarr/X/data', index = list(1:10))    # a Rarr that knows Zarr v3
",
        );
    }
    text
}

fn column_examples(file: &str) -> String {
    format!(
        "
Columns that describe cells
  Python   import pyarrow as pa; pa.ipc.open_file(pa.memory_map('obs/{file}')).read_all().to_pandas()
           (or polars.read_ipc, pandas.read_feather)
  R        arrow::read_feather('obs/{file}')
  Julia    using Arrow; Arrow.Table(\"obs/{file}\")
"
    )
}

fn array_examples(dataset: &Dataset, families: Families) -> String {
    let manifest = dataset.manifest();
    let genes = manifest.n_genes;
    let mut text = String::new();
    if families.has(Family::Raw) {
        text.push_str(&raw_examples(genes));
    }
    if families.has(Family::Npy) {
        text.push_str(
            "
NumPy files, of all cells or of one tile
  Python   import numpy as np; data = np.load('X/data.npy', mmap_mode='r')
  R        reticulate::import('numpy')$load('tile_000000/data.npy')
",
        );
    }
    text
}

fn raw_examples(genes: u32) -> String {
    format!(
        "
Raw arrays, of a tile as here, or t = 'X/' for all cells

Python
  import numpy as np, scipy.sparse as sp
  t = 'tile_000000/'
  indptr  = np.fromfile(t + 'indptr.i64', '<i8')
  indices = np.memmap(t + 'indices.i32', '<i4', 'r')
  data    = np.memmap(t + 'data.i32', '<i4', 'r')
  X = sp.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, {genes}))

R
  t <- 'tile_000000/'
  ints <- function(f) readBin(paste0(t, f), 'integer', file.size(paste0(t, f)) / 4, 4, endian = 'little')
  p <- matrix(ints('indptr.i64'), nrow = 2)[1, ]   # low halves: enough below 2^31 nonzeros a tile
  X <- Matrix::sparseMatrix(p = p, j = ints('indices.i32'), x = ints('data.i32'),
                            index1 = FALSE, repr = 'R', dims = c(length(p) - 1, {genes}))

Julia
  using Mmap, SparseArrays
  t = \"tile_000000/\"
  indptr  = mmap(t * \"indptr.i64\", Vector{{Int64}})
  indices = mmap(t * \"indices.i32\", Vector{{Int32}})
  data    = mmap(t * \"data.i32\", Vector{{Int32}})
  Xt = SparseMatrixCSC({genes}, length(indptr) - 1, indptr .+ 1, Int64.(indices) .+ 1, data)  # genes x cells

C
  int fd = open(\"tile_000000/data.i32\", O_RDONLY);
  struct stat s; fstat(fd, &s);
  const int32_t *data = mmap(NULL, s.st_size, PROT_READ, MAP_SHARED, fd, 0);  /* s.st_size / 4 counts */
"
    )
}
