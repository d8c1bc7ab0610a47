"""Reads a dataset with nothing but what the format's description says, and compares it with its inputs as scanpy and
anndata read them.

usage: independent_reader.py DATASET KIND INPUT...     where KIND is h5ad, 10x_h5 or mtx
"""

import hashlib
import json
import os
import sys
import warnings
import zlib

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import scanpy as sc
import scipy.sparse as sp
import zstandard

warnings.simplefilter("ignore")
root, kind, *inputs = sys.argv[1:]
with open(f"{root}/manifest.json") as file:
    manifest = json.load(file)


def frame(blob, offset, length):
    return zstandard.ZstdDecompressor().decompress(blob[offset : offset + length])


def planes(raw, n):
    raw = np.frombuffer(raw, np.uint8)
    assert len(raw) == 2 * n
    return raw[:n].astype(np.int64) | raw[n:].astype(np.int64) << 8


def exceptions(blob, offset, length):
    if length == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    both = np.frombuffer(frame(blob, offset, length), "<u4").astype(np.int64)
    return both[: len(both) // 2], both[len(both) // 2 :]


def read_tile(path, n_genes):
    with open(path, "rb") as file:
        blob = file.read()
    assert blob[:8] == b"DELTACEL" and zlib.crc32(blob[64:]) == int.from_bytes(blob[56:60], "little")
    n_cells, nnz = np.frombuffer(blob, "<u8", 2, 16)
    genes, n_chunks = np.frombuffer(blob, "<u4", 2, 32)
    indptr_off, total = np.frombuffer(blob, "<u8", 2, 40)
    assert genes == n_genes and total == len(blob)
    table = np.frombuffer(blob, "<u8", int(n_chunks) * 12, 64).reshape(-1, 12).astype(np.int64)
    indptr = np.frombuffer(blob, "<i8", int(n_cells) + 1, int(indptr_off))
    indices, data = np.empty(int(nnz), np.int64), np.empty(int(nnz), np.int64)
    for lo, hi, a, b, gaps_off, gaps_len, vals_off, vals_len, vexc_off, vexc_len, gexc_off, gexc_len in table:
        gaps = planes(frame(blob, gaps_off, gaps_len), b - a)
        vals = planes(frame(blob, vals_off, vals_len), b - a)
        at, payload = exceptions(blob, vexc_off, vexc_len)
        vals[at] = payload
        at, payload = exceptions(blob, gexc_off, gexc_len)
        gaps[at] += payload
        for cell in range(lo, hi):
            s, e = indptr[cell] - a, indptr[cell + 1] - a
            indices[indptr[cell] : indptr[cell + 1]] = np.cumsum(gaps[s:e])
        data[a:b] = vals
    return sp.csr_matrix((data, indices, indptr), shape=(int(n_cells), n_genes))


tiles = [read_tile(f"{root}/tiles/tile_{i:06}.dct", manifest["n_genes"]) for i in range(len(manifest["tile_cells"]))]
assert [t.shape[0] for t in tiles] == manifest["tile_cells"] and [t.nnz for t in tiles] == manifest["tile_nnz"]
found = sp.vstack(tiles, format="csr")

with open(f"{root}/obs/schema.json") as file:
    schema_text = file.read()
schema = json.loads(schema_text)
shards = []
for i, (size, sha) in enumerate(zip(manifest["obs_shard_bytes"], manifest["obs_shard_sha256"])):
    path = f"{root}/obs/obs_{i:04}.parquet"
    with open(path, "rb") as file:
        content = file.read()
    assert len(content) == size and hashlib.sha256(content).hexdigest() == sha
    shard = pq.ParquetFile(path)
    k = manifest["obs_tiles_per_file"]
    rows = [shard.metadata.row_group(g).num_rows for g in range(shard.num_row_groups)]
    assert rows == manifest["tile_cells"][i * k : (i + 1) * k]
    shards.append(shard.read())
canonical = json.dumps({"schema": schema_text, "tile_cells": manifest["tile_cells"], "shards": manifest["obs_shard_sha256"]}, sort_keys=True)
assert hashlib.sha256(canonical.encode()).hexdigest()[:24] == manifest["obs_fingerprint"]
import pyarrow as pa

obs = pa.concat_tables(shards)
assert [(f.name, str(f.type)) for f in obs.schema] == [(c["name"], c["arrow_type"]) for c in schema["columns"]]

read = {"h5ad": ad.read_h5ad, "10x_h5": lambda p: sc.read_10x_h5(p, gex_only=True), "mtx": lambda p: sc.read_10x_mtx(p, make_unique=False)}[kind]
sources = [read(path) for path in inputs]
source = sources[0] if len(sources) == 1 else ad.concat(sources, merge="first")
order = np.load(f"{root}/gene_order.npy")
assert sorted(order) == list(range(source.n_vars))
wanted = sp.csr_matrix(source.X)[:, order]
assert found.shape == wanted.shape and (found != wanted).nnz == 0, "counts"
totals = np.asarray(wanted.sum(0)).ravel()
assert (np.diff(totals) <= 0).all(), "gene order"
with open(f"{root}/var_names.txt") as file:
    assert file.read() == "".join(name + "\n" for name in source.var_names[order]), "gene names"
var = pd.read_parquet(f"{root}/var.parquet")
assert list(var.index) == list(source.var_names[order])
for name, column in source.var.iloc[order].items():
    assert list(var[name].astype(object)) == list(column.astype(object)), name
assert [c["name"] for c in schema["columns"]] == [*source.obs.columns, "obs_names"]
assert obs["obs_names"].to_pylist() == list(source.obs_names)
for column in schema["columns"][:-1]:
    values, expected = obs[column["name"]], source.obs[column["name"]]
    if column["kind"] == "category":
        labels = [None if code < 0 else column["categories"][code] for code in values.to_pylist()]
        assert labels == [None if pd.isna(v) else str(v) for v in expected], column["name"]
        if len(sources) == 1:
            assert column["categories"] == [str(c) for c in expected.cat.categories], column["name"]
    else:
        assert values.to_pylist() == [None if pd.isna(v) else v for v in expected], column["name"]
print("equal")
