"""The state of each rank at the instant that is judged: its condition and its wait.

That instant is the end of the world, or the first trouble if that was only a symptom. A rank whose
runtime aborted an operation counts as still waiting in it; a rank that entered it only later counts
as missing. Example: rank 0 reads a file for a minute; after 30 s the all_reduce of ranks 1-3
times out in gloo, they raise, and the world ends. At its end no rank waits for another; at the
timeout ranks 1-3 were waiting for rank 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from pytest_multihost.core.model.collectives import BY_NAME
from pytest_multihost.core.model.history import Parting
from pytest_multihost.core.model.operation import (
    FLIGHT_SCOPE,
    STORE_KIND,
    GroupKey,
    Operation,
    Operations,
)
from pytest_multihost.core.model.result import RankSnapshot, WorldResult, WorldSnapshot
from pytest_multihost.core.outcome import Finding, RankFinding, Symptoms

Condition = Literal[
    "alive",  # in its test, or on its way to it or out of it
    "finished",  # it has returned from the test
    "raised",  # an exception of its own has ended its test
    "died",  # its process ended; in a hung world, also by its own `kill` fault
    "stopped",  # its process is stopped, as by SIGSTOP
    "gil_held",  # its native code holds the GIL
]

_FREE = frozenset({"SLEEPING", "IO", "RUNNING", "CHILD", "DISK"})
"""Labels of a main thread that works while another thread waits in an operation."""

_LAST_SNAPSHOTS = 8
"""How many of the last snapshots, four a second, show whether a rank ran to the end."""

_LATE_SNAPSHOTS = 5
"""A restless rank has run in one of this many last snapshots; others have begun a long wait."""

_RUNS = 2
"""In how many of `_LAST_SNAPSHOTS` a restless rank has run."""

_SHORT_S = 6.0
"""The longest wait that counts as one of many repeated waits."""

_SAME_INSTANT_S = 0.5
"""How long before its exception a rank may have left the operation that raised it."""


_LONE_STORE = "waits at a store that no other rank has used"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The condition of one rank, and its wait.

    Attributes:
        condition: Whether it is alive, and if not, why.
        since_s: When that happened, on the monotonic clock; None for a rank that is alive.
        known: All of its operations that were recorded or observed, including the pending ones.
        entered: For each group the sequence of the last collective that it entered.
        is_restless: Whether its main thread kept running, even if only between short waits.
        polls: Whether its main thread slept again and again, as if it polls for something.
        is_killed: Whether it died of its own `kill` fault, which the others are to survive.
        is_lost: Whether it raised or died only because another rank failed or was missing.
        broke: Operations that it left by an exception which no other rank caused.
        retries: The collective that failed repeatedly in it because another rank was missing.
        is_silent: Whether no record of it is left, so that nothing is known of it.
        unrecorded: Groups in which it may have entered collectives without a record, paired with
            None; and groups in which it may have made transfers with a peer, paired with the peer.
        unready: Where it is to become ready, as its role says, and has not; empty: it is ready, or
            its role does not say.
    """

    seen: RankSnapshot
    condition: Condition = "alive"
    since_s: float | None = None
    pending: tuple[Operation, ...] = ()
    known: tuple[Operation, ...] = ()
    entered: Mapping[GroupKey, int] = field(default_factory=dict)
    is_restless: bool = False
    polls: bool = False
    is_killed: bool = False
    is_lost: bool = False
    broke: tuple[Operation, ...] = ()
    retries: Operation | None = None
    is_silent: bool = False
    unrecorded: frozenset[tuple[GroupKey, int | None]] = frozenset()
    unready: str = ""

    def has_recorded(self, group: GroupKey, peer: int | None = None) -> bool:
        """Return whether records show all that it did in a group, or there with a peer."""
        return not (self.is_silent or (self.unrecorded and (group, peer) in self.unrecorded))

    @property
    def rank(self) -> int:
        """Its index."""
        return self.seen.rank

    @property
    def owed(self) -> str:
        """The thing it waits for that another rank may provide, if this rank is to blame."""
        is_at_store = any(each.scope.kind == STORE_KIND for each in self.pending)
        return self.seen.owed or (_LONE_STORE if is_at_store else "")


def states_from_slots(operations: Sequence[Operations]) -> Mapping[int, RankState]:
    """Return the states of ranks from their slot pages alone."""
    return {
        each.rank: RankState(
            seen=RankSnapshot(rank=each.rank),
            pending=_most_specific([one for one in each.open if one.waited_s is not None]),
            known=each.recent,
            entered=each.entered,
        )
        for each in operations
    }


