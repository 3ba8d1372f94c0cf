"""Where ranks stood, from what was seen of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import in_tests, operation, stands, world

from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.rank_states import RankState, count_alike, rank_states_of
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.core.watch import unmoved_ranks
from pytest_multihost.core.watch.probes import with_probe_results
from pytest_multihost.testing import (
    FLIGHT_SCOPE,
    RUNTIME_SCOPE,
    Activity,
    Ending,
    GroupKey,
    KernelSnapshot,
    Label,
    Operation,
    Operations,
    Process,
    RankSnapshot,
    Scope,
    Thread,
    WorldSnapshot,
)


def ended(ending: Ending, *moves: bool, ends_in_s: float | None = None) -> bool:
    """Return whether a rank is restless that had moved, or not, in the last snapshots."""
    seen = RankSnapshot(rank=0, recent_runs=moves, activity=Activity("read", ends_in_s=ends_in_s))
    result = world(
        1,
        in_tests(1),
        ended_s=float(len(moves)),
        ending=ending,
        snapshots=(WorldSnapshot(at_s=float(len(moves)), reason="end", ranks=(seen,)),),
    )
    [state] = rank_states_of(result, judge(result, Symptoms()))
    return state.is_restless


RAN, STOOD = True, False


@pytest.mark.parametrize("ending", ["overrun", "startup-overrun"])
def test_a_rank_that_runs_until_the_deadline_is_restless(ending: Ending) -> None:
    """If only to wait again."""
    assert ended(ending, *[STOOD] * 6, RAN, RAN)
    assert ended(ending, *[RAN] * 24)


@pytest.mark.parametrize("late", range(4))
def test_a_rank_that_wakes_up_each_second_is_restless(late: int) -> None:
    """It is seen to move at every fourth snapshot, whenever its deadline comes."""
    beats = [RAN, STOOD, STOOD, STOOD] * 7
    assert ended("overrun", *beats[late : late + 24])


@pytest.mark.parametrize("late", range(8))
def test_a_rank_that_waits_two_seconds_again_and_again_is_restless(late: int) -> None:
    """It is seen to move at every eighth snapshot, and its wait is a short one."""
    beats = [RAN, *[STOOD] * 7] * 4
    assert ended("overrun", *beats[late : late + 24], ends_in_s=1.0)


@pytest.mark.parametrize("runs", [1, 2])
def test_a_short_wait_is_one_of_many_from_the_second_run_on(runs: int) -> None:
    """The first may have been at the first snapshot that is known."""
    beats = [RAN, *[STOOD] * 10, *[RAN, *[STOOD] * 9][: 10 * (runs - 1)]]
    assert ended("overrun", *beats, ends_in_s=6.0) == (runs == 2)
    assert not ended("overrun", *beats, ends_in_s=6.1)
    assert not ended("overrun", *beats, ends_in_s=None)


@pytest.mark.parametrize("ends_in_s", [None, 590.0])
def test_a_rank_that_has_begun_a_long_wait_is_not_restless(ends_in_s: float | None) -> None:
    """It worked before that, on and off, and was seen to."""
    worked = [RAN, RAN, STOOD, RAN, RAN, STOOD, RAN]
    assert not ended("overrun", *worked, *[STOOD] * 6, ends_in_s=ends_in_s)


def test_a_rank_that_sleeps_once_after_its_work_is_not_restless() -> None:
    """A short wait that begins once is one wait."""
    assert not ended("overrun", *[RAN] * 4, *[STOOD] * 12, ends_in_s=3.0)


@pytest.mark.parametrize("ending", ["settled", "proof", "mismatch", "stopped"])
def test_a_rank_that_runs_when_the_others_give_up_is_only_late(ending: Ending) -> None:
    """It may be between two long reads: nobody has seen whether it would have come."""
    assert not ended(ending, *[RAN] * 8)


@pytest.mark.parametrize(
    ("labels", "polls"),
    [
        (["SLEEPING"] * 4, True),
        (["SLEEPING", "RUNNING", "SLEEPING", "RUNNING"], True),
        (["RUNNING", "SLEEPING", "RUNNING", "RUNNING"], False),
        (["RUNNING"] * 4, False),
        (["BLOCKED"], False),
    ],
)
def test_a_restless_rank_polls_if_half_of_the_last_snapshots_show_it_asleep(
    labels: list[Label], polls: bool
) -> None:
    """The last one may fall between two of its sleeps; a rank that computes is seldom asleep."""
    shots = tuple(
        WorldSnapshot(
            at_s=float(number),
            reason="end",
            ranks=(RankSnapshot(rank=0, label=label, recent_runs=(RAN,) * 8),),
        )
        for number, label in enumerate(labels)
    )
    result = world(1, in_tests(1), ended_s=9.0, ending="overrun", snapshots=shots)
    [state] = rank_states_of(result, judge(result, Symptoms()))
    assert state.polls == polls


def native(name: str) -> Operation:
    """Return an operation that native frames tell of."""
    return Operation(name=name, kind="collective", group=(0, 1), sequence=0, since_s=1.0)


def test_a_closer_look_tells_of_the_trouble_where_a_rank_has_not_run_since() -> None:
    """One that has run may have entered its operation only then."""
    ranks = tuple(RankSnapshot(rank=rank) for rank in range(2))
    told = tuple(replace(each, operations=(native("all_reduce"),)) for each in ranks)
    trouble = WorldSnapshot(at_s=1.0, reason="trouble", ranks=ranks)
    seen = with_probe_results(
        trouble, WorldSnapshot(at_s=2.0, reason="end", ranks=told), frozenset({1})
    )
    assert [len(each.operations) for each in seen.ranks] == [0, 1]
    assert (seen.at_s, seen.reason) == (1.0, "trouble")


@pytest.mark.parametrize(
    ("becomes", "expected"),
    [({}, {0}), ({"runs": 6}, set()), ({"state": "R"}, set()), ({"tid": 8}, set())],
)
def test_a_rank_stands_still_in_one_and_the_same_wait(
    becomes: dict[str, Any], expected: set[int]
) -> None:
    """A thread that runs, or has run, or is another one does not."""
    main = Thread(tid=7, call="futex", runs=5)
    was, now = (
        KernelSnapshot(
            at_s=at_s, processes=(Process(pid=7, rank=0, is_rank=True, threads=(each,)),)
        )
        for at_s, each in ((1.0, main), (2.0, replace(main, **becomes)))
    )
    assert unmoved_ranks(was, now) == expected


def test_a_closer_look_tells_of_the_trouble_what_a_still_rank_had_entered() -> None:
    """It has not run since: the flight recorder counted the same then."""
    counted = (((0, 1), 0, FLIGHT_SCOPE), 3)
    trouble = WorldSnapshot(
        at_s=1.0, reason="trouble", ranks=(RankSnapshot(rank=0), RankSnapshot(rank=1))
    )
    ranks = tuple(replace(each, entered=(counted,)) for each in trouble.ranks)
    seen = with_probe_results(
        trouble, WorldSnapshot(at_s=2.0, reason="end", ranks=ranks), frozenset({1})
    )
    assert [each.entered for each in seen.ranks] == [(), (counted,)]


TRIO = (0, 1, 2)
OURS: GroupKey = (TRIO, 0, RUNTIME_SCOPE)
COUNTED: GroupKey = (TRIO, 0, FLIGHT_SCOPE)


def waited(name: str, sequence: int, scope: Scope = RUNTIME_SCOPE, **more: Any) -> Operation:  # noqa: ANN401
    """Return a collective of all three ranks, in which one waits."""
    return operation(name, sequence=sequence, scope=scope, **more)


def at_end(seen: RankSnapshot, last: Operations, symptoms: Symptoms = Symptoms()) -> RankState:  # noqa: B008 - frozen
    """Return where a rank stood at the deadline that was seen so, and whose slot page says that."""
    result = world(
        1,
        in_tests(1),
        ended_s=9.0,
        ending="overrun",
        snapshots=(WorldSnapshot(at_s=9.0, reason="end", ranks=(seen,)),),
        operations=(last,),
    )
    [state] = rank_states_of(result, judge(result, symptoms))
    return state


def test_what_only_the_flight_recorder_has_counted_is_not_forgotten_at_the_end() -> None:
    """The slot page, read last, is newer, but has only our own records."""
    seen = RankSnapshot(rank=0, entered=((OURS, 1), (COUNTED, 4)))
    assert at_end(seen, Operations(0, (), {OURS: 2})).entered == {OURS: 2, COUNTED: 4}


SEEN = RankSnapshot(rank=1)


def unseen(rank: int, name: str = "all_reduce", place: int = 5) -> RankState:
    """Return where a rank stood that is in what only the flight recorder has seen."""
    operation = waited(name, place, FLIGHT_SCOPE)
    entered = {OURS: 1, COUNTED: place}
    return stands(rank, operation, entered=entered)


def recorded(
    rank: int, name: str = "barrier", place: int = 5, *, later: tuple[Operation, ...] = ()
) -> RankState:
    """Return where a rank stood that is in its second collective of those that we recorded."""
    operation = waited(name, 2)
    last = max([2, *(each.sequence for each in later if not each.scope.kind)])
    entered = {OURS: last, COUNTED: place}
    known = (operation, *later)
    return stands(rank, *known, pending=(operation,), entered=entered)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([unseen(0), recorded(1), recorded(2)], ("mismatch", (0,), (1, 2))),
        ([unseen(0), unseen(1), recorded(2)], ("mismatch", (2,), (0, 1))),
        ([unseen(0), unseen(1), unseen(2)], ("transport", (), (0, 1, 2))),
        ([unseen(0), recorded(1, "all_reduce"), unseen(2)], ("transport", (), (0, 1, 2))),
        (
            [
                unseen(0),
                RankState(seen=SEEN, entered={COUNTED: 4}),
                recorded(2, "all_reduce"),
            ],
            ("straggler", (1,), (0, 2)),
        ),
        (
            [
                unseen(0),
                stands(1, condition="raised", since_s=2.0, entered={COUNTED: 5}),
                unseen(2),
            ],
            ("raised", (1,), (0, 2)),
        ),
    ],
    ids=["one unseen", "one recorded", "all there", "can meet", "late", "raised in it"],
)
def test_what_the_flight_recorder_saw_and_what_we_did_are_at_one_place_by_its_count(
    states: list[RankState], expected: tuple[str, tuple[int, ...], tuple[int, ...]]
) -> None:
    """Our own count of the group leaves out what C++ calls in C++."""
    cause = find_causes(count_alike(states))[0]
    assert (cause.kind, cause.culprits, cause.waiting) == expected


@pytest.mark.parametrize(
    "state",
    [
        recorded(1, "monitored_barrier"),
        recorded(1, place=0),
        recorded(1, later=(waited("all_reduce", 3, waited_s=None),)),
        recorded(1, later=(waited("all_reduce", 5, FLIGHT_SCOPE, waited_s=None),)),
    ],
    ids=["never counted", "no answer", "not the last", "the last is unseen"],
)
def test_a_place_in_the_flight_recorders_count_is_not_guessed(state: RankState) -> None:
    """What cannot be told to be the last that it counted clashes with nothing."""
    assert count_alike([unseen(0), state])[1] == state


def test_a_group_in_which_all_is_recorded_keeps_our_count() -> None:
    """It is the number that the reader knows."""
    states = (recorded(0), recorded(1))
    assert count_alike(states) == states


LOST = Symptoms((r"^RuntimeError: peer is gone",))


def given_up(sequence: int, error: str = "RuntimeError: peer is gone") -> Operation:
    """Return a collective that was left by an exception, or ended well."""
    ended = {"waited_s": 1.0, "ended_s": 2.0, "failed": bool(error), "error": error}
    return waited("all_reduce", sequence, **ended)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (["RuntimeError: peer is gone"] * 2, 2),
        (["", "RuntimeError: peer is gone", "RuntimeError: peer is gone"], 3),
        (["RuntimeError: peer is gone"], None),
        (["RuntimeError: peer is gone", ""], None),
        (["RuntimeError: peer is gone", "ValueError: mine"], None),
    ],
    ids=["twice", "after one that went well", "once", "it went well", "its own error"],
)
def test_who_gave_up_more_than_once_tries_again_and_again(
    errors: list[str], expected: int | None
) -> None:
    """Once may have been expected, and is over."""
    tries = tuple(given_up(place, error) for place, error in enumerate(errors, start=1))
    found = at_end(RankSnapshot(rank=0), Operations(0, tries), LOST).retries
    assert (found.sequence if found else None) == expected
