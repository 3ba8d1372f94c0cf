"""What the corpus of latent hangs asks of pytest: its marker, and the expectations as a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from expectation import marked_lines
from runtimes import MISSING, pytest_make_collect_report  # noqa: F401 - the second is a hook

EXPECTATIONS = "PYTEST_MULTIHOST_LATENT_EXPECTATIONS"
"""Names the file that the expectations are written to, one JSON object a line."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--times`."""
    parser.addoption("--times", type=int, default=1, metavar="N", help="run each test N times")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test as often as asked, under one node id: its tokens hold that."""
    times = item.config.getoption("times")
    if times == 1:
        return None
    for _ in range(times):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_configure(config: pytest.Config) -> None:
    """Register the corpus's own marker."""
    config.addinivalue_line("markers", "latent_corpus(**expectation): what a program hides")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out programs whose backend is not installed; pytest counts them as deselected."""
    needed = {"gloo": "torch", "jax": "jax"}
    marks = [(item, item.get_closest_marker("latent_corpus")) for item in items]
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
            mark = item.get_closest_marker("latent_corpus")
            if mark is not None and isinstance(item, pytest.Function):
                lines = marked_lines(item.function)
                expected = {**mark.kwargs, "lines": lines}
                line = {"nodeid": item.nodeid, "doc": item.function.__doc__, "expected": expected}
                file.write(json.dumps(line) + "\n")
