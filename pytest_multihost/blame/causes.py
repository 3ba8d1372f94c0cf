"""Who is to blame: from the states of the ranks to the causes of a hang.

Only sinks of the wait-for graph can have caused a hang. If a sink is one rank, that rank's own
state names the kind. If it is several, these are in operations that can never match, or wait in a
circle. A sink that is in an operation in which nobody is missing is a matter of transport. Of
several sinks the earliest is the diagnosis, the others are notes. Nothing here names more ranks
than the evidence does: a name too many sends somebody to search where nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.blame.rank_states import RankState
from pytest_multihost.blame.wait_graph import (
    States,
    Wait,
    WaitGraph,
    broken_by,
    family,
    find_waits,
    graph_of,
    possible_waits,
)
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.verdict import Confidence, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a world hung, in ranks and operations; words are added later.

    Attributes:
        kind: What kind of hang it is.
        confidence: How sure that is.
        culprits: Whose absence makes the others wait; empty where it is nobody's alone.
        waiting: Who waits for them, directly or through others.
        cycle: Ranks that wait for each other in turn.
        operation: The operation that the first of the waiting waits in, if it is one.
        waits: All waits of the world.
        at_s: When it came to that, on the monotonic clock; None where that is not known.
        error: By which exception the culprit left the operation, where that is known.
        cut: The partition that keeps the operation from ending, if it is one.
    """

    kind: Kind
    confidence: Confidence
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    operation: Operation | None = None
    waits: tuple[Wait, ...] = ()
    at_s: float | None = None
    error: str = ""
    cut: Fault | None = None

    @property
    def concerned_waits(self) -> tuple[Wait, ...]:
        """The waits of those who wait, and of the culprits."""
        concerned = {*self.waiting, *self.culprits}
        return tuple(wait for wait in self.waits if wait.rank in concerned)


_PRECEDENCE: tuple[Kind, ...] = (
    "died",
    "raised",
    "stopped",
    "gil_held",
    "mismatch",
    "deadlock",
    "finished",
    "straggler",
    "livelock",
    "transport",
    "stuck",
    "unknown",
)
"""Of causes that are equally old, or of unknown age, the first kind is the diagnosis."""


def find_causes(states: Iterable[RankState]) -> tuple[Cause, ...]:
    """Return every cause that can be told, the diagnosis first.

    Work that a rank has launched and does not wait for makes it wait for nobody. So waits that are
    only possible count where nobody is seen to wait at all.
    """
    by_rank = {each.rank: each for each in states}
    waits = find_waits(by_rank)
    causes = _causes_of(waits, by_rank)
    if any(cause.waiting for cause in causes):
        return causes
    return _causes_of((*waits, *possible_waits(by_rank)), by_rank) or causes


def _causes_of(waits: Sequence[Wait], states: States) -> tuple[Cause, ...]:
    graph = graph_of(waits, states)
    found = [_cause_of_sink(sink, graph, states) for sink in graph.sinks()]
    causes = _merged([replace(cause, waits=graph.waits) for cause in found if cause is not None])
    known = [cause for cause in causes if cause.kind not in ("stuck", "unknown")]
    return tuple(sorted(known or causes, key=_precedence))


def _precedence(cause: Cause) -> tuple[float, int]:
    """Sort the earlier cause first, and what has a time before what only did not come.

    An event beats a bystander: who died at 3 s is the cause, not who had not come yet.
    """
    at_s = cause.at_s if cause.at_s is not None else float("inf")
    return at_s, _PRECEDENCE.index(cause.kind)


def _cause_of_sink(sink: frozenset[int], graph: WaitGraph, states: States) -> Cause | None:
    if len(sink) > 1:
        return _cause_of_circle(sink, graph, states)
    (rank,) = sink
    state, waiters = states[rank], graph.waiters(sink)
    kind = _kind_of_rank(state, waiters, graph)
    if kind is None:
        return None
    if kind == "transport":
        return _transport(state, waiters, graph, states)
    if kind == "unknown":
        return Cause(kind="unknown", confidence="unknown")
    into = [wait for wait in graph.waits if rank in wait.missing]
    left = [wait for wait in into if wait.operation and broken_by(wait.operation, state)]
    is_certain = kind in ("died", "stopped", "gil_held") or any(wait.is_sure for wait in into)
    return Cause(
        kind=kind,
        confidence="certain" if is_certain else "likely",
        culprits=(rank,),
        waiting=tuple(sorted(waiters)),
        operation=_first_operation(left or into),
        at_s=state.since_s if state.since_s is not None else _since_s(into),
    )


def _kind_of_rank(state: RankState, waiters: frozenset[int], graph: WaitGraph) -> Kind | None:
    """Return what a rank that waits for nobody has done to the others, if anything."""
    if state.condition in ("died", "stopped", "gil_held"):
        return state.condition
    if state.condition in ("finished", "raised"):
        return state.condition if waiters else None
    own = graph.waits_of(state.rank)
    if any(wait.operation is not None and wait.operation.kind != "wait" for wait in own):
        return "transport"
    if own and not waiters and len(own) < len(graph.waits):
        return "unknown"  # everybody waits for something that one of them should provide
    if waiters:
        return "livelock" if state.is_restless and not own else "straggler"
    if state.seen.label is None and not own:
        return None  # nothing was seen of it
    return "stuck"


