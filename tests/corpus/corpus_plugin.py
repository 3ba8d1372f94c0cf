"""What the corpus asks of pytest: its marker, and the expectations as a file for the scorer."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from runtimes import MISSING, pytest_make_collect_report  # noqa: F401 - the second is a hook

EXPECTATIONS = "PYTEST_MULTIHOST_CORPUS_EXPECTATIONS"
"""Names the file that the expectations are written to, one JSON object a line."""

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the corpus's own marker."""
    config.addinivalue_line("markers", "corpus(**expectation): the verdict that is right")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out programs whose backend is not installed; pytest counts them as deselected."""
    needed = {"gloo": "torch", "jax": "jax"}
    marks = [(item, item.get_closest_marker("corpus")) for item in items]
    left_out = [
        item for item, mark in marks if mark and needed.get(mark.kwargs["backend"]) in MISSING
    ]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what is expected of each program; servers collect too and keep silent."""
    path = os.environ.get(EXPECTATIONS)
    if not path or "PYTEST_MULTIHOST_SERVER" in os.environ:
        return
    with Path(path).open("a", encoding="utf-8") as file:
        for item in session.items:
            mark = item.get_closest_marker("corpus")
            doc = getattr(getattr(item, "function", None), "__doc__", "")
            expected = dict(mark.kwargs) if mark else None
            line = {"nodeid": item.nodeid, "doc": doc, "expected": expected}
            file.write(json.dumps(line) + "\n")


def pytest_unconfigure() -> None:
    """Remove the memory groups of programs that were killed in them."""
    for group in MEMORY_GROUPS.glob("multihost-corpus-*"):
        with contextlib.suppress(OSError):
            group.rmdir()
