"""The wait-for graph of a world at one instant: which rank waits for which.

A rank waits for the members of its operation that have not entered it, for the peer of its
transfer, or for the holder of its file lock. Only the sinks of the condensation - the strongly
connected components without an edge to another component - can have caused the rest. Example: ranks
2 and 3 wait in an all_reduce for rank 1, which waits in a recv for rank 0, which reads a file. Rank
1 blocks others, but only because it waits itself; rank 0 is the only sink.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.rpc_functions import called_functions
from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.collectives import family
from pytest_multihost.core.model.message_sockets import may_be_for_answer
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    PROGRAM_PREFIX,
    READY_SCOPE,
    SOCKET_SCOPE,
    STORE_KIND,
    GroupPlace,
    Operation,
    Scope,
    comparable,
    group_by_value,
)

States = Mapping[int, RankState]
"""The states of all ranks, by rank."""

_NO_RANKS = frozenset[int]()

_UNNAMED = frozenset({"work.wait"})
"""Operations that may stand for any collective: waits for a collective that was begun earlier."""

_ALL_KNOWN = 1000
"""If a rank has more known operations than this, earlier ones may be forgotten."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One rank's wait.

    Attributes:
        operation: The operation that it waits in; None for a file lock, or if unknown.
        missing: The ranks that it waits for; empty if all members have entered, or if unknown.
        is_sure: Whether `missing` is certain, or only likely.
        is_mismatch: Whether the missing ranks are in operations at the same place in the group's
            sequence that can never match this one.
        has_left: Whether the missing ranks have come to the end of this operation; see
            `left_programs`.
    """

    rank: int
    operation: Operation | None
    missing: frozenset[int]
    is_sure: bool = True
    is_mismatch: bool = False
    has_left: bool = False


@dataclass(frozen=True, slots=True)
class _WaitFacts:
    """The states of all ranks, with the facts shared by all waits in one collective.

    Attributes:
        absent: By collective, the members that have not entered it, or no longer take part, and
            whether that is certain.
        clashing: By collective and kind of match, the ranks that cannot match it.
        there: By place, the ranks' collectives; empty until it is needed.
        providers: For each thing that ranks wait for, the ranks that can provide it.
        sees_clashes: Whether ranks in operations that cannot match wait for each other. If not,
            they wait only for the ranks that have entered none.
    """

    states: States
    sees_clashes: bool = True
    absent: dict[tuple[object, ...], tuple[frozenset[int], bool]] = field(default_factory=dict)
    clashing: dict[tuple[object, ...], frozenset[int]] = field(default_factory=dict)
    there: dict[GroupPlace, list[tuple[int, Operation]]] = field(default_factory=dict)
    providers: dict[tuple[str, str, Scope], frozenset[int]] = field(default_factory=dict)

    def collectives_at(self, place: GroupPlace) -> Sequence[tuple[int, Operation]]:
        """Return the ranks' collectives at one place of a group."""
        if not self.there:
            for state in self.states.values():
                for each in state.known:
                    if each.kind == "collective":
                        self.there.setdefault(each.place, []).append((state.rank, each))
        return self.there.get(place, ())

    def differ_at(self, place: GroupPlace) -> bool:
        """Return whether the ranks' payloads of a collective do not match."""
        payloads = {each.payload for _, each in self.collectives_at(place)} - {()}
        return len({*comparable(payloads)}) > 1


def find_waits(states: States, *, sees_clashes: bool = True) -> tuple[Wait, ...]:
    """Return the waits of all ranks.

    Args:
        sees_clashes: See `_WaitFacts`.
    """
    world = _WaitFacts(states, sees_clashes)
    waits = tuple(wait for each in states.values() for wait in _waits_of(each, world))
    # Without this wait another wait may be the first.
    while (fewer := _without_callers(waits, states)) != waits:
        waits = fewer
    return waits