def _transport(
    state: RankState, waiters: frozenset[int], graph: WaitGraph, states: States
) -> Cause:
    """Return the cause where all members of an operation have entered it, and nothing moves.

    A member that has left it again by an exception of its own is to blame, whatever it has done
    since.
    """
    own = graph.waits_of(state.rank)
    operation = _first_operation(own)
    # Groups are compared by their members, and how many groups of these had been made before: the
    # same on all ranks. torch's pg_id is not: each rank counts the groups that it is in.
    fellows = {
        wait.rank
        for wait in graph.waits
        if operation is not None
        and wait.operation is not None
        and wait.operation.place == operation.place
    }
    errors = {
        rank: left.error
        for rank, each in states.items()
        if operation is not None and (left := broken_by(operation, each)) is not None
    }
    return Cause(
        kind="transport",
        confidence="likely",
        culprits=tuple(sorted(errors)),
        error=next(iter(errors.values()), ""),
        waiting=tuple(sorted((waiters | fellows | {state.rank}) - set(errors))),
        operation=operation,
        at_s=_since_s(own),
    )


def _cause_of_circle(ranks: frozenset[int], graph: WaitGraph, states: States) -> Cause:
    """Return the cause where several ranks wait for each other."""
    inside = [wait for wait in graph.waits if wait.rank in ranks and wait.missing & ranks]
    concerned = ranks | graph.waiters(ranks)
    held = sorted(rank for rank in ranks if states[rank].condition in ("stopped", "gil_held"))
    if held:
        return _cause_of_held(held, concerned, graph, states)
    mismatch = next((wait for wait in inside if wait.is_mismatch), None)
    if mismatch is not None and mismatch.operation is not None:
        culprits = _minority(mismatch.operation, ranks, states)
        return Cause(
            kind="mismatch",
            confidence="certain" if mismatch.is_sure else "likely",
            culprits=culprits,
            waiting=tuple(sorted(concerned - set(culprits))),
            operation=mismatch.operation,
            at_s=_since_s(inside),
        )
    return Cause(
        kind="deadlock",
        confidence="certain" if all(wait.is_sure for wait in inside) else "likely",
        waiting=tuple(sorted(concerned)),
        cycle=graph.cycle(ranks),
        operation=_first_operation(inside),
        at_s=_since_s(inside),
    )


def _cause_of_held(
    held: Sequence[int], concerned: frozenset[int], graph: WaitGraph, states: States
) -> Cause:
    """Return the cause where ranks of a circle are stopped: the circle is not of their making.

    A rank that is stopped within a collective waits for the others and they for it; let go, it
    would go on.
    """
    first = states[held[0]]
    into = [wait for wait in graph.waits if wait.missing & set(held) and wait.rank not in held]
    return Cause(
        kind="stopped" if first.condition == "stopped" else "gil_held",
        confidence="certain",
        culprits=tuple(held),
        waiting=tuple(sorted(concerned - set(held))),
        operation=_first_operation(into),
        at_s=first.since_s,
    )


def _minority(operation: Operation, ranks: frozenset[int], states: States) -> tuple[int, ...]:
    """Return the ranks that are in something else than most at this place in the sequence.

    On a tie that is nobody: where two ranks are in an all_reduce and two in a barrier, either pair
    may be right, and to name one would be a guess.
    """
    sorts: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(ranks):
        for each in states[rank].known:
            if each.place == operation.place:
                detail = each.detail if each.scope == "harness" else ""
                sorts.setdefault((family(each.name), each.root, detail), []).append(rank)
                break
    *fewer, most = sorted(sorts.values(), key=len)
    if not fewer or len(fewer[-1]) == len(most):
        return ()
    return tuple(sorted(rank for members in fewer for rank in members))


def _first_operation(waits: Sequence[Wait]) -> Operation | None:
    operations = [wait.operation for wait in waits if wait.operation is not None]
    return min(operations, key=lambda each: each.since_s, default=None)


def _since_s(waits: Sequence[Wait]) -> float | None:
    first = _first_operation(waits)
    return first.since_s if first is not None else None


def _merged(causes: Sequence[Cause]) -> list[Cause]:
    """Put together ranks that are late for the same operation, or stuck without one."""
    merged: dict[object, Cause] = {}
    for number, cause in enumerate(causes):
        is_event = cause.kind in ("died", "raised", "mismatch", "deadlock")  # each is its own
        late_for = cause.operation and (*cause.operation.place, cause.operation.kind)
        key = (cause.kind, number if is_event else late_for)
        merged[key] = _both(merged[key], cause) if key in merged else cause
    return list(merged.values())


def _both(one: Cause, two: Cause) -> Cause:
    culprits = {*one.culprits, *two.culprits}
    return replace(
        one,
        culprits=tuple(sorted(culprits)),
        waiting=tuple(sorted({*one.waiting, *two.waiting} - culprits)),
        at_s=min([each.at_s for each in (one, two) if each.at_s is not None], default=None),
    )
