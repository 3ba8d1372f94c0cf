"""Tests of runtimes that are not installed: they are skipped, and say why."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec

import pytest

RUNTIMES = ("torch", "jax")
MISSING = tuple(name for name in RUNTIMES if find_spec(name) is None)

_ERROR = re.compile(
    rf"No module named '({'|'.join(RUNTIMES)})|needs the package '({'|'.join(RUNTIMES)})'"
)
"""What a run of pytest says of a test that needs a runtime."""


def needs_pytest(first: tuple[int, int], reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test of what pytest has since version `first`.

    Args:
        reason: What an older pytest lacks, to be read after its name.
    """
    is_older = pytest.version_tuple[:2] < first
    return pytest.mark.skipif(is_older, reason=f"pytest {pytest.__version__} {reason}")


SUBTESTS = () if hasattr(pytest, "Subtests") else ("-p", "pytest_subtests.plugin")
"""Arguments of a run whose tests have subtests: pytest 8 has them from a plugin."""


def needs(runtime: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs a runtime."""
    return pytest.mark.skipif(runtime in MISSING, reason=f"{runtime} is not installed")


def require(package: str, reason: str = "") -> None:
    """Skip the test if a package is not installed, without importing it.

    After a test with pytester, the modules that it has imported are forgotten, and importing torch
    a second time damages the memory of the process.
    """
    parts = package.split(".")
    for count in range(1, len(parts) + 1):
        if find_spec(".".join(parts[:count])) is None:
            pytest.skip(reason or f"{package} is not installed")


def needs_clock_library() -> pytest.MarkDecorator:
    """Return the mark of a test whose clock jumps: the library for it may have to be compiled."""
    from pytest_multihost.extensions import clock

    [kind] = clock.pytest_multihost_services()
    why = kind.preload.library.why_missing() if kind.preload else ""
    return pytest.mark.skipif(bool(why), reason=why)


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
    imported = set()
    for node in ast.parse(collector.path.read_bytes()).body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        imported |= {each.partition(".")[0] for each in names}
    if missing := imported.intersection(MISSING):
        where = str(collector.path), 1, f"Skipped: {', '.join(sorted(missing))} is not installed"
        return pytest.CollectReport(collector.nodeid, "skipped", where, [])
    return None
