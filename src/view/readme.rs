//! `README.txt` in the root of a mount: what is here and how to read it, for somebody who has never heard of it.

use super::{ColumnFiles, Families, tile_name};
use crate::dataset::Dataset;

/// The text, which depends on nothing but manifest and schema.
pub(super) fn text(dataset: &Dataset, columns: &[ColumnFiles], families: Families) -> String {
    let _ = families;
    let manifest = dataset.manifest();
    let tiles = manifest.n_tiles();
    let last = tile_name(tiles.saturating_sub(1));
    let mut text = format!(
        "\
This folder shows a single-cell count matrix of {cells} cells x {genes} genes with {nnz} nonzeros.
The data lies compressed elsewhere; files here look decoded and are decoded when they are read. Nothing can be written.

WHAT IS HERE

  {first} ... {last}   {tiles} tiles: blocks of {tile_size} consecutive cells (the last may be shorter).
                               Cell c of the dataset is row c % {tile_size} of tile c / {tile_size}.
    indptr.i64                 int64, one more than the tile has cells: the nonzeros of row r are
                               entries indptr[r] to indptr[r+1] - 1 of the other two files
    indices.i32                int32, one a nonzero: the gene (column), from 0, increasing within a row
    data.i32                   int32, one a nonzero: the count
",
        cells = manifest.n_cells,
        genes = manifest.n_genes,
        nnz = manifest.nnz(),
        first = tile_name(0),
        tile_size = manifest.tile_size,
    );
    text.push_str("    (raw little-endian numbers without any header)\n");
    if !columns.is_empty() {
        text.push_str(
            "    obs/<column>.arrow         the tile's rows of a column that describes cells (Arrow IPC file)\n\n  \
             obs/<column>.arrow           the column for all cells, one record batch a tile (Arrow IPC file)\n  \
             obs/schema.json              the columns: name, kind, type, categories\n",
        );
    } else {
        text.push('\n');
    }
    for (there, line) in [
        (true, "manifest.json                sizes of everything, as stored"),
        (
            manifest.has_var_table,
            "var.parquet                  the gene table, a row a gene in column order",
        ),
        (
            manifest.has_var_names,
            "var_names.txt                a gene name a line, in column order",
        ),
        (
            manifest.has_gene_order,
            "gene_order.npy               column j was column gene_order[j] of the source",
        ),
        (true, ".dcfs/stats.json             what the daemon has done so far"),
    ] {
        if there {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text.push_str(&examples(dataset, columns));
    text
}

fn examples(dataset: &Dataset, columns: &[ColumnFiles]) -> String {
    let manifest = dataset.manifest();
    let genes = manifest.n_genes;
    let mut text = format!(
        "
HOW TO READ IT (run in this folder)

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
    );
    if let Some(column) = columns.first() {
        let file = column.file_name();
        text.push_str(&format!(
            "
Columns that describe cells
  Python   import pyarrow as pa; pa.ipc.open_file(pa.memory_map('obs/{file}')).read_all().to_pandas()
           (or polars.read_ipc, pandas.read_feather)
  R        arrow::read_feather('obs/{file}')
  Julia    using Arrow; Arrow.Table(\"obs/{file}\")
"
        ));
    }
    text
}
