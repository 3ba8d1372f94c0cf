"""When a rank that a fault holds may go on, from what is seen of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Turn
from pytest_multihost.extensions.faults.held_ranks import (
    MAX_S,
    POLLS_S,
    Glimpse,
    HeldRanks,
    HoldEnd,
    HoldWatch,
    have_looked,
    is_unchanged,
)
from pytest_multihost.extensions.faults.service import faults_service
from pytest_multihost.testing import Event, Exited, FaultChanged, FaultPerformed, Hold, HoldEnded

pytestmark = pytest.mark.unit

DEADLINE_S = 1000.0
STEP_S = POLLS_S / 10


def begun(rank: int, at_s: float = 0.0, index: int = 0, hold: Hold | None = None) -> Event:
    """Return the event of a hold that begins."""
    body = FaultChanged(index=index, fault="hold", phase="begun", hold=hold or Hold())
    return Event(at_s, rank, body)


def ended(rank: int, index: int = 0) -> Event:
    """Return the event of a rank that has gone on."""
    return Event(0.0, rank, FaultChanged(index=index, fault="hold", phase="ended"))


def facts(*left: int, size: int = 3) -> list[RankFacts]:
    """Return ranks, some of which have left the test's body."""
    return [RankFacts(rank, parked_s=1.0 if rank in left else None) for rank in range(size)]


def holding(*events: Event) -> HeldRanks:
    """Return ranks that are held, seen by nobody."""
    found = HeldRanks()
    for each in events:
        found.note(each)
    return found


def test_a_rank_goes_on_when_all_others_have_left() -> None:
    """Nobody is there any more for whom it could be late."""
    held = holding(begun(1))
    assert held.due(1.0, facts(0), DEADLINE_S) == ()
    assert held.due(1.0, facts(0, 2), DEADLINE_S) == (HoldEnd(1, 0, "others have left"),)


def test_others_are_those_that_are_not_held() -> None:
    """Two that wait for each other would wait for ever."""
    held = holding(begun(0), begun(1))
    assert [each.rank for each in held.due(1.0, facts(2), DEADLINE_S)] == [0, 1]
    held.note(begun(2))
    assert {each.reason for each in held.due(1.0, facts(), DEADLINE_S)} == {"others wait"}


def test_a_rank_is_held_for_the_least_time() -> None:
    """Also when the others have long been waiting; another one is not delayed by that."""
    held = holding(begun(0, hold=Hold(min_s=5.0)), begun(1, index=1))
    assert held.due(4.9, facts(2), DEADLINE_S) == (HoldEnd(1, 1, "others have left"),)
    assert [each.rank for each in held.due(5.0, facts(2), DEADLINE_S)] == [0, 1]


@pytest.mark.parametrize(
    ("hold", "deadline_s", "expected_s"),
    [
        (Hold(), 1000.0, MAX_S),
        (Hold(max_s=3.0), 1000.0, 3.0),
        (Hold(max_s=30.0), 1000.0, 30.0),
        (Hold(), 8.0, 4.0),
        (Hold(max_s=30.0), 8.0, 4.0),
        (Hold(min_s=6.0), 8.0, 6.0),
        (Hold(min_s=6.0, max_s=3.0), 1000.0, 6.0),
    ],
)
def test_no_hold_takes_longer_than_it_may(hold: Hold, deadline_s: float, expected_s: float) -> None:
    """Nor more than half of the time that is left, unless the test says so."""
    held = holding(begun(1, hold=hold))
    assert held.due(expected_s - 0.01, facts(), deadline_s) == ()
    assert held.due(expected_s, facts(), deadline_s) == (HoldEnd(1, 0, "max_s"),)


def test_a_rank_is_told_once() -> None:
    """It is still on its way until it says that it has gone on."""
    held = holding(begun(1))
    [release] = held.due(1.0, facts(0, 2), DEADLINE_S)
    held.let_go(release)
    assert held.due(1.1, facts(0, 2), DEADLINE_S) == ()
    assert held.is_active
    held.note(ended(1))
    assert not held.is_active


def test_two_threads_at_one_point_are_let_go_one_by_one() -> None:
    """Each waits for its own message."""
    held = holding(begun(1), begun(1))
    for _ in range(2):
        assert len(held.due(1.0, facts(0, 2), DEADLINE_S)) > 0
        held.let_go(held.due(1.0, facts(0, 2), DEADLINE_S)[0])
        held.note(ended(1))
    assert not held.is_active


def test_a_rank_that_dies_is_not_held_any_more() -> None:
    """The world may be judged."""
    held = holding(begun(1), Event(1.0, 1, Exited(signal=9)))
    assert not held.is_active


def test_a_thread_that_outlasts_its_test_goes_on() -> None:
    """The body is over, so the fault is."""
    held = holding(begun(1))
    assert held.due(1.0, facts(1), DEADLINE_S) == (HoldEnd(1, 0, "others have left"),)


# Ranks in operations that they look for the end of again and again

IN_OPERATION = Glimpse(waits=True, rests=True, turns=7, steps=(1,))
LOOKS = Glimpse(waits=True, rests=True, turns=7, steps=(1,), looks=True)


