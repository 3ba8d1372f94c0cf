"""The notes below a diagnosis, word for word."""

from __future__ import annotations

import builders
import pytest
from builders import cause, operation, stands

from pytest_multihost.core.blame.notes import keys_like, notes
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import KEY_WAITS, PLAIN


@pytest.mark.parametrize(
    ("there", "said"),
    [
        pytest.param(
            {"config": 0, "run-id": 2},
            ["no rank has set the key run_id; there are keys like it: run-id (rank 2)"],
            id="one letter differs",
        ),
        pytest.param({"config": 0}, [], id="no key is like it"),
        pytest.param({"run_id": 0, "run-id": 2}, [], id="it is there, so the service is slow"),
    ],
)
def test_keys_like_the_one_that_a_rank_waits_for_are_named(
    there: dict[str, int], said: list[str]
) -> None:
    """A key that nobody sets mostly has a slightly different name."""
    wanted = operation(KEY_WAITS[0], kind="wait", detail="run_id")
    waits = (Wait(1, wanted, frozenset({0}), is_sure=False),)
    assert [*keys_like(cause("finished", [0], waits=waits), there, PLAIN)] == said


def test_programs_that_nobody_waits_for_are_counted() -> None:
    """If nothing moves in one of them: too many at a time may keep each other from ending."""
    steps = [operation("jit_step", sequence=number, thread=7) for number in (3, 4, 5)]
    states = {0: stands(0, *steps), 1: stands(1, steps[0]), 2: stands(2, steps[0])}
    stuck = cause("transport", waiting=(0, 1, 2), operation=steps[0])
    result = builders.world()
    finding = judge(result, Symptoms())
    (said,) = notes([stuck], states, result, finding)
    started = "rank 0 has started 3 programs, jit_step #3 to jit_step #5"
    assert said == f"{started}, without a wait for their results"
