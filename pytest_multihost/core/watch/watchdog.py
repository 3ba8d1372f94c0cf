"""The watchdog: observes a world's ranks from outside until it hangs or ends.

It only reads slot pages and /proc. This module and `ProofSearch` decide when to take snapshots,
`observer` decides on their content, and pure functions of `proof` and `blame` on the facts that
snapshots prove.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_multihost.core.blame import (
    Blocked,
    BlockingRanks,
    blocked_ranks,
    find_blocking_ranks,
    has_timeout_before,
    mismatched_ranks,
    waiting_ranks,
)
from pytest_multihost.core.model.history import Parting
from pytest_multihost.core.model.operation import Operations
from pytest_multihost.core.model.process import KernelSnapshot
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot, SnapshotReason, WorldSnapshot
from pytest_multihost.core.model.setting_values import Early
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.proof import (
    SLACK_S,
    FileLockHolders,
    ProofSearch,
    Snapshot,
    has_left_wait,
    lock_holders,
    pollers,
    running_on,
    turns_of,
    with_lock_holders,
    without_left,
)
from pytest_multihost.core.proof.runtime_threads import is_ended_by_signal
from pytest_multihost.core.proof.threads import is_sleep
from pytest_multihost.core.watch.comparison import rank_snapshots, unmoved_ranks
from pytest_multihost.core.watch.kernel import holders_of_lock
from pytest_multihost.core.watch.observer import WorldObserver, with_gates
from pytest_multihost.core.watch.polled_locks import locks_left_behind, with_polled_locks
from pytest_multihost.core.watch.probes import (
    FlightRequests,
    NativeReader,
    needs_native_frames,
    probe_partings,
    probe_unclear_ranks,
    with_probe_results,
)

INTERVAL_S = 0.25
"""Time between two shallow snapshots of a world that works."""

PEEK_S = 0.05
"""Time between two readings of a world's clocks, and between two snapshots of a still world."""

_LONG_LOOK_S, _FACTOR, _LONG_FACTOR = 0.1, 4.0, 20.0
"""How many times as long as a shallow snapshot took no other one is due, unless the world is still.

A snapshot of a thousand ranks takes a second of a busy core that the ranks could use. Simulated
ranks take turns, so each of many uses little of a core, and a world that works seems still.
Therefore the smaller factor also applies to a still world if a snapshot of it takes long."""

AGAIN_S = 0.02
"""Time from the first snapshot of a world that has become still to the second, with which a search
for a proof begins. It is also the least time between two readings of the clocks, because the clocks
of a thread that works have advanced by then."""

STILL_SHARE = 0.1
"""Share of a processor below which a process counts as still: it polls at most."""

REST_S = 0.06
"""How long a world must have been quiescent, except for polling threads, for a raise, a death or a
mismatch to be final. Runtimes poll every 10 ms (gloo's loops, torch's FileStore), so each polling
thread has had several turns by then; one with a single turn delays the verdict (`pollers`)."""

QUIET_S = 0.5
"""Time without progress of any rank after which the slot pages count as final. In a world that is
not quiescent, some thread may be about to write to them."""

SETTLED_S = 0.75
"""The same after a raise, if some of the remaining ranks do not wait in an operation."""

STOPPED_S = 2.0
"""How long a rank must have been stopped from outside before its world counts as hung.

The process that stopped the rank can continue it at any time: a profiler, a snapshot of the
machine, a child that sleeps. Quiescence of the other ranks is not evidence against that. With one
second, innocent ranks were accused."""

LEFT_S = 15.0
"""Time without progress of any rank after which the threads of ranks whose script is over no longer
count. A thread that still works for another rank has had its turns by then."""

_RUNS_ON = "has left its script, but a thread or a child of it still runs and may do more"

_LOOKS_BEFORE_NATIVE = 2
_TIMER_SLACK_S = 0.002
"""How much too early a timer may wake the controller for a check."""

_KEPT_SNAPSHOTS = 4
_KEPT_RUNS = 24
"""Number of intervals for which the ranks that ran are kept: six seconds."""

