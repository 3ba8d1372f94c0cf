"""Ranks wait with members of a group of whom nothing is known: no rank is named for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders import history_of_a_hang, operation, page, seen, world

from pytest_multihost.core.blame import mismatched_ranks
from pytest_multihost.core.blame.judge_world import diagnose, judge_world
from pytest_multihost.core.blame.masked_symptoms import judge_masked
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    SOCKET_SCOPE,
    Diagnosis,
    Operation,
    RankSnapshot,
    Scope,
    SourceContext,
    WorldResult,
    WorldSnapshot,
)

IDLE = RankSnapshot(rank=0, label="SLEEPING")
CONTEXT = SourceContext("/", lambda *_: "")


def lacking(*known: int, size: int = 2, **changes: Any) -> Operation:  # noqa: ANN401
    """Return an operation of a group of which only some members are known."""
    given = {"group": known, "group_size": size, "has_members": False, **changes}
    return operation(**given)


def coming(*known: int, name: str = "init_process_group", **changes: Any) -> Operation:  # noqa: ANN401
    """Return the creation of a group of three, to which some have come."""
    scope = Scope("creation", "port 29500")
    return lacking(*known, name=name, size=3, sequence=0, scope=scope, **changes)


def hung(*waits: Sequence[Operation]) -> WorldResult:
    """Return a world whose ranks wait in these operations; a rank without one is idle."""
    ranks = tuple(
        seen(rank, *each) if each else replace(IDLE, rank=rank) for rank, each in enumerate(waits)
    )
    return world(
        len(waits),
        history_of_a_hang(len(waits)),
        snapshots=(WorldSnapshot(at_s=4.0, reason="end", ranks=ranks),),
        operations=tuple(page(rank, *each) for rank, each in enumerate(waits)),
    )


def judged(*waits: Sequence[Operation]) -> Diagnosis:
    """Return the diagnosis of a world whose ranks wait in these operations."""
    result = hung(*waits)
    found = diagnose(result, judge_masked(result, Symptoms(())), CONTEXT)
    assert found is not None
    return found


def named(found: Diagnosis) -> tuple[object, ...]:
    """Return kind, culprits and waiting."""
    return found.kind, found.culprits, found.waiting


@pytest.mark.parametrize(
    "waits",
    [
        lacking(0),
        lacking(0, kind="transfer", name="recv"),
        lacking(0, kind="wait", name="store.get", detail="answer"),
        lacking(0, size=0, kind="wait", name="init_rpc"),
    ],
)
def test_an_idle_rank_beside_such_a_wait_is_not_named(waits: Operation) -> None:
    """Any of them may be the missing member, or none: it may be a child process."""
    found = judged([waits], [], [])
    assert named(found) == ("unknown", (), (0,))
    assert "rank 1" not in " ".join((found.summary, *found.notes))


def test_a_server_that_waits_for_the_next_request_names_nobody_either() -> None:
    """Another idle rank need not ever connect to it."""
    accepts = operation("accept4", kind="wait", group=(0, 1, 2), sequence=0, scope=SOCKET_SCOPE)
    found = judged([lacking(0)], [accepts], [])
    assert named(found) == ("unknown", (), (0,))
    assert not any("rank 2" in each for each in found.notes)


def test_a_server_alone_still_waits_for_the_rank_that_does_not_connect() -> None:
    """Only beside a group of unknown members is that a guess too many."""
    accepts = operation("accept4", kind="wait", group=(0, 1), sequence=0, scope=SOCKET_SCOPE)
    assert named(judged([accepts], [])) == ("straggler", (1,), (0,))


def test_a_known_member_that_has_not_entered_is_named() -> None:
    """A collective needs all members, whoever the others are."""
    assert named(judged([lacking(0, 1, size=3)], [], [])) == ("straggler", (1,), (0,))


def test_all_known_members_are_there_so_nobody_is_named() -> None:
    """The third one is unknown."""
    waits = lacking(0, 1, size=3)
    found = judged([waits], [waits], [])
    assert named(found) == ("unknown", (), (0, 1))
    assert found.summary == (
        "ranks 0,1 wait in all_reduce #1; of the 3 members of the group, only ranks 0,1 are known"
    )


def test_who_waits_for_a_rank_with_such_a_wait_waits_as_well() -> None:
    """The chain ends in a group of unknown members."""
    found = judged([operation(group=(0, 1))], [lacking(1)], [])
    assert named(found) == ("unknown", (), (0, 1))


def test_a_group_that_is_being_made_says_who_has_come() -> None:
    """Some still connect to its store, while others already build it: that is no mismatch."""
    host, client = coming(0, 2, name="TCPStore"), coming(0, 2, since_s=2.0)
    found = judged([host], [], [client], [])
    assert named(found) == ("unknown", (), (0, 2))
    assert found.summary == "ranks 0,2 wait in TCPStore: 2 of 3 members of the group have come"
    assert mismatched_ranks([page(0, host), page(2, client)]) == frozenset()


def test_the_hang_of_another_group_comes_first() -> None:
    """Its members are known, so its culprit is certain; the other group is a note."""
    late = operation(group=(0, 1), since_s=3.0)
    found = judged([late], [], [coming(2)], [])
    assert named(found) == ("straggler", (1,), (0,))
    assert any("1 of 3 members of the group has come" in each for each in found.notes)


def test_a_member_that_is_stopped_is_named() -> None:
    """It has entered the operation, which needs it."""
    result = hung([lacking(0, 1, size=3)], [lacking(0, 1, size=3)])
    stopped = replace(result.snapshots[0].ranks[1], label="STOPPED")
    last = replace(result.snapshots[0], ranks=(result.snapshots[0].ranks[0], stopped))
    result = replace(result, snapshots=(last,), ending="stopped")
    found = diagnose(result, judge_masked(result, Symptoms(())), CONTEXT)
    assert found is not None
    assert named(found)[:2] == ("stopped", (1,))


def test_the_reason_of_a_hang_is_who_has_come() -> None:
    """It is more than that the ranks did not end."""
    judgement = judge_world(hung([coming(0)], [], []), Symptoms(()), CONTEXT)
    assert judgement.finding.reason == (
        "rank 0 waits in init_process_group: 1 of 3 members of the group has come"
    )
