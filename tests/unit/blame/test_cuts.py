"""Hangs that a cut between hosts explains, on hand-made effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import builders
import pytest
from builders import operation

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.partition_blame import as_cut, effect_evidence, severed
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.testing import (
    Activity,
    Effect,
    Event,
    Evidence,
    Host,
    Operation,
    RankSnapshot,
    WorldResult,
    WorldSpec,
    make_event,
    make_spec,
    to_json,
)

CUT = Effect("the network is cut between rank 0 and ranks 1,2", ((0, 1), (1, 0)))


def spec() -> WorldSpec:
    """Return a world of two hosts: rank 0 on the first, ranks 1 and 2 on the second."""
    places = [("10.0.0.1", range(1)), ("10.0.0.2", range(1, 3))]
    hosts = tuple(
        Host(index, f"host-{index}", address, "eth0", ranks)
        for index, (address, ranks) in enumerate(places)
    )
    return replace(make_spec(3), hosts=hosts)


def begun(effect: Effect, *, at_s: float = 11.5, **more: object) -> Event:
    """Return the event with which a fault of rank 0 began."""
    given = {"index": 0, "fault": "partition", "phase": "begun", "effect": to_json(effect)}
    return make_event(at_s, 0, "fault", {**given, **more})


def world(*history: Event, **more: object) -> WorldResult:
    """Return a world that was found to hang after ten seconds, and ended after twenty."""
    given = {"spec": spec(), "started_s": 10.0, "ended_s": 30.0, "detected_s": 20.0}
    return builders.world(history=history or (begun(CUT),), **{**given, **more})


REDUCE = operation()
KEY = operation("store.get", kind="wait", detail="k")
TO_1 = operation("send", kind="transfer", peer=1)
TO_2 = operation("send", kind="transfer", peer=2)

IDLE = {rank: RankState(seen=RankSnapshot(rank=rank)) for rank in range(3)}


def connecting(*ranks: int) -> dict[int, RankState]:
    """Return states in which these ranks connect, and the others are idle."""
    seen = {"label": "BLOCKED", "activity": Activity("connect", "socket:[7]")}
    return IDLE | {rank: RankState(seen=RankSnapshot(rank=rank, **seen)) for rank in ranks}  # type: ignore[arg-type]


def cause(
    kind: str, culprits: tuple[int, ...], waits: dict[int, Operation | None], **more: object
) -> Cause:
    """Return a cause whose waiting ranks wait in these."""
    given: dict[str, Any] = {
        "waiting": tuple(waits),
        "waits": tuple(Wait(rank, each, frozenset(culprits)) for rank, each in waits.items()),
    }
    return Cause(kind=kind, confidence="certain", culprits=culprits, **{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["deadlock", "unknown", "stuck", "transport"])
def test_no_rank_is_to_blame_for_a_wait_across_a_cut(kind: str) -> None:
    """It is certain only where all have entered the operation, and none left it."""
    found = cause(kind, (), {0: REDUCE, 1: REDUCE}, cycle=(0, 1))
    assert as_cut(found, IDLE, world()) == replace(
        found,
        kind="transport",
        confidence="certain" if kind == "transport" else "likely",
        cycle=(),
        operation=REDUCE,
        cut=CUT,
    )
    left = cause("transport", (2,), {0: REDUCE}, operation=KEY)
    assert as_cut(left, IDLE, world()) == replace(
        left, confidence="likely", culprits=(), operation=KEY, cut=CUT
    )


@pytest.mark.parametrize("kind", ["straggler", "livelock", "finished"])
def test_an_answer_that_was_lost_blames_nobody(kind: str) -> None:
    """The late rank may have given it long ago."""
    found = as_cut(cause(kind, (0,), {1: KEY, 2: KEY}), IDLE, world())
    assert (found.kind, found.confidence, found.culprits) == ("transport", "likely", ())
    assert (found.waiting, found.operation, found.cut) == ((1, 2), KEY, CUT)


@pytest.mark.parametrize("kind", ["straggler", "livelock", "finished"])
def test_a_rank_that_does_not_enter_a_collective_is_to_blame_though_there_is_a_cut(
    kind: str,
) -> None:
    """It would have kept the others on a whole network too; so would a rank that died."""
    late = cause(kind, (0,), {1: REDUCE, 2: KEY})
    assert as_cut(late, IDLE, world()) == late
    dead = cause("died", (0,), {1: KEY})
    assert as_cut(dead, IDLE, world()) == dead


def test_a_late_rank_that_connects_waits_as_well() -> None:
    """All late ones must: one of two that connects leaves the other to blame."""
    late = cause("straggler", (0,), {1: REDUCE})
    found = as_cut(late, connecting(0), world())
    assert (found.kind, found.culprits, found.waiting) == ("transport", (), (0, 1))
    two = cause("straggler", (0, 2), {1: REDUCE})
    assert as_cut(two, connecting(0), world()) == two
    assert as_cut(two, connecting(0, 2), world()).waiting == (0, 1, 2)
    reads = {0: RankState(seen=RankSnapshot(rank=0, label="BLOCKED", activity=Activity("read")))}
    assert as_cut(late, IDLE | reads, world()) == late


@pytest.mark.parametrize(
    ("rank", "waited", "is_across"),
    [
        (0, REDUCE, True),
        (1, operation(group=(1, 2)), False),
        (1, operation(group=(1, 2), peer=0), False),  # only a transfer has a peer
        (0, TO_1, True),
        (1, TO_2, False),
        (1, operation("recv", kind="transfer", peer=None), True),
        (1, operation("recv", kind="transfer", peer=3), False),  # no such rank
        (1, operation("recv", kind="transfer", peer=-1), False),
        (0, None, False),
    ],
)
def test_a_cut_matters_to_operations_that_need_what_it_drops(
    rank: int, waited: Operation | None, *, is_across: bool
) -> None:
    """Within one side nothing is dropped."""
    found = as_cut(cause("unknown", (), {rank: waited}), IDLE, world())
    assert (found.cut is not None) == is_across


def test_a_cut_in_one_direction_is_one() -> None:
    """And a slow network is none."""
    one_way = Effect("nothing that rank 0 sends reaches ranks 1,2", ((0, 1),))
    found = cause("unknown", (), {0: REDUCE})
    assert as_cut(found, IDLE, world(begun(one_way))).cut == one_way
    assert as_cut(found, IDLE, world(begun(Effect("rank 0 is slow")))) == found


def test_only_waits_that_belong_to_the_cause_count() -> None:
    """Those of other ranks have causes of their own."""
    found = cause("unknown", (), {1: TO_2})
    found = replace(found, waits=(Wait(0, REDUCE, frozenset()), *found.waits))
    assert as_cut(found, IDLE, world()) == found


@pytest.mark.parametrize(
    ("until_s", "detected_s", "counts"),
    [(19.9, 20.0, False), (20.0, 20.0, True), (25.0, None, False), (30.0, None, True)],
)
def test_a_cut_counts_if_it_was_in_force_when_the_hang_was_found(
    until_s: float, detected_s: float | None, *, counts: bool
) -> None:
    """Or, if none was found, at the end."""
    result = world(begun(CUT, until_s=until_s), detected_s=detected_s)
    found = as_cut(cause("unknown", (), {0: REDUCE}), IDLE, result)
    assert (found.cut is not None) == counts
    assert bool([*effect_evidence(result)]) == counts


def test_what_faults_did_between_hosts_is_evidence() -> None:
    """Since when after the start, and by which fault."""
    other = make_event(12.0, 1, "fault", {"index": 1, "fault": "freeze", "phase": "begun"})
    [found] = effect_evidence(world(other, begun(CUT)))
    assert found == Evidence(0, f"{CUT.words} since +1.50 s, by partition", "fault")


def test_addresses_are_severed_by_cuts_that_nothing_heals() -> None:
    """In the direction of the cut."""
    events = [begun(Effect("one way", ((0, 1),)))]
    assert severed(spec(), events, 12.0) == {("10.0.0.1", "10.0.0.2")}
    assert severed(spec(), [begun(CUT, until_s=99.0)], 12.0) == frozenset()
