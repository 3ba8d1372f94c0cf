"""When the search for a proof takes deep snapshots, and when it begins anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import builders
import pytest

from pytest_multihost.core.proof import ProofSearch, ProofState, Snapshot, has_left_wait, is_still
from pytest_multihost.core.proof.proof_state import EARLY_START_S, INTERVAL_S
from pytest_multihost.testing import KernelSnapshot, Operation, Operations, Process, Thread

DEADLINE_S = 160.0
WAITS = builders.operation(group=(0, 1), thread=100)


def main(**changes: object) -> Thread:
    """Return a main thread that waits without a limit."""
    return builders.thread(**changes)


def look(
    *threads: Thread,
    at_s: float = 100.0,
    is_deep: bool = False,
    operations: tuple[Operation, ...] = (),
) -> Snapshot:
    """Return a snapshot of rank 0 with this main thread."""
    processes = (Process(pid=100, rank=0, threads=threads or (main(),)),)
    kernel = KernelSnapshot(at_s=at_s, processes=processes, is_deep=is_deep)
    return Snapshot(kernel, (Operations(0, operations),))


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (main(), main(), False),
        (main(), main(runs=6), True),
        (main(), main(pointer=8), True),
        (main(), main(state="R", call="running"), True),
    ],
)
def test_a_rank_has_left_its_wait_if_its_main_thread_has_run(
    was: Thread, now: Thread, *, expected: bool
) -> None:
    """Also from one wait to the next."""
    assert has_left_wait(0, look(was), look(now)) is expected


def test_a_rank_that_polls_in_one_operation_has_not_left_its_wait() -> None:
    """It has if the operation is another one, or none."""
    before = look(operations=(WAITS,))
    moved = main(runs=9)
    assert not has_left_wait(0, before, look(moved, operations=(WAITS,)))
    assert has_left_wait(0, before, look(moved, operations=(replace(WAITS, sequence=2),)))
    assert has_left_wait(0, before, look(moved))
    assert has_left_wait(0, look(), look(moved, operations=(WAITS,)))


def test_who_was_not_there_has_left_no_wait() -> None:
    """Nor has who is gone."""
    nobody = replace(look(), kernel=KernelSnapshot(at_s=99.0, processes=()))
    assert not has_left_wait(0, nobody, look())
    assert not has_left_wait(0, look(), nobody)


@pytest.mark.parametrize(
    ("thread", "expected"),
    [
        (main(), True),
        (main(ends_s=None), True),
        (main(ends_s=DEADLINE_S), False),
        (main(ends_s=DEADLINE_S + 1), True),
        (main(state="R"), False),
        (main(state="R", ends_s=None), False),
        (main(state="Z"), True),  # it is dead
    ],
)
def test_a_world_is_still_while_its_main_threads_wait(thread: Thread, *, expected: bool) -> None:
    """One of which the end is unknown is looked at more closely."""
    assert is_still(look(thread), deadline_s=DEADLINE_S) is expected


def test_a_rank_in_an_operation_is_still_however_it_waits() -> None:
    """It polls."""
    polls = main(state="R", call="running")
    assert is_still(look(polls, operations=(WAITS,)), deadline_s=DEADLINE_S)
    assert not is_still(look(polls), deadline_s=DEADLINE_S)


class Search:
    """A search that counts its deep snapshots, of a rank whose main thread is `deep`."""

    def __init__(self) -> None:
        self.search = ProofSearch()
        self.before: Snapshot | None = None
        self.taken = 0
        self.deep = main()

    def step(self, at_s: float, *threads: Thread, asks: bool = False) -> bool:
        """Go on by one shallow snapshot."""
        now = look(*threads, at_s=at_s)

        def take_deep() -> KernelSnapshot:
            self.taken += 1
            return look(self.deep, at_s=at_s, is_deep=True).kernel

        def ask_turns(_: Collection[int]) -> Mapping[int, int] | None:
            return {100: 5} if asks else None

        before, self.before = self.before, now
        return self.search.step(before, now, take_deep, ask_turns, deadline_s=DEADLINE_S)


def test_a_search_proves_a_hang_after_two_quiet_intervals() -> None:
    """It looks often at first; without answers on turns only the long intervals count."""
    search = Search()
    steps = [100.0 + 0.25 * n for n in range(20)]
    proven = [at_s for at_s in steps if search.step(at_s)]
    assert proven
    assert proven[0] - steps[1] >= 2 * INTERVAL_S * 0.9
    assert search.search.last_deep is not None
    assert search.search.state.quiet >= 2


def test_a_search_in_a_settled_world_needs_two_deep_snapshots() -> None:
    """The first begins the interval, the second ends it."""
    search = Search()
    assert [search.step(100.0 + 0.25 * n, asks=True) for n in range(3)] == [False, False, True]
    assert search.taken == 2


def test_the_first_shallow_snapshot_begins_nothing() -> None:
    """There is nothing to compare it with."""
    search = Search()
    assert not search.step(100.0)
    assert (search.taken, search.search.state) == (0, ProofState())
    search.step(100.25)
    assert search.taken == 1


def test_a_main_thread_that_runs_ends_the_search() -> None:
    """And so does one that has left its wait."""
    for moved in (main(state="R"), main(runs=6)):
        search = Search()
        search.step(100.0)
        search.step(100.25)
        assert search.search.state.last is not None
        assert not search.step(100.5, moved)
        assert (search.taken, search.search.state) == (1, ProofState())


def test_a_single_look_at_a_moving_world_begins_a_search_only_once_in_a_while() -> None:
    """A deep snapshot is costly: a world that is still by chance must not be read all the time."""
    search = Search()
    steps = 4 * int(EARLY_START_S) + 1
    for n in range(steps):  # a quarter of a second apart; it has moved each time
        search.step(100.0 + n / 4, main(runs=5 + n))
    assert search.taken == 1
    search.step(100.0 + steps / 4, main(runs=5 + steps))
    assert search.taken == 2


def test_no_deep_snapshot_is_taken_before_it_is_due() -> None:
    """Shallow ones may come faster."""
    search = Search()
    for n in range(9):
        search.step(100.0 + 0.01 * n)
    assert search.taken == 1
    search.step(100.2)
    assert search.taken == 2


def test_a_hang_is_likely_where_only_movement_could_refute_it() -> None:
    """Not before a deep snapshot, and not where something may end a wait."""
    assert not ProofState().is_likely(DEADLINE_S)
    begun = ProofState().after(look(is_deep=True), deadline_s=DEADLINE_S)
    assert begun.is_likely(DEADLINE_S)
    limited = look(main(ends_s=DEADLINE_S + 5), is_deep=True)
    begun = ProofState().after(limited, deadline_s=DEADLINE_S)
    assert begun.is_likely(DEADLINE_S)
    assert not begun.is_likely(DEADLINE_S + 10)


def test_an_interval_of_any_length_can_settle_a_proof() -> None:
    """A machine that is busy takes its snapshots late."""
    first = ProofState().after(look(is_deep=True), deadline_s=DEADLINE_S)
    for late_s in (0.2, 3.0):
        second = first.after(
            look(at_s=100.0 + late_s, is_deep=True),
            deadline_s=DEADLINE_S,
            ask_turns=lambda _: {100: 5},
        )
        assert (second.is_settled, second.is_proof) == (True, True)


@pytest.mark.parametrize("which", [0, 1])
def test_a_world_whose_network_is_disturbed_does_not_settle(which: int) -> None:
    """Lost data may come again at any time: at the begin or the end of the interval."""
    looks = [look(at_s=at_s, is_deep=True) for at_s in (100.0, 100.2)]
    looks[which] = replace(looks[which], is_disturbed=True)
    state = ProofState()
    for each in looks:
        state = state.after(each, deadline_s=DEADLINE_S, ask_turns=lambda _: {100: 5})
    assert (state.blockers, state.is_settled) == ((), False)
