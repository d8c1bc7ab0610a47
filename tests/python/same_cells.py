"""Whether two datasets hold the same cells under the same names, in whatever order.

usage: same_cells.py DATASET DATASET
"""

import importlib.util
import json
import os
import re
import sys

import pyarrow.parquet as pq


def load(root):
    # The reader of independent_reader.py, without its comparison.
    with open(os.path.join(os.path.dirname(__file__), "independent_reader.py")) as file:
        source = file.read()
    scope = {}
    argv, sys.argv = sys.argv, ["independent_reader.py", root, "mtx"]
    try:
        exec(source[: source.index("with open(f\"{root}/obs/schema.json\")")], scope)
    finally:
        sys.argv = argv
    names = []
    for shard in sorted(os.listdir(f"{root}/obs")):
        if re.fullmatch(r"obs_\d+\.parquet", shard):
            names += pq.read_table(f"{root}/obs/{shard}")["obs_names"].to_pylist()
    m = scope["found"]
    rows = {n: (m.indices[a:b].tolist(), m.data[a:b].tolist()) for n, a, b in zip(names, m.indptr[:-1], m.indptr[1:])}
    return names, rows


first, second = load(sys.argv[1]), load(sys.argv[2])
assert first[1] == second[1] and len(first[1]) == len(first[0])
assert first[0] != second[0], "the order is the same"
