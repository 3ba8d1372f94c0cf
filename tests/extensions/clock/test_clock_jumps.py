"""When the clock of a world may jump, and how far, on hand-made facts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import kernel_snapshot

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.extensions.clock.jumps import (
    IDLE_ROUNDS,
    Still,
    frozen_ranks,
    have_looked,
    have_only_polled,
    overdue_pauses,
    slack_s,
)
from pytest_multihost.extensions.clock.open_ends import open_ends
from pytest_multihost.extensions.clock.page import ClockWait
from pytest_multihost.faults.kind import kinds_by_name
from pytest_multihost.testing import (
    Descriptor,
    Event,
    FaultChanged,
    Pause,
    Process,
    Thread,
)

pytestmark = pytest.mark.unit

RANK, MAIN, LOOP = 100, 100, 101


def wait(tid: int = MAIN, due_s: float = 700.0, **changes: object) -> ClockWait:
    """Return a sleep of ten minutes, of the main thread of a rank."""
    given = {"pid": RANK, "tid": tid, "due_s": due_s, "timeout_s": 600.0, "kind": "sleep"}
    given |= {"serial": 1, "rounds": 0, "is_loop": False}
    return ClockWait(**{**given, **changes})  # type: ignore[arg-type]


def loop(due_s: float = 100.01, **changes: object) -> ClockWait:
    """Return the wait of a runtime's loop that has found nothing for a while."""
    given = {"timeout_s": 0.01, "kind": "epoll", "is_loop": True, "rounds": 7}
    return wait(LOOP, due_s, **{**given, **changes})


def still(*waits: ClockWait, **turns: int) -> Still:
    """Return a quiescent world of a main thread and a loop."""
    runs = {MAIN: turns.get("main", 5), LOOP: turns.get("loop", 50)}
    return Still({each.tid: each for each in waits}, runs)


def test_the_clock_jumps_to_the_earliest_timer() -> None:
    """Of two sleeps the shorter one ends first."""
    assert still(wait(), wait(102, 130.0)).next_s(0.0) == 130.0


def test_an_idle_loop_is_no_timer() -> None:
    """Gloo's loop wakes up every 10 ms, and thirty minutes have 180,000 of these."""
    assert still(wait(), loop()).next_s(0.0) == 700.0


def test_a_loop_that_has_just_found_something_is_a_timer() -> None:
    """It is about to do more than to look again."""
    assert still(wait(), loop(rounds=0)).next_s(0.0) == 100.01


def test_without_a_timer_there_is_no_time_to_jump_to() -> None:
    """Who waits without a timeout is woken by another thread, or never."""
    assert still(loop()).next_s(0.0) is None


def test_a_long_wait_ends_exactly() -> None:
    """Its timeout is what the test is about, however long the world has been silent."""
    assert slack_s(wait(rounds=9), 1000.0) == 0.0


def test_the_first_rounds_of_a_poller_end_exactly() -> None:
    """A backoff of a few attempts is no polling."""
    assert slack_s(wait(timeout_s=0.01, rounds=IDLE_ROUNDS - 1), 1000.0) == 0.0


def test_a_thread_that_polls_may_look_a_little_late_after_a_silent_time() -> None:
    """The longer nobody has done anything, the fewer looks are worth their cost."""
    poller = wait(timeout_s=0.01, rounds=9)
    assert 0.0 < slack_s(poller, 1.0) < slack_s(poller, 5.0) <= slack_s(poller, 1000.0) <= 0.1


def test_a_loop_has_looked_if_it_waits_anew_and_no_other_thread_has_run() -> None:
    """Then it has found nothing for anybody."""
    assert have_looked(still(wait(), loop()), still(wait(), loop(serial=2), loop=51))


def test_a_loop_that_still_sleeps_has_not_looked() -> None:
    """What it is to find may be there since it fell asleep."""
    assert not have_looked(still(wait(), loop()), still(wait(), loop()))


def test_a_loop_that_wakes_another_thread_has_found_something() -> None:
    """The other may wait for its next look, too: gloo's callers wait for several in succession."""
    assert not have_looked(still(wait(), loop()), still(wait(), loop(serial=2), main=6, loop=51))


def test_threads_that_begin_the_same_wait_again_have_only_polled() -> None:
    """They have looked, and found nothing."""
    poller = wait(timeout_s=0.1, rounds=4)
    assert have_only_polled(still(poller), still(replace(poller, rounds=5), main=6))


def test_a_thread_that_waits_for_something_else_has_not_only_polled() -> None:
    """Its next wait has another timeout, so that its count begins again."""
    poller = wait(timeout_s=0.1, rounds=4)
    assert not have_only_polled(still(poller), still(wait(rounds=0), main=6))


