"""A rank dies or raises while another one is on its way: the event is told, not the bystander."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from builders import ended, in_tests, operation, page, seen, world

from pytest_multihost.core.blame.judge_world import diagnose
from pytest_multihost.core.blame.masked_symptoms import judge_masked
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    Event,
    Operation,
    SourceContext,
    WorldSnapshot,
    exited,
    make_event,
    raised,
    report,
)

HELD = {"label": "SLEEPING", "holds_gil": True}
ENTERED = operation()
OWN_PAIR = operation(group=(0, 1))


def told(
    event: Literal["died", "raised"],
    waits_in: Operation,
    *,
    others: bool = False,
    **zero: Any,  # noqa: ANN401
) -> tuple[object, ...] | None:
    """Return kind, culprits and waiting when rank 2 came to its end beside rank 0.

    Args:
        event: What happened to rank 2, which was in no operation then.
        waits_in: What rank 1 waits in.
        others: Whether rank 2 was in the same.
        zero: What was seen of rank 0, which is in no operation.
    """
    held = {0: (), 1: (waits_in,), 2: (waits_in,) if others else ()}
    ranks = tuple(seen(rank, *each, **({} if rank else zero)) for rank, each in held.items())
    result = world(
        3,
        tuple(_history(event)),
        ended_s=4.0,
        ending="settled",
        snapshots=(WorldSnapshot(at_s=4.0, reason="end", ranks=ranks),),
        operations=tuple(page(rank, *each) for rank, each in held.items()),
    )
    finding = judge_masked(result, Symptoms(()))
    diagnosis = diagnose(result, finding, SourceContext("/", lambda *_: ""))
    return diagnosis and (diagnosis.kind, diagnosis.culprits, diagnosis.waiting)


def _history(event: Literal["died", "raised"]) -> Iterator[Event]:
    yield from in_tests(3)
    if event == "raised":
        error = raised("ValueError: no such step")
        yield make_event(3.0, 2, "report", report("call", "failed", error=error))
    else:
        yield make_event(3.0, 2, "exited", exited(signal=9))
    yield from ended((0, 1), 4.0)


@pytest.mark.parametrize("zero", [{"label": "SLEEPING"}, {"label": "CHILD"}, HELD])
def test_who_died_is_told_and_not_who_was_late(zero: dict[str, Any]) -> None:
    """Out of memory in a barrier, while the primary still writes its checkpoint."""
    assert told("died", ENTERED, others=True, **zero) == ("died", (2,), (1,))
    assert told("died", ENTERED, **zero) == ("died", (2,), (1,))


def test_a_death_that_nobody_waits_for_is_told_as_well() -> None:
    """The others wait for a slow one in a group of their own."""
    assert told("died", OWN_PAIR, label="SLEEPING") == ("died", (2,), ())


@pytest.mark.parametrize("zero", [{"label": "SLEEPING"}, HELD])
def test_who_raised_is_told_where_others_wait_for_it(zero: dict[str, Any]) -> None:
    """And not who was late for the same."""
    assert told("raised", ENTERED, **zero) == ("raised", (2,), (1,))


@pytest.mark.parametrize("zero", [{"label": "SLEEPING"}, HELD])
def test_a_failure_that_nobody_waits_for_has_no_diagnosis(zero: dict[str, Any]) -> None:
    """The exception says it all; that the others were waiting for a slow one is no matter."""
    assert told("raised", OWN_PAIR, **zero) is None
