"""Hazards in the summary of a step of GitHub Actions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost.extensions.hazards.model import Hazard, Hazards
from pytest_multihost.extensions.hazards.report import hazard_summary
from pytest_multihost.testing import JsonVerdict, to_json

pytestmark = pytest.mark.unit

RUN = Path("unread")
FOUND = Hazard(
    rule="order",
    summary="ranks 0-1 launch operations of their groups in different orders",
    when="with NCCL",
    sides=(),
)


def verdict(nodeid: str = "test_it.py::test_it", *, accepted: str | None = None) -> JsonVerdict:
    """Return as much of a verdict as is read: a passing test with one hazard."""
    found = Hazards(rules=("order",), found=(replace(FOUND, accepted=accepted),))
    return {"nodeid": nodeid, "attempt": 1, "hazards": to_json(found)}


def test_a_summary_has_a_row_for_each_hazard_that_is_not_accepted() -> None:
    """An accepted one has been read before."""
    shown = hazard_summary(RUN, [verdict("a"), verdict("b", accepted="gloo only")], 10_000)
    assert "| a | order |" in shown
    assert "| b |" not in shown


def test_a_summary_of_hazards_stays_below_the_size_it_may_have() -> None:
    """Rows that do not fit are left out, and it says so."""
    shown = hazard_summary(RUN, [verdict(f"test_{number}") for number in range(9)], 600)
    assert len(shown.encode()) <= 600
    assert "does not fit" in shown or "do not fit" in shown


def test_a_full_summary_gets_no_hazards() -> None:
    """GitHub drops a summary that is too large as a whole."""
    assert hazard_summary(RUN, [verdict()], 0) == ""


def test_a_damaged_verdict_has_no_hazards() -> None:
    """A summary of the others is better than none."""
    damaged = {**verdict("a"), "hazards": {"found": 3}}
    assert "| b |" in hazard_summary(RUN, [damaged, verdict("b")], 10_000)
