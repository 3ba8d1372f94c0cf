"""Who is it? From where the ranks stood to one diagnosis.

Only sinks of the wait-for graph can have caused a hang. One rank in a sink: its own state names
the kind. Several: they are in operations that can never match, or wait in a circle. A sink that
itself waits for nobody who is missing is a matter of transport. Of several sinks the earliest is
told, the others are notes. Nothing here names more ranks than the evidence does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.blame.wait_graph import (
    Graph,
    RankState,
    Wait,
    family,
    find_waits,
    graph_of,
    launched_work,
    left_alone,
    retried_work,
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


_ORDER: tuple[Kind, ...] = (
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
"""Of sinks that are equally old, or of unknown age, the first kind is told."""

_BY_STATE: Mapping[str, Kind] = {
    "died": "died",
    "raised": "raised",
    "stopped": "stopped",
    "gil_held": "gil_held",
    "finished": "finished",
}


def find_causes(states: Sequence[RankState]) -> tuple[Cause, ...]:
    """Return every cause that can be told, the diagnosis first.

    Work that a rank has launched and does not wait for makes it wait for nobody; but where nobody
    is seen to wait at all, somebody may be asking it again and again whether it is done, or trying
    again and again what fails at once.
    """
    waits = find_waits(states)
    causes = _causes(states, waits)
    if any(cause.waiting for cause in causes):
        return causes
    return _causes(states, (*waits, *launched_work(states), *retried_work(states))) or causes


def _causes(states: Sequence[RankState], waits: Sequence[Wait]) -> tuple[Cause, ...]:
    graph = graph_of(waits, [each.rank for each in states])
    by_rank = {each.rank: each for each in states}
    found = [_cause(sink, graph, waits, by_rank) for sink in graph.sinks()]
    causes = _merged([cause for cause in found if cause is not None])
    if any(cause.kind not in ("stuck", "unknown") for cause in causes):
        causes = [cause for cause in causes if cause.kind not in ("stuck", "unknown")]
    return tuple(sorted(causes, key=_precedence))


def _precedence(cause: Cause) -> tuple[float, int]:
    """The earlier cause first; what has a moment of its own before what only did not come."""
    at_s = cause.at_s if cause.at_s is not None else float("inf")
    return at_s, _ORDER.index(cause.kind)


def _cause(
    sink: frozenset[int],
    graph: Graph,
    waits: Sequence[Wait],
    states: Mapping[int, RankState],
) -> Cause | None:
    waiters = graph.waiters(sink)
    if len(sink) > 1:
        return _cause_of_circle(sink, graph, waits, states)
    (rank,) = sink
    state = states[rank]
    kind = _kind_of_rank(state, waiters, waits)
    if kind is None:
        return None
    into = [wait for wait in waits if rank in wait.missing]
    if kind == "transport":
        return _transport(state, waiters, waits, states)
    if kind == "unknown":
        return Cause(kind="unknown", confidence="unknown", waits=tuple(waits))
    left = [wait for wait in into if wait.operation and left_alone(wait.operation, state)]
    return Cause(
        kind=kind,
        confidence=_confidence(kind, into),
        culprits=(rank,),
        waiting=tuple(sorted(waiters)),
        operation=_first_operation(left or into),
        waits=tuple(waits),
        at_s=state.since_s if state.since_s is not None else _since_s(into),
    )


def _kind_of_rank(state: RankState, waiters: frozenset[int], waits: Sequence[Wait]) -> Kind | None:
    """Return what a rank that waits for nobody has done to the others, if anything."""
    if state.condition in ("died", "stopped", "gil_held"):
        return _BY_STATE[state.condition]
    if state.condition != "alive":
        return _BY_STATE[state.condition] if waiters else None
    own = [wait for wait in waits if wait.rank == state.rank and wait.operation is not None]
    if any(wait.operation is not None and wait.operation.kind != "wait" for wait in own):
        return "transport"
    if own and not waiters and len(own) < len(waits):
        return "unknown"  # everybody waits for something that one of them should provide
    if waiters:
        return "livelock" if state.is_restless and not own else "straggler"
    if state.label is None and not own:
        return None  # nothing was seen of it
    return "stuck"


def _confidence(kind: Kind, into: Sequence[Wait]) -> Confidence:
    if kind in ("died", "stopped", "gil_held") or any(wait.is_sure for wait in into):
        return "certain"
    return "likely"


def _transport(
    state: RankState,
    waiters: frozenset[int],
    waits: Sequence[Wait],
    states: Mapping[int, RankState],
) -> Cause:
    """All who belong to the operation have entered it, and nothing moves.

    Where one of them has left it again by an exception of its own, it is to blame, whatever it has
    done since.
    """
    own = [wait for wait in waits if wait.rank == state.rank and wait.operation is not None]
    operation = _first_operation(own)
    fellows = {
        wait.rank
        for wait in waits
        if operation is not None
        and wait.operation is not None
        and wait.operation.group_key == operation.group_key
        and wait.operation.sequence == operation.sequence
    }
    errors = {
        rank: left.error
        for rank, each in states.items()
        if operation is not None and (left := left_alone(operation, each)) is not None
    }
    return Cause(
        kind="transport",
        confidence="likely",
        culprits=tuple(sorted(errors)),
        error=next(iter(errors.values()), ""),
        waiting=tuple(sorted((waiters | fellows | {state.rank}) - set(errors))),
        operation=operation,
        waits=tuple(waits),
        at_s=_since_s(own),
    )


def _cause_of_circle(
    ranks: frozenset[int], graph: Graph, waits: Sequence[Wait], states: Mapping[int, RankState]
) -> Cause:
    inside = [wait for wait in waits if wait.rank in ranks and wait.missing & ranks]
    waiters = graph.waiters(ranks)
    clash = next((wait for wait in inside if wait.is_mismatch), None)
    stopped = sorted(rank for rank in ranks if states[rank].condition in ("stopped", "gil_held"))
    if stopped:
        return _cause_of_held(stopped, ranks, waiters, waits, states)
    if clash is not None and clash.operation is not None:
        culprits = _minority(clash.operation, ranks, states)
        return Cause(
            kind="mismatch",
            confidence="certain" if clash.is_sure else "likely",
            culprits=culprits,
            waiting=tuple(sorted((ranks | waiters) - set(culprits))),
            operation=clash.operation,
            waits=tuple(waits),
            at_s=_since_s(inside),
        )
    return Cause(
        kind="deadlock",
        confidence="certain" if all(wait.is_sure for wait in inside) else "likely",
        waiting=tuple(sorted(ranks | waiters)),
        cycle=graph.cycle(ranks),
        operation=_first_operation(inside),
        waits=tuple(waits),
        at_s=_since_s(inside),
    )


def _cause_of_held(
    held: Sequence[int],
    ranks: frozenset[int],
    waiters: frozenset[int],
    waits: Sequence[Wait],
    states: Mapping[int, RankState],
) -> Cause:
    """A rank that is held may itself be in an operation: the circle is not of its making."""
    first = states[held[0]]
    into = [wait for wait in waits if wait.missing & set(held) and wait.rank not in held]
    return Cause(
        kind=_BY_STATE[first.condition],
        confidence="certain",
        culprits=tuple(held),
        waiting=tuple(sorted((ranks | waiters) - set(held))),
        operation=_first_operation(into),
        waits=tuple(waits),
        at_s=first.since_s,
    )


def _minority(
    operation: Operation, ranks: frozenset[int], states: Mapping[int, RankState]
) -> tuple[int, ...]:
    """Return the ranks that are in something else than most at this place; nobody on a tie."""
    sorts: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(ranks):
        for each in states[rank].known:
            if each.group_key == operation.group_key and each.sequence == operation.sequence:
                sorts.setdefault(_sort_of(each), []).append(rank)
                break
    sizes = Counter({sort: len(members) for sort, members in sorts.items()})
    most = sizes.most_common(2)
    if len(most) < 2 or most[0][1] == most[1][1]:  # noqa: PLR2004 - a tie needs two
        return ()
    return tuple(
        sorted(rank for sort, members in sorts.items() if sort != most[0][0] for rank in members)
    )


def _sort_of(operation: Operation) -> tuple[object, ...]:
    detail = operation.detail if operation.scope == "harness" else ""
    return family(operation.name), operation.root, detail


def _first_operation(waits: Sequence[Wait]) -> Operation | None:
    operations = [wait.operation for wait in waits if wait.operation is not None]
    return min(operations, key=lambda each: each.since_s, default=None)


def _since_s(waits: Sequence[Wait]) -> float | None:
    first = _first_operation(waits)
    return first.since_s if first is not None else None


def _merged(causes: Sequence[Cause]) -> list[Cause]:
    """Put together ranks that are late for the same operation, or stuck without one."""
    merged: list[Cause] = []
    for cause in causes:
        place = next((i for i, each in enumerate(merged) if _is_one(each, cause)), None)
        if place is None:
            merged.append(cause)
        else:
            merged[place] = _both(merged[place], cause)
    return merged


def _is_one(one: Cause, two: Cause) -> bool:
    if one.kind != two.kind or one.kind in ("died", "raised", "mismatch", "deadlock"):
        return False
    return _identity(one.operation) == _identity(two.operation)


def _identity(operation: Operation | None) -> tuple[object, ...]:
    if operation is None:
        return ()
    return operation.group_key, operation.sequence, operation.kind


def _both(one: Cause, two: Cause) -> Cause:
    moments = [each.at_s for each in (one, two) if each.at_s is not None]
    culprits = tuple(sorted({*one.culprits, *two.culprits}))
    return Cause(
        kind=one.kind,
        confidence=one.confidence,
        culprits=culprits,
        waiting=tuple(sorted({*one.waiting, *two.waiting} - set(culprits))),
        operation=one.operation,
        waits=one.waits,
        at_s=min(moments, default=None),
        error=one.error,
    )
