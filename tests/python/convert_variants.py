"""Writes small inputs in every encoding that `dcfs convert` reads, and beside each what it holds.

usage: convert_variants.py FOLDER

For each input `NAME` there is `NAME.json`: {"path", "options", "cells", "genes", "rows", "obs", "var"}, or
{"path", "options", "error"} with a part of the message by which it must be refused.
What is expected comes from memory, never from reading a file back.
"""

import gzip
import json
import os
import sys
import warnings

import anndata as ad
import h5py
import hdf5plugin
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse as sp

warnings.simplefilter("ignore")
out = sys.argv[1]
os.makedirs(out, exist_ok=True)
rng = np.random.default_rng(7)


def matrix(cells=61, genes=47, density=0.2, high=90):
    dense = rng.integers(1, high, (cells, genes)) * (rng.random((cells, genes)) < density)
    if cells > 4 and genes > 4:
        dense[3] = 0
        dense[:, 2] = 0
    return sp.csr_matrix(dense.astype(np.int64))


def names(prefix, count):
    return [f"{prefix}{i}" for i in range(count)]


def plain(value):
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and np.isnan(value) else value


def rows_of(m):
    m = sp.csr_matrix(m).copy()
    m.sum_duplicates()
    m.eliminate_zeros()
    m.sort_indices()
    return [
        [m.indices[a:b].tolist(), [int(v) for v in m.data[a:b]]] for a, b in zip(m.indptr[:-1], m.indptr[1:])
    ]


def columns_of(frame):
    columns = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.CategoricalDtype):
            label = str
            columns[name] = {
                "kind": "category",
                "categories": [label(c) for c in column.cat.categories],
                "values": [None if code < 0 else label(column.cat.categories[code]) for code in column.cat.codes],
            }
            continue
        kind = pd.api.types
        if kind.is_bool_dtype(column.dtype):
            columns[name] = {"kind": "bool", "values": [plain(v) for v in column]}
        elif kind.is_numeric_dtype(column.dtype):
            columns[name] = {"kind": "numeric", "type": str(column.dtype).lower(), "values": [plain(v) for v in column]}
        else:
            columns[name] = {"kind": "string", "values": [plain(v) for v in column]}
    return columns


def write_json(name, path, options=None, **what):
    with open(f"{out}/{name}.json", "w") as file:
        json.dump({"path": os.path.relpath(path, out), "options": options or {}, **what}, file)


def expect(name, path, m, cells, genes, obs=None, var=None, options=None):
    write_json(
        name,
        path,
        options,
        cells=list(cells),
        genes=list(genes),
        rows=rows_of(m),
        obs=columns_of(obs) if obs is not None else {},
        var=columns_of(var) if var is not None else {},
    )


def refuse(name, path, error, options=None):
    write_json(name, path, options, error=error)


def write_sparse(file, name, m, data, indices=np.int32, encoding="csr_matrix", old=False, **kwargs):
    group = file.create_group(name)
    if old:
        group.attrs["h5sparse_format"] = encoding[:3]
        group.attrs["h5sparse_shape"] = np.array(m.shape)
    else:
        group.attrs["encoding-type"] = encoding
        group.attrs["encoding-version"] = "0.1.0"
        group.attrs["shape"] = np.array(m.shape)
    for part, values in [("data", m.data.astype(data)), ("indices", m.indices.astype(indices)), ("indptr", m.indptr.astype(indices))]:
        layout = dict(kwargs)
        if "chunks" in layout and "maxshape" not in layout:
            layout["chunks"] = (max(1, min(layout["chunks"][0], len(values))),)
        group.create_dataset(part, data=values, **layout)


def write_frame(file, name, index, **columns):
    group = file.create_group(name)
    group.attrs["_index"] = "_index"
    group.attrs["encoding-type"] = "dataframe"
    group.attrs["column-order"] = np.array(list(columns), dtype=h5py.string_dtype())
    group.create_dataset("_index", data=np.array(index, dtype=object), dtype=h5py.string_dtype())
    for column, values in columns.items():
        group.create_dataset(column, data=values)


def h5(name, m, write, libver=None, cells=None, genes=None, **open_options):
    path = f"{out}/{name}.h5ad"
    cells = cells or names("c", m.shape[0])
    genes = genes or names("g", m.shape[1])
    with h5py.File(path, "w", libver=libver, **open_options) as file:
        write_frame(file, "obs", cells)
        write_frame(file, "var", genes)
        write(file)
    return path, cells, genes


