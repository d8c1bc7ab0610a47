"""Reads the far ends of the arrays in an .h5ad file of a terabyte, nearly all of which is a hole."""

import sys

import h5py
import numpy as np

with h5py.File(sys.argv[1], "r") as file:
    x, obs = file["X"], file["obs"]
    assert x["data"].shape == x["indices"].shape == (100_000_000_000,)
    assert tuple(x.attrs["shape"]) == (100_000_000, 40_000)
    assert list(x["data"][-2:]) == list(x["indices"][-2:]) == [0, 7]
    assert list(x["indptr"][-2:]) == [0, 100_000_000_000]
    assert x["data"][50_000_000_000] == 0
    assert obs["n"][-1] == 2.5 and obs["n"].dtype == np.float64
    names = obs[obs.attrs["_index"]]
    assert names.asstr()[-1].endswith("the last") and names.asstr()[0] == ""
    var = file["var"]
    assert list(var[var.attrs["_index"]].asstr()[[0, 9, 10, 39_999]]) == ["0", "9", "10", "39999"]
