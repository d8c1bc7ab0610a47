"""Writes AnnData files whose obs is odd, or bad in a place that only reading all of it shows.

Usage: odd_obs.py FOLDER
"""

import sys

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp

folder = sys.argv[1]
cells, genes = 40, 12


def write(name, obs):
    x = sp.random(cells, genes, 0.4, format="csr", random_state=1, data_rvs=lambda n: np.arange(1, n + 1))
    obs.index = [f"cell{i}" for i in range(cells)]
    path = f"{folder}/{name}.h5ad"
    ad.AnnData(x, obs, pd.DataFrame(index=[f"gene{i}" for i in range(genes)])).write_h5ad(path)
    return path


labels = pd.Categorical(["b", "a"] * (cells // 2), ["a", "b"], ordered=True)
numbers = pd.Categorical([3, 1] * (cells // 2))
write("odd", pd.DataFrame({"stage": labels, "cluster": numbers, "score": np.arange(cells) / 4}))

with h5py.File(write("bad_code", pd.DataFrame({"stage": labels})), "r+") as file:
    file["obs/stage/codes"][cells - 1] = 7

with h5py.File(write("bad_text", pd.DataFrame({"stage": ["x"] * cells})), "r+") as file:
    attributes = dict(file["obs/stage"].attrs)
    del file["obs/stage"]
    text = np.array([b"fine"] * (cells - 1) + [b"\xff\xfe"], "S4")
    stage = file["obs"].create_dataset("stage", data=text)
    for key, value in attributes.items():
        stage.attrs[key] = value
