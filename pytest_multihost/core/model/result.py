"""Observations of one world: facts only, no judgement.

A snapshot records the activity of its ranks at one instant. It is read from the slot pages and
/proc, without disturbing the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.end import End, Ending, end_of
from pytest_multihost.core.model.errors import shown
from pytest_multihost.core.model.event import (
    Event,
    FaultAnswered,
    FaultChanged,
    HoldEnded,
    Released,
)
from pytest_multihost.core.model.fault import size_problems
from pytest_multihost.core.model.history import Parting
from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.operation import GroupKey, Operation, Operations
from pytest_multihost.core.model.origin import ALL_KNOWN, ENGINE, Known, Origin
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import Dump, NativeThread

Label = Literal[
    "BLOCKED",  # waits for another thread or process
    "SLEEPING",  # waits for a timer
    "IO",  # reads or writes a file, a pipe, a terminal, or a socket that leaves the world
    "RUNNING",  # uses the processor
    "CHILD",  # waits for a child process
    "STOPPED",  # SIGSTOP, a debugger
    "DISK",  # uninterruptible: the kernel waits for a device
    "EXITED",  # its process has ended
]
"""The activity of a rank's main thread."""

_MAX_S = 1e12
"""More seconds than any clock shows."""

SnapshotReason = Literal["tick", "trouble", "end"]
"""Why a snapshot was taken: periodically, after a rank raised or died, or at the world's end."""


SLEEP: Final = "sleep"
"""The name of the activity of a thread that waits only for a timer."""

