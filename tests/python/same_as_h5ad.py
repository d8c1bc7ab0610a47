"""Compares every count and every obs value of a mount with the .h5ad file that the dataset was made from.

Usage: same_as_h5ad.py MOUNT H5AD
"""

import json
import os
import sys
import urllib.parse

import h5py
import numpy as np
import pyarrow as pa
import scipy.sparse as sp

mount, h5ad = sys.argv[1:]
source = h5py.File(h5ad)

matrix = sp.csr_matrix(
    (source["X/data"][:], source["X/indices"][:], source["X/indptr"][:]), shape=source["X"].attrs["shape"]
)
order = np.load(f"{mount}/gene_order.npy")
assert sorted(order) == list(range(matrix.shape[1]))
expected = matrix[:, order].tocsr()
expected.sort_indices()
expected.eliminate_zeros()

cell = nonzero = 0
for tile in sorted(name for name in os.listdir(mount) if name.startswith("tile_")):
    indptr = np.fromfile(f"{mount}/{tile}/indptr.i64", "<i8")
    indices = np.memmap(f"{mount}/{tile}/indices.i32", "<i4", "r")
    data = np.fromfile(f"{mount}/{tile}/data.i32", "<i4")
    cells = len(indptr) - 1
    assert np.array_equal(indptr, expected.indptr[cell : cell + cells + 1] - expected.indptr[cell]), tile
    assert np.array_equal(indices, expected.indices[nonzero : nonzero + len(indices)]), tile
    assert np.array_equal(data, expected.data[nonzero : nonzero + len(data)]), tile
    cell, nonzero = cell + cells, nonzero + len(data)
assert (cell, nonzero) == (matrix.shape[0], expected.nnz)

names = [name.decode() for name in source["var"][source["var"].attrs["_index"]][:]]
with open(f"{mount}/var_names.txt", encoding="utf-8") as file:
    assert [line.rstrip("\n") for line in file] == [names[gene] for gene in order]


def values(node):
    """A column of a data frame as Python values."""
    if isinstance(node, h5py.Group):
        labels = [label.decode() for label in node["categories"][:]]
        return [None if code < 0 else labels[code] for code in node["codes"][:]]
    return [value.decode() if isinstance(value, bytes) else value.item() for value in node[:]]


obs = source["obs"]
columns = json.load(open(f"{mount}/obs/schema.json", encoding="utf-8"))["columns"]
shown = {column["name"] for column in columns} - {"obs_names"}
assert shown == set(obs) - {obs.attrs["_index"]}, shown
for column in columns:
    name = column["name"]
    file = f"{mount}/obs/{urllib.parse.quote(name, safe='')}.arrow"
    table = pa.ipc.open_file(pa.memory_map(file)).read_all()
    found = table.column(name).to_pylist()
    assert found == values(obs[obs.attrs["_index"] if name == "obs_names" else name]), name
