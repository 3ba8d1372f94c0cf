"""Threads of a rank that run jitted programs at once: they are named, and no rank is for them."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import cause, operation, stands

from pytest_multihost.core.blame.program_threads import as_unordered, threads_notes
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import PLAIN, Frame, Operation, Start, make_event

WORLD = builders.world(history=[make_event(0.0, 0, "forked", {"pid": 100})])
FINDING = judge(WORLD, Symptoms())
STEP = operation(
    "jit_step", sequence=4, since_s=2.0, thread=100, frame=Frame("/s/train.py", 25, "train")
)


def evaluation(name: str = "jit_eval", **changes: Any) -> Operation:  # noqa: ANN401
    """Return a program that another thread has started after the step, at `eval.py:7`."""
    given = {"sequence": 5, "since_s": 3.0, "thread": 107, "frame": Frame("/s/eval.py", 7, "run")}
    return operation(name, **{**given, **changes})


ALONE = {
    "the other came before": evaluation(sequence=3, since_s=1.0, ended_s=1.5),
    "the same thread": evaluation(thread=100),
    "the other thread only waits": evaluation(start=Start(100, Frame("a.py", 3, "run"))),
    "no program": evaluation("sync_global_devices"),
}
"""Programs beside the step that are not run at once with it by another thread."""


@pytest.mark.parametrize(
    "other",
    [evaluation(), evaluation(sequence=3, since_s=1.0, ended_s=2.5)],
    ids=["both are open", "one has just ended"],
)
def test_threads_that_run_programs_at_once_are_named(other: Operation) -> None:
    """With their programs and the lines at which they have started these."""
    states = {0: stands(0, STEP, other), 1: stands(1, STEP)}
    (said,) = threads_notes(cause("transport", waiting=(0, 1)), states, FINDING, PLAIN)
    lead = "rank 0 runs programs of 2 threads at once"
    step, its = "jit_step #4 of the main thread at train.py:25", f"{other.title} of thread 107"
    assert said == f"{lead}: {step} and {its} at eval.py:7"


@pytest.mark.parametrize("other", ALONE.values(), ids=ALONE)
def test_nothing_is_said_of_a_thread_that_is_alone(other: Operation) -> None:
    """A rank may warm up in a thread, or wait in it for what the main thread has started."""
    states = {0: stands(0, STEP, other)}
    assert [*threads_notes(cause("transport", waiting=(0,)), states, FINDING, PLAIN)] == []


@pytest.mark.parametrize(
    ("culprit", "waiting", "culprits"),
    [
        pytest.param(evaluation(), evaluation(), (), id="both sides"),
        pytest.param(evaluation(), ALONE["the same thread"], (1,), id="the culprit alone"),
        pytest.param(ALONE["the other came before"], evaluation(), (1,), id="the others alone"),
    ],
)
def test_no_rank_is_to_blame_for_an_order_that_chance_makes(
    culprit: Operation, waiting: Operation, culprits: tuple[int, ...]
) -> None:
    """The ranks do the same then; a rank that does it alone remains the culprit."""
    found = cause("mismatch", [1], waiting=(0, 2), operation=STEP)
    states = {rank: stands(rank, STEP, culprit if rank == 1 else waiting) for rank in range(3)}
    judged = as_unordered(found, states)
    assert judged.culprits == culprits
    assert (judged.confidence == "likely") == (not culprits)


def test_a_rank_that_raised_remains_the_culprit() -> None:
    """Whatever its threads do."""
    states = {rank: stands(rank, STEP, evaluation()) for rank in range(3)}
    found = cause("raised", [1], waiting=(0, 2))
    assert as_unordered(found, states) is found
