"""What the corpus of latent weaknesses asks of pytest: a marker, and the expectations as a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from corpora import add_times, leave_out_missing, run_times, write_expectations
from expectation import marked_lines
from runtimes import pytest_make_collect_report  # noqa: F401 - a hook

EXPECTATIONS = "PYTEST_MULTIHOST_LATENT_EXPECTATIONS"
"""Names the file that the expectations are written to, one JSON object a line."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--times`."""
    add_times(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test as often as asked."""
    return run_times(item, nextitem)


def pytest_configure(config: pytest.Config) -> None:
    """Register the corpus's own marker."""
    description = "latent_corpus(*checks, **expectation): what a program hides"
    config.addinivalue_line("markers", description)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out programs whose backend is not installed; pytest counts them as deselected."""
    leave_out_missing(config, items, "latent_corpus")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Look in each rank at what the run has left, once all ranks have passed the test."""
    yield
    mark = item.get_closest_marker("latent_corpus")
    have = getattr(item, "funcargs", {})
    if mark is None or "world" not in have:
        return
    for check in mark.args:
        have["world"].barrier()
        check(have)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what is expected of each program."""
    write_expectations(session, EXPECTATIONS, _line)


def _line(item: pytest.Item) -> Mapping[str, Any] | None:
    mark = item.get_closest_marker("latent_corpus")
    if mark is None or not isinstance(item, pytest.Function):
        return None
    expected = {**mark.kwargs, "lines": marked_lines(item.function)}
    return {"doc": item.function.__doc__, "expected": expected}