def test_a_thread_that_left_its_timed_wait_has_not_only_polled() -> None:
    """It has what it waited for."""
    assert not have_only_polled(still(wait(timeout_s=0.1, rounds=4)), still(main=6))


def paused(**pause: float | None) -> RankFacts:
    """Return a rank that a fault has stopped."""
    body = FaultChanged(index=0, fault="freeze", phase="begun", pause=Pause(**pause))
    return replace(RankFacts(3), active_faults=(Event(1.0, 3, body),))


def test_a_frozen_rank_counts_as_asleep() -> None:
    """Others' timeouts are what such a test is about."""
    assert frozen_ranks([paused(), RankFacts(0)]) == {3}


@pytest.mark.parametrize(
    ("kind", "params", "frozen"),
    [
        ("freeze", {}, {3}),
        ("freeze", {"seconds": 100.0}, {3}),
        ("cpu_throttle", {"percent": 10.0}, set()),  # it runs for a moment between two stops
    ],
)
def test_a_rank_that_does_not_run_before_the_end_of_its_fault_is_frozen(
    kind: str, params: dict[str, float], frozen: set[int]
) -> None:
    """The pause is the one that the kind of fault asks for."""
    kinds = kinds_by_name(new_plugin_manager().hook.pytest_multihost_faults())
    announced = kinds[kind].announce(params, 1.0)
    assert frozen_ranks([paused(**announced["pause"])]) == frozen


def test_a_rank_is_continued_when_its_pause_is_over() -> None:
    """In the world's time, which its server does not know."""
    assert overdue_pauses([paused(until_s=50.0)], 50.0) == {3}
    assert not overdue_pauses([paused(until_s=50.0)], 49.0)
    assert not overdue_pauses([paused()], 49.0)


# A closed world


def world(*threads: Thread, **changes: object) -> Snapshot:
    """Return a world of one rank with some threads."""
    process = Process(pid=RANK, rank=0, threads=threads, **changes)  # type: ignore[arg-type]
    return Snapshot(kernel_snapshot(process))


def sleeper(tid: int = MAIN) -> Thread:
    """Return a thread that sleeps for a minute."""
    return Thread(tid=tid, name="python", call="clock_nanosleep", ends_s=160.0, runs=5)


def test_a_world_whose_timers_its_clock_has_is_closed() -> None:
    """Nothing else can end its waits."""
    assert open_ends(world(sleeper()), timed={MAIN}) == ()


def test_a_timer_that_the_clock_lacks_keeps_it_from_jumping() -> None:
    """A static program's sleep ends in real time."""
    assert open_ends(world(sleeper()), timed=()) != ()


def test_a_sleeping_thread_of_a_runtime_is_closed_as_well() -> None:
    """Its sleep is in the page as that of others."""
    code = ("/site-packages/jaxlib/libjax_common.so",)
    native = replace(sleeper(LOOP), code=code)
    main = Thread(tid=MAIN, call="futex", args=(1, 0x189, 0, 0, 0, 0), ends_s=math.inf)
    assert open_ends(world(main, native), timed={LOOP}) == ()


def test_a_connection_that_leaves_the_world_keeps_it_from_jumping() -> None:
    """A server elsewhere answers in real time."""
    socket = Descriptor(fd=5, target="socket:[7]", kind="tcp", where="outside", peer="10.0.0.1:80")
    assert open_ends(world(sleeper(), descriptors={5: socket}), timed={MAIN}) != ()


def test_a_handler_of_sigalrm_does_not() -> None:
    """Timers of setitimer(2) and alarm(2) are in the page."""
    assert open_ends(world(sleeper(), caught=1 << 13), timed={MAIN}) == ()


def test_a_timer_that_is_a_descriptor_is_known_by_who_has_set_it() -> None:
    """One that another process has set is not moved with the clock, and expired ones are events."""
    reader = Thread(tid=MAIN, call="read", fds=(5,), ends_s=math.inf, runs=5)
    timer = Descriptor(fd=5, target="anon_inode:[timerfd]", kind="timerfd", ends_s=160.0)
    waits = world(reader, descriptors={5: timer})
    assert open_ends(waits, timed=(), timerfds={(RANK, 5)}) == ()
    assert open_ends(waits, timed=(), timerfds={(RANK + 1, 5), (RANK, 6)}) != ()
    expired = world(reader, descriptors={5: replace(timer, ends_s=0.0)})
    assert open_ends(expired, timed=(), timerfds={(RANK, 5)}) != ()


def test_a_frozen_rank_is_closed() -> None:
    """Only the harness continues it."""
    stopped = replace(sleeper(), state="T")
    assert open_ends(world(stopped), timed=(), frozen={0}) == ()
    assert open_ends(world(stopped), timed=()) != ()
