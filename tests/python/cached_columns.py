"""Reads or writes columns in the node's cache of obs columns, as another reader of the format would.

Usage: cached_columns.py check FOLDER SCHEMA OBS_JSON    every cached column, mapped, has the values that are expected
       cached_columns.py fill FOLDER SCHEMA COLUMN VALUE TILE_CELLS...    puts a column there in which every cell has VALUE
"""

import json
import math
import os
import sys
import urllib.parse

import pyarrow as pa

command, folder, schema, *rest = sys.argv[1:]
schema = {column["name"]: column for column in json.load(open(schema, encoding="utf-8"))["columns"]}
TYPES = {"double": pa.float64(), "float": pa.float32(), "bool": pa.bool_(), "string": pa.string()}


def path_of(column):
    return f"{folder}/{urllib.parse.quote(column, safe='')}.arrow"


def stored_type(column):
    name = schema[column]["arrow_type"]
    return TYPES.get(name) or pa.type_for_alias(name)


def same(found, wanted):
    if isinstance(wanted, float) and found is not None:
        return math.isclose(found, wanted, rel_tol=1e-6) or (math.isnan(found) and math.isnan(wanted))
    return found == wanted and type(found) is type(wanted)


if command == "check":
    expected = json.load(open(rest[0], encoding="utf-8"))
    checked = 0
    for column, wanted in expected.items():
        if len(os.path.basename(path_of(column))) > 255:
            continue
        before = pa.total_allocated_bytes()
        table = pa.ipc.open_file(pa.memory_map(path_of(column))).read_all()
        assert pa.total_allocated_bytes() - before < 4096, f"{column} was copied, not mapped"
        table.validate(full=True)
        assert table.schema.names == [column] and table.schema.field(0).type == stored_type(column), table.schema
        found = table.column(0).to_pylist()
        if schema[column]["kind"] == "category":
            categories = schema[column]["categories"]
            found = [None if code == -1 else categories[code] for code in found]
        assert len(found) == len(wanted["values"]) and all(map(same, found, wanted["values"])), column
        checked += 1
    assert checked > 5
    assert len([name for name in os.listdir(folder)]) == checked
else:
    column, value, *tile_cells = rest
    os.makedirs(folder)
    kept = pa.schema([pa.field(column, stored_type(column))])
    with pa.OSFile(path_of(column), "wb") as sink, pa.ipc.new_file(sink, kept) as writer:
        for cells in map(int, tile_cells):
            values = pa.array([int(value)] * cells, stored_type(column))
            writer.write_batch(pa.record_batch([values], schema=kept))
