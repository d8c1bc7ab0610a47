"""Reads an h5ad file as people do and prints how many seconds that took.

    readers.py everything FILE SEED
    readers.py blocks FILE SEED
    readers.py write FILE TO gzip|none
"""

import sys
import time
import warnings

import anndata
import numpy as np

warnings.simplefilter("ignore")


def everything(path, seed):
    return anndata.read_h5ad(path).X.data[-1]


def blocks(path, seed):
    """1,024 rows in 64 random blocks of 16."""
    cells = anndata.read_h5ad(path, backed="r")
    starts = np.sort(np.random.default_rng(seed).choice(cells.n_obs // 16, 64, replace=False)) * 16
    rows = (starts[:, None] + np.arange(16)).ravel()
    return cells.X[rows].sum()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        compression = None if sys.argv[4] == "none" else sys.argv[4]
        anndata.read_h5ad(sys.argv[2]).write_h5ad(sys.argv[3], compression=compression)
    else:
        reader = {"everything": everything, "blocks": blocks}[sys.argv[1]]
        start = time.perf_counter()
        reader(sys.argv[2], int(sys.argv[3]))
        print(time.perf_counter() - start)
