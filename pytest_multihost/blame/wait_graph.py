"""Who waits for whom: the wait-for graph of a world at one moment.

A rank waits for the members of its operation that have not entered it, for the other side of its
transfer, for who holds its file lock. Ranks that nobody in the graph waits past - the sinks of its
strongly connected components - are the only ones that can have caused the rest: where A waits for
B and B for C, it is C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_multihost.model.operation import FLIGHT_SCOPE, SOCKET_SCOPE, GroupKey, Operation
from pytest_multihost.model.snapshot import Activity, Label

Condition = Literal[
    "alive",  # in its test, or on its way to it or out of it
    "finished",  # it has left the test by itself
    "raised",  # by an exception of its own
    "died",  # its process ended, unplanned
    "stopped",  # somebody else stops it
    "gil_held",  # native code of it holds the interpreter
]

_FAMILIES = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_gather_object": "all_gather",
    "all_gather_base": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "all_reduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
    "assert_equal": "process_allgather",
    "sync_global_devices": "process_allgather",
}
"""Names that can meet one another (measured on gloo; in jax 0.10.2 they are one program)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """Where one rank stood.

    Attributes:
        rank: Which.
        condition: What has become of it.
        since_s: When it came to that, on the monotonic clock; None for a rank that is alive.
        pending: Operations that it waits in.
        known: All of its operations that are remembered, the pending ones among them.
        entered: For each group the sequence of the last collective that it entered.
        label: What its main thread was doing.
        activity: The same in detail.
        is_restless: Whether its main thread has been running, if only to wait again.
        locks: Ranks that hold a file lock which it waits for.
        is_lost: Whether its runtime gave up, for want of another rank.
        broke: Operations that it left by an exception which no other rank caused.
        retries: The collective that it has given up again and again for want of another rank.
    """

    rank: int
    condition: Condition = "alive"
    since_s: float | None = None
    pending: tuple[Operation, ...] = ()
    known: tuple[Operation, ...] = ()
    entered: Mapping[GroupKey, int] = field(default_factory=dict)
    label: Label | None = None
    activity: Activity | None = None
    is_restless: bool = False
    locks: tuple[int, ...] = ()
    is_lost: bool = False
    broke: tuple[Operation, ...] = ()
    retries: Operation | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """One rank waits.

    Attributes:
        rank: Who.
        operation: In which operation; None for the lock of a file, or where it is not known.
        missing: For whom; empty where all who belong to it are there, or nobody knows who it is.
        is_sure: Whether that is known, or only likely.
        is_mismatch: Whether the others are in operations at its place that can never match its own.
    """

    rank: int
    operation: Operation | None
    missing: frozenset[int]
    is_sure: bool = True
    is_mismatch: bool = False


def find_waits(states: Sequence[RankState]) -> tuple[Wait, ...]:
    """Return what every rank waits in, and for whom."""
    by_rank = {each.rank: each for each in states}
    return tuple(wait for each in states for wait in _waits_of(each, by_rank))


def _waits_of(state: RankState, others: Mapping[int, RankState]) -> Iterator[Wait]:
    if state.is_lost and not state.pending:
        yield Wait(state.rank, None, _lost_to(state.rank, others), is_sure=False)
    if state.locks:
        yield Wait(state.rank, None, frozenset(state.locks) - {state.rank})
    if state.condition in ("alive", "stopped"):
        for operation in state.pending:
            yield _wait(state.rank, operation, others)


def launched_work(states: Sequence[RankState]) -> tuple[Wait, ...]:
    """Return the waits that there are if ranks ask for the end of what they have launched."""
    by_rank = {each.rank: each for each in states}
    found = [
        _wait(each.rank, operation, by_rank)
        for each in states
        if each.condition == "alive"
        for operation in each.known
        if operation.is_open and operation.waited_s is None and operation.kind != "wait"
    ]
    return tuple(replace(wait, is_sure=False) for wait in found if wait.missing)


