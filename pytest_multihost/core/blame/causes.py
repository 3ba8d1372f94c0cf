"""Find the causes of a hang, and its culprits, from the states of the ranks.

Only sinks of the wait-for graph can have caused a hang. If a sink is one rank, that rank's own
state gives the kind. If it is several ranks, they are in operations that can never match, or wait
in a cycle. If a sink waits in an operation that all members have entered, the cause is transport.
The earliest of several sinks is the diagnosis, the others are notes. No rank is named a culprit
without evidence: a wrong name makes users search in the wrong place.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import UNKNOWN, Cause
from pytest_multihost.core.blame.kinds import kind_of, precedence
from pytest_multihost.core.blame.left_programs import with_left
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.rpc_functions import called_functions, is_call_of
from pytest_multihost.core.blame.wait_graph import (
    States,
    Wait,
    WaitGraph,
    broken_by,
    collective_sort,
    find_waits,
    graph_of,
    possible_waits,
)
from pytest_multihost.core.model.message_sockets import may_be_for_answer
from pytest_multihost.core.model.operation import (
    BARRIER_KIND,
    JAX_SHUTDOWN,
    KEY_WAITS,
    SOCKET_SCOPE,
    K,
    Operation,
    group_by_value,
)
from pytest_multihost.core.model.verdict import Kind


def find_causes(states: Iterable[RankState]) -> tuple[Cause, ...]:
    """Return all causes, the diagnosis first.

    Possible waits count only if no rank was observed waiting, because a rank that launched work
    without waiting for it is not blocked.
    """
    by_rank = {each.rank: each for each in states}
    asking = _asking(by_rank)
    waits = _with_needed(with_left(find_waits(by_rank), by_rank), asking, by_rank)
    causes = _causes_of(waits, by_rank)
    if any(cause.kind == "mismatch" for cause in causes):
        causes = _with_absent_ranks(causes, by_rank)
    if any(cause.waiting for cause in causes):
        return causes
    if asking:
        asking = (*asking, *_of_servers(asking, waits, by_rank))
        found = _causes_of((*waits, *asking), by_rank)
        blamed = {rank for each in found for rank in each.culprits}
        idle = {rank for rank in blamed if by_rank[rank].seen.is_idle}
        # An idle rank explains the wait as well as a lost answer does, so neither is certain.
        return (UNKNOWN,) if idle and causes else found
    return _causes_of((*waits, *possible_waits(by_rank)), by_rank) or causes


def _with_absent_ranks(causes: tuple[Cause, ...], states: States) -> tuple[Cause, ...]:
    """Add the causes for ranks that have entered none of the operations that cannot match.

    Without the mismatch the others would wait for them. A rank that failed comes first, because
    that is also how the world ends.
    """
    without = _causes_of(find_waits(states, sees_clashes=False), states)
    absent = [each for each in without if kind_of(each.kind).is_absence and each.waiting]
    awaited = {rank for each in absent for rank in each.culprits}
    # A rank that has died is a cause even if no rank waits for it.
    kept = [each for each in causes if each.waiting or awaited.isdisjoint(each.culprits)]
    blamed = {rank for each in kept for rank in each.culprits}
    found = [*kept, *(each for each in absent if blamed.isdisjoint(each.culprits))]
    return tuple(sorted(found, key=lambda each: kind_of(each.kind).shown_by != "failure"))


def _of_servers(
    asking: tuple[Wait, ...], waits: tuple[Wait, ...], states: States
) -> Iterator[Wait]:
    """Yield the waits of servers for the only rank that can still come, if others wait for it.

    A rank has connected to a server, and nothing was ever sent between them. So no answer was lost:
    the server is to say something by itself, and before that it waits for another rank. If all
    others wait or are idle but one, it waits for that one.
    """
    busy = {each.rank for each in (*asking, *waits)}
    free = [
        rank
        for rank, each in states.items()
        if rank not in busy and not (each.pending or each.seen.is_idle or each.seen.serves)
    ]
    for server in sorted({rank for each in asking for rank in each.missing}):
        state = states.get(server)
        askers = [each.rank for each in asking if server in each.missing]
        if state is None or not state.seen.is_idle or state.seen.activity is None:
            continue
        if len(free) == 1 and all(states[rank].seen.sent_nothing for rank in askers):
            operation = Operation(
                name=state.seen.activity.name,
                kind="wait",
                group=tuple(states),
                sequence=0,
                scope=SOCKET_SCOPE,
                since_s=0.0,
                source="proc",
            )
            yield Wait(server, operation, frozenset(free), is_sure=False)


def _with_needed(
    waits: tuple[Wait, ...], asking: tuple[Wait, ...], states: States
) -> tuple[Wait, ...]:
    """Add the doubtful waits of ranks for which others wait.

    Such a rank is not the cause by itself, if the thing it waits for may be owed.
    """
    while asking:
        graph, needed = graph_of(waits, states), {rank for each in waits for rank in each.missing}
        more = [
            each
            for each in asking
            if each not in waits
            and each.rank in needed
            and (
                _needs_request(states[each.rank])
                or not any(each.rank in graph.reached_from(other) for other in each.missing)
            )
        ]
        if not more:
            break
        waits = (*waits, more[0])
    return waits


def _asking(states: States) -> tuple[Wait, ...]:
    """Return the waits of ranks for answers of idle ranks, and of these for requests.

    A server that waits for requests of its own client closes a circle, and waits for no rank,
    unless it cannot go on without that request.
    """
    asks = {rank: each.seen.asks for rank, each in states.items() if each.condition == "alive"}
    found = [
        Wait(rank, operation, frozenset(operation.group) - {rank}, is_sure=False)
        for rank, operation in asks.items()
        if operation is not None
    ]
    found += [
        Wait(rank, operation, frozenset(operation.group) - {rank}, is_sure=False)
        for rank, each in states.items()
        for operation in each.known
        if each.condition == "alive" and operation.is_open and may_be_for_answer(operation)
    ]
    graph = graph_of(found, states)
    return tuple(
        each
        for each in found
        if not states[each.rank].seen.is_idle
        or _needs_request(states[each.rank])
        or not any(each.rank in graph.reached_from(other) for other in each.missing)
    )


def _needs_request(state: RankState) -> bool:
    """Return whether a server can go on only with the next request of one rank."""
    return state.seen.is_idle and state.seen.needs_message


def _causes_of(waits: Sequence[Wait], states: States) -> tuple[Cause, ...]:
    graph = graph_of(waits, states)
    alike = group_by_value((_sort_of(sink, graph, states), sink) for sink in graph.sinks())
    found = [_cause_of_alike(sinks, graph, states) for sinks in alike.values()]
    told = [replace(cause, waits=graph.waits) for cause in found if cause is not None]
    causes = _without_guesses(_without_explained(_merged(_late_together(told)), states))
    known = [cause for cause in causes if kind_of(cause.kind).shown_by != "nothing"]
    of_unknown = [cause for cause in causes if cause.kind == "unknown" and cause.waiting]
    in_order = (*sorted(known, key=_precedence), *sorted(of_unknown, key=_precedence))
    return in_order or tuple(sorted(causes, key=_precedence))


def _without_guesses(causes: Sequence[Cause]) -> Sequence[Cause]:
    """Return the causes; without guesses if ranks wait for members of a group that are unknown.

    Any rank may be the missing member, or none, so a rank that only does nothing is not named, nor
    one from which others might want something.
    """
    if not any(each.kind == "unknown" and each.waiting for each in causes):
        return causes

    def is_guess(cause: Cause) -> bool:
        into = [wait for wait in cause.waits if wait.missing & {*cause.culprits}]
        operations = [wait.operation for wait in into]
        are_open = all(each is not None and each.kind == "wait" for each in operations)
        return cause.kind == "stuck" or (_only_waits_show(cause.kind) and are_open)

    return [each for each in causes if not is_guess(each)]


def _only_waits_show(kind: Kind) -> bool:
    return kind_of(kind).shown_by == "waits"


def _sort_of(sink: frozenset[int], graph: WaitGraph, states: States) -> Hashable:
    """Return a value that is equal for ranks in one collective which all members have entered."""
    state = states[min(sink)]
    operation = _first_operation(graph.waits_of(state.rank))
    if len(sink) > 1 or state.condition != "alive" or state.is_killed or operation is None:
        return sink
    return operation.place if operation.kind == "collective" and operation.sequence else sink


def _cause_of_alike(
    sinks: Sequence[frozenset[int]], graph: WaitGraph, states: States
) -> Cause | None:
    """Return the one cause of sinks of the same sort."""
    cause = _cause_of_sink(sinks[0], graph, states)
    if cause is None or len(sinks) == 1:
        return cause
    together = frozenset[int]().union(*sinks)
    waiting = {*cause.waiting, *together, *graph.waiters(together)} - {*cause.culprits}
    times_s = [_since_s(graph.waits_of(rank)) for rank in together]
    return replace(
        cause,
        waiting=tuple(sorted(waiting)),
        at_s=min((each for each in times_s if each is not None), default=None),
    )


def _precedence(cause: Cause) -> tuple[float, int, bool]:
    """Sort the earlier cause first, and causes with a time before causes without one.

    A death at 3 s takes precedence over a rank that had only not arrived yet. If causes are equally
    old, or of unknown age, the kind that `KINDS` lists first is the diagnosis. Last comes a rank
    that waits for something which another rank may provide.
    """
    at_s = cause.at_s if cause.at_s is not None else float("inf")
    return at_s, precedence(cause.kind), cause.is_owed


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
        is_of_unknown = any(map(_is_of_unknown, graph.waits_of(rank)))
        bare = Cause(kind="unknown", confidence="unknown")
        return _of_unknown_members(state, waiters, graph, states) if is_of_unknown else bare
    into = [wait for wait in graph.waits if rank in wait.missing]
    if _only_waits_show(kind) and into and all(wait.is_mismatch for wait in into):
        # It has left the collective, perhaps rightly: a broadcast lets some pass before others.
        return _mismatch(into, waiters, states)
    left = [wait for wait in into if wait.operation and broken_by(wait.operation, state)]
    is_event = kind_of(kind).is_certain_alone and not state.is_killed
    is_certain = is_event or any(wait.is_sure for wait in into)
    is_owed = _only_waits_show(kind) and bool(state.owed)
    return Cause(
        kind=kind,
        confidence="certain" if is_certain and not is_owed else "likely",
        culprits=(rank,),
        is_owed=is_owed,
        is_silent=state.is_silent,
        waiting=tuple(sorted(waiters)),
        operation=_first_operation(left or _unanswered(into, state) or into),
        at_s=state.since_s if state.since_s is not None else _since_s(into),
    )


def _unanswered(waits: Sequence[Wait], callee: RankState) -> list[Wait]:
    """Return the waits for a rank that are calls of functions which still run there.

    Other calls may be answered already; this shows only when the caller asks for the result.
    """
    runs = called_functions(callee.known)
    return [
        wait
        for wait in waits
        if wait.operation and any(is_call_of(wait.operation.name, each) for each in runs)
    ]


def _kind_of_rank(state: RankState, waiters: frozenset[int], graph: WaitGraph) -> Kind | None:
    """Return the kind of hang that a rank without waits of its own causes, if any."""
    if state.is_killed:  # as planned: it is to blame only if others wait for it
        return "died" if waiters else None
    if state.condition in ("died", "stopped", "gil_held"):
        return state.condition
    if state.condition in ("finished", "raised"):
        return state.condition if waiters else None
    own = graph.waits_of(state.rank)
    if any(map(_is_of_unknown, own)):
        return "unknown"
    if any(wait.operation is not None and wait.operation.kind != "wait" for wait in own):
        return "transport"
    if own and not waiters and len(own) < len(graph.waits):
        return "unknown"  # all wait for something that one of them should provide
    if waiters:
        return "livelock" if state.is_restless and not own else "straggler"
    asks = state.seen.asks is not None or any(
        each.is_open and may_be_for_answer(each) for each in state.known
    )
    is_idle = state.seen.is_idle or asks
    if (state.seen.label is None or is_idle) and not own:
        return None  # it was never observed, or has nothing to do
    return "stuck"


def _transport(
    state: RankState, waiters: frozenset[int], graph: WaitGraph, states: States
) -> Cause:
    """Return the cause if all members of an operation have entered it and it makes no progress.

    A member that left it by an exception of its own is the culprit, whatever it has done since.
    """
    own = graph.waits_of(state.rank)
    operation = _first_operation(own)
    # Groups are compared by their members and by how many groups with these members were made
    # before: equal on all ranks. torch's pg_id is not: each rank counts only its own groups.
    pair = {state.rank, operation.peer if operation is not None else None}
    fellows = {
        wait.rank
        for wait in graph.waits
        if operation is not None
        and wait.operation is not None
        and wait.operation.is_same_as(operation)
        and (operation.kind != "transfer" or {wait.rank, wait.operation.peer} == pair)
    }
    errors = {
        rank: left.error
        for rank, each in states.items()
        if operation is not None and (left := broken_by(operation, each)) is not None
    }
    begun, gone = _begun_and_left(operation, fellows, states)
    return Cause(
        kind="transport",
        confidence="likely",
        culprits=tuple(sorted(errors)),
        error=next(iter(errors.values()), ""),
        waiting=tuple(sorted((waiters | fellows | {state.rank}) - set(errors))),
        operation=operation,
        begun=begun,
        left=gone,
        at_s=_since_s(own),
    )


def _begun_and_left(
    operation: Operation | None, fellows: Collection[int], states: States
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks beside `fellows` that began a collective, and the ranks that left it."""
    if operation is None or operation.kind != "collective" or not operation.sequence:
        return (), ()
    entered = [
        rank
        for rank, each in sorted(states.items())
        if each.entered.get(operation.group_key, 0) >= operation.sequence and rank not in fellows
    ]
    begun = [
        rank
        for rank in entered
        if any(own.is_open and own.is_same_as(operation) for own in states[rank].known)
    ]
    return tuple(begun), tuple(rank for rank in entered if rank not in begun)


