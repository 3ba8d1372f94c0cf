"""Programs of jax that have ended on some ranks, and in which others wait: whose loops differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import builders
import pytest
from builders import collective, stands

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.left_programs import left_notes
from pytest_multihost.core.blame.partition_blame import as_cut
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.testing import Effect, Host, Operation, Scope, make_event, make_spec, to_json

LOOP = collective(1, name="jit_solve", detail="all_reduce f32[1] in a loop")
BRANCH = replace(LOOP, detail="all_reduce f32[1], all_reduce f32[1] in a branch")
STRAIGHT = replace(LOOP, detail="all_reduce f32[1]")
FIXED = replace(LOOP, detail="all_reduce f32[1] 3 times")
BROADCAST = collective(1, name="broadcast", root=0)
BARRIER = collective(1, name="wait_at_barrier", scope=Scope("barrier", "solved"), since_s=2.0)


def done(operation: Operation) -> Operation:
    """Return the operation as one that is over."""
    return replace(operation, ended_s=operation.since_s + 0.1, waited_s=None)


def left(rank: int, operation: Operation = LOOP, **changes: object) -> RankState:
    """Return the state of a rank that has left an operation, and returned from the test."""
    return stands(rank, done(operation), **{"condition": "finished", "since_s": 5.0, **changes})


def first(*states: RankState) -> Cause:
    """Return the cause that becomes the diagnosis."""
    return find_causes(states)[0]


def told(cause: Cause) -> tuple[object, ...]:
    """Return the kind, the culprits, the ranks that wait, and the confidence."""
    return cause.kind, cause.culprits, cause.waiting, cause.confidence


@pytest.mark.parametrize("program", [LOOP, BRANCH], ids=["loop", "branch"])
def test_ranks_that_returned_from_a_program_in_which_one_still_waits_have_finished(
    program: Operation,
) -> None:
    """Its loop turns once more, or its branch has one more collective."""
    found = first(left(0, program), stands(1, program), left(2, program))
    assert told(found) == ("finished", (0, 2), (1,), "likely")
    assert found.operation == program


def test_one_rank_whose_loop_turns_once_less_has_finished() -> None:
    """All others wait for it."""
    found = first(stands(0, LOOP), left(1), stands(2, LOOP))
    assert told(found) == ("finished", (1,), (0, 2), "likely")


def test_ranks_that_left_a_program_and_wait_at_a_barrier_show_whose_loop_differs() -> None:
    """The minority, as in each mismatch; of two ranks either may be right."""
    others = [stands(rank, done(LOOP), BARRIER) for rank in (0, 2)]
    assert told(first(others[0], stands(1, LOOP), others[1])) == (
        "mismatch",
        (1,),
        (0, 2),
        "likely",
    )
    pair, barrier = (replace(each, group=(0, 1)) for each in (LOOP, BARRIER))
    tie = first(stands(0, done(pair), barrier), stands(1, pair))
    assert (tie.kind, tie.culprits, tie.cycle) == ("deadlock", (), (0, 1))


OPEN = replace(LOOP, waited_s=None)
MANY = [replace(OPEN, sequence=number, since_s=3.0) for number in range(2, 66)]

INNOCENTS: dict[str, Sequence[RankState]] = {
    "a program without loops lost data": [
        left(0, STRAIGHT),
        stands(1, STRAIGHT),
        left(2, STRAIGHT),
    ],
    "its loops are of known length": [left(0, FIXED), stands(1, FIXED), left(2, FIXED)],
    "gloo lost the data of a broadcast": [
        left(0, BROADCAST),
        stands(1, BROADCAST),
        stands(2, BROADCAST),
    ],
    "one that has left works": [
        left(0),
        stands(1, LOOP),
        stands(2, done(LOOP), label="SLEEPING"),
    ],
    "one is inside and computes": [left(0), stands(1, LOOP), stands(2, OPEN, label="RUNNING")],
    "one left by an error": [left(0), stands(1, LOOP), stands(2, replace(done(LOOP), failed=True))],
    "of one only the number is known": [
        left(0),
        stands(1, LOOP),
        stands(2, condition="finished", entered={LOOP.group_key: 1}),
    ],
    "one has forgotten which of its programs have ended": [
        left(0),
        stands(1, LOOP),
        left(2, known=(done(LOOP), *MANY)),
    ],
}


@pytest.mark.parametrize("states", INNOCENTS.values(), ids=INNOCENTS)
def test_nobody_is_named_for_leaving_a_program_unless_its_loops_may_differ(
    states: Sequence[RankState],
) -> None:
    """And unless it is certain that all members are inside, or have left for good."""
    found = first(*states)
    assert (found.kind, found.culprits) == ("transport", ())


def test_a_rank_that_is_stopped_inside_is_the_culprit() -> None:
    """Its last collective is over, and it would leave the program as the others have."""
    others = [stands(rank, done(LOOP), BARRIER) for rank in (0, 2)]
    found = first(others[0], stands(1, LOOP, condition="stopped", since_s=1.5), others[1])
    assert (found.kind, found.culprits, found.waiting) == ("stopped", (1,), (0, 2))


def test_members_that_are_not_known_may_be_inside() -> None:
    """Then nobody is named."""
    program = replace(LOOP, group_size=4)
    assert first(left(0, program), stands(1, program), left(2, program)).culprits == ()


CUT = Effect("the network is cut between rank 0 and ranks 1,2", ((0, 1), (1, 0)))


@pytest.mark.parametrize(
    "others",
    [[left(0), left(2)], [stands(rank, done(LOOP), BARRIER) for rank in (0, 2)]],
    ids=["returned", "at a barrier"],
)
def test_what_was_sent_into_a_cut_blames_nobody_who_has_left(others: Sequence[RankState]) -> None:
    """A rank may leave a loop with what it has received, while its own last data is lost."""
    hosts = tuple(
        Host(index, f"host-{index}", f"10.0.0.{index + 1}", "eth0", ranks)
        for index, ranks in enumerate((range(1), range(1, 3)))
    )
    begun = {"index": 0, "fault": "partition", "phase": "begun", "effect": to_json(CUT)}
    spec = replace(make_spec(3), hosts=hosts)
    result = builders.world(history=[make_event(1.0, 0, "fault", begun)], spec=spec)
    states = [stands(1, LOOP), *others]
    found = as_cut(first(*states), {each.rank: each for each in states}, result)
    assert (found.kind, found.culprits, found.cut) == ("transport", (), CUT)
    assert [*left_notes(found, spec.names)] == []


def test_a_note_says_that_the_program_ran_another_number_of_collectives() -> None:
    """The ranks that wait inside, and those that have left."""
    names = make_spec(3).names
    (note,) = left_notes(first(left(0), stands(1, LOOP), left(2)), names)
    inside = "rank 1 waits in a collective of jit_solve #1"
    assert note == f"{inside} that ranks 0,2 did not run: a loop or branch in it differs"
    assert [*left_notes(first(stands(0, LOOP), stands(1), stands(2, LOOP)), names)] == []