# Number types and byte orders.
m = matrix()
for data in ["<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", ">i4", ">f4", ">f8", ">u2"]:
    name = "csr_" + data.replace("<", "le_").replace(">", "be_")
    path, cells, genes = h5(name, m, lambda f: write_sparse(f, "X", m, data, chunks=(100,), compression="gzip"))
    expect(name, path, m, cells, genes)
for indices in ["<i8", ">i4", "<u4", "<u2"]:
    name = "csr_indices_" + indices.replace("<", "le_").replace(">", "be_")
    path, cells, genes = h5(name, m, lambda f: write_sparse(f, "X", m, "<f4", indices))
    expect(name, path, m, cells, genes)

# Storage and filters.
storage = {
    "contiguous": {},
    "chunked": dict(chunks=(64,)),
    "gzip_shuffle": dict(chunks=(64,), compression="gzip", shuffle=True),
    "lzf": dict(chunks=(64,), compression="lzf"),
    "lzf_shuffle_fletcher32": dict(chunks=(64,), compression="lzf", shuffle=True, fletcher32=True),
    "fletcher32": dict(chunks=(64,), fletcher32=True),
    "zstd": dict(chunks=(64,), **hdf5plugin.Zstd()),
    "unlimited": dict(chunks=(64,), maxshape=(None,), compression="gzip"),
    "one_chunk": dict(chunks=(4096,), maxshape=(None,), compression="gzip"),
}
for encoding in ["csr_matrix", "csc_matrix"]:
    major = sp.csr_matrix(m) if encoding == "csr_matrix" else sp.csc_matrix(m)
    for key, kwargs in storage.items():
        name = f"{encoding[:3]}_{key}"
        path, cells, genes = h5(name, m, lambda f: write_sparse(f, "X", major, "<f4", encoding=encoding, **kwargs))
        expect(name, path, m, cells, genes)
for key in ["gzip_shuffle", "chunked", "unlimited", "contiguous"]:
    for libver in ["earliest", "v108", "v110", "v114"]:
        name = f"csr_{key}_{libver}"
        write = lambda f: write_sparse(f, "X", m, "<i4", **storage[key])
        path, cells, genes = h5(name, m, write, libver=(libver, libver if libver != "earliest" else "latest"))
        expect(name, path, m, cells, genes)
path, cells, genes = h5("csr_userblock", m, lambda f: write_sparse(f, "X", m, "<i4"), userblock_size=512)
expect("csr_userblock", path, m, cells, genes)
for plugin, filter_name in [(hdf5plugin.Blosc(), "blosc"), (hdf5plugin.LZ4(), "lz4"), (hdf5plugin.Bitshuffle(), "bitshuffle"), (hdf5plugin.Blosc2(), "blosc2")]:
    name = f"refused_{filter_name}"
    path, *_ = h5(name, m, lambda f: write_sparse(f, "X", m, "<i4", chunks=(64,), **plugin))
    refuse(name, path, f'"{filter_name}"')

if h5py.version.hdf5_version_tuple >= (2, 0, 0):
    path, *_ = h5("refused_latest", m, lambda f: write_sparse(f, "X", m, "<i4", **storage["gzip_shuffle"]), libver="latest")
    refuse("refused_latest", path, "only HDF5 2 does")

# Dense.
dense = np.asarray(m.todense())
for key, kwargs in {
    "contiguous": {},
    "chunked": dict(chunks=(7, 11)),
    "gzip": dict(chunks=(7, 47), compression="gzip", shuffle=True),
    "lzf": dict(chunks=(61, 5), compression="lzf"),
    "unlimited": dict(chunks=(10, 10), maxshape=(None, None), compression="gzip"),
}.items():
    for data in ["<f4", "<i8", ">f8", "<f2"]:
        name = f"dense_{key}_{data.replace('<', 'le_').replace('>', 'be_')}"
        path, cells, genes = h5(name, m, lambda f: f.create_dataset("X", data=dense.astype(data), **kwargs))
        expect(name, path, m, cells, genes)
