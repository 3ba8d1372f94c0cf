"""The table of what each kind of choice costs and finds, from sweeps written by hand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import load_program

pytestmark = pytest.mark.unit

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "choices.py"


@pytest.fixture(scope="module")
def choices() -> ModuleType:
    """The program."""
    return load_program(PATH)


def run(choice: str, seconds: float, turn: int = 0) -> dict[str, Any]:
    """Return a disturbed run."""
    return {"disturbance": {"choice": choice, "turn": turn}, "seconds": seconds}


SWEEP = {
    "runs": [run("clock", 80.0), run("stale", 2.0), run("stale", 3.0, 1), run("order", 1.5)],
    "weaknesses": [
        {"confirmed": True, "shown_by": [1, 2]},
        {"confirmed": False, "shown_by": [0]},
    ],
}


def test_the_table_has_the_kind_with_the_most_weaknesses_a_minute_first(
    choices: ModuleType,
) -> None:
    """A weakness that no repeat has shown again does not count."""
    costs = choices.merged([choices.costs_of(SWEEP)])
    found = {kind: (each.worlds, each.shown, each.first) for kind, each in costs.items()}
    assert list(found) == ["stale 0", "stale 1", "order 0", "clock 0"]
    assert found["stale 0"] == (1, 1, 1)
    assert found["stale 1"] == (1, 1, 0)
    assert found["clock 0"] == (1, 0, 0)


def test_the_table_is_printed_as_the_lines_of_the_code(choices: ModuleType) -> None:
    """Kinds that have found nothing are among them."""
    costs = choices.merged(choices.by_kind([choices.costs_of(SWEEP)]))
    assert choices.measured(costs) == [
        "    Weight.STALE: (2, 5),",
        "    Weight.ORDER: (0, 2),",
        "    Weight.CLOCK: (0, 80),",
    ]