Ground = Literal["proof", "mismatch", "stopped", "waited"]
"""The evidence of a hang found before the deadline."""


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of a world that a watchdog has kept.

    Attributes:
        snapshots: Oldest first: at the first failure, if any; the last ones; at the end.
        operations: All operations still recorded in the ranks' slot pages.
        partings: The points where the histories of a group's ranks differ.
        progress_s: When a rank last made progress; None if unknown.
        is_quiescent: Whether, after a failure, snapshots showed that no rank could go on. False if
            only a time without progress suggests it.
        native: The collectives that C++ code has called.
    """

    snapshots: tuple[WorldSnapshot, ...] = ()
    operations: tuple[Operations, ...] = ()
    partings: tuple[Parting, ...] = ()
    progress_s: float | None = None
    is_quiescent: bool = False
    native: tuple[Operations, ...] = ()


@dataclass(frozen=True, slots=True)
class NoWatch:
    """A `Watchdog` that observes nothing, so only the deadline ends a hung world."""

    interval_s: float = 1.0

    def check(
        self,
        now: float,
        facts: Sequence[RankFacts],
        *,
        deadline_s: float,
        permits: Callable[[], bool] = lambda: True,
    ) -> None:
        """Return None: nothing is observed."""

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Do nothing: nothing is observed."""

    def has_settled(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> bool:  # noqa: ARG002 - unused
        """Return False: nothing is observed."""
        return False

    def has_operations(self, ranks: Collection[int]) -> bool:  # noqa: ARG002 - unused
        """Return False: nothing is observed."""
        return False

    def quiet_s(self, now: float) -> float:  # noqa: ARG002 - unused
        """Return 0: nothing is observed."""
        return 0.0

    def begin_anew(self, at_s: float) -> None:
        """Do nothing: there is no search for a proof."""

    def close(
        self,
        now: float,  # noqa: ARG002 - unused
        facts: Sequence[RankFacts],  # noqa: ARG002
        *,
        is_proven: bool = False,  # noqa: ARG002
    ) -> Observations:
        """Return empty observations."""
        return Observations()

    def release(self) -> None:
        """Do nothing: nothing is prepared."""


@dataclass(slots=True)
class Watchdog:
    """Observes one world from outside, without affecting it.

    Attributes:
        may_run_jax: Whether operations can run off the main thread, unseen by the recorder.
        early: The reaction to a hang that the watchdog finds before the deadline.
        patience_s: The longest wait of a rank for another one; None: any.
        interval_s: Time until the next check is due.
        warned: With early "warn", the evidence of the hang.
        seen_since_s: When the last two snapshots began, on the machine's clock: they may not show
            a later move of a rank.
    """

    observer: WorldObserver
    may_run_jax: bool = True
    early: Early = "fail"
    patience_s: float | None = None
    interval_s: float = PEEK_S
    warned: Ground | None = None
    seen_since_s: float = 0.0
    _search: ProofSearch = field(default_factory=ProofSearch)
    _last: Snapshot | None = None
    _at_failure: tuple[Snapshot, WorldSnapshot] | None = None
    _asked: FlightRequests | None = None
    _snapshots: deque[WorldSnapshot] = field(default_factory=lambda: deque(maxlen=_KEPT_SNAPSHOTS))
    _runs: deque[frozenset[int]] = field(default_factory=lambda: deque(maxlen=_KEPT_RUNS))
    _ran: frozenset[int] = frozenset()
    _ran_since_s: float = 0.0
    _progress_s: float = 0.0
    _moves_s: float = 0.0
    _stopped_since: dict[int, float] = field(default_factory=dict)
    _blocked_since: dict[Blocked, float] = field(default_factory=dict)
    _checked_s: float = 0.0
    _began_s: float = 0.0
    _took_s: float = 0.0
    _peeked_s: float = 0.0
    _written_s: float = 0.0
    _is_still: bool = False
    _still_checks: int = 0
    _rest: tuple[float, Mapping[int, int]] | None = None
    _polling: frozenset[int] = frozenset()
    _had_mismatch: bool = False
    _is_quiescent_now: bool = False
    _left: frozenset[int] = frozenset()
    _run_on: frozenset[int] = frozenset()
    _turns: tuple[float, Mapping[int, tuple[int, int]]] | None = None
    _native: NativeReader = field(default_factory=NativeReader)

    def check(
        self,
        now: float,
        facts: Sequence[RankFacts],
        *,
        deadline_s: float,
        permits: Callable[[], bool] = lambda: True,
    ) -> Ground | None:
        """Take a snapshot if one is due; return the evidence of a hang, if any.

        Args:
            deadline_s: When the world is ended at the latest.
            permits: Asked after the snapshots that show that no rank can go on: whether nothing
                else can move one, such as a service.
        """
        # A search for a proof begins with two snapshots of a still world.
        is_searching = self._search.state.last is not None or self._had_mismatch
        is_searching = is_searching or self._still_checks == 1 or self._rest is not None
        if self.early == "off" or not self._is_due(now, facts, is_searching=is_searching):
            return None
        ground = self._ground(now, facts, deadline_s)
        self.interval_s = self._next_check_s(now)
        if ground in ("proof", "mismatch") and not permits():
            return None
        if ground is not None and self.early == "warn":
            self.warned = ground
            return None
        return ground

    def _is_due(self, now: float, facts: Sequence[RankFacts], *, is_searching: bool) -> bool:
        """Return whether a snapshot is due: at intervals, and as soon as the world becomes still.

        Args:
            is_searching: Whether the next snapshot is also due if the world stays still.
        """
        if self._peeked_s == 0.0:
            self._peeked_s = self._checked_s = now
            self.observer.quiescence(facts).busiest_share()  # the start's CPU time must not count
            return False
        if now < self._peeked_s + self.interval_s - _TIMER_SLACK_S:
            return False
        self._peeked_s, self.interval_s = now, PEEK_S
        was_still, share = self._is_still, self.observer.quiescence(facts).busiest_share()
        self._is_still = share < STILL_SHARE
        is_long = self._took_s > _LONG_LOOK_S
        factor = _LONG_FACTOR if is_long else _FACTOR
        is_due = now >= self._checked_s + max(INTERVAL_S, factor * self._took_s) - SLACK_S
        may_be_soon = not is_long or now >= self._checked_s + _FACTOR * self._took_s
        is_due = is_due or (self._is_still and may_be_soon and (is_searching or not was_still))
        self._still_checks = self._still_checks + is_due if self._is_still else 0
        return is_due

    def _next_check_s(self, now: float) -> float:
        """Return how long after `now` the next check is due, if the world stays still."""
        due_s = [PEEK_S, self._search.state.due_s - now]
        if self._rest is not None:
            due_s.append(self._rest[0] + REST_S - now)
        return AGAIN_S if self._still_checks == 1 else max(AGAIN_S, min(due_s))

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep a snapshot, because a rank has raised or died; only at the first failure."""
        if self._at_failure is None:
            self._search = ProofSearch()  # earlier snapshots may not be true any more
            snapshot = self._take(now, facts, "trouble")
            self._at_failure = snapshot, self._snapshots.pop()
        if self._asked is None and any(each.has_died for each in facts):
            self._asked = self._ask(self._can_answer(facts))  # the others may soon be gone, too

    def has_operations(self, ranks: Collection[int]) -> bool:
        """Return whether any of `ranks` had an open operation in the last snapshot."""
        last = self._last.operations if self._last is not None else ()
        return any(each.open for each in last if each.rank in ranks)

    def quiet_s(self, now: float) -> float:
        """Return how long no rank has made progress."""
        return now - self._progress_s if self._progress_s else 0.0

    def begin_anew(self, at_s: float) -> None:
        """Restart the search for a proof, because ranks are about to move at `at_s`."""
        self._search, self._rest = ProofSearch(), None
        self._moves_s = at_s

    def has_settled(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> bool:
        """Return whether, after a raise, no rank makes progress any more.

        None does if all wait in operations and the world is quiescent, or if no wait in the world
        can end. After a time without progress this is assumed.
        """
        if not self._is_due(now, facts, is_searching=True) or self._last is None:
            return False
        before, snapshot = self._last, self._take(now, facts, "tick")
        is_settled = self._has_settled(before, snapshot, now, facts, deadline_s)
        self.interval_s = self._next_check_s(now)
        return is_settled

    def _has_settled(
        self,
        before: Snapshot,
        snapshot: Snapshot,
        now: float,
        facts: Sequence[RankFacts],
        deadline_s: float,
    ) -> bool:
        remaining = [each.rank for each in facts if not each.is_past_body]
        remaining = remaining or [each.rank for each in facts if not each.is_finished]
        are_waiting = waiting_ranks(snapshot.operations).issuperset(remaining)
        quiet_s = now - max(self._progress_s, self._moves_s)
        if self._is_still:
            self._start_native(facts)
        if are_waiting:
            is_settled = self._is_quiescent(before, snapshot, now, facts)
        else:
            is_settled = self._is_still and self._is_proven(before, snapshot, facts, deadline_s)
        self._is_quiescent_now = is_settled
        if is_settled:
            return bool(remaining)
        return bool(remaining) and quiet_s >= (QUIET_S if are_waiting else SETTLED_S)

    def _is_quiescent(
        self, before: Snapshot, last: Snapshot, now: float, facts: Sequence[RankFacts]
    ) -> bool:
        """Return whether nothing in the world has moved for a while, nor is about to.

        No main thread may sleep, and no thread except pollers may have run.
        """
        living = last.kernel.ranks
        has_moved = any(has_left_wait(rank, before, last) for rank in living)
        sleeps = any(e.main is not None and is_sleep(e.main) for e in living.values())
        if has_moved or sleeps or not self._is_still:
            self._rest = None
            return False
        if self._rest is not None and self._rest[0] <= self._progress_s:
            self._rest = None
        began_s, turns = self._rest or (now, None)
        if turns is not None and now < began_s + REST_S - _TIMER_SLACK_S:
            return False
        turns_now = self.observer.quiescence(facts).turns(None)
        self._rest = (now, turns_now) if turns_now is not None else None
        if turns is None or turns_now is None:
            return False
        polling = pollers(turns, turns_now)
        if polling is None:
            return False
        self._polling = polling
        return self._rests_still(facts)

    def _rests_still(self, facts: Sequence[RankFacts]) -> bool:
        """Return whether the world is quiescent, and only polling threads have run meanwhile."""
        if self._rest is None:
            return False
        turns = self.observer.quiescence(facts).turns(self._polling)
        asleep = {tid: runs for tid, runs in self._rest[1].items() if tid not in self._polling}
        return turns is not None and asleep.items() <= turns.items()

    def _deep(self, facts: Sequence[RankFacts]) -> KernelSnapshot:
        """Return a deep snapshot: the last one if the current check took it, else a new one."""
        last = self._search.last_deep
        return last if last and last.at_s >= self._checked_s else self.observer.deep(facts)

    def close(
        self, now: float, facts: Sequence[RankFacts], *, is_proven: bool = False
    ) -> Observations:
        """Take the last snapshots before the ranks are ended; return all observations.

        Args:
            is_proven: Whether a service has proven a hang. Then the slot pages show the waits,
                and neither the kernel nor the ranks are asked.
        """
        kernel = None if is_proven else self._deep(facts)
        last = self._take(now, facts, "end")
        asked = [] if is_proven else self._can_answer(facts)
        flight = self._ask(asked) if asked or self._asked is None else self._asked
        operations = self.observer.recorded_operations()  # before a probe disturbs a rank
        if kernel is not None:
            self._add_deep(kernel)
            self._probe(now, facts, kernel, flight)
        if kernel is not None:
            self._snapshots[-1] = with_polled_locks(
                self._snapshots[-1],
                kernel,
                operations,
                local=self.observer.local_pids(facts),
                holders=holders_of_lock,
                names=self.observer.rank_names,
            )
        snapshots = tuple(self._snapshots)
        if self._at_failure is not None:
            then, at_failure = self._at_failure
            unmoved = unmoved_ranks(then.kernel, last.kernel)
            snapshots = (with_probe_results(at_failure, snapshots[-1], unmoved), *snapshots)
        partings, native = probe_partings(self.observer.scratch, self.observer.size, flight)
        return Observations(
            snapshots,
            operations,
            partings,
            self._progress_s or None,
            is_quiescent=self._is_quiescent_now,
            native=native,
        )

    def _ask(self, ranks: Sequence[int]) -> FlightRequests:
        """Ask ranks for the content of their flight recorders."""
        return FlightRequests.send(self.observer.scratch, ranks, self.observer.memberships())

    def release(self) -> None:
        """End the reader of native frames if it was only prepared."""
        self._native.close()

    def blocking_ranks(self, facts: Sequence[RankFacts]) -> BlockingRanks | None:
        """Return the ranks that the others wait for in the last snapshot; only for display."""
        if self._last is None or not self._snapshots:
            return None
        activities = {each.rank: each.activity for each in self._snapshots[-1].ranks}
        pids = self.observer.local_pids(facts)
        return find_blocking_ranks(with_gates(self._last, facts).operations, activities, pids)

    def _take(self, now: float, facts: Sequence[RankFacts], reason: SnapshotReason) -> Snapshot:
        """Take and keep a shallow snapshot, and record when a rank last made progress.

        A rank makes progress when it sends an event, writes its slot page, or leaves a wait.
        """
        self._checked_s, began_s = now, time.monotonic()
        self.seen_since_s, self._began_s = self._began_s, began_s
        before = self._last
        snapshot, used_s = self.observer.shallow(now, facts)
        self._took_s = time.monotonic() - began_s
        self._last, self._written_s = snapshot, used_s
        ranks = rank_snapshots(before, snapshot)
        if reason == "end":
            ranks = tuple(
                replace(each, recent_runs=tuple(each.rank in ran for ran in self._runs))
                for each in ranks
            )
        else:
            self._ran |= {each.rank for each in ranks if each.has_run}
            if now >= self._ran_since_s + INTERVAL_S - SLACK_S:
                self._runs.append(self._ran)
                self._ran, self._ran_since_s = frozenset(), now
        blockers = self._search.state.blockers
        self._snapshots.append(
            WorldSnapshot(at_s=now, reason=reason, ranks=ranks, blockers=blockers)
        )
        self._progress_s = max(self._progress_s, used_s, *map(_last_event_s, facts))
        living = snapshot.kernel.ranks
        if before is not None and any(has_left_wait(rank, before, snapshot) for rank in living):
            self._progress_s = max(self._progress_s, before.kernel.at_s)
        return snapshot

    def _add_deep(self, kernel: KernelSnapshot) -> None:
        """Add the details of a deep snapshot to the last one kept."""
        holders, names = lock_holders(kernel), self.observer.rank_names
        mains = {rank: each.main for rank, each in kernel.ranks.items()}
        fragile = {rank for rank, main in mains.items() if main and is_ended_by_signal(main)}
        last = self._snapshots[-1]
        ranks = tuple(
            replace(
                with_lock_holders(each, holders.get(each.rank, FileLockHolders()), names),
                is_fragile=each.rank in fragile,
            )
            for each in last.ranks
        )
        self._snapshots[-1] = replace(last, ranks=ranks, blockers=self._search.state.blockers)

    def _probe(
        self,
        now: float,
        facts: Sequence[RankFacts],
        kernel: KernelSnapshot,
        flight: FlightRequests,
    ) -> None:
        """Add information that only the ranks or a debugger can give to the last snapshot kept."""
        last, spec = self._snapshots[-1], self.observer.spec
        ranks, unobserved = probe_unclear_ranks(
            last.ranks,
            kernel,
            pids=self._readable(facts),
            flight=flight,
            may_run_jax=self.may_run_jax,
            at_s=now,
            reader=self._native,
            names=self.observer.rank_names,
            children=self.observer.names if spec is not None and spec.roles else None,
        )
        ranks = self._with_late_work(ranks, kernel, facts)
        notes = self.observer.remote.notes if self.observer.remote is not None else ()
        notes = (*notes, *locks_left_behind(kernel, self.observer.rank_names))
        if self._search.state.is_proof and self._search.state.last is not None:
            notes = (
                *notes,
                *self._search.state.last.give_ups(),
                *_left_notes(self._left, self.observer.rank_names),
            )
        self._snapshots[-1] = replace(last, ranks=ranks, unobserved=unobserved, notes=notes)

    def _can_answer(self, facts: Sequence[RankFacts]) -> list[int]:
        """Return the ranks in which the plugin's own threads can run, unless one holds the GIL."""
        last = self._snapshots[-1].ranks if self._snapshots else ()
        stopped = {each.rank for each in last if each.label == "STOPPED"}
        return [each.rank for each in facts if not each.is_gone and each.rank not in stopped]

    def _ground(self, now: float, facts: Sequence[RankFacts], deadline_s: float) -> Ground | None:
        before, was_progress_s = self._last, self._progress_s
        snapshot = self._take(now, facts, "tick")
        has_progressed = self._progress_s > was_progress_s
        if self._is_proven(before, snapshot, facts, deadline_s):
            return "proof"
        if self._has_long_been_stopped(now, has_progressed=has_progressed):
            return "stopped"
        if self._has_long_waited(snapshot):
            return "waited"
        had, self._had_mismatch = self._had_mismatch, False
        if has_progressed or before is None:
            return None
        rests = bool(mismatched_ranks(snapshot.operations)) and self._is_quiescent(
            before, snapshot, now, facts
        )
        if rests or now >= max(self._progress_s, self._moves_s) + QUIET_S:
            self._had_mismatch = self._has_mismatch(snapshot, facts, deadline_s)
        # If main threads may run, a mismatch must be found twice: a timeout that expires between
        # the shallow and the deep snapshot shows in neither.
        mains = {each.main.tid for each in snapshot.kernel.ranks.values() if each.main is not None}
        is_certain = had or (rests and not mains & self._polling and self._rests_still(facts))
        return "mismatch" if self._had_mismatch and is_certain and self._is_current(facts) else None

    def _is_current(self, facts: Sequence[RankFacts]) -> bool:
        """Return whether the slot pages are still as at the last snapshot.

        The slot pages are read first, then threads and descriptors. On a busy machine that takes so
        long that a rank may leave its operation in between, and then wait for something else than
        its page has shown. A rank that has ended sends an event.
        """
        kernel = self._last.kernel.ranks if self._last is not None else {}
        alive = (e.rank for e in facts if e.rank in kernel and not e.is_gone)
        if any(kernel[rank].is_dead for rank in alive):
            return False
        return self.observer.last_written_s() == self._written_s

    def _is_proven(
        self, before: Snapshot | None, now: Snapshot, facts: Sequence[RankFacts], deadline_s: float
    ) -> bool:
        """Take one more step in the search for a proof; return whether a proof is found."""
        last_deep = self._search.last_deep
        if now.kernel.at_s >= self._search.state.due_s and any(now.complete_operations()):
            now = self.observer.with_past(now, facts)
        is_proven = self._search.step(
            with_gates(before, facts) if before is not None else None,
            with_gates(now, facts),
            lambda: self._deep_without_left(now, facts),
            lambda idle: self.observer.quiescence(facts).turns(idle),
            deadline_s=deadline_s,
        )
        if self._search.last_deep is not None and self._search.last_deep is not last_deep:
            self._add_deep(self._search.last_deep)
            self._prepare(facts, deadline_s)
        if is_proven and not self._is_current(facts):
            self._search = ProofSearch()
            return False
        return is_proven

    def _deep_without_left(self, now: Snapshot, facts: Sequence[RankFacts]) -> KernelSnapshot:
        """Return a deep snapshot, without the remains of ranks whose script is over.

        That counts until all other ranks have waited in operations for a while: a rank that waits
        for something else may wait for it.
        """
        deep, spec = self.observer.deep(facts), self.observer.spec
        self._left = self._run_on = frozenset()
        if spec is None or not spec.argv:
            return deep
        turns = turns_of(deep)
        if self._turns is None or self._turns[0] != self._progress_s:
            self._turns = self._progress_s, turns
        if self.quiet_s(now.kernel.at_s) < LEFT_S:
            return deep
        was = self._turns[1]
        resting = {tid for tid, each in turns.items() if was.get(tid, each) == each}
        waiting = waiting_ranks(now.operations)
        over = {each.rank for each in facts if each.is_past_body and not each.is_gone}
        rest = {each.rank for each in facts if not each.is_past_body}
        # Functions that a script has registered with atexit run later, and may meet other ranks.
        left = over - waiting - {each.rank for each in facts if each.runs_more}
        if not (left and rest) or not waiting.issuperset(rest):
            return deep
        pages = self.observer.recorded_operations()
        active = {each.thread for page in pages if page.rank in left for each in page.recent}
        self._left, self._run_on = frozenset(left), running_on(deep, left)
        # A child may set a key; only in worlds with roles are the entries of children recorded.
        waits = [one for each in now.operations if each.rank in rest for one in each.open]
        are_met = not spec.roles and all(each.kind != "wait" for each in waits)
        return without_left(
            deep,
            self._search.last_deep,
            left,
            active=active,
            resting=resting,
            without_children=are_met,
        )

    def _with_late_work(
        self, ranks: Sequence[RankSnapshot], kernel: KernelSnapshot, facts: Sequence[RankFacts]
    ) -> tuple[RankSnapshot, ...]:
        """Return the ranks; those whose script is over, but not all of their work, with a note."""
        spec = self.observer.spec
        over = {each.rank for each in facts if each.is_past_body and not each.is_gone}
        if spec is None or not spec.argv or not over:
            return tuple(ranks)
        found = self._run_on | running_on(kernel, over)
        return tuple(
            replace(each, owed=_RUNS_ON) if each.rank in found and not each.owed else each
            for each in ranks
        )

    def _prepare(self, facts: Sequence[RankFacts], deadline_s: float) -> None:
        """Start the slow reader of native frames early, if the world seems to hang.

        It is also started after two deep snapshots of a still world in which something may end a
        wait: often that is only an acknowledgement on its way.
        """
        state = self._search.state
        if state.is_likely(deadline_s) or state.looks >= _LOOKS_BEFORE_NATIVE:
            self._start_native(facts)

    def _readable(self, facts: Sequence[RankFacts]) -> dict[int, int]:
        """Return the process ids of the ranks on this machine that do not wait at a gate."""
        pids = self.observer.local_pids(facts)
        asked = [e.rank for e in facts if not (e.is_gone or e.waits_at_gate)]
        return {rank: pids[rank] for rank in asked if rank in pids}

    def _start_native(self, facts: Sequence[RankFacts]) -> None:
        """Start the reader of native frames, if these are going to be read."""
        pids = self._readable(facts)
        ranks = [each for each in self._snapshots[-1].ranks if each.rank in pids]
        if needs_native_frames(ranks, may_run_jax=self.may_run_jax):
            self._native.start(pids.values())

    def _has_mismatch(self, last: Snapshot, facts: Sequence[RankFacts], deadline_s: float) -> bool:
        """Return whether ranks wait in operations that can neither match nor time out."""
        ranks = mismatched_ranks(last.operations)
        if not ranks:
            return False
        deep = replace(last, kernel=self._deep(facts))
        return not has_timeout_before(ranks, deep, deadline_s=deadline_s)

    def _has_long_been_stopped(self, now: float, *, has_progressed: bool) -> bool:
        """Return whether a rank has long been stopped from outside, and no rank makes progress."""
        stopped = {each.rank for each in self._snapshots[-1].ranks if each.label == "STOPPED"}
        if has_progressed or not stopped:
            self._stopped_since = {}
            return False
        self._stopped_since = {rank: self._stopped_since.get(rank, now) for rank in stopped}
        return min(self._stopped_since.values()) <= now - STOPPED_S

    def _has_long_waited(self, now: Snapshot) -> bool:
        """Return whether a rank has waited longer than `patience_s` for the same rank.

        It is measured in the machine's time: a clock that jumps makes no rank late.
        """
        if self.patience_s is None:
            return False
        at_s, since = time.monotonic(), self._blocked_since
        self._blocked_since = {
            each: since.get(each, at_s) for each in blocked_ranks(now.operations)
        }
        return any(at_s - began_s >= self.patience_s for began_s in self._blocked_since.values())


def _last_event_s(facts: RankFacts) -> float:
    """Return when a rank last sent an event, or died."""
    return facts.last_event_s if facts.exited_s is None or facts.was_ended else facts.exited_s


def _left_notes(left: Collection[int], names: Names) -> list[str]:
    """Return the note on threads of ranks whose script is over."""
    if not left:
        return []
    who = names.of(left)
    return [f"threads that still run in {who} were ignored, because the script has ended there"]
