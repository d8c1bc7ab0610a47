"""Compares every obs file of a mount, read by pyarrow and by pandas, with the values that are expected.

Usage: same_as_obs_json.py MOUNT OBS_JSON
"""

import hashlib
import json
import math
import os
import sys
import urllib.parse

import pandas as pd
import pyarrow as pa

mount, expected = sys.argv[1:]
expected = json.load(open(expected, encoding="utf-8"))
schema = {column["name"]: column for column in json.load(open(f"{mount}/obs/schema.json", encoding="utf-8"))["columns"]}
tile_cells = json.load(open(f"{mount}/manifest.json", encoding="utf-8"))["tile_cells"]
TYPES = {"double": pa.float64(), "float": pa.float32(), "bool": pa.bool_(), "string": pa.string()}


def file_name(column):
    """As the format notes have it; a name that is too long is cut and ends in the hash of the whole."""
    name = urllib.parse.quote(column, safe="") + ".arrow"
    if len(name) <= 255:
        return name
    end = "+" + hashlib.sha256(column.encode()).hexdigest() + ".arrow"
    cut = name[: 255 - len(end)]
    # Never within a %XX.
    for back in (1, 2):
        if cut[-back] == "%":
            cut = cut[:-back]
            break
    return cut + end


def same(found, wanted):
    if isinstance(wanted, float) and found is not None:
        return math.isclose(found, wanted, rel_tol=1e-6) or (math.isnan(found) and math.isnan(wanted))
    return found == wanted and type(found) is type(wanted)


def check(path, column, wanted):
    kind = schema[column]["kind"]
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    assert table.column_names == [column], path
    table.validate(full=True)
    stored = TYPES.get(schema[column]["arrow_type"]) or pa.type_for_alias(schema[column]["arrow_type"])
    shown = table.schema.field(0).type
    if kind == "category":
        assert shown.index_type == stored and shown.value_type == pa.string(), (path, shown)
    else:
        assert shown == stored, (path, shown)
    found = table.column(0).to_pylist()
    assert len(found) == len(wanted) and all(map(same, found, wanted)), (path, found, wanted)

    frame = pd.read_feather(path)
    assert list(frame.columns) == [column] and len(frame) == len(wanted), path
    missing = [value is None or value != value for value in wanted]
    assert frame[column].isna().tolist() == missing, path
    if kind == "category":
        assert isinstance(frame[column].dtype, pd.CategoricalDtype), path
        assert list(frame[column].cat.categories) == schema[column]["categories"], path


files = set(os.listdir(f"{mount}/obs")) - {"schema.json"}
assert files == {file_name(column) for column in schema}, files
assert set(expected) == set(schema)
for column, wanted in expected.items():
    values = wanted["values"]
    check(f"{mount}/obs/{file_name(column)}", column, values)
    start = 0
    for tile, cells in enumerate(tile_cells):
        path = f"{mount}/tile_{tile:06}/obs/{file_name(column)}"
        check(path, column, values[start : start + cells])
        start += cells
    whole = pa.ipc.open_file(f"{mount}/obs/{file_name(column)}")
    assert whole.num_record_batches == len(tile_cells)
