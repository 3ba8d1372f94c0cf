"""The input of a proof: snapshots of a world, and one process between two of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pytest_multihost.core.model.collectives import payload_of
from pytest_multihost.core.model.operation import (
    PROGRAM_START,
    GroupPlace,
    Operation,
    Operations,
    comparable,
    group_by_value,
    program_scope,
)
from pytest_multihost.core.model.process import NEVER, Descriptor, KernelSnapshot, Process, Thread
from pytest_multihost.core.model.rank_names import PLAIN, Names
from pytest_multihost.core.model.result import Activity
from pytest_multihost.core.proof.threads import activity_of

_BUSY = 0.02
"""Share of a processor above which a thread does more than wake up and poll."""


@dataclass(frozen=True)  # no slots: a value is kept
class Snapshot:
    """A world at one instant.

    Attributes:
        kernel: Its processes, as the kernel shows them.
        operations: The contents of its ranks' slot pages.
        severed: Pairs of addresses: frames of the first never arrive at the second, because no plan
            heals the cut.
        is_disturbed: Whether network faults are or were active. Then unacknowledged data may be
            lost, and retransmitted after any time.
        recorded: The children of ranks that record their operations, by process id.
        in_turns: Threads that only look, in turns, whether other processes of the world have ended,
            by id, with the time at which they stop to look.
    """

    kernel: KernelSnapshot
    operations: tuple[Operations, ...] = ()
    severed: frozenset[tuple[str, ...]] = frozenset()
    is_disturbed: bool = False
    recorded: frozenset[int] = frozenset()
    names: Names = PLAIN
    in_turns: Mapping[int, float] = field(default_factory=dict)

    @cached_property
    def _of_ranks(self) -> Mapping[int | None, Sequence[Operations]]:
        """The contents of slot pages by rank."""
        found: dict[int | None, list[Operations]] = {}
        for each in self.operations:
            found.setdefault(each.rank, []).append(each)
        return found

    def awaited_operations(self, rank: int | None, tid: int) -> tuple[Operation, ...]:
        """Return the open operations whose end a thread of a rank waits for."""
        found = [operation for each in self._of_ranks.get(rank, ()) for operation in each.open]
        return tuple(each for each in found if each.thread == tid and each.waited_s is not None)

    def give_ups(self) -> Iterator[str]:
        """Yield sentences on the ranks that would give up waiting, which would fail the test."""
        ranks: dict[tuple[str, int], list[int]] = {}
        for process in self.kernel.processes if self.kernel.is_deep else ():
            if process.rank is None or not process.is_rank:
                continue
            for thread in process.threads:
                found = self.awaited_operations(process.rank, thread.tid)
                found = found or self.failing_starts(process.rank, thread.tid)
                if thread.ends_s in {None, NEVER} or not found:
                    continue
                if found[-1].name == PROGRAM_START or all(map(self.must_fail, found)):
                    left_s = round(max(thread.ends_s - self.kernel.at_s, 0.0))
                    ranks.setdefault((found[-1].name, left_s), []).append(process.rank)
        for (name, left_s), found_in in ranks.items():
            yield (
                f"{name} on {self.names.of(found_in)} would have timed out after {left_s} s more,"
                " with an error that the test does not handle"
            )

    def failing_starts(self, rank: int | None, tid: int) -> tuple[Operation, ...]:
        """Return the program that a thread starts, if it can end only by failing the test.

        A rank on whose devices it runs has started no program from that line. The first start of a
        program is always recorded, so its collectives miss that rank.
        """
        starts = [
            (each, operation)
            for each in self._of_ranks.get(rank, ())
            for operation in each.open
            if operation.thread == tid and operation.name == PROGRAM_START and operation.fails_test
        ]
        entered = {each.rank: each.entered for each in self.operations} if starts else {}
        return tuple(
            operation
            for each, operation in starts
            if operation.frame is not None
            for group, ordinal, scope in each.entered
            if scope == program_scope(operation.frame.file, operation.frame.line)
            if any((group, ordinal, scope) not in entered.get(other, {}) for other in group)
        )

    def must_fail(self, operation: Operation) -> bool:
        """Return whether an operation can end only by an error, which fails the test.

        This is so for a collective that a member has not entered, as long as that member waits.
        """
        return operation.fails_test and bool(self.lacking(operation))

    def complete_operations(self) -> Iterator[Operation]:
        """Yield the awaited collectives that should end: all members have entered, and agree."""
        known = [
            each for page in self.operations for each in page.recent if each.kind == "collective"
        ]
        for at_place in group_by_value((each.place, each) for each in known).values():
            awaited = [each for each in at_place if each.is_open and each.waited_s is not None]
            complete = [each for each in awaited if each.has_members and not self.lacking(each)]
            if complete and _agree(at_place):
                yield from complete

    def lacking(self, operation: Operation) -> frozenset[int]:
        """Return the members that have not entered a collective, which cannot end without them."""
        if operation.kind != "collective" or not operation.has_members:
            return frozenset()
        place = operation.place
        if place not in self._missing:
            (key, sequence), members = place, frozenset(operation.group)
            self._missing[place] = frozenset(
                each.rank
                for each in self.operations
                if each.rank in members and each.entered.get(key, 0) < sequence
            )
        return self._missing[place]

    @cached_property
    def _missing(self) -> dict[GroupPlace, frozenset[int]]:
        """The members that have not entered a collective, by its place, where that was asked.

        All members ask, and a thousand of them ask of a thousand others.
        """
        return {}


@dataclass(frozen=True, slots=True)
class Interval:
    """One living process between two deep snapshots of its world.

    Attributes:
        was: The process in the first snapshot.
        process: The process in the second snapshot.
        deadline_s: When the world is ended in any case, on the monotonic clock.
        earlier: The process's threads in the first snapshot, by id.
    """

    was: Process
    process: Process
    before: Snapshot
    now: Snapshot
    deadline_s: float
    earlier: Mapping[int, Thread]

    @property
    def is_recorded(self) -> bool:
        """Whether all operations of its runtimes are known: of a rank, a child of one, a parent."""
        found = self.process
        return found.is_rank or found.is_parent or found.pid in self.now.recorded

    @property
    def latest_s(self) -> float:
        """How late a timer of the process still counts: a parent's counts however late it is."""
        return sys.float_info.max if self.process.is_parent else self.deadline_s

    def has_not_moved(self, thread: Thread) -> bool:
        """Whether a thread is in the same wait as before, and has not left it in between.

        Each wait that ends puts its thread on a processor, which `Thread.runs` counts. So equal
        keys mean that the thread did not run in between, not even from one short wait to the next.
        """
        last = self.earlier.get(thread.tid)
        return last is not None and last.wait_key == thread.wait_key

    def is_busy(self, thread: Thread) -> bool:
        """Whether a thread has used the processor for more than waking up now and then."""
        last = self.earlier.get(thread.tid)
        elapsed_ns = (self.now.kernel.at_s - self.before.kernel.at_s) * 1e9
        return thread.cpu_ns - (last.cpu_ns if last else 0) > _BUSY * elapsed_ns

    def times_out(self, thread: Thread) -> bool:
        """Whether a thread has not left a wait that is known to time out before the deadline."""
        return self.has_not_moved(thread) and thread.ends_by(self.deadline_s)

    def awaited_operations(self, thread: Thread) -> tuple[Operation, ...]:
        """Return the operations that a thread waits for, if they are the same as before."""

        def identity(operation: Operation) -> Operation:
            # The flight recorder's times come from another clock and are converted at each reading.
            is_converted = operation.source == "flight-recorder"
            return replace(operation, since_s=0.0, waited_s=0.0) if is_converted else operation

        if not self.is_recorded:
            return ()
        found = self.now.awaited_operations(self.process.rank, thread.tid)
        before = self.before.awaited_operations(self.process.rank, thread.tid)
        return found if list(map(identity, found)) == list(map(identity, before)) else ()

    def is_severed(self, found: Descriptor) -> bool:
        """Whether nothing that a connection's peer sends arrives.

        A network fault of the test cuts the peer's host off from this one, and no plan heals it.
        """
        return found.hosts[::-1] in self.before.severed & self.now.severed

    def activity(self, thread: Thread) -> Activity:
        """Return the wait of a thread, for messages."""
        return activity_of(thread, self.now.kernel.at_s)


def has_left_wait(rank: int, before: Snapshot, now: Snapshot) -> bool:
    """Return whether a rank's main thread has left its wait, other than to poll in an operation.

    False for a thread that had no wait before, and for an ended thread.
    """
    was, main = (
        snapshot.kernel.ranks[rank].main if rank in snapshot.kernel.ranks else None
        for snapshot in (before, now)
    )
    if was is None or main is None or was.wait_key == main.wait_key:
        return False
    awaited = before.awaited_operations(rank, main.tid)
    return not awaited or awaited != now.awaited_operations(rank, main.tid)


def _agree(at_place: Sequence[Operation]) -> bool:
    """Return whether ranks are in one operation with equal tensors, as far as these are known."""
    payloads = {*map(payload_of, at_place)} - {()}
    return len({each.name for each in at_place}) == 1 and len({*comparable(payloads)}) <= 1
