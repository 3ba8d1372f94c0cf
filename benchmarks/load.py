"""Other processes that compute while a benchmark runs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""A program that computes until its parent is gone, however that ends."""


@contextlib.contextmanager
def loaded(number: int) -> Iterator[None]:
    """Keep so many processes computing, at the priority of everybody else."""
    processes = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
