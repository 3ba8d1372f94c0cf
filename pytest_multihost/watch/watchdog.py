"""The watchdog: looks at a world's ranks from outside until it hangs or ends.

It sees slot pages and /proc, and touches nothing. What it has seen goes into snapshots; whether
they prove anything is decided by pure functions. Main threads are glanced at a few times a
second; everything is looked at only while all of them stand still.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_multihost.blame import (
    BlockingRanks,
    find_blocking_ranks,
    has_timeout_before,
    mismatched_ranks,
    severed,
    waiting_ranks,
)
from pytest_multihost.model.fault import disturbs_network
from pytest_multihost.model.operation import Operation, Operations
from pytest_multihost.model.process import KernelSnapshot
from pytest_multihost.model.snapshot import (
    Activity,
    Label,
    RankSnapshot,
    SnapshotReason,
    WorldSnapshot,
)
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.outcome import RankFacts
from pytest_multihost.proof import Snapshot
from pytest_multihost.proof.threads import lock_holders, main_labels
from pytest_multihost.slots import read_open_operations, read_slots, slots_path
from pytest_multihost.watch.kernel.harness import HarnessProcesses
from pytest_multihost.watch.kernel.proc import ProcReader
from pytest_multihost.watch.probes.deep_probe import (
    is_unclear,
    with_deep,
    with_flight,
    with_gil_holders,
    with_native,
    with_sockets,
)
from pytest_multihost.watch.probes.native import native_threads
from pytest_multihost.watch.proof_search import Proc, ProofSearch, has_left_wait, still
from pytest_multihost.watch.protocol import Ground, Observations

LOOK_S = 0.25
"""How often the world is looked at."""

FIRST_LOOK_S = 0.1
"""How long a test has gone on when it is looked at first: most are over by then."""

QUIET_S = 0.5
"""How long nothing may have moved before what the slot pages show is taken for good."""

STILL_S = 0.75
"""How long nothing may have moved, after a raise, before ranks that wait for nobody are ended."""

STOPPED_S = 2.0
"""How long a rank must have been stopped by somebody else."""

_SLACK_S = 0.02
_KEPT = 4
"""How many of the last looks are kept."""

_MOVES = 24
"""Of how many it is kept who had moved: six seconds."""

Early = Literal["fail", "warn", "off"]
"""What a proof does: it ends the world, it is only told, or none is looked for."""


def _nothing() -> None:
    """Fetch nothing: everything is seen from here."""


@dataclass(slots=True)
class Watchdog:
    """A watch on one world.

    Attributes:
        scratch: The world's directory, where its slot pages lie.
        size: Number of ranks.
        harness: What of the processes belongs to the harness.
        may_run_jax: Whether operations can go on beside the main thread, unseen by a recorder.
        early: What seeing a hang does.
        warned: With early "warn", what was seen.
        refresh: Called before a look: fetches what is not seen from here.
        see: Makes what looks at the ranks' processes.
        unreachable: Ranks whose process ids mean nothing here.
        notes: What is to be said of every last look.
        spec: The world, where it has faults that matter here.
    """

    scratch: Path
    size: int
    harness: HarnessProcesses = field(default_factory=HarnessProcesses)
    may_run_jax: bool = True
    early: Early = "fail"
    interval_s: float = FIRST_LOOK_S
    warned: Ground | None = None
    refresh: Callable[[], None] = _nothing
    see: Callable[[Mapping[int, int], HarnessProcesses], Proc] = ProcReader
    unreachable: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    spec: WorldSpec | None = None
    _seeker: ProofSearch | None = None
    _last: Snapshot | None = None
    _trouble: WorldSnapshot | None = None
    _troubled: Snapshot | None = None
    _looks: deque[WorldSnapshot] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _moves: deque[frozenset[int]] = field(default_factory=lambda: deque(maxlen=_MOVES))
    _progress_s: float = 0.0
    _stopped_s: dict[int, float] = field(default_factory=dict)
    _looked_s: float = 0.0
    _clashed: bool = False

    def check(self, now: float, facts: Sequence[RankFacts], *, deadline_s: float) -> Ground | None:
        """Look at the ranks; return what shows that the world hangs, if anything does."""
        self._looked_s = self._looked_s or now
        if self.early == "off" or now < self._looked_s + self.interval_s - _SLACK_S:
            return None
        ground = self._ground(now, facts, deadline_s)
        self.interval_s = self._pause_s(now)
        if ground is not None and self.early == "warn":
            self.warned = ground
            return None
        return ground

    def _ground(self, now: float, facts: Sequence[RankFacts], deadline_s: float) -> Ground | None:
        before = self._last
        has_progressed = self._see(now, facts, "tick")
        snapshot = self._last
        if snapshot is None:
            return None
        if self._is_proven(before, snapshot, facts, deadline_s):
            return "proof"
        if self._has_long_been_stopped(now, has_progressed=has_progressed):
            return "stopped"
        is_quiet = not has_progressed and now >= self._progress_s + QUIET_S
        was, self._clashed = self._clashed, is_quiet and self._clashes(snapshot, facts, deadline_s)
        # Seen twice: a limit that strikes between a glance and the closer look is not seen there.
        return "mismatch" if was and self._clashed else None

    def _pause_s(self, now: float) -> float:
        """Return how long to wait with the next look: a window that ends sooner is not let pass."""
        if len(self._moves) == 1:  # looks are counted from when the test began
            return LOOK_S - FIRST_LOOK_S
        due_s = self._seeker.due_s if self._seeker is not None else math.inf
        return min(LOOK_S, max(2 * _SLACK_S, due_s - now))

    def note_failure(self, now: float, facts: Sequence[RankFacts]) -> None:
        """Keep where every rank stands: one of them has just raised or died."""
        if self._trouble is None:
            self._see(now, facts, "trouble")
            self._trouble = self._looks.pop()
            self._troubled = self._last

    def has_settled(self, now: float, facts: Sequence[RankFacts]) -> bool:
        """Whether, after a raise, nobody gets on any more: the others are seen to wait."""
        if now < self._looked_s + LOOK_S - _SLACK_S or self._last is None:
            return False
        self._see(now, facts, "tick")
        rest = [each.rank for each in facts if not each.is_past_body]
        rest = rest or [each.rank for each in facts if not each.is_finished]
        waits = waiting_ranks(self._last.operations)
        quiet_s = now - self._progress_s
        return bool(rest) and quiet_s >= (QUIET_S if waits.issuperset(rest) else STILL_S)

    def blocking_ranks(self, facts: Sequence[RankFacts]) -> BlockingRanks | None:
        """Return whom the others wait for, as of the last look: for the reader, no judgement."""
        if self._last is None or not self._looks:
            return None
        activities = {each.rank: each.activity for each in self._looks[-1].ranks}
        reachable = [each for each in facts if each.rank not in self.unreachable]
        pids = {each.rank: each.pid for each in reachable if each.pid is not None}
        return find_blocking_ranks(_with(self._last, _gates(facts)).operations, activities, pids)

    def close(self, now: float, facts: Sequence[RankFacts]) -> Observations:
        """Look a last time, before the ranks are ended, and return everything."""
        self._see(now, facts, "end")
        look = self._seeker_of(facts).proc.deep_snapshot()
        self._note_locks(look)
        self._look_closely(now, facts, look)
        operations = tuple(
            read_slots(slots_path(self.scratch, rank), rank=rank) for rank in range(self.size)
        )
        trouble = tuple(self._trouble_seen_closely())
        return Observations((*trouble, *self._looks), operations, self._progress_s or None)

    def _trouble_seen_closely(self) -> Iterator[WorldSnapshot]:
        if self._trouble is not None and self._troubled is not None and self._last is not None:
            stood = still(self._troubled.kernel, self._last.kernel)
            yield with_deep(self._trouble, self._looks[-1], stood)

    # What is seen

    def _see(self, now: float, facts: Sequence[RankFacts], why: SnapshotReason) -> bool:
        """Take a snapshot; return whether any rank has got on since the last one."""
        self._looked_s = now
        before = self._last
        self.refresh()
        pages = [
            read_open_operations(slots_path(self.scratch, rank), rank=rank)
            for rank in range(self.size)
        ]
        look = self._seeker_of(facts).proc.shallow_snapshot()
        self._last = self._moment(now, look, tuple(each for each, _ in pages), facts)
        moved = _moved(before.kernel if before is not None else None, look)
        labels = main_labels(before.kernel if before is not None else None, look)
        ranks = tuple(_seen(each, labels, moved) for each, _ in pages)
        if why == "end":
            ranks = tuple(self._with_moves(each) for each in ranks)
        else:
            self._moves.append(moved)
        blockers = self._seeker.search.blockers if self._seeker is not None else ()
        snapshot = WorldSnapshot(at_s=now, reason=why, ranks=ranks, blockers=blockers)
        self._looks.append(snapshot)
        return self._note_progress(before, self._last, [last_s for _, last_s in pages], facts)

    def _with_moves(self, seen: RankSnapshot) -> RankSnapshot:
        """Add what tells a rank that wakes up again and again from one in a long wait."""
        return replace(seen, recent_runs=tuple(seen.rank in each for each in self._moves))

    def _moment(
        self,
        now: float,
        look: KernelSnapshot,
        pages: tuple[Operations, ...],
        facts: Sequence[RankFacts],
    ) -> Snapshot:
        """Return what is seen, with what our own faults of the network have to do with it."""
        if self.spec is None or not disturbs_network(self.spec.faults):
            return Snapshot(look, pages)
        events = [event for each in facts for event in each.active_faults]
        has_begun = any("network" in event.detail for event in events)
        return Snapshot(look, pages, severed(self.spec, events, now), has_begun)

    def _seeker_of(self, facts: Sequence[RankFacts]) -> ProofSearch:
        if self._seeker is None:
            pids = {each.rank: each.pid for each in facts if each.pid is not None}
            self._seeker = ProofSearch(self.see(pids, self.harness))
        return self._seeker

    def _note_progress(
        self,
        before: Snapshot | None,
        now: Snapshot,
        steps_s: Sequence[float],
        facts: Sequence[RankFacts],
    ) -> bool:
        """Note when a rank last got on: told of something, stepped on, or woke up by itself."""
        progress_s = max([*steps_s, *map(_last_word_s, facts)])
        if before is not None and any(
            has_left_wait(rank, before, now) for rank in now.kernel.ranks
        ):
            progress_s = max(progress_s, before.kernel.at_s)
        has_progressed = progress_s > self._progress_s
        self._progress_s = max(self._progress_s, progress_s)
        return has_progressed

    # What it shows

    def _is_proven(
        self,
        before: Snapshot | None,
        now: Snapshot,
        facts: Sequence[RankFacts],
        deadline_s: float,
    ) -> bool:
        """Look at everything while all main threads stand still; return whether that proves it."""
        seeker, gates = self._seeker_of(facts), _gates(facts)
        was = _with(before, gates) if before is not None else None
        looked = seeker.looked
        is_proven = seeker.step(was, _with(now, gates), deadline_s=deadline_s)
        if seeker.looked is not None and seeker.looked is not looked:
            self._note_locks(seeker.looked)
        return is_proven

    def _note_locks(self, look: KernelSnapshot) -> None:
        """Add to the last snapshot what only a close look tells."""
        holders = lock_holders(look)
        last = self._looks.pop()
        ranks = tuple(replace(each, lock_holders=holders.get(each.rank, ())) for each in last.ranks)
        blockers = self._seeker.search.blockers if self._seeker is not None else ()
        self._looks.append(replace(last, ranks=ranks, blockers=blockers))

    def _look_closely(self, now: float, facts: Sequence[RankFacts], look: KernelSnapshot) -> None:
        """Ask more of the ranks whose records do not say for whom they wait."""
        last = self._looks.pop()
        alive = {
            each.rank: each.pid
            for each in facts
            if each.pid is not None and not each.is_gone and not each.waits_at_gate
            if each.rank not in self.unreachable
        }
        ranks, lacking = last.ranks, tuple[str, ...]()
        if any(is_unclear(seen) and seen.rank in alive for seen in ranks):
            answering = [each.rank for each in facts if not each.is_gone]
            ranks = with_flight(ranks, self.scratch, answering)
            unclear = {s.rank: alive[s.rank] for s in ranks if is_unclear(s) and s.rank in alive}
            asked = {s.rank: unclear[s.rank] for s in ranks if s.rank in unclear and self._asks(s)}
            with ThreadPoolExecutor(1) as pool:  # two sorts of readers, which both start slowly
                reading = pool.submit(native_threads, asked) if asked else None
                ranks = with_gil_holders(ranks, unclear)
            if reading is not None:
                telling = {
                    s.rank: asked[s.rank] for s in ranks if s.rank in asked and self._asks(s)
                }
                ranks = with_native(ranks, telling, reading.result(), now)
                lacking = reading.result().lacking
            ranks = with_sockets(ranks, look)
        self._looks.append(replace(last, ranks=ranks, unobserved=lacking, notes=self.notes))

    def _asks(self, seen: RankSnapshot) -> bool:
        """Whether a rank's native frames may tell of an operation."""
        is_held = seen.holds_gil and seen.label != "RUNNING"
        return seen.label == "BLOCKED" or (self.may_run_jax and not is_held)

    def _has_long_been_stopped(self, now: float, *, has_progressed: bool) -> bool:
        """Whether somebody else has stopped a rank, and the others do nothing either."""
        stopped = {each.rank for each in self._looks[-1].ranks if each.label == "STOPPED"}
        if has_progressed or not stopped:
            self._stopped_s = {}
            return False
        self._stopped_s = {rank: self._stopped_s.get(rank, now) for rank in stopped}
        return min(self._stopped_s.values()) <= now - STOPPED_S

    def _clashes(self, snapshot: Snapshot, facts: Sequence[RankFacts], deadline_s: float) -> bool:
        """Whether ranks are in operations that can never match, and stay there."""
        ranks = mismatched_ranks(snapshot.operations)
        if not ranks:
            return False
        look = self._seeker_of(facts).proc.deep_snapshot()
        return not has_timeout_before(ranks, replace(snapshot, kernel=look), deadline_s=deadline_s)