def _is_of_unknown(wait: Wait) -> bool:
    """Return whether a rank waits with members of a group that are not all known."""
    return wait.operation is not None and wait.operation.group_size is not None


def _of_unknown_members(
    state: RankState, waiters: frozenset[int], graph: WaitGraph, states: States
) -> Cause:
    """Return the cause if all known members have entered an operation, and others are unknown."""
    cause = _transport(state, waiters, graph, states)
    return cause if cause.culprits else replace(cause, kind="unknown", confidence="unknown")


def _cause_of_circle(ranks: frozenset[int], graph: WaitGraph, states: States) -> Cause:
    """Return the cause of a sink of several ranks that wait for each other."""
    inside = [wait for wait in graph.waits if wait.rank in ranks and wait.missing & ranks]
    concerned = ranks | graph.waiters(ranks)
    held = sorted(rank for rank in ranks if states[rank].condition in ("stopped", "gil_held"))
    held = [rank for rank in held if states[rank].condition == states[held[0]].condition]
    if held:  # no deadlock: if continued, such a rank would finish its collective
        into = [wait for wait in graph.waits if wait.missing & {*held} and wait.rank not in held]
        return Cause(
            kind="stopped" if states[held[0]].condition == "stopped" else "gil_held",
            confidence="certain",
            culprits=tuple(held),
            waiting=tuple(sorted(concerned - set(held))),
            operation=_first_operation(into),
            at_s=states[held[0]].since_s,
        )
    sure = [wait.is_sure or states[wait.rank].seen.needs_message for wait in inside]
    mismatch = _mismatch(inside, concerned, states) or _of_two_groups(inside, concerned, ranks)
    return mismatch or Cause(
        kind="deadlock",
        confidence="certain" if all(sure) else "likely",
        waiting=tuple(sorted(concerned)),
        cycle=graph.cycle(ranks),
        operation=_first_operation(inside),
        at_s=_since_s(inside),
    )


