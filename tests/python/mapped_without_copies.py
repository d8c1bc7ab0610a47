"""Reads every obs file of a mount through a mapping, and expects that nothing was copied and buffers are aligned.

Usage: mapped_without_copies.py MOUNT
"""

import glob
import sys

import pyarrow as pa

(mount,) = sys.argv[1:]
files = sorted(glob.glob(f"{glob.escape(mount)}/obs/*.arrow") + glob.glob(f"{glob.escape(mount)}/tile_*/obs/*.arrow"))
assert files
for path in files:
    before = pa.total_allocated_bytes()
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all()
        allocated = pa.total_allocated_bytes() - before
        assert allocated == 0, (path, allocated)
        for chunk in table.column(0).chunks:
            arrays = [chunk] if not pa.types.is_dictionary(chunk.type) else [chunk.indices, chunk.dictionary]
            buffers = [buffer for array in arrays for buffer in array.buffers() if buffer is not None]
            # Aligned in the file: a mapping begins on a page.
            assert all(buffer.address % 64 == 0 for buffer in buffers), path
        del table
