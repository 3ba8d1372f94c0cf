"""Ranks that name wrong members for a group, or transfer with a wrong rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import collective, operation, stands

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.other_members import as_other_members
from pytest_multihost.core.blame.partings import find_partings
from pytest_multihost.core.blame.rank_states import RankState, with_histories
from pytest_multihost.core.blame.unmatched_transfers import as_wrong_partner
from pytest_multihost.testing import REQUEST_SCOPE, CallSite, Frame, History, Operation, Scope

LINE = (Frame("/t/test_x.py", 7, "test_x"),)


def asked(rank: int, *members: str) -> History:
    """Return the groups of four ranks that one has asked for, by the members it has named."""
    sites = tuple(CallSite("new_group", None, each, LINE) for each in members)
    key = ((0, 1, 2, 3), 0, REQUEST_SCOPE)
    places = tuple(range(len(members)))
    return History(rank, key, 1, sites, places, tuple(map(float, places)))


def making(*members: int) -> Operation:
    """Return the creation of a group, in which a thread waits."""
    return collective(1, name="new_group", group=members, scope=Scope("new_group"))


ALIKE = [asked(rank, "0,1", "2,3") for rank in range(3)]
OTHER = [*ALIKE, asked(3, "0-3")]
LEFT = [stands(rank, condition="finished", since_s=2.0) for rank in (0, 1)]


def of_members(histories: list[History], *states: RankState) -> Cause:
    """Return the first cause, with what the requests for groups show."""
    partings = find_partings(histories, ())
    known = {each.rank: each for each in with_histories(states, partings)}
    return as_other_members(find_causes(known.values())[0], partings, known)


def test_a_rank_that_names_other_members_is_the_culprit_though_others_have_left() -> None:
    """They made their group and returned; the last of the others waits in its own."""
    cause = of_members(OTHER, *LEFT, stands(2, making(2, 3)), stands(3, making(0, 1, 2, 3)))
    assert (cause.kind, cause.culprits, cause.waiting) == ("mismatch", (3,), (2,))
    assert cause.passed == (("0-3", (3,)), ("0,1", (0, 1, 2)))


@pytest.mark.parametrize(
    ("histories", "states", "kind", "culprits"),
    [
        (
            [asked(rank, "0-3") for rank in range(3)],
            [*(stands(rank, making(0, 1, 2, 3)) for rank in range(3)), stands(3, label="SLEEPING")],
            "straggler",
            (3,),
        ),
        (
            OTHER,
            [
                *(stands(rank, collective(1, group=(0, 1, 2, 3))) for rank in range(3)),
                stands(3, label="SLEEPING"),
            ],
            "straggler",
            (3,),
        ),
        (
            [asked(rank, "0-3") for rank in range(4)],
            [*LEFT, stands(2, making(0, 1, 2, 3)), stands(3, making(0, 1, 2, 3))],
            "finished",
            (0, 1),
        ),
    ],
    ids=["not asked yet", "in another operation", "alike"],
)
def test_a_rank_is_awaited_as_before_unless_it_has_named_other_members(
    histories: list[History], states: list[RankState], kind: str, culprits: tuple[int, ...]
) -> None:
    """Ranks may ask for different groups and go on; that explains no other wait."""
    cause = of_members(histories, *states)
    assert (cause.kind, cause.culprits) == (kind, culprits)


def test_two_ranks_that_name_different_members_are_a_tie() -> None:
    """Either may be right."""
    histories = [asked(0, "0,1"), asked(1, "0-2"), asked(2, "0,1"), asked(3, "0-2")]
    states = [stands(0, making(0, 1)), stands(1, making(0, 1, 2)), stands(2), stands(3)]
    cause = of_members(histories, *states)
    assert (cause.kind, cause.culprits, cause.waiting) == ("mismatch", (), (0, 1))


def transfer(name: str, peer: int | None, sequence: int = 1, **more: object) -> Operation:
    """Return a send or receive that a thread waits in."""
    return operation(
        name, kind="transfer", group=(0, 1, 2, 3), sequence=sequence, peer=peer, **more
    )


def done(name: str, peer: int | None, sequence: int = 1) -> Operation:
    """Return a send or receive that is over."""
    return replace(transfer(name, peer, sequence), ended_s=1.5, waited_s=None)


def of_transfers(*states: RankState) -> Cause:
    """Return the first cause, with what the transfers show."""
    by_rank = {each.rank: each for each in states}
    return as_wrong_partner(find_causes(states)[0], by_rank)


GONE = {"condition": "finished", "since_s": 2.0}
RING = (
    stands(0, done("send", 1), done("recv", 3), **GONE),
    stands(1, done("send", 2), done("recv", 0), **GONE),
)


def test_a_send_to_a_wrong_rank_is_no_fault_of_the_rank_that_has_left() -> None:
    """In a ring of four, 2 sends to 0, which has got what it wants from 3."""
    cause = of_transfers(
        *RING,
        stands(2, transfer("send", 0), done("recv", 1)),
        stands(3, done("send", 0), transfer("recv", 2)),
    )
    assert (cause.kind, cause.confidence, cause.culprits, cause.waiting) == (
        "mismatch",
        "likely",
        (2,),
        (3,),
    )


def test_a_receive_from_a_wrong_rank_is_the_fault_of_the_one_that_receives() -> None:
    """Rank 1 receives from 3, which has left; rank 0 sends to it."""
    cause = of_transfers(
        stands(0, transfer("send", 1)), stands(1, transfer("recv", 3)), stands(3, **GONE)
    )
    assert (cause.kind, cause.culprits, cause.waiting) == ("mismatch", (1,), (0,))


@pytest.mark.parametrize(
    "states",
    [
        [stands(0, done("send", 1), **GONE), stands(1, done("recv", 0), transfer("recv", 0, 2))],
        [stands(0, transfer("send", 1)), stands(1, **GONE)],
        [
            stands(0, transfer("send", 2)),
            stands(1, transfer("recv", 0, tag=5)),
            stands(2, **GONE),
        ],
        [
            stands(0, transfer("send", 2)),
            stands(1, transfer("recv", 0)),
            stands(2, done("recv", None), **GONE),
        ],
    ],
    ids=["one receive too many", "one send too many", "another tag", "from any rank"],
)
def test_a_transfer_with_a_rank_that_has_left_shows_no_more_than_that(
    states: list[RankState],
) -> None:
    """Either may be wrong, so nobody is named with certainty."""
    cause = of_transfers(*states)
    assert (cause.kind, cause.confidence) == ("finished", "likely")


def test_a_late_rank_is_no_wrong_partner() -> None:
    """It may still receive what was sent to it."""
    cause = of_transfers(
        stands(0, transfer("send", 2)), stands(1, transfer("recv", 0)), stands(2, label="SLEEPING")
    )
    assert (cause.kind, cause.culprits, cause.confidence) == ("straggler", (2,), "certain")