def _mismatch(waits: Sequence[Wait], concerned: frozenset[int], states: States) -> Cause | None:
    """Return the cause if one of some waits is in an operation that others can never match.

    Args:
        concerned: The ranks that wait, and those for which they wait.
    """
    mismatch = next((wait for wait in waits if wait.is_mismatch), None)
    if mismatch is None or mismatch.operation is None:
        return None
    culprits = _minority(mismatch.operation, states)
    return Cause(
        kind="mismatch",
        confidence="certain" if mismatch.is_sure else "likely",
        culprits=culprits,
        waiting=tuple(sorted(concerned - set(culprits))),
        operation=mismatch.operation,
        at_s=_since_s(waits),
        passed=_unlike_programs(mismatch.operation, culprits, states),
    )


def _unlike_programs(
    operation: Operation, culprits: tuple[int, ...], states: States
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the collectives of programs with one name at one place, if they differ."""
    if not operation.is_program:
        return ()
    there = [
        (rank, each)
        for rank, state in states.items()
        for each in state.known
        if each.is_same_as(operation)
    ]
    if {each.name for _, each in there} != {operation.name}:
        return ()
    sides = group_by_value((each.detail, rank) for rank, each in there)
    ordered = sorted(sides.items(), key=lambda each: (not {*each[1]} & {*culprits}, each[1]))
    return tuple((detail, tuple(sorted({*ranks}))) for detail, ranks in ordered)


def _of_two_groups(
    waits: Sequence[Wait], concerned: frozenset[int], circle: frozenset[int]
) -> Cause | None:
    """Return the cause if a minority of a circle is in an operation of another group or barrier.

    Each rank is in one collective, and all these collectives need the same ranks. So the ranks
    entered different operations next, as in a mismatch. A minority that shuts the runtime down is a
    mismatch, too, if all other ranks wait for one key, because a rank in shutdown sets no key.
    """
    by_rank = group_by_value((wait.rank, wait.operation) for wait in waits)
    sorts: dict[Hashable, list[int]] = {}
    for rank, operations in by_rank.items():
        (first, *others) = operations
        if first is None or others or not (first.has_members and circle.issubset(first.group)):
            return None
        is_key = first.name in KEY_WAITS
        is_known = bool(first.sequence) or first.scope.kind == BARRIER_KIND  # its id names it
        if not is_key and not (first.kind == "collective" and is_known):
            return None
        sorts.setdefault(first.detail if is_key else first.place, []).append(rank)
    odd = odd_ones(sorts)
    inside = [wait.operation for wait in waits if wait.operation is not None]
    if not odd or len({each.group for each in inside}) > 1:
        return None
    if any(each.name in KEY_WAITS for each in inside):
        names = {each.name for rank in odd for each in by_rank[rank] if each is not None}
        if names != {JAX_SHUTDOWN} or len(sorts) > 2:  # noqa: PLR2004 - they, and the others
            return None
    return Cause(
        kind="mismatch",
        confidence="certain" if all(wait.is_sure for wait in waits) else "likely",
        culprits=odd,
        waiting=tuple(sorted(concerned - {*odd})),
        operation=_first_operation([wait for wait in waits if wait.rank not in odd]),
        at_s=_since_s(waits),
    )


def _minority(operation: Operation, states: States) -> tuple[int, ...]:
    """Return the ranks whose operation at this place in the sequence differs from the majority's.

    Ranks that have left it also count, because a broadcast lets some pass before others enter.

    On a tie the result is empty: if two ranks are in an all_reduce and two in a barrier, either
    pair may be right, and to name one would be a guess.
    """
    sorts: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(states):
        for each in states[rank].known:
            if each.is_same_as(operation):
                sorts.setdefault(collective_sort(each), []).append(rank)
                break
    return odd_ones(sorts)


def odd_ones(sorts: Mapping[K, Sequence[int]]) -> tuple[int, ...]:
    """Return the ranks of all sorts except the most frequent one; none on a tie."""
    *fewer, most = sorted(sorts.values(), key=len)
    if not fewer or len(fewer[-1]) == len(most):
        return ()
    return tuple(sorted(rank for members in fewer for rank in members))


def with_all_culprits(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Return the causes, with all that have culprits put together in front."""
    blaming = [each for each in causes if each.culprits]
    others = [each for each in causes if not each.culprits]
    if len(blaming) < 2:  # noqa: PLR2004 - there is nothing to put together
        return (*blaming, *others)
    culprits = {rank for each in blaming for rank in each.culprits}
    waiting = {rank for each in blaming for rank in each.waiting}
    is_certain = all(each.confidence == "certain" for each in blaming)
    together = replace(
        blaming[0],
        confidence="certain" if is_certain else "likely",
        culprits=tuple(sorted(culprits)),
        waiting=tuple(sorted(waiting - culprits)),
        parts=tuple(blaming),
    )
    return (together, *others)


def _first_operation(waits: Sequence[Wait]) -> Operation | None:
    operations = [wait.operation for wait in waits if wait.operation is not None]
    return min(operations, key=lambda each: each.since_s, default=None)


def _since_s(waits: Sequence[Wait]) -> float | None:
    first = _first_operation(waits)
    return first.since_s if first is not None else None


def _late_together(causes: Sequence[Cause]) -> Sequence[Cause]:
    """Return the causes; late ranks that one collective lacks all get it as their operation.

    Another rank may have begun to wait for one of them earlier. Example: ranks 1 and 2 are late for
    an all_reduce, and rank 0 waits in a receive from rank 1 since even earlier.
    """
    late = {rank for each in causes if each.kind == "straggler" for rank in each.culprits}
    waits = causes[0].waits if causes else ()
    lacking = sorted(
        (wait.operation.since_s, wait.rank, number)
        for number, wait in enumerate(waits)
        if wait.operation is not None and wait.operation.kind == "collective"
        if len(wait.missing & late) > 1
    )
    found = []
    for cause in causes:
        of_these = [n for *_, n in lacking if waits[n].missing.issuperset(cause.culprits)]
        is_one = cause.kind == "straggler" and bool(of_these)
        found.append(replace(cause, operation=waits[of_these[0]].operation) if is_one else cause)
    return found


def _merged(causes: Sequence[Cause]) -> list[Cause]:
    """Merge the causes of ranks that are late for the same operation, or stuck without one."""
    merged: dict[object, Cause] = {}
    for number, cause in enumerate(causes):
        late_for = cause.operation and (*cause.operation.place, cause.operation.kind)
        key = (
            cause.kind,
            cause.is_silent,
            cause.is_owed,
            number if kind_of(cause.kind).is_one_event else late_for,
        )
        other = merged.get(key, cause)
        culprits = {*other.culprits, *cause.culprits}
        times_s = [each.at_s for each in (other, cause) if each.at_s is not None]
        merged[key] = replace(
            other,
            culprits=tuple(sorted(culprits)),
            waiting=tuple(sorted({*other.waiting, *cause.waiting} - culprits)),
            at_s=min(times_s, default=None),
        )
    return list(merged.values())


def _without_explained(causes: Sequence[Cause], states: States) -> list[Cause]:
    """Return the causes without silent ranks that may wait themselves, for a culprit that is known.

    Example: of a pipeline the second rank is silent, the first waits for it, and the third, which
    has received from the second before, is late.
    """
    known = [each for each in causes if each.culprits and not each.is_silent]
    found = {id(each): each for each in causes}
    for cause in causes if known else ():
        near = next((e for e in known if _exchange(cause.culprits, e.culprits, states)), None)
        if cause.is_silent and near is not None:
            del found[id(cause)]
            waiting = {*found[id(near)].waiting, *cause.waiting} - {*near.culprits}
            found[id(near)] = replace(found[id(near)], waiting=tuple(sorted(waiting)))
    return list(found.values())


def _exchange(silent: Sequence[int], others: Sequence[int], states: States) -> bool:
    """Return whether transfers of the others with each of the silent ranks are known."""
    peers = {e.peer for rank in others for e in states[rank].known if e.kind == "transfer"}
    return peers.issuperset(silent)