path, cells, genes = h5("dense_partly_written", m, lambda f: f.create_dataset("X", shape=m.shape, dtype="f4", chunks=(5, 5)).__setitem__((slice(10, 20), slice(0, 47)), dense[10:20]))
partly = dense.copy(); partly[:10] = 0; partly[20:] = 0
expect("dense_partly_written", path, sp.csr_matrix(partly), cells, genes)
path, *_ = h5("refused_fill", m, lambda f: f.create_dataset("X", shape=m.shape, dtype="f4", chunks=(5, 5), fillvalue=2))
refuse("refused_fill", path, "fill value")
tall = np.zeros((40_000, 1000), np.float32)
at = rng.integers(0, [40_000, 1000], (5000, 2))
tall[at[:, 0], at[:, 1]] = rng.integers(1, 9, 5000)
path, cells, genes = h5("dense_tall_chunks", tall, lambda f: f.create_dataset("X", data=tall, chunks=(40_000, 10), compression="gzip", compression_opts=1))
expect("dense_tall_chunks", path, sp.csr_matrix(tall), cells, genes)

# Shapes.
for cells_n, genes_n in [(1, 1), (1, 30), (30, 1), (0, 5), (5, 3)]:
    small = matrix(cells_n, genes_n, 0.6)
    for kind in ["csr", "csc", "dense"]:
        name = f"shape_{cells_n}x{genes_n}_{kind}"
        if kind == "dense":
            write = lambda f: f.create_dataset("X", data=np.asarray(small.todense()).astype("f4"))
        else:
            write = lambda f: write_sparse(f, "X", sp.csr_matrix(small) if kind == "csr" else sp.csc_matrix(small), "<f4", encoding=kind + "_matrix")
        path, cells, genes = h5(name, small, write)
        expect(name, path, small, cells, genes)

# Rows that are unsorted, have explicit zeros, duplicates.
shuffled = m.copy()
for a, b in zip(shuffled.indptr[:-1], shuffled.indptr[1:]):
    order = rng.permutation(b - a)
    shuffled.indices[a:b] = shuffled.indices[a:b][order]
    shuffled.data[a:b] = shuffled.data[a:b][order]
shuffled.has_sorted_indices = False
path, cells, genes = h5("csr_unsorted", m, lambda f: write_sparse(f, "X", shuffled, "<i4"))
expect("csr_unsorted", path, m, cells, genes)
zeros = m.copy()
zeros.data[::3] = 0
path, cells, genes = h5("csr_zeros", m, lambda f: write_sparse(f, "X", zeros, "<i4"))
expect("csr_zeros", path, zeros, cells, genes)
double = sp.csr_matrix((np.array([1, 2, 3, 4]), np.array([4, 4, 0, 4]), np.array([0, 2, 4])), shape=(2, 6))
for encoding, write in {"csr": double, "csc": None}.items():
    if encoding == "csr":
        path, cells, genes = h5("csr_duplicates", double, lambda f: write_sparse(f, "X", double, "<i4"))
        expect("csr_duplicates", path, double, cells, genes)

# Other matrices, and hints at them.
normal = m.astype(np.float64).copy()
normal.data = np.log1p(normal.data)


def several(file):
    write_sparse(file, "X", normal, "<f4")
    file.create_group("layers")
    write_sparse(file, "layers/counts", m, "<f4")
    file.create_group("raw")
    write_sparse(file, "raw/X", m, "<f8")
    write_frame(file, "raw/var", names("raw", m.shape[1]))


path, cells, genes = h5("layers", m, several)
refuse("layers", path, "try --layer counts or --use-raw")
expect("layers_counts", path, m, cells, genes, options={"layer": "counts"})
expect("layers_raw", path, m, cells, names("raw", m.shape[1]), options={"raw": True})
refuse("layers_absent", path, "try --layer counts", options={"layer": "Counts"})
path, *_ = h5("no_x", m, lambda f: None)
refuse("no_x", path, "X: is missing")


def old_raw(file):
    write_sparse(file, "X", normal, "<f4", encoding="csr_matrix", old=True)
    write_sparse(file, "raw.X", m, "<f4", encoding="csr_matrix", old=True)
    write_frame(file, "raw.var", names("raw", m.shape[1]))


path, cells, genes = h5("old_raw", m, old_raw)
expect("old_raw", path, m, cells, names("raw", m.shape[1]), options={"raw": True})
refuse("old_raw_x", path, "--use-raw")