_LOCK_CALLS = frozenset({"futex", "futex_wait", "futex_waitv"})
"""System calls in which a thread waits for a lock, a condition, an event or a queue."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a rank's main thread at one instant, according to the kernel.

    Attributes:
        name: The system call that it waits in, ``sleep`` for any that only waits for a timer;
            ``runs``, ``stopped`` and the like for a thread that waits in none. Of a rank that is
            known from its own dump alone, its state in a word: ``idle``, ``held``.
        target: The object of the call: a path, a pipe, a socket, a child process. Of such a rank,
            the details of its state.
        ends_in_s: After how many seconds a timeout ends the wait; None if there is none or it is
            unknown.
        has_unknown_timeout: Whether the wait may have a timeout that could not be read.
    """

    name: str
    target: str = ""
    ends_in_s: float | None = None
    has_unknown_timeout: bool = False

    @property
    def is_sleep(self) -> bool:
        """Whether it waits only for a timer."""
        return self.name == SLEEP

    @property
    def is_lock(self) -> bool:
        """Whether it waits for a lock, a condition, an event or a queue."""
        return self.name in _LOCK_CALLS

    @property
    def call(self) -> str:
        """The call and its object: ``read(/data/ckpt)``; a lock is named as a reader knows it."""
        name = "a lock" if self.is_lock else self.name
        return f"{name}({self.target})" if self.target else name

    @property
    def until(self) -> str:
        """Its remaining time, to append to the call: `` for another 2.5 s``; empty without one."""
        if self.has_unknown_timeout:
            return " for some time"
        return "" if self.ends_in_s is None else f" for another {self.ends_in_s:.1f} s"

    @property
    def after(self) -> str:
        """Its remaining time, to append to an end: `` after another 2.5 s``; empty without one."""
        return self.until.replace("for", "after", 1)

    def __str__(self) -> str:
        """Return call and remaining time: ``epoll_wait for another 2.5 s``."""
        return f"{self.call}{self.until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """One rank at one instant.

    Attributes:
        label: The activity of its main thread; None if nothing could be read.
        activity: The same in detail; None if nothing could be read.
        entered: For each of its groups, the sequence of the last collective it entered.
        lock_holders: Ranks of which a process holds a file lock it waits for.
        lock_children: Of these ranks, the ones of which only a child holds it, for which the rank
            does not wait, with the child.
        tries_lock: Whether it polls for that lock.
        has_run: Whether its main thread has run since the previous snapshot, even briefly.
        recent_runs: `has_run` of the last snapshots, oldest first, four a second; only at the end.
        holds_gil: Whether native code on its main thread holds the GIL.
        native: Native frames of the main thread, and of a thread in an operation, if read.
        is_idle: Whether its main thread waits for the next request of any other program.
        is_for_child: Whether its main thread waits for a process that it has started.
        asks: Its wait for an answer of a rank that is idle; perhaps none is owed. If it is idle
            itself, its wait for the next request of another one.
        serves: Whether a thread beside its main one waits for requests.
        sent_nothing: Whether nothing was ever sent between it and the rank that it asks.
        needs_message: Whether it can go on only with the message for which it waits.
        child: The child for which its main thread waits.
        is_endless: Whether its main thread waits for data that no living process can send it.
        is_fragile: Whether its main thread waits in native code that goes on if it handles a
            signal.
        owed: The thing it waits for that other ranks may provide, as an appendix to its name;
            empty: unknown.
        lost: Its children that a signal has ended and for which it has not waited.
    """

    rank: int
    label: Label | None = None
    activity: Activity | None = None
    operations: tuple[Operation, ...] = ()
    entered: tuple[tuple[GroupKey, int], ...] = ()
    lock_holders: tuple[int, ...] = ()
    lock_children: tuple[tuple[int, Child], ...] = ()
    tries_lock: bool = False
    has_run: bool = False
    recent_runs: tuple[bool, ...] = ()
    holds_gil: bool = False
    native: tuple[NativeThread, ...] = ()
    is_idle: bool = False
    is_for_child: bool = False
    asks: Operation | None = None
    serves: bool = False
    sent_nothing: bool = False
    needs_message: bool = False
    child: Child | None = None
    is_endless: bool = False
    is_fragile: bool = False
    owed: str = ""
    lost: tuple[Child, ...] = ()

    @property
    def details(self) -> str:
        """The activity, to append to the label: ``on a lock`` after ``BLOCKED``."""
        if self.activity is None:
            return ""
        return f"on {self.activity}" if self.activity.is_lock else str(self.activity)

    @property
    def sleep(self) -> Activity | None:
        """The activity of a rank that only waits for a timer; None for any other."""
        is_sleep = self.activity is not None and self.activity.is_sleep
        return self.activity if is_sleep and self.label == "SLEEPING" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSnapshot:
    """A world at one instant.

    Attributes:
        at_s: When it was taken, on the monotonic clock.
        blockers: The reasons why a hang is not proven: events that may end a wait before the
            deadline, one sentence each.
        unobserved: The unreadable parts, each with reason and remedy: one sentence each.
        notes: Remarks for the reader on how and when it was taken: one sentence each.
    """

    at_s: float
    reason: SnapshotReason
    ranks: tuple[RankSnapshot, ...]
    blockers: tuple[str, ...] = ()
    unobserved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """The record of a service in a world.

    Attributes:
        verdict: Fields that it adds to the verdict, with their values.
        lines: Its lines on pages, the most important first.
        lead: The text above these lines on an HTML page.
    """

    verdict: JsonObject
    lines: tuple[str, ...] = ()
    lead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldResult:
    """The observations of one attempt of one test.

    Attributes:
        started_at: UTC time, ISO 8601.
        started_s: The same moment on the monotonic clock that the history uses.
        ended_s: When all of its processes had ended.
        history: All events, in the order of arrival.
        reason: Why the harness ended the world, in words; None if it did not.
        dumps: Stacks of the ranks, taken before they were ended.
        snapshots: The snapshots at the first trouble and at the end.
        operations: The final content of each rank's slot page.
        partings: Where the histories of each group part, for groups where they do.
        progress_s: When a rank last made observable progress, on the monotonic clock.
        detected_s: When the harness decided to end the world, if it did.
        is_quiescent: Whether a world with a failure was ended because a snapshot showed that no
            rank could go on; false if it was ended only because no rank had gone on for a time.
        leftovers: Command lines of processes that ranks had left behind.
        last_words: For ranks that died, the end of their log.
        records: The records of its services, by their names.
        native: The last collectives of each rank that C++ code has called, from torch's flight
            recorders, where these have answered.
        known: The known facts about its ranks.
    """

    spec: WorldSpec
    launch: str
    started_at: str
    started_s: float
    ended_s: float
    history: tuple[Event, ...]
    ending: Ending
    reason: str | None = None
    dumps: tuple[Dump, ...] = ()
    snapshots: tuple[WorldSnapshot, ...] = ()
    operations: tuple[Operations, ...] = ()
    partings: tuple[Parting, ...] = ()
    progress_s: float | None = None
    detected_s: float | None = None
    is_quiescent: bool = False
    leftovers: tuple[str, ...] = ()
    last_words: Mapping[int, str] = field(default_factory=dict)
    records: Mapping[str, ServiceRecord] = field(default_factory=dict)
    native: tuple[Operations, ...] = ()
    origin: Origin = ENGINE
    known: Known = ALL_KNOWN

    def with_events(self, events: Iterable[Event]) -> WorldResult:
        """Return the result with more events, sorted by time among the events of their rank."""
        history = list(self.history)
        for new in events:
            later = (i for i, e in enumerate(history) if e.rank == new.rank and e.at_s > new.at_s)
            history.insert(next(later, len(history)), new)
        return replace(self, history=tuple(history))

    def us(self, at_s: float) -> int:
        """Convert a time of the monotonic clock to microseconds from the world's start."""
        return max(0, round((at_s - self.started_s) * 1e6))

    @property
    def end(self) -> End:
        """Why it ended."""
        return end_of(self.ending)

    @property
    def go_s(self) -> float | None:
        """When all ranks were ready and the test began, on the monotonic clock."""
        return next((each.at_s for each in self.history if each.body == Released("go")), None)

    @property
    def last_snapshot(self) -> WorldSnapshot | None:
        """The last snapshot of the world."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def last_seen(self) -> Mapping[int, RankSnapshot]:
        """The last snapshot of each rank; empty if there is none."""
        return {each.rank: each for each in self.snapshots[-1].ranks} if self.snapshots else {}

    def last_seen_of(self, rank: int) -> RankSnapshot | None:
        """Return the last snapshot of one rank; None if there is none."""
        ranks = self.snapshots[-1].ranks if self.snapshots else ()
        if 0 <= rank < len(ranks) and ranks[rank].rank == rank:  # mostly they are in order
            return ranks[rank]
        return next((each for each in ranks if each.rank == rank), None)

    def last_operations(self, rank: int) -> Operations:
        """Return the final content of a rank's slot page; empty if it had none."""
        return next((each for each in self.operations if each.rank == rank), Operations(rank))

    def operations_of(self, rank: int) -> list[Operation]:
        """Return a rank's known operations: its records, and those only seen in snapshots.

        An operation that was seen open may have ended before it was recorded.
        """
        recorded = [each for page in self.operations if page.rank == rank for each in page.recent]
        seen = self.last_seen[rank].operations if rank in self.last_seen else ()
        known = {(each.name, each.since_s, each.group_key) for each in recorded}
        found = recorded + [e for e in seen if (e.name, e.since_s, e.group_key) not in known]
        places = {each.place for each in seen}
        return found + [each for each in self.native_of(rank) if each.place not in places]

    def native_of(self, rank: int) -> tuple[Operation, ...]:
        """Return the last collectives of a rank that C++ code has called, where they are known."""
        return next((each.recent for each in self.native if each.rank == rank), ())