def _without_callers(waits: tuple[Wait, ...], states: States) -> tuple[Wait, ...]:
    """Remove waits of ranks for their own callers while they run the called function.

    The function runs in a thread of its own, so the waits of its rank's other threads, such as
    rpc.shutdown, do not block it. Unless the function itself waits in an operation, the caller
    waits for the function.
    """
    called = {
        each.rank: {e.thread for e in called_functions(each.known)} for each in states.values()
    }
    waiting = {
        each.rank: {e.thread for e in each.known if e.is_open and e.waited_s is not None}
        for each in states.values()
    }

    def is_call(wait: Wait) -> bool:
        operation = wait.operation
        if operation is None or operation.scope.kind != "rpc" or operation.peer is None:
            return False
        return bool(called.get(operation.peer))

    def is_beside(wait: Wait) -> bool:
        """Return whether a wait does not block the functions that its rank runs for others."""
        threads = called[wait.rank]
        is_running = bool(threads - waiting[wait.rank])
        thread = wait.operation.thread if wait.operation is not None else None
        return is_running or (bool(threads) and thread not in threads)

    calls = [wait for wait in waits if is_call(wait)]
    if not calls:
        return waits
    graph = graph_of(waits, states)
    without = graph_of([wait for wait in waits if wait not in calls], states)
    found = []
    for wait in waits:
        callers = {
            each
            for each in wait.missing
            if is_beside(wait)
            and wait.rank in graph.reached_from(each)
            and wait.rank not in without.reached_from(each)
        }
        is_called = any(each.operation and each.operation.peer == wait.rank for each in calls)
        if wait.missing - callers or not (is_called and is_beside(wait)):
            found.append(replace(wait, missing=wait.missing - callers))
    return tuple(found)


def _waits_of(state: RankState, world: _WaitFacts) -> Iterator[Wait]:
    states = world.states
    if state.is_lost and not state.pending:  # its exception does not say which rank was lost
        lost = [each for each in states.values() if each.condition in ("died", "raised", "stopped")]
        first = min(lost, key=lambda each: each.since_s or 0.0, default=state)
        yield Wait(state.rank, None, frozenset({first.rank} - {state.rank}), is_sure=False)
    if state.seen.lock_holders:
        yield from _waits_for_lock(state, states)
    if state.condition in ("alive", "stopped"):
        for operation in state.pending:
            yield _wait(state.rank, operation, world)


def _waits_for_lock(state: RankState, states: States) -> Iterator[Wait]:
    """Yield the waits of a rank for the holders of a file lock.

    A lock that only a child of a rank holds is free when the child ends, whatever its rank waits
    for. The wait is one for the rank if the child is in the operation that the rank waits in, and
    perhaps if the rank is in no wait.
    """
    seen = state.seen
    of_children = {rank for rank, child in seen.lock_children if not _works(child, states[rank])}
    sure = frozenset(seen.lock_holders) - of_children - {state.rank}
    yield Wait(state.rank, None, sure, is_sure=not seen.tries_lock)
    idle = {e for e in of_children if not (states[e].pending or states[e].seen.lock_holders)}
    if idle - {state.rank}:
        yield Wait(state.rank, None, frozenset(idle - {state.rank}), is_sure=False)


def _works(child: Child, state: RankState) -> bool:
    """Return whether the child of a rank waits in an operation of its rank."""
    return any(each.child is not None and each.child.pid == child.pid for each in state.pending)


def possible_waits(states: States) -> tuple[Wait, ...]:
    """Return waits that no snapshot shows, but that are possible between two snapshots.

    Ranks may poll for the end of work that they have launched, or retry a collective that fails at
    once because another rank is missing. If a rank failed, ranks that only sleep repeatedly are
    taken to poll for its result: a file, a key. If a rank has not become ready, as its role says,
    they are taken to try to connect to it.
    """
    world = _WaitFacts(states)
    alive = [each for each in states.values() if each.condition == "alive"]
    launched = [
        _wait(each.rank, operation, world)
        for each in alive
        for operation in each.known
        if operation.is_open and operation.waited_s is None and operation.kind != "wait"
        if not may_be_for_answer(operation)
    ]
    retried = [
        _wait(each.rank, each.retries, world)
        for each in alive
        if each.is_restless and not each.pending and each.retries is not None
    ]
    # A rank killed as planned is meant to be missing. It counts only if all living ranks poll.
    is_alone = all(each.polls for each in alive)
    failed = [
        each
        for each in states.values()
        if each.condition in ("died", "raised") and (is_alone or not each.is_killed)
    ]
    first = min(failed, key=lambda each: each.since_s or 0.0, default=None)
    polling = [
        Wait(each.rank, None, frozenset({first.rank}))
        for each in alive
        if each.polls and not each.pending and first is not None
    ]
    found = (*launched, *retried, *polling, *_trying_to_connect(alive))
    return tuple(replace(each, is_sure=False) for each in found if each.missing)


