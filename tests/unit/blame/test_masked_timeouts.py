"""Exceptions that mask a symptom: which ranks are collateral, which have failed by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import builders
import pytest
from builders import ended, in_tests, operation, world

from pytest_multihost.core.blame.masked_symptoms import judge_masked
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Operation,
    Operations,
    RankSnapshot,
    WorldSnapshot,
    make_event,
    raised,
    report,
)

LIMIT = "RuntimeError: timed out"
SYMPTOMS = Symptoms((r"^RuntimeError: timed out$",))
WRAPPED = raised("ValueError: step 3 failed", LIMIT)
DEEPLY_WRAPPED = raised("ValueError: step 3 failed", "OSError: no step", LIMIT)
EXIT = raised("SystemExit: 1")
OWN = raised("ValueError: step 3 failed")
KEY = ((0, 1), 0, RUNTIME_SCOPE)


collective = partial(operation, group=(0, 1), sequence=2)
"""The second all_reduce of two ranks, in which one waits."""


STRUCK = collective(ended_s=3.0, failed=True, error=LIMIT)
OTHERS = collective(ordinal=1, thread=7)


def outcomes(
    error: dict[str, Any] | None,
    *,
    left: Operation = STRUCK,
    other: Operation | None = None,
    others_place: int = 1,
) -> list[str]:
    """Return what becomes of two ranks; the first raised as its operation was left.

    Args:
        error: What it raised.
        left: The operation.
        other: What the second is in meanwhile.
        others_place: How far the second had come in the group.
    """
    history = in_tests(2)
    history.append(make_event(3.1, 0, "report", report("call", "failed", error=error)))
    history += ended(2, 9.0)
    entered = ((KEY, others_place),)
    pending = (other,) if other is not None else ()
    second = RankSnapshot(rank=1, label="BLOCKED", operations=pending, entered=entered)
    first = RankSnapshot(rank=0, label="RUNNING", entered=((KEY, 2),))
    result = world(
        2,
        history,
        ended_s=9.0,
        ending="settled",
        snapshots=(WorldSnapshot(at_s=3.2, reason="trouble", ranks=(first, second)),),
        operations=(Operations(0, (left,), {KEY: 2}), Operations(1, pending, dict(entered))),
    )
    return [each.outcome for each in judge_masked(result, SYMPTOMS).ranks]


@pytest.mark.parametrize("error", [WRAPPED, DEEPLY_WRAPPED, EXIT], ids=["from", "deep", "exit"])
def test_a_rank_that_waited_for_another_is_collateral_whatever_it_raised_from_that(
    error: dict[str, Any],
) -> None:
    """The other never entered what the first gave up."""
    assert outcomes(error) == ["collateral", "hung"]


def test_a_rank_that_cleaned_up_before_it_raised_is_collateral_too() -> None:
    """Its last collective says for whom it had waited."""
    early = collective(ended_s=1.5, failed=True, error=LIMIT)
    assert outcomes(WRAPPED, left=early) == ["collateral", "hung"]


@pytest.mark.parametrize("error", [WRAPPED, EXIT], ids=["from", "exit"])
def test_who_raised_while_the_other_waits_for_it_has_failed(error: dict[str, Any]) -> None:
    """The timeout was one that it expected; the other is where both were to meet."""
    assert outcomes(error, other=OTHERS) == ["failed", "collateral"]


@pytest.mark.parametrize("error", [WRAPPED, EXIT], ids=["from", "exit"])
def test_who_raised_where_nobody_was_late_has_failed(error: dict[str, Any]) -> None:
    """All had entered what it gave up: nothing tells that another is to blame."""
    assert outcomes(error, others_place=2) == ["failed", "collateral"]


def test_who_raised_after_a_wait_for_nobody_in_particular_has_failed() -> None:
    """A key that nobody sets: who was to provide it is a guess, and a guess masks nothing."""
    key = builders.operation(
        "store.wait", kind="wait", group=(0, 1), ended_s=3.0, failed=True, error=LIMIT
    )
    assert outcomes(WRAPPED, left=key) == ["failed", "collateral"]


@pytest.mark.parametrize(
    "error",
    [
        OWN,
        raised("ValueError: bad shard", "OSError: no such file"),
        raised("AssertionError: 1", LIMIT),
    ],
    ids=["nothing behind", "something else behind", "an assertion"],
)
def test_who_raised_something_of_its_own_has_failed(error: dict[str, Any]) -> None:
    """Though its last collective was given up, and the other never came."""
    assert outcomes(error) == ["failed", "collateral"]


def test_who_exits_after_an_operation_that_went_well_has_failed() -> None:
    """A code tells nothing by itself."""
    assert outcomes(EXIT, left=collective(ended_s=3.0)) == ["failed", "collateral"]