def utc_text(at: datetime | None = None) -> str:
    """Return an instant in UTC in the format of all records, "2026-01-31T23:59:58Z".

    Args:
        at: The instant, with its time zone; now if not given.
    """
    utc = (at or datetime.now(UTC)).astimezone(UTC)
    return utc.isoformat(timespec="seconds").removesuffix("+00:00") + "Z"


def implausible(result: WorldResult) -> Iterator[str]:
    """Yield why no world can have this result, so that its file is damaged: one sentence each."""
    spec = result.spec
    if not 1 <= spec.size <= MAX_RANKS:
        yield f"spec: a world of {spec.size} ranks"
        return
    placed = [rank for each in spec.all_hosts for rank in each.ranks[: spec.size + 1]]
    if not all(each.ranks for each in spec.all_hosts) or placed != [*range(spec.size)]:
        yield f"spec: its hosts are not for {spec.size} ranks"
    for where, ranks in {
        "history": {each.rank for each in result.history},
        "dumps": {each.rank for each in result.dumps},
        "operations": {each.rank for each in result.operations},
        "last_words": set(result.last_words),
        "partings": {
            rank
            for each in result.partings
            for side in (*each.sides, *each.lasts)
            for rank in side.ranks
        },
    }.items():
        if beyond := ranks - set(range(spec.size)):
            yield f"{where}: there is no rank {beyond.pop()}: the ranks are 0 to {spec.size - 1}"
    for each in result.partings:
        if not all(side.ranks for side in (*each.sides, *each.lasts)) or not each.sides:
            yield f"partings: sides without ranks in group {each.group[0]}"
    for index, snapshot in enumerate(result.snapshots):
        if [each.rank for each in snapshot.ranks] != list(range(spec.size)):
            yield f"snapshots: {index}: it does not have each rank once, in order"
    yield from _implausible_faults(result)
    yield from (f"{where}: {value} is not a time" for where, value in _endless_numbers(result, ""))


def _implausible_faults(result: WorldResult) -> Iterator[str]:
    spec = result.spec
    for each in spec.faults:
        if isinstance(each.ranks, str) or each.problems() or size_problems(each, spec.size):
            yield f"spec: faults: {shown(each)} does not fit {spec.size} ranks"
    bodies = [each.body for each in result.history]
    effects = [each.effect for each in bodies if isinstance(each, FaultChanged) and each.effect]
    hosts = {index for each in effects for pair in each.cuts for index in pair}
    if unknown := hosts - {*range(len(spec.all_hosts))}:
        yield f"history: there is no host {unknown.pop()}: the world has {len(spec.all_hosts)}"
    of_faults = FaultChanged | HoldEnded | FaultAnswered
    indices = {each.index for each in bodies if isinstance(each, of_faults)}
    if beyond := indices - {None, *range(len(spec.faults))}:
        yield f"history: there is no fault {beyond.pop()}: the world has {len(spec.faults)}"


def _endless_numbers(value: object, where: str) -> Iterator[tuple[str, float]]:
    """Yield the floats in a value that are infinite or beyond all times, with their paths."""
    if is_dataclass(value):
        for each in fields(value):
            yield from _endless_numbers(getattr(value, each.name), f"{where}: {each.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _endless_numbers(item, f"{where}: {index}")
    elif isinstance(value, float) and not abs(value) < _MAX_S:
        yield where.removeprefix(": "), value
