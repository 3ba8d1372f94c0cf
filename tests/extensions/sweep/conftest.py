"""Sweeps of these tests report all weaknesses, also those that a launcher would end soon."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def all_weaknesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the option's environment variable; an option on a command line replaces it."""
    monkeypatch.setenv("PYTEST_MULTIHOST_SWEEP_SHOW", "all")
