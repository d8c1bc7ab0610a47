"""Holds obs.arrow and var.arrow of a mount, read by pyarrow and polars, against the columns' own files and var.parquet.

Usage: same_tables.py MOUNT
"""

import json
import os
import sys

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

mount = sys.argv[1]
manifest = json.load(open(f"{mount}/manifest.json", encoding="utf-8"))


def mapped(path):
    """The table, and that reading it took no memory of its own."""
    before = pa.total_allocated_bytes()
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    # The schema's metadata and the vocabularies are not mapped.
    taken = pa.total_allocated_bytes() - before
    assert taken < 64 << 10 or taken < table.nbytes / 10, (path, taken, table.nbytes)
    table.validate(full=True)
    return table


if os.path.exists(f"{mount}/obs.arrow"):
    obs = mapped(f"{mount}/obs.arrow")
    assert pa.ipc.open_file(f"{mount}/obs.arrow").num_record_batches == len(manifest["tile_cells"])
    assert obs.num_rows == manifest["n_cells"]
    files = [name for name in os.listdir(f"{mount}/obs") if name.endswith(".arrow")]
    assert len(files) == obs.num_columns
    for name in files:
        column = pa.ipc.open_file(pa.memory_map(f"{mount}/obs/{name}")).read_all()
        (called,) = column.column_names
        assert column.column(0).equals(obs.column(called)), name
    columns = {column["name"]: column for column in json.load(open(f"{mount}/obs/schema.json", encoding="utf-8"))["columns"]}
    assert obs.column_names == list(columns)
    frame = pl.scan_ipc(f"{mount}/obs.arrow").collect()
    assert frame.height == obs.num_rows and frame.columns == obs.column_names
    pandas = pd.read_feather(f"{mount}/obs.arrow")
    for name, column in columns.items():
        wanted = obs.column(name).to_pylist()
        same = lambda got: all(a == b or (a != a and b != b) for a, b in zip(got, wanted, strict=True))
        assert same(frame[name].to_list()), name
        missing = [value is None or value != value for value in wanted]
        assert pandas[name].isna().tolist() == missing, name
        if column["kind"] == "category":
            assert list(pandas[name].cat.categories) == column["categories"], name

if os.path.exists(f"{mount}/var.arrow"):
    var = mapped(f"{mount}/var.arrow")
    stored = pq.read_table(f"{mount}/var.parquet")
    assert var.equals(stored) and var.schema.metadata == stored.schema.metadata
    assert var.to_pandas().index.equals(pd.read_parquet(f"{mount}/var.parquet").index)
    assert pl.scan_ipc(f"{mount}/var.arrow").collect().height == manifest["n_genes"]
