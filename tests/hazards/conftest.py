"""The corpus of hazards: its marker, and what is expected as a file for benchmarks/hazards.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

EXPECTATIONS = "PYTEST_MULTIHOST_HAZARDS_EXPECTATIONS"
"""Names the file that the expectations are written to, one JSON object a line."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the corpus's own marker."""
    config.addinivalue_line("markers", "hazard(rule, lines): what is to be told of a program")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what is expected of each program; servers collect too and keep silent."""
    path = os.environ.get(EXPECTATIONS)
    if not path or "PYTEST_MULTIHOST_SERVER" in os.environ:
        return
    with Path(path).open("a", encoding="utf-8") as file:
        for item in session.items:
            mark = item.get_closest_marker("hazard")
            if mark is not None:
                file.write(json.dumps({"nodeid": item.nodeid, **mark.kwargs}) + "\n")
