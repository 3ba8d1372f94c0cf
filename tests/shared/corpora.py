"""What several corpora ask of pytest: a file of expectations, repeated tests, missing backends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from runtimes import MISSING

from pytest_multihost.core.backends import gpu_count

_NEEDED = {"gloo": "torch", "jax": "jax", "nccl": "torch"}


def write_expectations(
    session: pytest.Session,
    variable: str,
    line_of: Callable[[pytest.Item], Mapping[str, Any] | None],
) -> None:
    """Write what is expected of each program; servers collect too and keep silent.

    Args:
        session: pytest's.
        variable: Names the variable that names the file, one JSON object a line.
        line_of: Returns the line of a program beside its node id; None for none.
    """
    path = os.environ.get(variable)
    if not path or "PYTEST_MULTIHOST_SERVER" in os.environ:
        return
    with Path(path).open("a", encoding="utf-8") as file:
        for item in session.items:
            line = line_of(item)
            if line is not None:
                file.write(json.dumps({"nodeid": item.nodeid, **line}) + "\n")


def leave_out_missing(config: pytest.Config, items: list[pytest.Item], marker: str) -> None:
    """Leave out programs whose backend is not installed, or has no GPU here; pytest counts them."""
    gone = {backend for backend, package in _NEEDED.items() if package in MISSING}
    gone |= set() if gpu_count() else {"nccl"}
    marks = [(item, item.get_closest_marker(marker)) for item in items]
    left_out = [item for item, mark in marks if mark and mark.kwargs["backend"] in gone]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def add_times(parser: pytest.Parser) -> None:
    """Add `--times`."""
    parser.addoption("--times", type=int, default=1, metavar="N", help="run each test N times")


def run_times(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test as often as asked, under one node id: its tokens hold that."""
    times = item.config.getoption("times")
    if times == 1:
        return None
    for _ in range(times):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
