"""A hang of unknown cause: the notes say what prevented a proof, and what would show more."""

from __future__ import annotations

import pytest
from builders import history_of_a_hang, world

from pytest_multihost.core.blame.judge_world import diagnose
from pytest_multihost.core.blame.masked_symptoms import judge_masked
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    RankSnapshot,
    SourceContext,
    WorldSnapshot,
)


def notes(runs: tuple[bool, ...], *blockers: str) -> str:
    """Return the notes on a world that reached its deadline, in which nothing was recorded.

    Args:
        runs: In which of the last snapshots rank 1 had run; rank 0 had not.
        blockers: What prevented a proof, as far as deep snapshots show it.
    """
    still = RankSnapshot(rank=0, label="BLOCKED")
    last = WorldSnapshot(
        at_s=4.0,
        reason="end",
        ranks=(still, RankSnapshot(rank=1, label="SLEEPING", recent_runs=runs)),
        blockers=blockers,
    )
    result = world(
        2,
        history_of_a_hang(2, ended_s=4.0),
        ended_s=4.0,
        ending="overrun",
        snapshots=(last,),
    )
    finding = judge_masked(result, Symptoms(()))
    diagnosis = diagnose(result, finding, SourceContext("/", lambda *_: ""))
    assert diagnosis is not None
    assert diagnosis.kind == "unknown"
    return "\n".join(diagnosis.notes)


def test_a_rank_that_never_stands_still_prevents_a_proof() -> None:
    """No deep snapshot is taken of such a world, so nothing else says why."""
    assert "because rank 1 runs, or wakes up again and again" in notes((False, True, True))


@pytest.mark.parametrize("runs", [(), (False,) * 8, (True, *(False,) * 8)])
def test_a_rank_that_stands_still_prevents_no_proof(runs: tuple[bool, ...]) -> None:
    """Also one that had run before."""
    assert "not proven" not in notes(runs)


def test_what_a_deep_snapshot_shows_is_more_precise() -> None:
    """It names the wait that may end."""
    found = notes((True,), "rank 1: main thread sleeps for another 0.1 s")
    assert "because rank 1: main thread sleeps" in found
    assert "again and again" not in found


def test_the_notes_say_what_would_show_more() -> None:
    """Nothing else on the page would help."""
    assert "`pytest_multihost.operation(...)` around a wait" in notes(())
