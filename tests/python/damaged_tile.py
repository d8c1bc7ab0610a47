"""One tile of a dataset is damaged: who reads it gets an I/O error, and everybody else the same bytes as from a good one.

Usage: damaged_tile.py GOOD_MOUNT BAD_MOUNT TILE
"""

import errno
import json
import os
import sys

import anndata
import h5py
import numpy as np

good, bad, damaged = sys.argv[1], sys.argv[2], int(sys.argv[3])
nonzeros = json.load(open(f"{good}/manifest.json"))["tile_nnz"]
ends = np.cumsum(nonzeros)
starts = ends - nonzeros
# Values, a range of entries at a time.
touches = lambda start, end: start < ends[damaged] and end > starts[damaged]


def attempt(read):
    try:
        return read()
    except OSError as error:
        # HDF5 tells of the number in its own words.
        assert error.errno == errno.EIO or f"errno = {errno.EIO}" in str(error), error
        return None


def check(what, fails, read_good, read_bad):
    expected, found = read_good(), attempt(read_bad)
    assert (found is None) == fails, (what, fails)
    assert fails or expected == found, what


with h5py.File(f"{good}/dataset.h5ad") as one, h5py.File(f"{bad}/dataset.h5ad") as other:
    for name in ["indices", "data"]:
        offset = one[f"X/{name}"].id.get_offset()
        assert other[f"X/{name}"].id.get_offset() == offset
        for tile, (start, end) in enumerate(zip(starts, ends)):
            def read(mount):
                file = os.open(f"{mount}/dataset.h5ad", os.O_RDONLY)
                try:
                    return os.pread(file, 4 * (end - start), offset + 4 * start)
                finally:
                    os.close(file)
            check((name, tile), tile == damaged, lambda: read(good), lambda: read(bad))
            slices = [lambda file=file: file[f"X/{name}"][start:end].tobytes() for file in (one, other)]
            check((name, tile, "h5py"), tile == damaged, *slices)
    assert np.array_equal(one["obs/cell_type/codes"][...], other["obs/cell_type/codes"][...])

assert attempt(lambda: anndata.read_h5ad(f"{bad}/dataset.h5ad")) is None
backed = [anndata.read_h5ad(f"{mount}/dataset.h5ad", backed="r") for mount in (good, bad)]
cells = json.load(open(f"{good}/manifest.json"))["tile_size"]
for rows in [slice(0, 50), slice(cells * (damaged + 1), cells * (damaged + 1) + 60)]:
    one, other = (adata.X[rows] for adata in backed)
    assert one.nnz > 0 and (one != other).nnz == 0

for name in ["indices", "data"]:
    folder = f"dataset.zarr/X/{name}"
    (chunk,) = json.load(open(f"{bad}/{folder}/zarr.json"))["chunk_grid"]["configuration"]["chunk_shape"]
    files = sorted(os.listdir(f"{bad}/{folder}/c"), key=int)
    assert files == [str(number) for number in range(-(-ends[-1] // chunk))]
    for number, file in enumerate(files):
        reads = [lambda mount=mount: open(f"{mount}/{folder}/c/{file}", "rb").read() for mount in (good, bad)]
        check((name, file), touches(number * chunk, (number + 1) * chunk), *reads)
