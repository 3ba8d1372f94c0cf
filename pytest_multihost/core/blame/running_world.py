"""Waits and mismatches in a world that is still running, from its slot pages alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.core.blame.rank_states import states_from_slots
from pytest_multihost.core.blame.wait_graph import find_waits, graph_of
from pytest_multihost.core.model.operation import Operations
from pytest_multihost.core.model.result import Activity
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.runtime_threads import has_gloo_timeout


def waiting_ranks(operations: Sequence[Operations]) -> frozenset[int]:
    """Return the ranks with a thread that waits for the end of an operation."""
    return frozenset(rank for rank, each in states_from_slots(operations).items() if each.pending)


@dataclass(frozen=True, slots=True)
class BlockingRanks:
    """The ranks that others wait for, and that wait for no other rank themselves.

    Shown while the world runs. This is not a verdict: they may continue at any time.

    Attributes:
        activity: The state of the first rank's main thread, if known.
        pid: The process of the first rank.
    """

    ranks: tuple[int, ...]
    activity: Activity | None = None
    pid: int | None = None


def find_blocking_ranks(
    operations: Sequence[Operations],
    activities: Mapping[int, Activity | None],
    pids: Mapping[int, int],
) -> BlockingRanks | None:
    """Return the ranks that the world waits for; None if no rank waits, or all wait in a cycle."""
    states = states_from_slots(operations)
    graph = graph_of(find_waits(states), states)
    free = [sink for sink in graph.sinks() if len(sink) == 1 and graph.waiters(sink)]
    if not free:
        return None
    found = tuple(sorted(frozenset[int]().union(*free)))
    return BlockingRanks(found, activities.get(found[0]), pids.get(found[0]))


@dataclass(frozen=True, slots=True)
class Blocked:
    """A rank's wait in one operation for a rank that waits for no other.

    Attributes:
        on: The rank that it waits for, directly or through others.
        place: The place of the operation in the sequence of its group.
        since_s: When the operation began; 0 if each reading converts that from another clock.
    """

    rank: int
    on: int
    place: tuple[object, ...]
    since_s: float


def blocked_ranks(operations: Sequence[Operations]) -> Iterator[Blocked]:
    """Yield the waits for ranks that wait for no other rank."""
    states = states_from_slots(operations)
    graph = graph_of(find_waits(states), states)
    for sink in graph.sinks():
        for rank in graph.waiters(sink) if len(sink) == 1 else ():
            for wait in graph.waits_of(rank):
                if (found := wait.operation) is not None and wait.missing:
                    is_converted = found.source == "flight-recorder"
                    since_s = 0.0 if is_converted else found.since_s
                    yield Blocked(rank, min(sink), found.place, since_s)


def mismatched_ranks(operations: Sequence[Operations]) -> frozenset[int]:
    """Return the ranks of mismatches: their operations can never match each other."""
    waits = [each for each in find_waits(states_from_slots(operations)) if each.is_mismatch]
    ranks = frozenset(wait.rank for wait in waits)
    return ranks if any(wait.missing & ranks for wait in waits) else frozenset()


def has_timeout_before(ranks: Collection[int], snapshot: Snapshot, *, deadline_s: float) -> bool:
    """Return whether a timeout ends the wait of one of `ranks` before the deadline.

    The test may expect that timeout, so a mismatch that will time out is not a hang yet.

    Args:
        ranks: The ranks whose operations do not match.
        snapshot: A deep snapshot of the world.
        deadline_s: When the world is ended in any case.
    """
    noted = any(
        operation.gives_up_s <= deadline_s
        for each in snapshot.operations
        if each.rank in ranks
        for operation in each.open
    )
    return noted or any(
        has_gloo_timeout(thread) and thread.ends_by(deadline_s)
        for rank, process in snapshot.kernel.ranks.items()
        if rank in ranks
        for thread in process.threads
    )
