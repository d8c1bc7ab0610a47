"""Reads the datasets that tests/anndata.rs makes up, in both containers.

    read_made_up.py FOLDER
"""

import json
import sys
import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd

warnings.simplefilter("ignore")


def values(column):
    return [None if pd.isna(value) else value for value in column]


def check_made_up(adata):
    assert adata.X.toarray().tolist() == [
        [1, 0, 70_000], [0, 0, 0], [0, 3, 0], [0, 0, 0], [0, 0, 2**31 - 1],
    ]
    obs = adata.obs
    assert list(adata.obs_names) == list("01234")
    assert list(obs.columns) == ["half", "u64", "holes", "kind", "text", "some text", "no text", "_index"]
    assert values(obs["half"]) == [0.5, None, -2.0, 1.0, 0.0] and obs["half"].dtype == np.float16
    assert values(obs["u64"]) == [2**64 - 1, 0, 1, 2, 3] and obs["u64"].dtype == np.uint64
    assert values(obs["holes"]) == [-7, 1, None, None, 5] and str(obs["holes"].dtype) == "Int16"
    assert values(obs["kind"]) == ["caf\u00e9", "", None, "caf\u00e9", "caf\u00e9"]
    assert list(obs["kind"].cat.categories) == ["caf\u00e9", "", "unused"]
    assert values(obs["text"]) == ["a", "", "\U0001f9ec\U0001f9ec", "dd", "e"]
    assert values(obs["some text"]) == [None, "x", None, "", "yz"]
    assert values(obs["no text"]) == [None] * 5
    assert obs["_index"].dtype == bool and obs["_index"].all()
    var = adata.var
    assert list(adata.var_names) == ["g0", "g1", "g2"]
    assert values(var["labels"]) == ["b", None, "a"] and list(var["labels"].cat.categories) == ["b", "a"]
    assert values(var["date"]) == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert values(var["flag"]) == [True, None, False]


def check_uns(uns):
    for key, want in {"text": "\u00e9", "none": "", "int": -3, "big": 2**64 - 1, "float": 2.5, "truth": True}.items():
        assert uns[key] == want and type(uns[key]) is not bytes, (key, uns[key])
    assert "null" not in uns
    for key, want in {"ints": [1, 2], "texts": ["a", "bc"], "empty": [], "truths": [True, False]}.items():
        assert uns[key].tolist() == want, (key, uns[key])
    assert uns["ints"].dtype == np.int64 and uns["truths"].dtype == bool
    assert json.loads(uns["mixed"]) == [1, "a"]
    assert uns["deep"] == {"a%2Fb": {"x": 1}, "%": 2}, uns["deep"]


def check_nothing(adata):
    assert adata.shape == (0, 3) and adata.X.nnz == 0
    assert list(adata.var_names) == ["0", "1", "2"]
    assert not len(adata.obs.columns) and not len(adata.uns)


def check_wide(adata):
    assert list(adata.obs.columns) == [f"column {column}" for column in range(4_000)]
    assert adata.obs.to_numpy().all()


def main():
    folder = Path(sys.argv[1])
    readers = [("h5ad", anndata.read_h5ad)]
    if hasattr(anndata, "io"):
        readers.append(("zarr", anndata.io.read_zarr))
    for container, read in readers:
        adata = read(folder / f"made_up.{container}")
        check_made_up(adata)
        check_uns(adata.uns)
        check_nothing(read(folder / f"nothing.{container}"))
        check_wide(read(folder / f"wide.{container}"))


main()
