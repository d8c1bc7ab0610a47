"""A matrix of more than 2^31 nonzeros whose tiles are all the same one: its far end through every file that shows it.

Usage: far_end.py MOUNT MOUNT_OF_ONE_TILE
"""

import json
import sys

import anndata
import h5py
import numpy as np
import scipy.sparse as sp
import zarr

far, one = sys.argv[1:]
manifest = json.load(open(f"{far}/manifest.json"))
tiles, cells = len(manifest["tile_cells"]), manifest["tile_size"]
data, indices, indptr = (np.load(f"{one}/X/{name}.npy") for name in ("data", "indices", "indptr"))
tile = sp.csr_matrix((data, indices, indptr), shape=(cells, manifest["n_genes"]))
nonzeros = len(data) * tiles
assert nonzeros > 2**31

for name, expected in (("data", data), ("indices", indices), ("data_f32", data.astype("f4"))):
    mapped = np.load(f"{far}/X/{name}.npy", mmap_mode="r")
    assert mapped.shape == (nonzeros,)
    assert np.array_equal(mapped[-len(data) :], expected), name
    assert np.array_equal(mapped[2**31 - 5 : 2**31 + 5], expected[np.arange(2**31 - 5, 2**31 + 5) % len(data)]), name
starts = np.load(f"{far}/X/indptr.npy", mmap_mode="r")
assert np.array_equal(starts[-cells - 1 :], indptr + len(data) * (tiles - 1))
assert np.array_equal(np.diff(starts), np.tile(np.diff(indptr), tiles))

with h5py.File(f"{far}/dataset.h5ad") as file:
    matrix = anndata.io.sparse_dataset(file["X"])
    assert matrix.shape == (cells * tiles, manifest["n_genes"])
    assert (matrix[cells * (tiles - 1) :] != tile).nnz == 0
    rows = np.array([5, cells * (tiles - 1) + 3, cells * (tiles // 2) + 7])
    assert (matrix[rows] != tile[[5, 3, 7]]).nnz == 0
store = zarr.open_group(f"{far}/dataset.zarr", mode="r")
assert store["X/data"].shape == (nonzeros,)
assert np.array_equal(store["X/data"][-len(data) :], data)
matrix = anndata.io.sparse_dataset(store["X"])
assert (matrix[cells * tiles - 7 :] != tile[-7:]).nnz == 0