def retried_work(states: Sequence[RankState]) -> tuple[Wait, ...]:
    """Return the waits that there are if ranks go on trying what they have given up."""
    by_rank = {each.rank: each for each in states}
    found = [
        _wait(each.rank, each.retries, by_rank)
        for each in states
        if each.condition == "alive" and each.is_restless and not each.pending
        if each.retries is not None
    ]
    return tuple(replace(wait, is_sure=False) for wait in found if wait.missing)


def _lost_to(rank: int, others: Mapping[int, RankState]) -> frozenset[int]:
    """Return whom a rank has lost whose exception says no more than that it lost somebody."""
    gone = [each for each in others.values() if each.condition in ("died", "raised", "stopped")]
    first = min(gone, key=lambda each: each.since_s or 0.0, default=None)
    return frozenset({first.rank} - {rank}) if first is not None else frozenset()


def _wait(rank: int, operation: Operation, others: Mapping[int, RankState]) -> Wait:
    if operation.kind == "transfer":
        return _wait_for_peer(rank, operation, others)
    if operation.kind == "wait":
        return _wait_for_anybody(rank, operation, others)
    members = frozenset(operation.group) & others.keys()
    clashing = frozenset(
        each for each in members if each != rank and is_mismatch(operation, others[each])
    )
    if clashing and operation.sequence:
        return Wait(rank, operation, clashing, is_mismatch=True)
    absent = frozenset(
        each
        for each in members
        if not has_entered(operation, others[each], others[rank])
        or has_broken_off(operation, others[each])
    )
    if not operation.has_members:  # likely none of those who have left takes part, if others may
        absent = frozenset(e for e in absent if others[e].condition != "finished") or absent
    if clashing and not absent - {rank}:  # all are in something, but not in the same
        return Wait(rank, operation, clashing, is_sure=False, is_mismatch=True)
    return Wait(rank, operation, absent - {rank}, is_sure=operation.sequence > 0)


def has_entered(operation: Operation, other: RankState, mine: RankState) -> bool:
    """Whether another member has entered this collective; it may have left it again.

    Of one whose place is not known, any that the other waits in may be it, but none that is known
    not to have been entered from here.
    """
    if operation.sequence:
        return other.entered.get(operation.group_key, 0) >= operation.sequence
    return any(
        each.kind == "collective"
        and each.scope == operation.scope
        and _may_share_members(operation, each)
        and mine.entered.get(each.group_key, 0) >= each.sequence
        for each in other.pending
    )


def _may_share_members(one: Operation, two: Operation) -> bool:
    return one.group == two.group or not (one.has_members and two.has_members)


def has_broken_off(operation: Operation, other: RankState) -> bool:
    """Whether another member entered this collective, and nothing more will come from it.

    The flight recorder does not tell how its operations were left; the last one before a rank
    raised, which the others are still in, it has left by that.
    """
    if other.condition in ("alive", "finished"):
        return False
    theirs = [each for each in other.known if _is_same_collective(operation, each)]
    if other.condition == "raised":
        is_last = other.entered.get(operation.group_key) == operation.sequence
        is_untold = operation.scope == FLIGHT_SCOPE and is_last
        return is_untold or any(each.failed for each in theirs)
    return any(each.is_open for each in theirs) or operation.sequence == 0


def left_alone(operation: Operation, other: RankState) -> Operation | None:
    """Return this collective as another member has left it by an exception of its own, if so."""
    return next((each for each in other.broke if _is_same_collective(operation, each)), None)


def _is_same_collective(one: Operation, two: Operation) -> bool:
    return (
        two.kind == "collective" and one.group_key == two.group_key and one.sequence == two.sequence
    )


def is_mismatch(operation: Operation, other: RankState) -> bool:
    """Whether another member is, at this place of the group's sequence, in something else."""
    return any(
        _is_same_collective(operation, each) and not can_match(operation, each)
        for each in other.known
    )


def can_match(one: Operation, two: Operation) -> bool:
    """Whether two collectives can meet. Shapes and types are no grounds: they may differ and work.

    The harness's own must have the same name too.
    """
    if one.scope == "harness" and one.detail != two.detail:
        return False
    roots = {one.root, two.root} - {None}
    return family(one.name) == family(two.name) and len(roots) <= 1


def family(name: str) -> str:
    """Return the name under which a collective meets its like."""
    return _FAMILIES.get(name, name)


