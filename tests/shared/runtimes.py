"""Tests of runtimes that are not installed: they are skipped, and say why."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

RUNTIMES = ("torch", "jax")
MISSING = tuple(name for name in RUNTIMES if find_spec(name) is None)

_ERROR = re.compile(
    rf"No module named '({'|'.join(RUNTIMES)})|needs the package '({'|'.join(RUNTIMES)})'"
)
"""What a run of pytest says of a test that needs a runtime."""


def needs(runtime: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs a runtime."""
    return pytest.mark.skipif(runtime in MISSING, reason=f"{runtime} is not installed")


def skip_if_missing(output: str) -> None:
    """Skip the test if a run of pytest has failed for want of a runtime."""
    found = _ERROR.search(output) if MISSING else None
    if found and (runtime := found[1] or found[2]) in MISSING:
        pytest.skip(f"{runtime} is not installed")


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> pytest.CollectReport | None:
    """Skip a file that imports what is not installed."""
    if not isinstance(collector, pytest.Module):
        return None
    source = collector.path.read_text(encoding="utf-8")
    for name in MISSING:
        if re.search(rf"^(import|from) {name}\b", source, re.MULTILINE):
            where = str(collector.path), 1, f"Skipped: {name} is not installed"
            return pytest.CollectReport(collector.nodeid, "skipped", where, [])
    return None
