"""When snapshots are taken: not while events come, for a rank that sends one makes progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from pytest_multihost.core.engine import MAX_SNAPSHOT_DELAY_S, QUIET_PERIOD_S
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.watch import Ground, Observations, Watchdog
from pytest_multihost.testing import (
    PLAIN,
    Event,
    KernelSnapshot,
    LaunchError,
    ScriptedLauncher,
    Step,
    exited,
    make_event,
    well_behaved,
)

Run = Callable[..., Any]
HANGS = [*well_behaved(0, stays_in="call"), *well_behaved(1, stays_in="call")]
INTERVAL_S, PEEK_S = 0.25, 0.05


@dataclass
class Suspicious:
    """A watch that takes every snapshot for a hang."""

    interval_s: float = INTERVAL_S
    checks: list[float] = field(default_factory=list)

    def check(
        self,
        now: float,
        facts: Sequence[RankFacts],
        *,
        deadline_s: float,
        permits: Callable[[], bool] = lambda: True,
    ) -> Ground | None:
        """Note when it was called."""
        self.checks.append(now)
        return "proof"

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """There is none."""

    def has_settled(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> bool:
        """Nothing raises here."""
        return False

    def close(
        self, now: float, facts: Sequence[RankFacts], *, is_proven: bool = False
    ) -> Observations:
        """Return nothing."""
        return Observations()

    def release(self) -> None:
        """There is nothing."""


def events_for(seconds: float) -> list[Step]:
    """Have rank 0 send an event every ten milliseconds of its test."""
    times = [number / 100 for number in range(1, round(seconds * 100) + 1)]
    return [Step(0, "record", after_s=after_s, on="go") for after_s in times]


def seconds_to_first_check(run: Run, script: Sequence[Step]) -> float:
    """Return how long after the test's start the first snapshot was taken."""
    watch = Suspicious()
    ran = run(script, watch=watch)
    go_s = next(at_s for at_s, gate in ran.gates(rank=0) if gate == "go")
    return float(watch.checks[0] - ran.result.started_s - go_s)


def test_no_snapshot_is_taken_while_events_come(run: Run) -> None:
    """A deep one of a large world takes a tenth of a second, for which every rank would wait."""
    events_s = MAX_SNAPSHOT_DELAY_S / 2
    seconds = seconds_to_first_check(run, [*HANGS, *events_for(events_s)])
    assert events_s < seconds <= events_s + 2 * QUIET_PERIOD_S


def test_a_rank_that_sends_events_all_the_time_does_not_hide_the_others(run: Run) -> None:
    """The snapshot is put off, not left out."""
    seconds = seconds_to_first_check(run, [*HANGS, *events_for(3 * MAX_SNAPSHOT_DELAY_S)])
    assert seconds == pytest.approx(MAX_SNAPSHOT_DELAY_S, abs=0.05)


def test_without_events_the_first_snapshot_is_taken_at_once(run: Run) -> None:
    """Only events of ranks put it off."""
    assert seconds_to_first_check(run, HANGS) <= QUIET_PERIOD_S


def disturbed_rank_0(*, is_killed: bool) -> list[Step]:
    """Have rank 0 wait in a fault for 50 s; a second fault ends it as it begins, or not at all."""
    waits = {"index": 0, "fault": "delay", "phase": "begun", "until_s": 1050.0}
    dies = {"index": 1, "fault": "kill", "phase": "begun", "kills": True}
    end = [
        Step(0, "fault", dies, after_s=0.1, on="go"),
        Step(0, "exited", exited(signal=9), after_s=0.1, on="go"),
    ]
    return [Step(0, "fault", waits, on="go"), *(end if is_killed else [])]


@pytest.mark.parametrize(("is_killed", "longest_s"), [(True, 1.0), (False, 55.0)])
def test_a_fault_is_waited_for_as_long_as_its_rank_lives(
    run: Run, *, is_killed: bool, longest_s: float
) -> None:
    """A rank that was killed as planned does not go on when its delay is over."""
    seconds = seconds_to_first_check(run, [*HANGS, *disturbed_rank_0(is_killed=is_killed)])
    assert longest_s / 2 - 0.5 <= seconds <= longest_s


@dataclass(slots=True)
class Transferring(ScriptedLauncher):
    """A world in which parts of a large frame move."""

    bytes_per_wait: int = 65_536