def test_one_that_looks_may_have_turns_and_nobody_else() -> None:
    """Who only waits has done something if it had one, and so has anybody with a new step."""
    before = {0: IN_OPERATION, 1: LOOKS}
    later = replace(LOOKS, turns=9)
    assert is_unchanged(before, {0: IN_OPERATION, 1: later})
    assert not is_unchanged(before, {0: replace(IN_OPERATION, turns=8), 1: later})
    assert not is_unchanged(before, {0: IN_OPERATION, 1: replace(later, steps=(2,))})
    assert not is_unchanged(before, {1: later})


def test_one_that_has_not_looked_yet_may_find_what_it_waits_for() -> None:
    """Each of them must have looked."""
    before = {0: LOOKS, 1: LOOKS, 2: IN_OPERATION}
    looked = replace(LOOKS, turns=8)
    assert not have_looked(before, {0: looked, 1: LOOKS, 2: IN_OPERATION})
    assert have_looked(before, {0: looked, 1: looked, 2: IN_OPERATION})


# Others that never come to rest

WAITS = Glimpse(waits=True, rests=True, turns=7, steps=(1,))
POLLS = Glimpse(waits=False, rests=True, turns=7, steps=(1,))
RUNS = Glimpse(waits=False, rests=False, turns=7, steps=(1,))


def turned(glimpse: Glimpse, turns: int, *steps: object) -> Glimpse:
    """Return a rank as it is seen later."""
    return Glimpse(
        waits=glimpse.waits, rests=glimpse.rests, turns=turns, steps=steps or glimpse.steps
    )


def watch(*looks: Mapping[int, Glimpse], used_s: float = 0.0) -> str | None:
    """Return what is found after looks at equal distances; the last time is long enough."""
    watched = HoldWatch(0.0, 0, looks[0])
    for each in looks:
        assert watched.add(each)
    return watched.verdict(POLLS_S, round(used_s * 1e9), looks[-1])


def test_ranks_that_only_look_are_told_from_such_that_wait() -> None:
    """Both for long enough; the former must have looked."""
    assert watch({0: WAITS}, {0: WAITS}) == "others wait"
    assert watch({0: WAITS, 1: POLLS}, {0: WAITS, 1: turned(POLLS, 9)}) == "others poll"


def test_a_rank_that_sleeps_between_two_steps_is_waited_for() -> None:
    """It has not looked for anything yet."""
    assert watch({0: POLLS}, {0: POLLS}, {0: POLLS}) is None


def test_a_rank_that_falls_asleep_meanwhile_is_waited_for() -> None:
    """It was on its way there at the first look, on a busy machine, and had another turn."""
    asleep = turned(POLLS, 9)
    assert watch({0: RUNS}, {0: asleep}, {0: asleep}) is None
    assert watch({0: RUNS}, {0: asleep}, {0: asleep}, {0: turned(POLLS, 10)}) == "others poll"


def test_a_rank_that_computes_is_waited_for() -> None:
    """Whether its main thread is seen to run or its processor time is."""
    looks = [{0: turned(RUNS, turns)} for turns in range(7, 17)]
    assert watch(*looks) is None
    looks = [{0: turned(POLLS, turns)} for turns in range(7, 17)]
    assert watch(*looks, used_s=POLLS_S / 2) is None
    assert watch(*looks) == "others poll"


def test_a_step_begins_a_new_watch() -> None:
    """So does a rank that has left, or is held now."""
    watched = HoldWatch(0.0, 0, {0: POLLS, 1: WAITS})
    assert not watched.add({0: turned(POLLS, 8, 2), 1: WAITS})
    assert not watched.add({0: turned(POLLS, 8)})


def test_too_short_a_time_shows_nothing() -> None:
    """What it looks for may come with the next look."""
    watched = HoldWatch(0.0, 0, {0: POLLS})
    assert watched.add({0: POLLS})
    assert watched.verdict(POLLS_S - STEP_S, 0, {0: turned(POLLS, 9)}) is None


def turn(now: float, *left: int) -> Turn:
    """Return a turn of the engine; some ranks have left the test's body."""
    seen = facts(*left)
    return Turn(now=now, facts=seen, deadline_s=50.0, horizon_s=DEADLINE_S, is_last=True)


def test_as_a_service_it_tells_the_rank_to_go_on_and_the_history_why() -> None:
    """And influences the others' waits until the rank has said that it goes on."""
    held = HeldRanks()
    service = faults_service(held)
    assert not service.is_acting(0.0)
    service.after(begun(1), facts())
    assert service.is_acting(1.0)
    [action] = service.due(turn(1.0, 0, 2))
    assert action.events == ((1, HoldEnded(0, "others have left")),)
    assert action.to_ranks == ((1, FaultPerformed(0, "")),)
    action.perform(1.0)
    assert (service.due(turn(1.1, 0, 2)), service.is_acting(1.1)) == ([], True)
    service.after(ended(1), facts())
    assert not service.is_acting(1.2)


@pytest.mark.parametrize(("now", "left", "is_certain"), [(1.0, (0, 2), False), (900.0, (), True)])
def test_only_the_end_of_the_longest_time_is_certain(
    now: float, left: tuple[int, ...], is_certain: bool
) -> None:
    """What others do may change at the last moment."""
    [action] = faults_service(holding(begun(1))).due(turn(now, *left))
    assert action.is_certain is is_certain