# Values that are no counts; the message names cell, gene and value.
for key, value, words in [
    ("fraction", 0.5, "0.5 is not a whole number"),
    ("negative", -3, "-3 is negative"),
    ("nan", np.nan, "NaN is not a number"),
    ("infinite", np.inf, "inf is not a number"),
    ("large", 2.0**31, "2147483648 is above 2147483647"),
]:
    bad = m.astype(np.float64).copy()
    bad.data[200] = value
    cell = int(np.searchsorted(bad.indptr, 200, side="right") - 1)
    gene = int(bad.indices[200])
    where = f"cell {cell} (c{cell}), gene {gene} (g{gene}): {words}"
    for encoding in ["csr_matrix", "csc_matrix"]:
        major = bad if encoding == "csr_matrix" else sp.csc_matrix(bad)
        path, *_ = h5(f"bad_{key}_{encoding[:3]}", m, lambda f: write_sparse(f, "X", major, "<f8", encoding=encoding))
        refuse(f"bad_{key}_{encoding[:3]}", path, where)
    path, *_ = h5(f"bad_{key}_dense", m, lambda f: f.create_dataset("X", data=np.asarray(bad.todense()), chunks=(9, 9)))
    refuse(f"bad_{key}_dense", path, where)


# Damaged structure.
def broken(name, change, error):
    path, *_ = h5(name, m, lambda f: write_sparse(f, "X", m, "<i4", chunks=(64,), compression="gzip"))
    with h5py.File(path, "a") as file:
        change(file)
    refuse(name, path, error)


def replace(file, name, data):
    del file[name]
    file[name] = data


broken("bad_indices", lambda f: f["X/indices"].__setitem__(5, 47), "X/indices: entry 5 is 47, expected 0 to 46")
broken("bad_indices_negative", lambda f: f["X/indices"].__setitem__(5, -1), "X/indices: entry 5 is -1")
broken("bad_indptr_order", lambda f: f["X/indptr"].__setitem__(7, 0), "X/indptr: entry 7 is 0")
broken("bad_indptr_end", lambda f: f["X/indptr"].__setitem__(61, 1), "X/indptr: runs from 0 to 1")
broken("bad_indptr_length", lambda f: replace(f, "X/indptr", m.indptr[:-1]), "X/indptr: has 61 entries, expected 62")
broken("bad_data_length", lambda f: replace(f, "X/data", m.data[:-1]), "entries")
broken("bad_data_strings", lambda f: replace(f, "X/data", np.array(["a"] * m.nnz, dtype="S1")), "expected numbers")
broken("bad_obs_length", lambda f: replace(f, "obs/_index", np.array(names("c", 60), dtype="S4")), "expected 60 as obs has")
broken("bad_var_length", lambda f: replace(f, "var/_index", np.array(names("g", 60), dtype="S4")), "expected 60 as var has")
broken("bad_encoding", lambda f: f["X"].attrs.__setitem__("encoding-type", "coo_matrix"), '"coo_matrix"')
broken("bad_no_shape", lambda f: f["X"].attrs.__delitem__("shape"), "no attribute that tells its shape")
broken("bad_no_obs", lambda f: f.__delitem__("obs"), "neither obs")

path, *_ = h5("bad_truncated", m, lambda f: write_sparse(f, "X", m, "<i4"))
size = os.path.getsize(path)
with open(path, "r+b") as file:
    file.truncate(size - 200)
refuse("bad_truncated", path, "")
with open(f"{out}/bad_empty.h5ad", "wb") as file:
    pass
refuse("bad_empty", f"{out}/bad_empty.h5ad", "HDF5")
with open(f"{out}/bad_text.h5ad", "w") as file:
    file.write("not HDF5\n" * 100)
refuse("bad_text", f"{out}/bad_text.h5ad", "HDF5")
path, *_ = h5("bad_gzipped", m, lambda f: write_sparse(f, "X", m, "<i4"))
with open(path, "rb") as file, gzip.open(path + ".gz", "wb") as packed:
    packed.write(file.read())
refuse("bad_gzipped", path + ".gz", "decompress it first")


def linked(file):
    write_sparse(file, "counts", m, "<i4")
    file["X"] = h5py.SoftLink("/counts")