def rank_states_of(result: WorldResult, finding: Finding) -> tuple[RankState, ...]:
    """Return the states of a world's ranks at the instant that is judged."""
    snapshot = _judged_snapshot(result, finding)
    seen = {each.rank: each for each in snapshot.ranks} if snapshot is not None else {}
    is_end = snapshot is None or snapshot.reason != "trouble"
    symptoms, states = finding.symptoms, []
    lasts, last_seen = {each.rank: each for each in result.operations}, result.last_seen
    for each in finding.ranks:
        rank = each.facts.rank
        its, last = seen.get(rank, RankSnapshot(rank=rank)), lasts.get(rank, Operations(rank))
        is_killed = finding.outcome == "hung" and each.facts.is_killed_as_planned
        condition = "died" if is_killed else _condition(each, its)
        entered = dict(its.entered)
        if is_end:  # slot pages lack the flight recorder's counts
            entered.update(last.entered)
        since_s = each.facts.parked_s if condition == "finished" else None
        state = RankState(
            seen=its,
            condition=condition,
            since_s=_died_s(each) if condition in ("died", "raised") else since_s,
            pending=_pending(each, its, last, symptoms),
            known=(*last.recent, *(one for one in its.operations if one not in last.recent)),
            entered=entered,
            # If a world ends sooner, for instance because other ranks' runtimes aborted, a running
            # rank is only late: it may be between two long reads.
            is_restless=result.end.basis == "time" and _is_restless(last_seen.get(rank)),
            polls=_mostly_sleeps(rank, result) and _is_restless(last_seen.get(rank)),
            is_killed=is_killed,
            is_lost=each.has_given_up,
            broke=left_by_own_error(last, symptoms),
            retries=_retried(last, symptoms),
            unready=f"tcp:{each.facts.ready_port}" if each.facts.is_unready else "",
        )
        states.append(state)
    return count_alike(with_histories(states, result.partings))


def _judged_snapshot(result: WorldResult, finding: Finding) -> WorldSnapshot | None:
    """Return the snapshot of the first trouble if that was a symptom, else the last one."""
    trouble = next((each for each in result.snapshots if each.reason == "trouble"), None)
    troubled = [each for each in finding.ranks if each.at_s is not None]
    first = min(troubled, key=lambda each: each.at_s or 0.0, default=None)
    is_symptom = first is not None and first.outcome == "collateral"
    return trouble if trouble is not None and is_symptom else result.last_snapshot


def _condition(finding: RankFinding, seen: RankSnapshot) -> Condition:
    facts = finding.facts
    if finding.outcome == "crashed":
        return "died"
    if finding.outcome in ("failed", "error") and facts.failure is not None:
        return "raised"
    if finding.outcome == "failed" and finding.at_s is not None and facts.parked_s is not None:
        return "raised"
    if seen.label == "STOPPED":
        return "stopped"
    if seen.holds_gil:
        return "gil_held"
    has_left = facts.is_gone and facts.done_s is not None and not facts.was_ended
    if facts.failure is None and (facts.waits_at_gate or has_left):
        return "finished"
    return "alive"


def _died_s(finding: RankFinding) -> float | None:
    """Return when a rank failed; for a rank killed as planned, when its process ended."""
    if finding.facts.is_killed_as_planned:
        return finding.facts.exited_s
    return finding.at_s


def _mostly_sleeps(rank: int, result: WorldResult) -> bool:
    """Return whether a rank slept in at least half of the last snapshots.

    One snapshot is not enough: it may show a rank that polls between two of its sleeps.
    """
    labels = [each.label for shot in result.snapshots for each in shot.ranks if each.rank == rank]
    return 2 * labels.count("SLEEPING") >= len(labels) > 0


def _is_restless(seen: RankSnapshot | None) -> bool:
    """Return whether a rank kept running to the end, or kept repeating short waits.

    A rank that worked and then began a long wait has run as well, but not in the last snapshots.
    A short wait is one of many if the rank had run, stood still and run again before it.
    """
    if seen is None:
        return False
    last = seen.recent_runs[-_LAST_SNAPSHOTS:]
    if sum(last) >= min(_RUNS, len(last)) and any(last[-_LATE_SNAPSHOTS:]):
        return True
    ends_in_s = seen.activity.ends_in_s if seen.activity is not None else None
    is_short = ends_in_s is not None and ends_in_s <= _SHORT_S
    starts = [now for was, now in pairwise((False, *seen.recent_runs)) if now and not was]
    return is_short and len(starts) >= _RUNS