def _trying_to_connect(alive: Sequence[RankState]) -> Iterator[Wait]:
    """Yield the waits of polling ranks for a rank that has not become ready."""
    for unready in (each for each in alive if each.unready):
        for each in alive:
            if each.polls and not (each.pending or each.unready):
                pair = tuple(sorted((each.rank, unready.rank)))
                operation = Operation(
                    name="attempts to connect",
                    kind="transfer",
                    group=pair,
                    scope=READY_SCOPE,
                    sequence=0,
                    peer=unready.rank,
                    detail=unready.unready,
                    since_s=0.0,
                    source="proc",
                )
                yield Wait(each.rank, operation, frozenset({unready.rank}))


def _wait(rank: int, operation: Operation, world: _WaitFacts) -> Wait:
    is_for_nobody = operation.group_size is not None and operation.peer is None
    if is_for_nobody and operation.kind != "collective":
        return Wait(rank, operation, frozenset(), is_sure=False)  # perhaps for no rank at all
    if operation.kind == "transfer":
        return _wait_in_transfer(rank, operation, world.states)
    if operation.kind == "wait":
        return _wait_for_any_provider(rank, operation, world)
    return _wait_in_collective(rank, operation, world)


def _wait_in_collective(rank: int, operation: Operation, world: _WaitFacts) -> Wait:
    mismatched = _without(_clashing(operation, world), rank) if world.sees_clashes else _NO_RANKS
    if mismatched and operation.sequence:
        return Wait(rank, operation, mismatched, is_mismatch=True)
    # Without a number, who has entered it depends on the rank that waits. A rank that is stopped
    # is itself absent for the others.
    is_own = not operation.sequence or world.states[rank].condition != "alive"
    asks = rank if is_own else None
    key = (operation.place, operation.has_members, asks)
    if key not in world.absent:
        world.absent[key] = _absent(rank, operation, world.states)
    everyone, is_told = world.absent[key]
    absent = _without(everyone, rank)
    if not is_told and world.differ_at(operation.place):
        absent = frozenset()  # that explains the wait better than a rank of which nothing is known
    if mismatched and not absent:  # all have entered, but operations that do not match
        return Wait(rank, operation, mismatched, is_sure=False, is_mismatch=True)
    return Wait(rank, operation, absent, is_sure=operation.sequence > 0 and is_told)


def _without(ranks: frozenset[int], rank: int) -> frozenset[int]:
    return ranks - {rank} if rank in ranks else ranks


def _clashing(operation: Operation, world: _WaitFacts) -> frozenset[int]:
    """Return the ranks that are, or were, in a collective at this place that cannot match it."""
    key = (operation.place, *collective_sort(operation))
    if key not in world.clashing:
        world.clashing[key] = frozenset(
            other
            for other, each in world.collectives_at(operation.place)
            if not _can_match(operation, each)
        ).intersection(operation.group)
    return world.clashing[key]


def _absent(rank: int, operation: Operation, states: States) -> tuple[frozenset[int], bool]:
    """Return the members that are missing from a collective, and whether that is known.

    A rank that may have entered it without a record explains the wait only if no other rank does,
    and a rank that waits itself explains it better than one without a wait.
    """
    absent = frozenset(
        each
        for each in states.keys() & frozenset(operation.group)
        if not _has_entered(operation, states[each], states[rank])
        or _has_broken_off(operation, states[each])
    )
    if not operation.has_members:  # finished ranks count as absent only if no others are
        absent = frozenset(e for e in absent if states[e].condition != "finished") or absent
    key = operation.group_key
    told = frozenset(each for each in absent - {rank} if states[each].has_recorded(key))
    if told or not absent - {rank}:
        return told, True
    blocked = frozenset(each for each in absent if states[each].pending)
    return blocked - {rank} or absent, False