path, *_ = h5("bad_soft_link", m, linked)
refuse("bad_soft_link", path, "X: is a soft link")

# Data frames as anndata itself writes them.
n = m.shape[0]
obs = pd.DataFrame(index=names("cell ", n))
obs["category"] = pd.Categorical.from_codes(rng.integers(-1, 3, n), ["b", "a", "ü ✓"])
obs["ordered"] = pd.Categorical.from_codes(rng.integers(0, 3, n), ["low", "mid", "high"], ordered=True)
obs["unused"] = pd.Categorical(["x"] * n, categories=["never", "x", "nor this"])
obs["all missing"] = pd.Categorical([None] * n, categories=["x"])
obs["int labels"] = pd.Categorical.from_codes(rng.integers(0, 3, n), [10, 2, 33])
obs["float labels"] = pd.Categorical.from_codes(rng.integers(0, 3, n), [0.1, 2.0, 1e20])
obs["bool labels"] = pd.Categorical.from_codes(rng.integers(0, 2, n), [False, True])
obs["many labels"] = pd.Categorical.from_codes(np.arange(n), names("label", n + 200)[:n + 200])
obs["string"] = pd.array(names("s", n), dtype=object)
obs["empty strings"] = pd.array([""] * n, dtype=object)
for t in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]:
    obs[t] = rng.integers(0, 100, n).astype(t)
obs["float16"] = (rng.integers(0, 100, n) / 4).astype("float16")
obs["with nan"] = np.where(rng.random(n) < 0.3, np.nan, rng.random(n))
obs["bool"] = rng.random(n) < 0.5
obs["Int64"] = pd.array([None if i % 5 == 0 else i for i in range(n)], dtype="Int64")
obs["UInt8"] = pd.array([None if i % 7 == 0 else i for i in range(n)], dtype="UInt8")
obs["boolean"] = pd.array([None if i % 3 == 0 else i % 2 == 0 for i in range(n)], dtype="boolean")
obs["é column with spaces"] = np.arange(n)
var = pd.DataFrame(index=pd.Index(names("ENSG", m.shape[1]), name="ids"))
var["symbol"] = pd.Categorical([f"sym{i // 2}" for i in range(m.shape[1])])
var["length"] = np.arange(m.shape[1], dtype="int32")
var["highly_variable"] = rng.random(m.shape[1]) < 0.5
var["mean"] = rng.random(m.shape[1])


def write_anndata(name, obs, var, **kwargs):
    a = ad.AnnData(X=m.astype(np.float32), obs=obs.copy(), var=var.copy())
    path = f"{out}/{name}.h5ad"
    a.write_h5ad(path, convert_strings_to_categoricals=False, **kwargs)
    expect(name, path, m, obs.index, var.index, obs, var)


write_anndata("anndata_frames", obs, var)
write_anndata("anndata_frames_gzip", obs, var, compression="gzip")
write_anndata("anndata_frames_lzf", obs, var, compression="lzf")
try:
    ad.settings.allow_write_nullable_strings = True
    nullable = obs[["string"]].copy()
    nullable["nullable"] = pd.array([None if i % 4 == 0 else f"v{i}" for i in range(n)], dtype="string")
    nullable["category of strings"] = pd.Categorical(pd.array([f"v{i % 3}" for i in range(n)], dtype="string"))
    a = ad.AnnData(X=m.astype(np.float32), obs=nullable, var=var)
    path = f"{out}/anndata_nullable_strings.h5ad"
    a.write_h5ad(path, convert_strings_to_categoricals=False)
    expect("anndata_nullable_strings", path, m, obs.index, var.index, nullable, var)
finally:
    ad.settings.allow_write_nullable_strings = False

