"""Hangs that network faults explain: which hosts were cut off from which.

Nothing arrives through a cut, so a rank that waits for data from the other side is not kept waiting
by another rank. A rank that has not entered what the others wait in is late all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_multihost.core.blame.causes import Cause
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States, Wait
from pytest_multihost.core.model.event import Event, FaultChanged
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import rank_set
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import Pair, WorldSpec, cuts_of
from pytest_multihost.core.model.verdict import Evidence

_EXPLAINED_BY_CUT = frozenset({"transport", "deadlock", "unknown", "stuck"})
"""Kinds of hangs for which no rank is to blame if a cut explains them."""


def severed(spec: WorldSpec, events: Iterable[Event], at_s: float) -> frozenset[tuple[str, str]]:
    """Return pairs of addresses: frames of the first never arrive at the second from `at_s` on.

    A cut that heals by itself does not count: waits across it end then.

    Args:
        spec: The world.
        events: Its history, or the faults in it that are not over.
        at_s: The time, on the monotonic clock.
    """
    hosts = spec.all_hosts
    return frozenset(
        (hosts[sender].address, hosts[to].address)
        for _, begun in _in_force(spec, events, at_s)
        if begun.fault == "partition" and begun.until_s is None
        for sender, to in cuts_of(spec.faults[begun.index], spec)
    )


def _in_force(
    spec: WorldSpec, events: Iterable[Event], at_s: float
) -> Iterator[tuple[Event, FaultChanged]]:
    """Yield the "begun" events of the network faults that are in force at `at_s`."""
    for event in events if spec.faults else ():
        match event.body:
            case FaultChanged(phase="begun", index=index, until_s=until_s) as begun:
                is_network = spec.facts_of(spec.faults[index]).is_network
                if is_network and (until_s is None or until_s >= at_s):
                    yield event, begun


def _in_force_at_end(result: WorldResult) -> Iterator[tuple[Event, Fault]]:
    at_s = result.detected_s or result.ended_s
    for event, begun in _in_force(result.spec, result.history, at_s):
        yield event, result.spec.faults[begun.index]


def as_cut(cause: Cause, states: States, result: WorldResult) -> Cause:
    """Return the cause as `transport` if a cut blocks the operations that ranks wait in.

    A rank that is late may explain the waits as well. The cut is the cause only if the awaited data
    may have been lost, as a key of a store that was set beyond the cut, or if the late ranks are
    connecting and cannot arrive.
    """
    late = [states[rank] for rank in cause.culprits]
    for _, fault in _in_force_at_end(result):
        pairs = cuts_of(fault, result.spec) if fault.kind == "partition" else frozenset()
        across = [wait for wait in cause.concerned_waits if _spans(wait, pairs, result.spec)]
        is_answer = all(each.operation and each.operation.kind == "wait" for each in across)
        is_under_way = cause.kind in ("straggler", "livelock", "finished") and (
            is_answer or all(map(_connects, late))
        )
        if across and (cause.kind in _EXPLAINED_BY_CUT or is_under_way):
            is_sure = cause.kind == "transport" and not cause.culprits
            connecting = {each.rank for each in late if _connects(each)}
            waiting = {*cause.waiting, *(wait.rank for wait in across), *connecting}
            return replace(
                cause,
                kind="transport",
                confidence="certain" if is_sure else "likely",
                culprits=(),
                cycle=(),
                waiting=tuple(sorted(waiting)),
                operation=cause.operation or across[0].operation,
                cut=fault,
            )
    return cause


def _connects(state: RankState) -> bool:
    activity = state.seen.activity
    return state.seen.label == "BLOCKED" and activity is not None and activity.name == "connect"


def _spans(wait: Wait, pairs: frozenset[Pair], spec: WorldSpec) -> bool:
    """Return whether an operation needs frames that a cut drops."""
    if wait.operation is None:
        return False
    peer = wait.operation.peer if wait.operation.kind == "transfer" else None
    others = wait.operation.group if peer is None else (peer,)
    hosts = {spec.host_of(rank).index for rank in (wait.rank, *others) if rank < spec.size}
    return any(sender in hosts and to in hosts for sender, to in pairs)


def describe_cut(fault: Fault) -> str:
    """Return as words between which ranks the network is cut."""
    groups = fault.params["groups"]
    names = [rank_set(group) for group in groups]
    if fault.params.get("one_way"):
        send = "sends" if len(groups[0]) == 1 else "send"
        return f"nothing that {names[0]} {send} reaches {names[1]}"
    return f"the network is cut between {', '.join(names[:-1])} and {names[-1]}"


def network_evidence(result: WorldResult) -> Iterator[Evidence]:
    """Yield which faults disturbed the network when the world hung or broke."""
    for event, fault in _in_force_at_end(result):
        words = (
            describe_cut(fault) if fault.kind == "partition" else result.spec.facts_of(fault).effect
        )
        when = f"+{event.at_s - result.started_s:.2f} s"
        yield Evidence(event.rank, f"{words} since {when}, by {fault.kind}", "fault")