def _has_entered(operation: Operation, other: RankState, own: RankState) -> bool:
    """Return whether another member has entered this collective; it may have left it again.

    If the sequence is unknown, any collective that the other rank waits in counts, except a
    collective that this rank is known not to have entered.
    """
    if operation.sequence:
        return other.entered.get(operation.group_key, 0) >= operation.sequence
    return any(
        each.kind == "collective"
        and each.scope == operation.scope
        and (each.group == operation.group or not (each.has_members and operation.has_members))
        and own.entered.get(each.group_key, 0) >= each.sequence
        and not _are_two(operation, each)
        for each in other.pending
    )


def _are_two(one: Operation, two: Operation) -> bool:
    """Return whether two collectives, known by frames alone, are certainly of different groups.

    They are if one is of all ranks and the other is not known to be, and they can never match; or
    if one function has their groups in different variables.
    """
    if {one.source, two.source} != {"python-frames"}:
        return False
    if one.has_members != two.has_members:
        return not _can_match(one, two) and _UNNAMED.isdisjoint((one.name, two.name))
    functions = {(each.frame.file, each.frame.function) for each in (one, two) if each.frame}
    is_told = bool(one.detail and two.detail) and len(functions) == 1 and one.name == two.name
    return is_told and one.detail != two.detail


def _has_broken_off(operation: Operation, other: RankState) -> bool:
    """Return whether another member entered this collective and no longer takes part in it.

    The flight recorder does not say how an operation was left. If a rank raised, it left its last
    operation, which the others are still in, by that exception.
    """
    if other.condition in ("alive", "finished"):
        return False
    theirs = [each for each in other.known if _is_same_collective(operation, each)]
    if other.condition == "raised":
        is_last = other.entered.get(operation.group_key) == operation.sequence
        is_untold = operation.scope == FLIGHT_SCOPE and is_last
        return is_untold or any(each.failed for each in theirs)
    return any(each.is_open for each in theirs) or operation.sequence == 0


def broken_by(operation: Operation, other: RankState) -> Operation | None:
    """Return this collective as `other` recorded it, if `other` left it by its own exception."""
    return next((each for each in other.broke if _is_same_collective(operation, each)), None)


def with_clashes(states: Iterable[RankState]) -> tuple[RankState, ...]:
    """Return the states, with operations of other threads pending if these can never end.

    While the main thread works, an operation of another thread may still end. It cannot if another
    rank waits at the same place of the group in a collective that can never match.
    """
    found = tuple(states)
    waited = group_by_value(
        (each.place, (state.rank, each))
        for state in found
        if state.condition == "alive"
        for each in state.known
        if each.kind == "collective" and each.sequence and each.is_open
        if each.waited_s is not None
    )
    clashing: dict[int, list[Operation]] = {}
    for there in waited.values():
        alike = group_by_value((collective_sort(each), (rank, each)) for rank, each in there)
        sorts = [({rank for rank, _ in each}, each[0][1]) for each in alike.values()]
        for rank, each in there if len(sorts) > 1 else ():
            if any(ranks != {rank} and not _can_match(each, their) for ranks, their in sorts):
                clashing.setdefault(rank, []).append(each)
    return tuple(
        replace(state, pending=tuple(dict.fromkeys((*state.pending, *clashing[state.rank]))))
        if state.rank in clashing
        else state
        for state in found
    )


def _is_same_collective(one: Operation, two: Operation) -> bool:
    return two.kind == "collective" and two.is_same_as(one)


def collective_sort(operation: Operation) -> tuple[object, ...]:
    """Return the key by which a collective can match another one at its place."""
    if operation.is_program:
        return PROGRAM_PREFIX, None, operation.detail
    detail = operation.detail if operation.scope.kind == "harness" else ""
    return family(operation.name), operation.root, detail


def _can_match(one: Operation, two: Operation) -> bool:
    """Return whether two collectives can match.

    Shapes and types are ignored: collectives may work although these differ. The harness's own
    collectives must also have the same detail. Compiled programs match if their collectives do,
    whatever the functions are called.
    """
    if one.is_program and two.is_program:
        return one.detail == two.detail
    if one.scope.kind == "harness" and one.detail != two.detail:
        return False
    if one.scope.kind == "creation":
        return True  # some connect to the store of a group, while others already build it
    roots = {one.root, two.root} - {None}
    return family(one.name) == family(two.name) and len(roots) <= 1


