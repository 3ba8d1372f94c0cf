"""The first line of a diagnosis: which ranks it names, and in which order."""

from __future__ import annotations

from dataclasses import replace

from builders import history_of_a_hang, operation, seen, world

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.testing import (
    Diagnosis,
    Operation,
    Operations,
    SourceContext,
    WorldSnapshot,
)


def collective(name: str, sequence: int, *, size: int, root: int | None = None) -> Operation:
    """Return a collective of the world that a rank waits in."""
    group = tuple(range(size))
    return operation(name, group=group, sequence=sequence, root=root, since_s=float(sequence))


def diagnosed(*waits: Operation) -> Diagnosis:
    """Return the diagnosis of a world that hung; each rank waits, having entered all before."""
    size = len(waits)
    passed = {
        rank: collective("broadcast", wait.sequence - 1, size=size, root=rank)
        for rank, wait in enumerate(waits)
        if wait.sequence > min(each.sequence for each in waits)
    }
    ranks = tuple(seen(rank, wait) for rank, wait in enumerate(waits))
    result = world(
        size,
        history_of_a_hang(size),
        ended_s=19.0,
        ending="mismatch",
        detected_s=18.0,
        snapshots=(WorldSnapshot(at_s=18.0, reason="mismatch", ranks=ranks),),
        operations=tuple(
            Operations(
                rank,
                (*([_done(passed[rank])] if rank in passed else []), wait),
                {wait.group_key: wait.sequence},
            )
            for rank, wait in enumerate(waits)
        ),
    )
    diagnosis = judge_world(result, Symptoms(), SourceContext("/t", lambda *_: "")).diagnosis
    assert diagnosis is not None
    return diagnosis


def _done(operation: Operation) -> Operation:
    return replace(operation, ended_s=operation.since_s + 0.1, waited_s=None)


def test_a_mismatch_begins_with_its_culprit_where_the_others_are_in_two_places() -> None:
    """The root of the broadcast has gone on to another operation; all ranks are named."""
    found = diagnosed(
        collective("broadcast", 5, size=3, root=2),
        collective("barrier", 5, size=3),
        collective("all_reduce", 6, size=3),
    )
    assert (found.kind, found.culprits) == ("mismatch", (1,))
    assert found.summary == (
        "rank 1 is in barrier #5 (world group)"
        ", rank 0 is in broadcast #5 (world group) from rank 2,"
        " rank 2 is in all_reduce #6 (world group)"
    )


def test_a_mismatch_without_a_culprit_ends_with_the_largest_side() -> None:
    """Nothing tells which of them is right."""
    found = diagnosed(collective("all_gather", 1, size=2), collective("barrier", 1, size=2))
    assert (found.kind, found.culprits) == ("mismatch", ())
    assert found.summary == (
        "rank 0 is in all_gather #1 (world group), rank 1 is in barrier #1 (world group)"
    )