def _wait_for_peer(rank: int, operation: Operation, others: Mapping[int, RankState]) -> Wait:
    if operation.peer is None:  # a receive from anybody
        providers = frozenset(operation.group) - {rank}
        free = frozenset(each for each in providers & others.keys() if not others[each].pending)
        return Wait(rank, operation, free or providers, is_sure=False)
    peer = others.get(operation.peer)
    if peer is None or _has_done_its_part(operation, rank, peer):
        return Wait(rank, operation, frozenset())
    return Wait(rank, operation, frozenset({operation.peer}))


def _has_done_its_part(operation: Operation, rank: int, peer: RankState) -> bool:
    """Whether the peer's transfers with `rank` the other way reach up to this one.

    Each group counts its own.
    """
    theirs = [
        each.sequence
        for each in peer.known
        if each.kind == "transfer"
        and each.peer == rank
        and each.group_key == operation.group_key
        and (operation.scope or _is_send(each) != _is_send(operation))
        and each.detail.partition(" ")[0] == operation.detail.partition(" ")[0]
    ]
    return bool(operation.sequence) and max(theirs, default=0) >= operation.sequence


def _is_send(operation: Operation) -> bool:
    return "send" in operation.name


def _wait_for_anybody(rank: int, operation: Operation, others: Mapping[int, RankState]) -> Wait:
    """Who will provide it is not known: likely one of those that do not wait for it themselves."""
    fellows = {
        each.rank
        for each in others.values()
        if any(_is_same_wait(operation, theirs) for theirs in each.pending)
    }
    if operation.scope == SOCKET_SCOPE:  # or for none of them: whoever waits will not connect
        fellows |= {each.rank for each in others.values() if each.pending}
    return Wait(rank, operation, frozenset(others) - fellows - {rank}, is_sure=False)


def _is_same_wait(one: Operation, two: Operation) -> bool:
    return two.kind == "wait" and (one.name, one.detail) == (two.name, two.detail)


@dataclass(frozen=True, slots=True)
class Graph:
    """Who waits for whom, and what follows from it.

    Attributes:
        edges: For each rank, whom it waits for directly.
    """

    edges: Mapping[int, frozenset[int]]

    def reached_from(self, rank: int) -> frozenset[int]:
        """Return whom `rank` waits for, directly or through others."""
        found: set[int] = set()
        ahead = list(self.edges.get(rank, ()))
        while ahead:
            each = ahead.pop()
            if each not in found:
                found.add(each)
                ahead += self.edges.get(each, ())
        return frozenset(found)

    def sinks(self) -> tuple[frozenset[int], ...]:
        """Return the components that wait for nobody outside themselves, smallest rank first."""
        reached = {rank: self.reached_from(rank) for rank in self.edges}
        components = {
            rank: frozenset(
                {rank} | {each for each in ahead if rank in reached.get(each, frozenset())}
            )
            for rank, ahead in reached.items()
        }
        found = {component for rank, component in components.items() if reached[rank] <= component}
        return tuple(sorted(found, key=min))

    def waiters(self, sink: Iterable[int]) -> frozenset[int]:
        """Return the ranks outside `sink` that wait for one of it, directly or through others."""
        sink = frozenset(sink)
        return frozenset(
            rank for rank in self.edges if rank not in sink and self.reached_from(rank) & sink
        )

    def cycle(self, component: Iterable[int]) -> tuple[int, ...]:
        """Return a cycle through `component`: each waits for the next, the last for the first."""
        component = frozenset(component)
        path = [min(component)]
        while True:
            ahead = sorted(self.edges[path[-1]] & component)
            if not ahead:
                return ()
            step = next((each for each in ahead if each not in path), ahead[0])
            if step in path:
                return tuple(path[path.index(step) :])
            path.append(step)


def graph_of(waits: Iterable[Wait], ranks: Iterable[int]) -> Graph:
    """Return the graph that `waits` make between `ranks`."""
    edges: dict[int, frozenset[int]] = {rank: frozenset() for rank in ranks}
    for wait in waits:
        edges[wait.rank] |= wait.missing
    return Graph(edges)