# anndata 0.7: categories apart, referred to by an attribute.
path = f"{out}/anndata_0_7.h5ad"
frame = obs[["category", "ordered", "int64", "bool", "string"]]
with h5py.File(path, "w") as file:
    write_sparse(file, "X", m, "<f4")
    write_frame(file, "var", list(var.index))
    group = file.create_group("obs")
    group.attrs["_index"] = "index"
    group.attrs["encoding-type"] = "dataframe"
    group.attrs["encoding-version"] = "0.1.0"
    group.attrs["column-order"] = np.array(list(frame), dtype=h5py.string_dtype())
    group.create_dataset("index", data=np.array(frame.index, dtype=object), dtype=h5py.string_dtype())
    for name, column in frame.items():
        if isinstance(column.dtype, pd.CategoricalDtype):
            categories = group.create_dataset(f"__categories/{name}", data=np.array(column.cat.categories, dtype=object), dtype=h5py.string_dtype())
            categories.attrs["ordered"] = column.cat.ordered
            group.create_dataset(name, data=column.cat.codes.to_numpy())
            group[name].attrs["categories"] = categories.ref
        elif column.dtype == object:
            group.create_dataset(name, data=np.array(column, dtype=object), dtype=h5py.string_dtype())
        else:
            group.create_dataset(name, data=column.to_numpy())
expect("anndata_0_7", path, m, frame.index, var.index, frame)

# Before 0.7: tables of records, categories in uns.
path = f"{out}/anndata_0_6.h5ad"
table = np.zeros(n, dtype=[("index", "S20"), ("category", "i1"), ("int64", "<i8"), ("float32", ">f4"), ("text", "S5"), ("flag", "?")])
table["index"] = [i.encode() for i in obs.index]
table["category"] = obs["category"].cat.codes
table["int64"] = obs["int64"]
table["float32"] = obs["float32"]
table["text"] = [f"t{i}".encode() for i in range(n)]
table["flag"] = obs["bool"]
with h5py.File(path, "w") as file:
    write_sparse(file, "X", m, "<f4", encoding="csr_matrix", old=True)
    file.create_dataset("obs", data=table)
    file.create_dataset("uns/category_categories", data=np.array(["b", "a", "ü ✓"], dtype=object), dtype=h5py.string_dtype())
    genes = np.zeros(m.shape[1], dtype=[("index", "S20"), ("n", "<i4")])
    genes["index"] = [i.encode() for i in var.index]
    genes["n"] = var["length"]
    file.create_dataset("var", data=genes, compression="gzip")
expected = pd.DataFrame({"category": obs["category"], "int64": obs["int64"], "float32": obs["float32"], "text": [f"t{i}" for i in range(n)], "flag": obs["bool"]})
expect("anndata_0_6", path, m, obs.index, var.index, expected, pd.DataFrame({"n": var["length"]}))

# Strings as other writers store them.
path = f"{out}/strings.h5ad"
with h5py.File(path, "w") as file:
    write_sparse(file, "X", m, "<f4")
    write_frame(file, "var", names("g", m.shape[1]))
    group = file.create_group("obs")
    group.attrs["_index"] = "barcode"
    group.attrs["column-order"] = np.array(["fixed", "ascii", "chunked", "zstd"], dtype="S20")
    group.create_dataset("barcode", data=np.array(names("c", n), dtype="S8"))
    group.create_dataset("fixed", data=np.array(names("f", n), dtype="S12"), chunks=(10,), compression="gzip")
    group.create_dataset("ascii", data=names("a", n), dtype=h5py.string_dtype("ascii"))
    group.create_dataset("chunked", data=names("ch", n), dtype=h5py.string_dtype(), chunks=(7,), compression="lzf")
    group.create_dataset("zstd", data=names("z", n), dtype=h5py.string_dtype(), chunks=(7,), **hdf5plugin.Zstd())
expected = pd.DataFrame({"fixed": names("f", n), "ascii": names("a", n), "chunked": names("ch", n), "zstd": names("z", n)})
expect("strings", path, m, names("c", n), names("g", m.shape[1]), expected)

# 10x HDF5.
barcodes = [f"AAAC{i:04}-1" for i in range(n)]
symbols = [f"Gene{i % 40}" for i in range(m.shape[1])]
ids = names("ENSG", m.shape[1])
types = np.array(["Gene Expression"] * 40 + ["Antibody Capture"] * 4 + ["CRISPR Guide Capture"] * 3)


def tenx_v3(path, types):
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        group.create_dataset("barcodes", data=np.array(barcodes, dtype="S18"), compression="gzip")
        for part, data in [("data", m.data.astype("<i4")), ("indices", m.indices.astype("<i8")), ("indptr", m.indptr.astype("<i8"))]:
            group.create_dataset(part, data=data, chunks=(min(80, len(data)),), compression="gzip", shuffle=True)
        group.create_dataset("shape", data=np.array(m.shape[::-1], dtype="<i4"))
        features = group.create_group("features")
        features.create_dataset("_all_tag_keys", data=np.array(["genome"], dtype="S6"))
        for part, data in [("id", ids), ("name", symbols), ("feature_type", types), ("genome", ["GRCh38"] * len(ids))]:
            features.create_dataset(part, data=np.array(data, dtype="S24"), compression="gzip")


