"""The lines of a diagnosis: where the culprit is, and where each of the others waits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import builders
import pytest
from builders import in_tests

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.places import culprit_place, place_groups, rank_places
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import (
    Frame,
    RankPlace,
    RankSnapshot,
    SourceContext,
    WorldResult,
    make_dump,
    make_event,
    raised,
    report,
)

CONTEXT = SourceContext("/t", lambda file, line: f"{file}@{line}")
LIBRARY = "/v/site-packages/torch/dist.py:99 all_reduce"
BEGAN = Frame("/t/train.py", 5, "step")


operation = partial(builders.operation, frame=BEGAN)


def world(*dumps: Any, error: dict[str, object] | None = None) -> WorldResult:  # noqa: ANN401
    """Return a world of three ranks with these stacks; rank 0 has raised if `error` is given."""
    history = in_tests(3)
    if error is not None:
        history.append(make_event(5.0, 0, "report", report("call", "failed", error=error)))
    return builders.world(3, history, dumps=dumps)


def stands(**more: object) -> dict[int, RankState]:
    """Return the states of three idle ranks; rank 0 is given more."""
    states = {rank: RankState(seen=RankSnapshot(rank=rank)) for rank in range(3)}
    return states | {0: replace(states[0], **more)}  # type: ignore[arg-type]


def cause(kind: str = "straggler", **more: object) -> Cause:
    """Return a cause with rank 0 as its culprit."""
    return builders.cause(kind, **{"culprits": (0,), "waiting": (1, 2), **more})


def culprits(found: Cause, states: dict[int, RankState], result: WorldResult) -> RankPlace | None:
    """Return where the culprit is."""
    return culprit_place(found, states, result, judge(result, Symptoms()), CONTEXT)


def places(found: Cause, result: WorldResult) -> dict[int, int | None]:
    """Return the line of each rank that has one."""
    finding = judge(result, Symptoms())
    return {e.rank: e.line for e in rank_places(found, stands(), result, finding, CONTEXT)}


STACK = make_dump(0, LIBRARY, "/t/storage.py:17 read_shard", "/t/test_it.py:3 test_it")


def test_a_culprit_is_at_its_innermost_line_outside_of_libraries() -> None:
    """With the text of that line."""
    found = culprits(cause(), stands(), world(STACK))
    assert found == RankPlace(0, "storage.py", 17, "read_shard", "/t/storage.py@17")


@pytest.mark.parametrize("kind", ["straggler", "mismatch"])
def test_a_culprit_without_a_stack_is_where_its_operation_began(kind: str) -> None:
    """If it waits in one that has a line."""
    bare, known = operation(frame=None), operation()
    found = culprits(cause(kind), stands(pending=(bare, known)), world())
    assert found == RankPlace(0, "train.py", 5, "step", "/t/train.py@5")
    assert culprits(cause(kind), stands(pending=(bare,)), world()) is None


def test_a_culprit_that_raised_is_where_its_exception_was() -> None:
    """Whatever its stack shows; without a line of the exception the stack counts."""
    error = raised("ValueError: mine", file="/t/model.py", line=8)
    found = culprits(cause("raised"), stands(condition="raised"), world(STACK, error=error))
    assert found == RankPlace(0, "model.py", 8, "", "/t/model.py@8")
    named = {**error, "function": "forward"}
    found = culprits(cause("raised"), stands(condition="raised"), world(STACK, error=named))
    assert found == RankPlace(0, "model.py", 8, "forward", "/t/model.py@8")
    bare = raised("ValueError: mine")
    found = culprits(cause("raised"), stands(condition="raised"), world(STACK, error=bare))
    assert found is not None
    assert found.line == 17


def test_a_culprit_that_has_finished_has_no_line() -> None:
    """Nor has a cause without a culprit."""
    assert culprits(cause("finished"), stands(condition="finished"), world(STACK)) is None
    assert culprits(cause("transport", culprits=()), stands(), world(STACK)) is None


def test_a_rank_whose_own_threads_wait_for_each_other_is_shown_as_a_culprit() -> None:
    """Of several ranks that do, none is."""
    found = culprits(cause("deadlock", culprits=(), cycle=(0,)), stands(), world(STACK))
    assert found is not None
    assert (found.rank, found.line) == (0, 17)
    both = cause("deadlock", culprits=(), cycle=(0, 1))
    assert culprits(both, stands(), world(STACK)) is None


def test_a_culprit_that_left_the_operation_is_shown_where_it_began_that() -> None:
    """Not where it is now."""
    left = operation(frame=Frame("/t/train.py", 6, "step"))
    found = cause("transport", operation=operation())
    place = culprits(found, stands(broke=(left,)), world(STACK))
    assert place is not None
    assert place.line == 6
    assert culprits(found, stands(), world(STACK)) is None


def test_who_waits_in_an_operation_is_shown_where_that_began() -> None:
    """Others are shown by their stacks; who is not concerned is left out."""
    waits = (Wait(1, operation(), frozenset({0})), Wait(2, None, frozenset({0})))
    of_2 = make_dump(2, "/t/loader.py:21 poll", "/t/test_it.py:3 test_it")
    of_1 = make_dump(1, "/t/loader.py:44 poll", "/t/test_it.py:3 test_it")
    assert places(cause(waits=waits), world(STACK, of_1, of_2)) == {0: 17, 1: 5, 2: 21}
    assert places(cause(waits=waits), world(of_1)) == {1: 5}
    assert places(cause(waits=waits, waiting=(1,)), world(of_2)) == {1: 5}
    cycle = cause("deadlock", culprits=(), waiting=(), cycle=(2,))
    assert places(cycle, world(STACK, of_2)) == {2: 21}


def test_ranks_with_one_stack_are_shown_together() -> None:
    """From the call within which they went into a library; without the runner's frames."""
    deep = (
        "/v/site-packages/torch/dist.py:1 wait",
        LIBRARY,
        "/t/train.py:5 step",
        "/t/main.py:2 run",
    )
    groups = list(place_groups(world(make_dump(0, *deep), make_dump(1, *deep), STACK), CONTEXT))
    lines = {each.ranks: [place.line for place in each.frames] for each in groups}
    assert lines[0, 1] == [99, 5, 2]
