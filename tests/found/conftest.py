"""What the repetition of a weakness asks of pytest."""

from __future__ import annotations

import pytest
from corpora import add_times, run_times


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--times`."""
    add_times(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test as often as asked."""
    return run_times(item, nextitem)
