"""What the corpus asks of pytest: its marker, and the expectations as a file for the scorer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from corpora import leave_out_missing, write_expectations
from runtimes import pytest_make_collect_report  # noqa: F401 - a hook

EXPECTATIONS = "PYTEST_MULTIHOST_CORPUS_EXPECTATIONS"
"""Names the file that the expectations are written to, one JSON object a line."""

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the corpus's own marker."""
    config.addinivalue_line("markers", "corpus(**expectation): the verdict that is right")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out programs whose backend is not installed; pytest counts them as deselected."""
    leave_out_missing(config, items, "corpus")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what is expected of each program."""
    write_expectations(session, EXPECTATIONS, _line)


def _line(item: pytest.Item) -> Mapping[str, Any]:
    mark = item.get_closest_marker("corpus")
    doc = getattr(getattr(item, "function", None), "__doc__", "")
    return {"doc": doc, "expected": dict(mark.kwargs) if mark else None}


def pytest_unconfigure() -> None:
    """Remove the memory groups of programs that were killed in them."""
    for group in MEMORY_GROUPS.glob("multihost-corpus-*"):
        with contextlib.suppress(OSError):
            group.rmdir()