def _wait_in_transfer(rank: int, operation: Operation, states: States) -> Wait:
    if operation.peer is None:  # a receive from any rank
        providers = frozenset(operation.group) - {rank}
        free = frozenset(each for each in providers & states.keys() if not states[each].pending)
        return Wait(rank, operation, free or providers, is_sure=False)
    peer = states.get(operation.peer)
    # Transfers are counted by group, direction and tag.
    done = [
        each.sequence
        for each in (peer.known if peer is not None else ())
        if each.kind == "transfer"
        and each.peer == rank
        and (each.group_key, each.tag) == (operation.group_key, operation.tag)
        and (operation.scope.kind or ("send" in each.name) != ("send" in operation.name))
    ]
    has_done_its_part = bool(operation.sequence) and max(done, default=0) >= operation.sequence
    is_needed = peer is not None and not (
        has_done_its_part and not _is_taken(rank, operation, states)
    )
    is_told = peer is None or peer.has_recorded(operation.group_key, rank)
    return Wait(rank, operation, frozenset({operation.peer} if is_needed else ()), is_sure=is_told)


def remembers_all(state: RankState) -> bool:
    """Return whether all operations of a rank are known, and none is forgotten."""
    return len(state.known) <= _ALL_KNOWN


def _is_taken(rank: int, receive: Operation, states: States) -> bool:
    """Return whether receives from any rank have taken the messages of a receive's peer.

    Such a receive takes the message that arrives first. It certainly took the peer's only if the
    other ranks sent too few; otherwise it is unknown whose message was taken. A message that
    another rank still waits to send was not taken.
    """
    own = states[rank].known
    if "recv" not in receive.name or not all(map(remembers_all, states.values())):
        return False

    def count(operations: Iterable[Operation], name: str, peer: int | None) -> int:
        return sum(
            name in each.name
            and each.peer == peer
            and not each.failed
            and (each.group_key, each.tag) == (receive.group_key, receive.tag)
            for each in operations
            if each.kind == "transfer"
        )

    ended = [each for each in own if not each.is_open]
    left = {
        each.rank: count(
            (e for e in each.known if each.rank == receive.peer or e not in each.pending),
            "send",
            rank,
        )
        - count(ended, "recv", each.rank)
        for each in states.values()
    }
    by_others = sum(max(0, left[each]) for each in left if each != receive.peer)
    taken = max(0, count(ended, "recv", None) - by_others)
    return receive.peer is not None and taken > 0 and left[receive.peer] <= taken


def _wait_for_any_provider(rank: int, operation: Operation, world: _WaitFacts) -> Wait:
    """Return a wait for an unknown rank: likely a rank that does not wait for the same thing.

    A rank that waits for a connection waits for none of the waiting ranks, because they will not
    connect.
    """
    key = (operation.name, operation.detail, operation.scope)
    if key not in world.providers:
        world.providers[key] = _providers(operation, world.states)
    return Wait(rank, operation, _without(world.providers[key], rank), is_sure=False)


def _providers(operation: Operation, states: States) -> frozenset[int]:
    fellows = {
        each.rank
        for each in states.values()
        if any(_is_same_wait(operation, theirs) for theirs in each.pending)
    }
    if operation.scope == SOCKET_SCOPE:
        fellows |= {each.rank for each in states.values() if each.pending}
    providers = frozenset(states) - fellows
    conditions = {each: states[each].condition for each in providers}
    if {"raised", "died"} & set(conditions.values()):
        # One of these is likelier: a finished rank has done all that it had to.
        providers = frozenset(each for each in providers if conditions[each] != "finished")
    if operation.scope.kind != STORE_KIND:
        return providers
    users = frozenset(each for each in providers if uses_store(operation.scope, states[each]))
    # Another rank may still come to the store: not a waiting rank, or one gone.
    return users or frozenset(
        each for each in providers if not states[each].pending and conditions[each] != "finished"
    )


def _is_same_wait(one: Operation, two: Operation) -> bool:
    """Return whether two ranks wait for the same thing, which both can only get from another."""
    of_stores = STORE_KIND in (one.scope.kind, two.scope.kind)
    is_elsewhere = of_stores and one.scope != two.scope
    same = ("wait", one.name, one.detail) == (two.kind, two.name, two.detail)
    return same and not is_elsewhere