path = f"{out}/tenx_v3.h5"
tenx_v3(path, np.array(["Gene Expression"] * 47))
var10 = pd.DataFrame({"gene_ids": ids, "feature_types": ["Gene Expression"] * 47, "genome": ["GRCh38"] * 47})
expect("tenx_v3", path, m, barcodes, symbols, None, var10)
path = f"{out}/tenx_v3_types.h5"
tenx_v3(path, types)
expect("tenx_v3_types", path, m[:, :40], barcodes, symbols[:40])
expect("tenx_v3_antibodies", path, m[:, 40:44], barcodes, symbols[40:44], options={"feature_type": "Antibody Capture"})
refuse("tenx_v3_no_type", path, 'it has "Antibody Capture" (4), "CRISPR Guide Capture" (3), "Gene Expression" (40)', options={"feature_type": "Peaks"})
path = f"{out}/tenx_v2.h5"
with h5py.File(path, "w") as file:
    for genome in ["hg19", "mm10"]:
        group = file.create_group(genome)
        group.create_dataset("barcodes", data=np.array(barcodes, dtype="S18"))
        for part, data in [("data", m.data.astype("<i4")), ("indices", m.indices.astype("<i8")), ("indptr", m.indptr.astype("<i8"))]:
            group.create_dataset(part, data=data * (2 if (genome, part) == ("mm10", "data") else 1))
        group.create_dataset("shape", data=np.array(m.shape[::-1], dtype="<i4"))
        group.create_dataset("genes", data=np.array(ids, dtype="S18"))
        group.create_dataset("gene_names", data=np.array(symbols, dtype="S18"))
refuse("tenx_v2_two_genomes", path, "has the genomes hg19, mm10")
expect("tenx_v2", path, m * 2, barcodes, symbols, None, pd.DataFrame({"gene_ids": ids}), options={"genome": "mm10"})

# MatrixMarket.
coo = sp.coo_matrix(m.T)


def mtx(name, entries, shape=None, count=None, field="integer", gz=True, old=False, comments="%\n", features=None, cells=barcodes, last="\n", base=1, star=False):
    folder = f"{out}/{name}"
    inner = f"{folder}/Gene/filtered" if star else folder
    os.makedirs(inner, exist_ok=True)

    def write(file_name, text):
        text = text.encode()
        with open(f"{inner}/{file_name}" + (".gz" if gz else ""), "wb") as file:
            file.write(gzip.compress(text) if gz else text)

    rows, columns = shape or m.shape[::-1]
    lines = [f"{a + base} {b + base} {v}" for a, b, v in entries]
    head = f"%%MatrixMarket matrix coordinate {field} general\n{comments}{rows} {columns} {len(lines) if count is None else count}\n"
    write("matrix.mtx", head + "\n".join(lines) + (last if lines else ""))
    if features is None:
        features = [f"{i}\t{s}" if old else f"{i}\t{s}\tGene Expression" for i, s in zip(ids, symbols)]
    write("genes.tsv" if old else "features.tsv", "".join(line + "\n" for line in features))
    write("barcodes.tsv", "".join(line + "\n" for line in cells))
    return folder


