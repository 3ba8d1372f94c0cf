"""Limit the thread pools of native libraries that are already loaded.

N ranks with a pool of all cores each would fight for the machine. OMP_NUM_THREADS and its kin are
read when a library is loaded, which for a forked rank was long ago, in the controller. So the
server tells the libraries directly, once, and the ranks inherit it.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path

_POOLS = re.compile(r"/[^/]*(openblas|libgomp|libiomp5|libomp)[^/]*\.so[^/]*$")

_SETTERS = (
    "omp_set_num_threads",
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",  # the builds inside numpy's and scipy's wheels
    "scipy_openblas_set_num_threads64_",
)


def limit_threads(count: int) -> None:
    """Set the size of every loaded OpenMP and OpenBLAS pool to `count` threads."""
    for path in _loaded_pools():
        library = ctypes.CDLL(path)
        for name in _SETTERS:
            with contextlib.suppress(AttributeError):
                getattr(library, name)(count)


def _loaded_pools() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if _POOLS.search(line)}
    return sorted(paths)
