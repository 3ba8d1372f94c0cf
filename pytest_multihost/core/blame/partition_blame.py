"""Hangs that cuts between hosts explain: which hosts were cut off from which.

The effect of a fault between hosts comes from the events of the world's history (`Effect`) alone.

Nothing arrives through a cut, so no rank is to blame for a wait for data from the other side. A
rank that has not entered the operation of the others is still late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States, Wait
from pytest_multihost.core.model.event import Effect, Event, FaultChanged
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.verdict import Evidence

Pair = tuple[int, int]
"""A sending host and a receiving host."""


def severed(spec: WorldSpec, events: Iterable[Event], at_s: float) -> frozenset[tuple[str, str]]:
    """Return pairs of addresses: frames of the first never arrive at the second from `at_s` on.

    A cut that heals by itself does not count, because waits across it end then.

    Args:
        events: The world's history, or its faults that are not over.
        at_s: The time, on the monotonic clock.
    """
    hosts = spec.all_hosts
    return frozenset(
        (hosts[sender].address, hosts[to].address)
        for _, begun, effect in _in_force(events, at_s)
        if begun.until_s is None
        for sender, to in effect.cuts
    )


def _in_force(events: Iterable[Event], at_s: float) -> Iterator[tuple[Event, FaultChanged, Effect]]:
    """Yield the "begun" events of the faults with an effect between hosts in force at `at_s`."""
    for event in events:
        match event.body:
            case FaultChanged(phase="begun", effect=Effect() as effect, until_s=until_s) as begun:
                if until_s is None or until_s >= at_s:
                    yield event, begun, effect


def _in_force_at_end(result: WorldResult) -> Iterator[tuple[Event, FaultChanged, Effect]]:
    return _in_force(result.history, result.detected_s or result.ended_s)


def as_cut(cause: Cause, states: States, result: WorldResult) -> Cause:
    """Return the cause as `transport` if a cut blocks the operations that ranks wait in.

    A rank that is late may explain the waits as well. The cut is the cause only if the awaited data
    may have been lost, such as a store key that was set beyond the cut or the last data of a rank
    that has left the operation, or if the late ranks are connecting and cannot arrive.
    """
    kind = kind_of(cause.kind)
    late = [states[rank] for rank in cause.culprits]
    for _, _, effect in _in_force_at_end(result):
        across = [wait for wait in cause.concerned_waits if _spans(wait, effect.cuts, result.spec)]
        is_answer = all(each.operation and each.operation.kind == "wait" for each in across)
        is_under_way = kind.shown_by == "waits" and (is_answer or all(map(_connects, late)))
        may_be_lost = kind.is_explained_by_cut or any(each.has_left for each in across)
        if across and (may_be_lost or is_under_way):
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
                cut=effect,
            )
    return cause


def _connects(state: RankState) -> bool:
    activity = state.seen.activity
    return state.seen.label == "BLOCKED" and activity is not None and activity.name == "connect"


def _spans(wait: Wait, pairs: Iterable[Pair], spec: WorldSpec) -> bool:
    """Return whether an operation needs frames that a cut drops."""
    if wait.operation is None:
        return False
    peer = wait.operation.peer if wait.operation.kind == "transfer" else None
    others = wait.operation.group if peer is None else (peer,)
    hosts = {spec.host_of(rank).index for rank in (wait.rank, *others) if 0 <= rank < spec.size}
    return any(sender in hosts and to in hosts for sender, to in pairs)


def effect_evidence(result: WorldResult) -> Iterator[Evidence]:
    """Yield the effects of faults between hosts when the world hung or broke."""
    for event, begun, effect in _in_force_at_end(result):
        when = f"+{event.at_s - result.started_s:.2f} s"
        yield Evidence(event.rank, f"{effect.words} since {when}, by {begun.fault}", "fault")
