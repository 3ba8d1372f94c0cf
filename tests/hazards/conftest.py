"""The corpus of hazards: its marker, and what is expected as a file for benchmarks/hazards.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from corpora import write_expectations

EXPECTATIONS = "PYTEST_MULTIHOST_HAZARDS_EXPECTATIONS"
"""Names the file that the expectations are written to, one JSON object a line."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the corpus's own marker."""
    config.addinivalue_line("markers", "hazard(rule, lines): what is to be told of a program")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what is expected of each program."""
    write_expectations(session, EXPECTATIONS, _line)


def _line(item: pytest.Item) -> Mapping[str, Any] | None:
    mark = item.get_closest_marker("hazard")
    return mark.kwargs if mark is not None else None
