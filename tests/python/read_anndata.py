"""Reads a dataset that was laid out as HDF5 and as Zarr, and compares it with what it was made of.

    read_anndata.py dataset.h5ad dataset.zarr EXPECTED

EXPECTED is a folder with indptr.npy, indices.npy, data.npy and obs.json, or an .h5ad file with the genes in source order. Versions of
anndata that know no Zarr v3 read the .h5ad alone.
"""

import json
import sys
import warnings
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

warnings.simplefilter("ignore")
VERSION = tuple(int(part) for part in anndata.__version__.split(".")[:2])


def expected_matrix(expected, shape):
    if expected.is_dir():
        parts = [np.load(expected / f"{name}.npy") for name in ("data", "indices", "indptr")]
        return sp.csr_matrix(tuple(parts), shape=shape)
    return None


def check_matrix(adata, expected):
    x = adata.X
    assert x.shape == adata.shape and x.data.dtype == np.int32, (x.shape, x.data.dtype)
    # One type, as SciPy's own matrices have it.
    assert x.indptr.dtype == x.indices.dtype == np.int32, (x.indptr.dtype, x.indices.dtype)
    want = expected_matrix(expected, x.shape)
    if want is not None:
        assert np.array_equal(x.indptr, want.indptr)
        assert np.array_equal(x.indices, want.indices)
        assert np.array_equal(x.data, want.data)


def check_columns(adata, expected, container):
    """Columns of obs against the JSON file: the same values, missing where it says null."""
    columns = json.loads((expected / "obs.json").read_text())
    columns = columns.get("columns", columns)
    names = [name for name in columns if name != "obs_names"]
    assert len(adata.obs.columns) == len(names), (list(adata.obs.columns), names)
    for shown, name in zip(adata.obs.columns, names):
        assert shown == name or (container == "zarr" and (name == ".." or len(name.encode()) > 255)), (shown, name)
        column, kind, want = adata.obs[shown], columns[name]["kind"], columns[name]["values"]
        got = [None if pd.isna(value) else value for value in column]
        if columns[name]["arrow_type"] in ("float", "float32"):
            want = [None if value is None else float(np.float32(value)) for value in want]
            got = [None if value is None else float(value) for value in got]
        assert got == want, (name, got, want)
        if kind == "category":
            assert isinstance(column.dtype, pd.CategoricalDtype), (name, column.dtype)
        elif kind == "bool":
            assert str(column.dtype) in ("bool", "boolean"), (name, column.dtype)
    want = [value or "" for value in columns["obs_names"]["values"]]
    assert list(adata.obs_names) == want
    assert adata.obs.index.name is None


def check_source(adata, expected):
    """The whole object against the file it was converted from, gene by gene."""
    source = anndata.read_h5ad(expected)
    assert sorted(adata.var_names) == sorted(source.var_names)
    assert list(adata.obs_names) == list(source.obs_names)
    if source.var_names.is_unique:
        ours = adata.X.tocsc()[:, adata.var_names.get_indexer(source.var_names)]
        assert (ours != source.X.tocsc()).nnz == 0
        for name in source.var.columns:
            want, got = source.var[name].astype(str), adata.var[name].astype(str).loc[source.var_names]
            assert list(got) == list(want), name
    assert adata.X.sum() == source.X.sum()
    assert list(adata.obs.columns) == list(source.obs.columns)
    for name in source.obs.columns:
        want, got = source.obs[name], adata.obs[name]
        assert list(got.astype(str)) == list(want.astype(str)), name
        assert str(got.dtype) == str(want.dtype), (name, got.dtype, want.dtype)


def check_rest(adata):
    assert not len(adata.obsm) and not len(adata.varm) and not len(adata.layers) and not len(adata.obsp)
    assert isinstance(adata.uns["source"], str), adata.uns


def check(adata, expected, container):
    check_matrix(adata, expected)
    if expected.is_dir():
        check_columns(adata, expected, container)
        assert json.loads(adata.uns["nested"]["a"]) == [1, None, "\u00fc"]
    else:
        check_source(adata, expected)
    check_rest(adata)


def check_backed(path, whole):
    backed = anndata.read_h5ad(path, backed="r")
    if VERSION < (0, 10):
        # Rows of a backed matrix whose indptr is wider than its indices are beyond these versions.
        assert backed.shape == whole.shape
        return
    rows = np.unique(np.linspace(0, whole.n_obs - 1, 7).astype(int))
    part = backed[rows].to_memory()
    assert (part.X != whole.X[rows]).nnz == 0
    middle = slice(whole.n_obs // 3, whole.n_obs // 2)
    assert (sp.csr_matrix(backed.X[middle]) != whole.X[middle]).nnz == 0
    chosen = np.array([whole.n_obs - 1, 0, 0, whole.n_obs // 2])
    assert (sp.csr_matrix(backed.X[chosen]) != whole.X[chosen]).nnz == 0
    backed.file.close()


def check_lazy(store, whole):
    lazy = anndata.experimental.read_lazy(store)
    loaded = lazy[: max(1, whole.n_obs // 2)].to_memory()
    assert (loaded.X != whole.X[: loaded.n_obs]).nnz == 0
    for name in whole.obs.columns:
        assert list(loaded.obs[name].astype(str)) == list(whole.obs[name].astype(str)[: loaded.n_obs]), name


def check_hdf5(path):
    """The file as the library sees it."""
    with h5py.File(path, "r") as file:
        assert Path(path).stat().st_size == file.id.get_filesize()
        def visit(name, item):
            if isinstance(item, h5py.Dataset):
                assert item.chunks is None and item.compression is None, name
                if item.size and item.dtype.itemsize * item.size >= 4096:
                    assert item.id.get_offset() % 4096 == 0, name
        file.visititems(visit)
        assert file["X"].attrs["shape"].dtype == np.int64
        assert isinstance(file["obs"].attrs["_index"], str)


def check_documents(path):
    """The consolidated metadata says what the documents beside the arrays say."""
    import zarr

    consolidated = zarr.open_group(path, mode="r", use_consolidated=True)
    separate = zarr.open_group(path, mode="r", use_consolidated=False)
    names = sorted(name for name, _ in consolidated.members(max_depth=None))
    assert names == sorted(name for name, _ in separate.members(max_depth=None))
    for name in names:
        one, other = consolidated[name], separate[name]
        assert dict(one.attrs) == dict(other.attrs), name
        if isinstance(one, zarr.Array):
            assert one.metadata == other.metadata, name


def main():
    h5ad, zarr, expected = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    check_hdf5(h5ad)
    whole = anndata.read_h5ad(h5ad)
    check(whole, expected, "hdf5")
    check_backed(h5ad, whole)
    if VERSION < (0, 12):
        return
    check_lazy(h5ad, whole)
    check_documents(zarr)
    stored = anndata.io.read_zarr(zarr)
    check(stored, expected, "zarr")
    check_lazy(zarr, stored)


main()
