"""The first page of every scanpy notebook, on a mount and on the file that the dataset was made from: the same numbers.

Usage: same_notebook.py MOUNT H5AD
"""

import sys
import tempfile
import warnings

import anndata
import numpy as np
import scanpy as sc

warnings.simplefilter("ignore")
mount, source = sys.argv[1:]


def notebook(path):
    adata = sc.read_h5ad(path)
    adata.var["mt"] = adata.var_names.str.upper().str.startswith("MT-")
    sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], inplace=True, percent_top=None)
    sc.pp.filter_cells(adata, min_genes=200)
    sc.pp.filter_genes(adata, min_cells=3)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=500)
    return adata


order = np.load(f"{mount}/gene_order.npy")
ours, theirs = notebook(f"{mount}/dataset.h5ad"), anndata.read_h5ad(source)
# Genes stand in another order in a dataset; so they do in the file that is compared.
reordered = anndata.AnnData(theirs.X.tocsr()[:, order], theirs.obs, theirs.var.iloc[order])
reordered.X.sort_indices()
with tempfile.TemporaryDirectory() as folder:
    reordered.write_h5ad(f"{folder}/reordered.h5ad")
    theirs = notebook(f"{folder}/reordered.h5ad")

assert ours.shape == theirs.shape and list(ours.obs_names) == list(theirs.obs_names)
assert list(ours.var_names) == list(theirs.var_names)
for name in ["n_genes_by_counts", "total_counts", "pct_counts_mt"]:
    assert np.allclose(ours.obs[name], theirs.obs[name], rtol=1e-6), name
for name in ["n_cells_by_counts", "mean_counts", "means", "dispersions", "dispersions_norm"]:
    assert np.allclose(ours.var[name], theirs.var[name], rtol=1e-4, atol=1e-6, equal_nan=True), name
assert list(ours.var["highly_variable"]) == list(theirs.var["highly_variable"])
assert np.array_equal(ours.X.indices, theirs.X.indices) and np.allclose(ours.X.data, theirs.X.data, rtol=1e-5)