def uses_store(store: Scope, state: RankState) -> bool:
    """Return whether a rank has opened the store with a scope, read from it or written to it."""
    return any(scope == store for _, _, scope in state.entered)


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The wait-for graph of ranks.

    Attributes:
        edges: For each rank, the ranks that it waits for directly.
        ahead: The same graph as `edges`, with a node for each set of ranks: a rank that waits for
            the set leads to that node, which leads to its ranks. Nodes of sets are negative. Half
            of the ranks may wait for the other half.
        back: `ahead` in the opposite direction.
    """

    waits: tuple[Wait, ...]
    edges: Mapping[int, frozenset[int]]
    of_ranks: Mapping[int, Sequence[Wait]]
    ahead: Mapping[int, Collection[int]]
    back: Mapping[int, Collection[int]]

    def reached_from(self, rank: int) -> frozenset[int]:
        """Return the ranks that `rank` waits for, directly or through others."""
        return _reached(self.edges.get(rank, ()), self.ahead)

    def sinks(self) -> tuple[frozenset[int], ...]:
        """Return the components that wait for no rank outside themselves, smallest rank first."""
        found = [
            component
            for nodes in _components(self.ahead)
            if (component := frozenset(each for each in nodes if each >= 0))
            if all(ahead <= component for ahead in {self.edges[each] for each in component})
        ]
        return tuple(sorted(found, key=min))

    def waiters(self, sink: frozenset[int]) -> frozenset[int]:
        """Return the ranks outside `sink` that wait for it, directly or through others."""
        return _reached(sink, self.back) - sink

    def waits_of(self, rank: int) -> list[Wait]:
        """Return the waits of a rank in operations."""
        return [wait for wait in self.of_ranks.get(rank, ()) if wait.operation is not None]

    def cycle(self, component: frozenset[int]) -> tuple[int, ...]:
        """Return a cycle through `component`: each waits for the next, the last for the first."""
        path = [min(component)]
        while ahead := sorted(self.edges[path[-1]] & component):
            step = next((each for each in ahead if each not in path), ahead[0])
            if step in path:
                return tuple(path[path.index(step) :])
            path.append(step)
        return ()


def graph_of(waits: Sequence[Wait], ranks: Iterable[int]) -> WaitGraph:
    """Return the graph that `waits` make between `ranks`."""
    edges: dict[int, frozenset[int]] = {rank: frozenset() for rank in ranks}
    for wait in waits:
        edges[wait.rank] = edges[wait.rank] | wait.missing if edges[wait.rank] else wait.missing
    nodes = {each: -1 - number for number, each in enumerate(dict.fromkeys(edges.values()))}
    ahead: dict[int, Collection[int]] = {rank: (nodes[each],) for rank, each in edges.items()}
    ahead.update((node, each) for each, node in nodes.items())
    back = group_by_value((each, node) for node, found in ahead.items() for each in found)
    of_ranks = group_by_value((wait.rank, wait) for wait in waits)
    return WaitGraph(tuple(waits), edges, of_ranks, ahead, back)


def _reached(start: Iterable[int], edges: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """Return the ranks to which edges lead from `start`, `start` included."""
    found: set[int] = set()
    ahead = [*start]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += edges.get(each, ())
    return frozenset(each for each in found if each >= 0)


def _components(edges: Mapping[int, Collection[int]]) -> Iterator[frozenset[int]]:
    """Yield the strongly connected components of a graph (Tarjan's algorithm)."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_ranks: list[int] = []
    done: set[int] = set()
    for start in edges:
        path = [] if start in number else [(start, iter(edges[start]))]
        while path:
            rank, ahead = path[-1]
            if rank not in number:
                number[rank] = lowest[rank] = len(number)
                open_ranks.append(rank)
            step = next((e for e in ahead if e in edges and e not in done), None)
            if step is not None and step not in number:
                path.append((step, iter(edges[step])))
            elif step is not None:
                lowest[rank] = min(lowest[rank], number[step])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[rank])
                if lowest[rank] == number[rank]:
                    component: set[int] = set()
                    while rank not in component:
                        component.add(open_ranks.pop())
                    done |= component
                    yield frozenset(component)