by_cell = sorted(zip(coo.row, coo.col, coo.data), key=lambda e: (e[1], e[0]))
var_new = pd.DataFrame({"gene_ids": ids, "feature_types": ["Gene Expression"] * 47})
expect("mtx", mtx("mtx", by_cell), m, barcodes, symbols, None, var_new)
expect("mtx_plain", mtx("mtx_plain", by_cell, gz=False), m, barcodes, symbols, None, var_new)
expect("mtx_old", mtx("mtx_old", by_cell, gz=False, old=True), m, barcodes, symbols, None, pd.DataFrame({"gene_ids": ids}))
expect("mtx_star", mtx("mtx_star", by_cell, gz=False, star=True), m, barcodes, symbols)
expect("mtx_by_gene", mtx("mtx_by_gene", sorted(by_cell)), m, barcodes, symbols)
expect("mtx_any_order", mtx("mtx_any_order", [by_cell[i] for i in rng.permutation(len(by_cell))]), m, barcodes, symbols)
expect("mtx_real", mtx("mtx_real", [(a, b, f"{v}.0") for a, b, v in by_cell], field="real"), m, barcodes, symbols)
expect("mtx_real_exponent", mtx("mtx_real_exponent", [(a, b, f"{v:e}") for a, b, v in by_cell], field="real"), m, barcodes, symbols)
expect("mtx_no_last_newline", mtx("mtx_no_last_newline", by_cell, last=""), m, barcodes, symbols)
expect("mtx_no_comment", mtx("mtx_no_comment", by_cell, comments=""), m, barcodes, symbols)
expect("mtx_crlf", mtx("mtx_crlf", [(a, b, f"{v}\r") for a, b, v in by_cell]), m, barcodes, symbols)
expect("mtx_cells_by_genes", mtx("mtx_cells_by_genes", [(b, a, v) for a, b, v in by_cell], shape=m.shape), m, barcodes, symbols)
expect("mtx_one_column", mtx("mtx_one_column", by_cell, features=ids), m, barcodes, ids)
expect("mtx_antibodies", mtx("mtx_antibodies", by_cell, features=[f"{i}\t{s}\t{t}" for i, s, t in zip(ids, symbols, types)]), m[:, :40], barcodes, symbols[:40])
expect("mtx_empty", mtx("mtx_empty", []), m * 0, barcodes, symbols)
expect("mtx_file", f"{out}/mtx/matrix.mtx.gz", m, barcodes, symbols)
doubled = by_cell + by_cell[10:20]
expect("mtx_duplicates", mtx("mtx_duplicates", doubled), sp.csr_matrix(sp.coo_matrix((
    [e[2] for e in doubled], ([e[1] for e in doubled], [e[0] for e in doubled])), shape=m.shape)), barcodes, symbols)
a, b, v = by_cell[50]
for key, entry, error in [
    ("fraction", (a, b, 0.25), f"cell {b} ({barcodes[b]}), gene {a} ({symbols[a]}): 0.25 is not a whole number"),
    ("negative", (a, b, -1), "-1 is negative"),
    ("text", (a, b, "three"), 'line 53: "three" is not a number'),
    ("outside", (47, b, 1), "lies outside 47 rows and 61 columns"),
    ("large", (a, b, 2**31), "is above 2147483647"),
    ("fields", (a, b, "1 2"), "is not a row, a column and a value"),
]:
    bad = list(by_cell)
    bad[49] = entry
    refuse(f"mtx_bad_{key}", mtx(f"mtx_bad_{key}", bad, field="real"), error)
refuse("mtx_bad_from_zero", mtx("mtx_bad_from_zero", by_cell, base=0), "counts rows and columns from 1")
refuse("mtx_bad_short", mtx("mtx_bad_short", by_cell, count=len(by_cell) + 1), "expected")
refuse("mtx_bad_long", mtx("mtx_bad_long", by_cell, count=len(by_cell) - 1), "more than the")
refuse("mtx_bad_barcodes", mtx("mtx_bad_barcodes", by_cell, cells=barcodes[:-1]), "60 cells")
refuse("mtx_bad_features", mtx("mtx_bad_features", by_cell, features=ids[:-1]), "46 genes")
refuse("mtx_bad_pattern", mtx("mtx_bad_pattern", by_cell, field="pattern"), "is not supported")
folder = mtx("mtx_bad_truncated", by_cell)
with open(f"{folder}/matrix.mtx.gz", "r+b") as file:
    file.truncate(os.path.getsize(f"{folder}/matrix.mtx.gz") // 2)
refuse("mtx_bad_truncated", folder, "cut short")
folder = mtx("mtx_bad_no_barcodes", by_cell)
os.remove(f"{folder}/barcodes.tsv.gz")
refuse("mtx_bad_no_barcodes", folder, "barcodes.tsv: is missing")
os.makedirs(f"{out}/mtx_bad_nothing", exist_ok=True)
refuse("mtx_bad_nothing", f"{out}/mtx_bad_nothing", "has no matrix.mtx")
print("variants written")
