"""What faults of the network have to do with a hang: who was cut off from whom.

Nothing arrives through a cut, so whoever waits for something from beyond it is not kept waiting by
another rank. A rank that has not come to where the others wait is late all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.blame.causes import Cause
from pytest_multihost.blame.wait_graph import RankState, Wait
from pytest_multihost.model.event import Event, FaultChanged
from pytest_multihost.model.fault import NETWORK_KINDS, Fault
from pytest_multihost.model.network import Pair, cuts_of
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.verdict import Evidence

_NOBODYS = frozenset({"transport", "deadlock", "unknown", "stuck"})
"""Kinds of hangs that are no rank's own doing, where a cut explains them."""


def in_force(spec: WorldSpec, events: Iterable[Event], at_s: float) -> list[tuple[Event, Fault]]:
    """Return the faults of the network that go on at a moment, with their beginnings.

    Args:
        spec: The world.
        events: Its history, or what is left of it.
        at_s: The moment, on the monotonic clock.
    """
    if not spec.faults:
        return []
    return [
        (event, spec.faults[begun.index])
        for event in events
        if isinstance(begun := event.body, FaultChanged)
        and begun.phase == "begun"
        and begun.fault in NETWORK_KINDS
        and (begun.until_s is None or begun.until_s >= at_s)
    ]


def severed(spec: WorldSpec, events: Iterable[Event], at_s: float) -> frozenset[tuple[str, str]]:
    """Return, by addresses, whose frames do not arrive at whom at a moment, and never will.

    A cut that heals by itself is none: what waits beyond it goes on then.
    """
    hosts = spec.all_hosts
    return frozenset(
        (hosts[sender].address, hosts[to].address)
        for event, fault in in_force(spec, events, at_s)
        if fault.kind == "partition" and not _heals(event)
        for sender, to in cuts_of(fault, spec)
    )


def _heals(event: Event) -> bool:
    return isinstance(event.body, FaultChanged) and event.body.until_s is not None


def as_cut(cause: Cause, states: Mapping[int, RankState], result: WorldResult) -> Cause:
    """Return the cause as one of transport, where ranks wait in what a cut keeps from ending."""
    concerned = {*cause.waiting, *cause.culprits}
    waits = [wait for wait in cause.waits if wait.rank in concerned]
    late = [states[rank] for rank in cause.culprits]
    for _, fault in _found(result):
        pairs = cuts_of(fault, result.spec) if fault.kind == "partition" else frozenset()
        across = [wait for wait in waits if _spans(wait, pairs, result.spec)]
        if across and (cause.kind in _NOBODYS or _is_on_its_way(cause, across, late)):
            return _cut(cause, fault, across, late)
    return cause


def _is_on_its_way(cause: Cause, across: Iterable[Wait], late: Sequence[RankState]) -> bool:
    """Whether what ranks wait for may have been given and not arrived, or cannot get there."""
    is_answer = all(wait.operation is not None and wait.operation.kind == "wait" for wait in across)
    is_on_its_way = is_answer or all(map(_connects, late))
    return cause.kind in ("straggler", "livelock", "finished") and is_on_its_way


def _connects(state: RankState) -> bool:
    activity = state.activity
    return state.label == "BLOCKED" and activity is not None and activity.name == "connect"


def _cut(cause: Cause, fault: Fault, across: Sequence[Wait], late: Sequence[RankState]) -> Cause:
    is_sure = cause.kind == "transport" and not cause.culprits
    waiting = {*cause.waiting, *(wait.rank for wait in across)}
    return replace(
        cause,
        kind="transport",
        confidence="certain" if is_sure else "likely",
        culprits=(),
        cycle=(),
        waiting=tuple(sorted(waiting | {each.rank for each in late if _connects(each)})),
        operation=cause.operation or across[0].operation,
        cut=fault,
    )


def _spans(wait: Wait, pairs: frozenset[Pair], spec: WorldSpec) -> bool:
    """Whether an operation takes frames that a cut does not let through."""
    if wait.operation is None:
        return False
    ranks = _members(wait.operation, wait.rank)
    hosts = {spec.host_of(rank).index for rank in ranks if rank < spec.size}
    return any(sender in hosts and to in hosts for sender, to in pairs)


def _members(operation: Operation, rank: int) -> set[int]:
    if operation.kind == "transfer" and operation.peer is not None:
        return {rank, operation.peer}
    return {rank, *operation.group}


def cut_words(fault: Fault) -> str:
    """Say between whom the network is cut."""
    names = [rank_set(group) for group in fault.params["groups"]]
    if fault.params.get("one_way"):
        return f"nothing that {names[0]} send{'s' if _is_one(fault) else ''} reaches {names[1]}"
    return f"the network is cut between {', '.join(names[:-1])} and {names[-1]}"


def _is_one(fault: Fault) -> bool:
    return len(fault.params["groups"][0]) == 1


def network_evidence(result: WorldResult) -> Iterator[Evidence]:
    """Yield which faults disturbed the network when the world hung or broke."""
    for event, fault in _found(result):
        words = cut_words(fault) if fault.kind == "partition" else _WORDS[fault.kind]
        when = f"+{event.at_s - result.started_s:.2f} s"
        yield Evidence(event.rank, f"{words} since {when}, by {fault.kind}", "fault")


_WORDS = {
    "reset": "its host's connections were reset, and new ones may be made",
    "net_delay": "what its host sends arrives late",
    "net_loss": "part of what its host sends is lost",
    "net_rate": "its host sends slowly",
    "dns_failure": "its host finds no other by name",
}


def _found(result: WorldResult) -> list[tuple[Event, Fault]]:
    at_s = result.detected_s or result.ended_s
    return in_force(result.spec, result.history, at_s)