def test_no_snapshot_is_taken_while_a_large_frame_moves(run: Run) -> None:
    """A rank that sends it waits for the controller, and so may all ranks: that is no hang."""
    watch = Suspicious()
    ran = run(HANGS, watch=watch, launched_by=Transferring, timeout_s=5.0)
    assert watch.checks == []
    assert ran.result.ending == "overrun"


@dataclass(slots=True)
class Unread(ScriptedLauncher):
    """A world of which an event has come while its ranks were read."""

    unread: int = 1

    def wait(self, timeout_s: float) -> list[Event]:
        """Return that event as soon as the engine only looks for one."""
        if timeout_s == 0.0 and self.unread:
            self.unread -= 1
            return [make_event(self.clock.now(), 0, "record", {})]
        return ScriptedLauncher.wait(self, timeout_s)


def test_a_hang_is_not_believed_while_an_event_is_unread(run: Run) -> None:
    """The rank that has sent it may wait for the controller alone; then all are read again."""
    watch = Suspicious()
    ran = run(HANGS, watch=watch, launched_by=Unread)
    assert len(watch.checks) == 2
    assert ran.result.ending == "proof"


class Silent(ScriptedLauncher):
    """A process between the ranks and the controller does not answer."""

    def confirm(self) -> None:
        raise LaunchError("node 1 has not answered")


@pytest.mark.parametrize("watch", [Suspicious(), None], ids=["a hang is seen", "at the deadline"])
def test_no_hang_is_reported_while_a_node_is_silent(run: Run, watch: Suspicious | None) -> None:
    """What its ranks have sent may be lost on the way: that is an error, and no hang."""
    given = {"watch": watch} if watch is not None else {}
    ran = run(HANGS, launched_by=Silent, timeout_s=5.0, **given)
    assert (ran.result.ending, ran.result.reason) == ("lost", "node 1 has not answered")


class _SlowObserver:
    """Snapshots of a large world: each takes a while."""

    size = 1
    spec = None
    rank_names = PLAIN

    def __init__(self, seconds: float, share: float = 1.0) -> None:
        self.seconds = seconds
        self.share = share
        self.looks: list[float] = []

    def quiescence(self, _facts: object) -> _SlowObserver:
        return self

    def busiest_share(self) -> float:
        return self.share

    def shallow(self, now: float, _facts: object) -> tuple[Snapshot, float]:
        self.looks.append(now)
        time.sleep(self.seconds)
        return Snapshot(KernelSnapshot(at_s=now, processes=())), now

    def deep(self, _facts: object) -> KernelSnapshot:
        return KernelSnapshot(at_s=self.looks[-1], processes=(), is_deep=True)

    def turns(self, _idle: object) -> None:
        return None

    def local_pids(self, _facts: object) -> dict[int, int]:
        return {}


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 0), (0.08, 4), (0.12, 20)])
def test_snapshots_that_take_long_are_taken_less_often(seconds: float, times: int) -> None:
    """One of a thousand ranks takes a second, and the ranks need the processor."""
    observer = _SlowObserver(seconds)
    watch = Watchdog(observer)  # type: ignore[arg-type]
    for number in range(1, 161):
        watch.check(number * PEEK_S, [], deadline_s=1000.0)
    gaps = [after - before for before, after in pairwise(observer.looks)]
    assert gaps
    assert min(gaps) >= max(INTERVAL_S, times * seconds) - 2 * PEEK_S
    assert min(gaps) <= max(INTERVAL_S, 2 * times * seconds) + 2 * PEEK_S


@pytest.mark.parametrize(("seconds", "times"), [(0.02, 0), (0.12, 4)])
def test_a_large_world_that_seems_still_is_not_read_all_the_time(
    seconds: float, times: int
) -> None:
    """Ranks that take turns use little each, so a world of many that works seems still."""
    observer = _SlowObserver(seconds, share=0.01)
    watch = Watchdog(observer)  # type: ignore[arg-type]
    for number in range(1, 81):
        watch.check(number * PEEK_S, [], deadline_s=1000.0)
    gaps = [after - before for before, after in pairwise(observer.looks)]
    assert gaps
    assert min(gaps) >= times * seconds - 2 * PEEK_S
    assert min(gaps) <= 2 * times * seconds + 2 * PEEK_S