def _seen(
    operations: Operations,
    labels: Mapping[int, tuple[Label, Activity]],
    moved: frozenset[int],
) -> RankSnapshot:
    label, activity = labels.get(operations.rank, (None, None))
    return RankSnapshot(
        rank=operations.rank,
        label=label,
        activity=activity,
        operations=operations.open,
        entered=tuple(operations.entered.items()),
        has_run=operations.rank in moved,
    )


def _moved(before: KernelSnapshot | None, now: KernelSnapshot) -> frozenset[int]:
    """Return the ranks whose main threads have run since the last look."""
    earlier = before.ranks if before is not None else {}
    return frozenset(
        rank
        for rank, process in now.ranks.items()
        if rank in earlier
        and (was := earlier[rank].main) is not None
        and (main := process.main) is not None
        and (was.runs, was.cpu_ns) != (main.runs, main.cpu_ns)
    )


def _gates(facts: Sequence[RankFacts]) -> Mapping[int, Operation]:
    """Return, for each rank that only waits for us, the gate as an operation that it is in."""
    size = len(facts)
    return {
        each.rank: Operation(
            name="gate",
            kind="wait",
            group=tuple(range(size)),
            sequence=1,
            scope="harness",
            since_s=each.parked_s or 0.0,
            waited_s=each.parked_s or 0.0,
            thread=each.pid or 0,
            source="harness",
        )
        for each in facts
        if each.waits_at_gate
    }


def _with(snapshot: Snapshot, gates: Mapping[int, Operation]) -> Snapshot:
    """Return a snapshot in which waits at our gates are operations."""
    operations = tuple(
        replace(each, recent=(*each.recent, gates[each.rank])) if each.rank in gates else each
        for each in snapshot.operations
    )
    return replace(snapshot, operations=operations)


def _last_word_s(facts: RankFacts) -> float:
    """Return when a rank last told of something, or died."""
    return facts.last_event_s if facts.exited_s is None or facts.was_ended else facts.exited_s
