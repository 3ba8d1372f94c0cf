"""Random programs come as far on simulated ranks as on gloo's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from simulated_fuzz import run

pytestmark = pytest.mark.worlds

SEEDS = [*range(8), 106, 1053]
"""Some, and those that have found something: other roots, and a reduction of many elements."""


def test_no_simulated_rank_waits_for_what_gloo_does_not_wait_for() -> None:
    """So no hang is proven that gloo would end."""
    outcomes = run(SEEDS)
    assert outcomes["behind"] == 0
    assert outcomes["hung"] > 0
    assert outcomes["passed"] > 0
