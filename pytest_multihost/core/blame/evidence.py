"""The evidence of a diagnosis: the observed state of each named rank, and its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from pytest_multihost.core.blame.cause import Cause, first_waits
from pytest_multihost.core.blame.lock_cycles import held_inside
from pytest_multihost.core.blame.partition_blame import effect_evidence
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.rpc_functions import called_functions
from pytest_multihost.core.blame.wait_graph import States, Wait
from pytest_multihost.core.model.operation import FLIGHT_SCOPE, Operation
from pytest_multihost.core.model.result import RankSnapshot, WorldResult
from pytest_multihost.core.model.verdict import Evidence
from pytest_multihost.core.outcome import Finding, describe_exit

DIGITS = 4  # of seconds in a verdict

_WAITS = frozenset({"IO", "DISK", "CHILD"})
"""Labels of a main thread that are not participles."""


def evidence(
    cause: Cause, states: States, result: WorldResult, finding: Finding
) -> Iterator[Evidence]:
    """Yield the evidence about the ranks that wait, about the culprits, and about the network."""
    for part in cause.parts or (cause,):
        yield from _evidence_of_ranks(part, states, result, finding)
        for wait in part.concerned_waits:
            yield from _lock_inside(wait, result)
    yield from effect_evidence(result)


def _evidence_of_ranks(
    cause: Cause, states: States, result: WorldResult, finding: Finding
) -> Iterator[Evidence]:
    for wait in first_waits(cause):
        operation = wait.operation
        if operation is not None and wait.rank not in cause.culprits:
            yield _entered(wait.rank, operation, result)
        elif operation is None and states[wait.rank].polls:
            yield Evidence(wait.rank, "main thread sleeps again and again", "proc")
    for each, ranks in cause.sides:
        fact = f"entered {each.describe(result.spec.names)} {each.detail}".rstrip()
        since_s = round(each.since_s - result.started_s, DIGITS)
        yield Evidence(ranks[0], fact, each.source, at_s=since_s)
    subject = result.spec.subject
    told_by = "pytest" if subject == "test" else "harness"
    for rank in cause.culprits:
        state, found = states[rank], finding.ranks[rank]
        if state.condition == "died" and found.facts.exit is not None:
            yield Evidence(rank, describe_exit(found.facts.exit), "pidfd")
        if state.condition == "raised" and found.at_s is not None:
            at_s = round(found.at_s - result.started_s, DIGITS)
            yield Evidence(rank, f"raised {found.summary}", told_by, at_s=at_s)
        if state.condition == "finished" and found.facts.parked_s is not None:
            at_s = round(found.facts.parked_s - result.started_s, DIGITS)
            yield Evidence(rank, f"returned from the {subject}", told_by, at_s=at_s)
        # Frames alone show where a rank is, not which operations it entered before.
        is_counted = cause.operation is not None and result.origin.is_counted
        is_counted = is_counted and not cause.sides
        if cause.operation is not None and is_counted and cause.operation.kind == "collective":
            yield _last_in_group(state, cause.operation, result)
        yield from _functions_for_others(state)
        yield from _of_processes(state)


def _lock_inside(wait: Wait, result: WorldResult) -> Iterator[Evidence]:
    """Yield the lock that a thread of a rank holds in an operation, and the main thread needs."""
    found = held_inside(wait, result.dumps)
    if wait.operation is not None and found is not None and found.holder is not None:
        holder = f"thread {found.holder.thread} holds {found.lock} in {wait.operation.title}"
        fact = f"{holder}, and the main thread waits for it"
        yield Evidence(wait.rank, fact, "python-frames")


def _of_processes(state: RankState) -> Iterator[Evidence]:
    """Yield the evidence that the kernel shows of a rank's processes."""
    seen = state.seen
    for each in seen.lost:
        yield Evidence(state.rank, f"its child {each.title} {each.ended}", "proc")
    if seen.label is not None and state.condition in ("alive", "gil_held", "stopped"):
        yield Evidence(state.rank, _main_thread(seen), "proc")
    if state.condition == "gil_held":
        yield Evidence(state.rank, "native code of its main thread holds the GIL", "py-spy")


def _entered(rank: int, operation: Operation, result: WorldResult) -> Evidence:
    who = f"its child {operation.child.title} " if operation.child is not None else ""
    since_s = round(operation.since_s - result.started_s, DIGITS)
    fact = f"{who}entered {operation.describe(result.spec.names)}"
    return Evidence(rank, fact, operation.source, at_s=since_s)


def _main_thread(seen: RankSnapshot) -> str:
    """Return the words for the state of a rank's main thread: "is sleeping for another 600.0 s"."""
    if seen.label == "STOPPED" and seen.activity is not None:
        return f"main thread is {seen.activity.name}"
    if seen.label in _WAITS and seen.activity is not None:
        return f"main thread waits in {seen.activity}"
    state = f"main thread is {(seen.label or '').lower()}"
    if seen.sleep is not None:
        return f"{state}{seen.sleep.until}"
    return state if seen.activity is None else f"{state} ({seen.activity})"


def _functions_for_others(state: RankState) -> Iterator[Evidence]:
    """Yield the functions that a rank runs for others, and its own calls that wait meanwhile."""
    functions = called_functions(state.known)
    for each in functions:
        fact = f"runs {each.detail}, which another rank has called"
        yield Evidence(state.rank, fact, each.source)
    for each in state.pending if functions else ():
        if each.kind == "transfer" and each.frame is not None:
            at = f"{PurePath(each.frame.file).name}:{each.frame.line}"
            fact = f"another thread waits in {each.title} at {at}"
            yield Evidence(state.rank, fact, each.source)


def _last_in_group(state: RankState, operation: Operation, result: WorldResult) -> Evidence:
    """Return the last operation of a rank in the group of `operation`."""
    names = result.spec.names
    theirs = [
        each
        for each in state.known
        if each.kind == "collective" and each.group_key == operation.group_key
    ]
    last = max(theirs, key=lambda each: each.sequence, default=None)
    # A rank whose native code holds the GIL, or that died, does not report calls of C++ code.
    is_untold = operation.scope == FLIGHT_SCOPE and operation.group_key not in state.entered
    if last is None and (is_untold or not state.has_recorded(operation.group_key)):
        return Evidence(state.rank, "left no record of this group", "recorder")
    if last is None:
        return Evidence(state.rank, "entered no operation of this group", "recorder")
    if last.is_program and last.is_open and state.entered.get(last.group_key, 0) < last.sequence:
        fact = f"runs a function that {last.describe(names)} calls on the host"
        return Evidence(state.rank, fact, last.source)
    error, _, _ = last.error.partition(":")  # the whole one is beside the rank
    left = f", which raised {error}" if error else ""
    fact = f"last operation in this group was {last.describe(names)}{left}"
    return Evidence(state.rank, fact, "recorder")