def _pending(
    finding: RankFinding, seen: RankSnapshot, last: Operations, symptoms: Symptoms
) -> tuple[Operation, ...]:
    """Return the operations that a rank waits in, or the operations that its runtime aborted."""
    if finding.has_given_up:
        raised_s = finding.at_s or 0.0
        failed = [
            each
            for each in last.recent
            if each.is_open
            or (each.failed and abs((each.ended_s or 0.0) - raised_s) < _SAME_INSTANT_S)
        ]
        if not any(each.kind == "collective" for each in failed):
            failed = failed[-1:]
        lost = last_given_up(last, symptoms)
        return _most_specific(failed or ([lost] if lost else []))
    waited = [
        each
        for each in seen.operations
        if each.waited_s is not None and not each.is_of_one
        if not (each.is_program and seen.label == "RUNNING" and each.source == "recorder")
    ]
    is_free = seen.label in _FREE and not (seen.is_idle or seen.is_for_child)
    if is_free and not any(each.thread == finding.facts.pid for each in waited):
        return ()  # another thread waits there, while the main thread works
    return _most_specific(waited)


def _most_specific(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Skip waits within another operation, such as one for a store key within a barrier."""
    return tuple(each for each in operations if each.kind != "wait") or tuple(operations)


def last_given_up(last: Operations, symptoms: Symptoms) -> Operation | None:
    """Return a rank's last collective if it failed because another rank was missing."""
    theirs = [each for each in last.recent if each.kind == "collective"]
    return theirs[-1] if theirs and _is_given_up(theirs[-1], symptoms) else None


def _retried(last: Operations, symptoms: Symptoms) -> Operation | None:
    """Return the collective that failed twice in a row because another rank was missing."""
    tries = [each for each in last.recent if each.kind == "collective"][-2:]
    match tries:
        case [first, again] if first.group == again.group:
            return again if all(_is_given_up(each, symptoms) for each in tries) else None
    return None


def _is_given_up(operation: Operation, symptoms: Symptoms) -> bool:
    return operation.failed and symptoms.is_in_error(operation.error)


def left_by_own_error(last: Operations, symptoms: Symptoms) -> tuple[Operation, ...]:
    """Return the operations that a rank left by an exception which is not a symptom."""
    failed = (each for each in last.recent if each.failed and each.error)
    return tuple(each for each in failed if not symptoms.is_in_error(each.error))


def with_histories(
    states: Sequence[RankState], partings: Sequence[Parting]
) -> tuple[RankState, ...]:
    """Return the states with the ended operations of the histories added.

    A rank may have passed an operation that others wait in: the root of a broadcast waits for
    no rank. If the flight recorder counts the group, the rank's own records do not show this.
    """
    found = []
    for state in states:
        places, entered = {each.place for each in state.known}, dict(state.entered)
        told = [operation for each in partings for operation in each.operations(state.rank)]
        for each in told:
            entered[each.group_key] = max(each.sequence, entered.get(each.group_key, 0))
        new = (each for each in told if each.place not in places)
        found.append(replace(state, known=(*state.known, *new), entered=entered))
    return tuple(found)


def count_alike(states: Sequence[RankState]) -> tuple[RankState, ...]:
    """Return the states with the pending collectives of a group counted alike on all ranks.

    Only torch's flight recorder sees collectives that C++ code calls, so the plugin's own count of
    a group lacks them: the third all_reduce of one rank may be the fifth collective of another. The
    flight recorder counts both. If a rank is in a collective that only the flight recorder saw, or
    has one in its history, the flight recorder's count is used for all ranks of the group.
    """
    groups = {
        each.group_key
        for state in states
        for each in (*state.pending, *state.known)
        if each.kind == "collective" and each.scope == FLIGHT_SCOPE
    }
    if not groups:
        return tuple(states)
    recounted = []
    for state in states:
        pending = tuple(_as_counted(each, state, groups) for each in state.pending)
        found = set(pending) - set(state.pending)
        recounted.append(replace(state, pending=pending, known=(*state.known, *found)))
    return tuple(recounted)


def _as_counted(operation: Operation, state: RankState, groups: Collection[GroupKey]) -> Operation:
    """Return a recorded collective with the flight recorder's count of it, if that is certain.

    The last recorded collective is the last counted one unless that was called by C++ code.
    """
    key = (operation.group, operation.ordinal, FLIGHT_SCOPE)
    count = state.entered.get(key, 0)
    is_last = state.entered.get(operation.group_key) == operation.sequence
    collective = BY_NAME.get(operation.name) if operation.kind == "collective" else None
    is_counted = collective is not None and bool(collective.flight_names)
    is_unseen = any(each.place == (key, count) and each.is_open for each in state.known)
    if (
        operation.scope.kind
        or key not in groups
        or not (count and is_last and is_counted)
        or is_unseen
    ):
        return operation
    return replace(operation, scope=FLIGHT_SCOPE, sequence=count)
