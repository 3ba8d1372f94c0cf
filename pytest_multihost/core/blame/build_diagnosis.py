"""Build the diagnosis that people and programs read, from causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause, first_waits
from pytest_multihost.core.blame.evidence import DIGITS, evidence
from pytest_multihost.core.blame.headline import headline, waiting_line
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.native_call import native_call
from pytest_multihost.core.blame.notes import keys_like, notes
from pytest_multihost.core.blame.places import culprit_place, place_groups, rank_places
from pytest_multihost.core.blame.rpc_functions import operations_in_calls, with_threads
from pytest_multihost.core.blame.size_complaint import size_notes
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.event import Exited, RankEventBody
from pytest_multihost.core.model.operation import (
    HARNESS_SCOPE,
    READY_SCOPE,
    RUNTIME_SCOPE,
    STORE_KIND,
    Operation,
)
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.model.verdict import (
    DetectedBy,
    Diagnosis,
    OperationName,
    WaitsFor,
    sentence,
)
from pytest_multihost.core.outcome import Finding


def detected_by(result: WorldResult) -> str | None:
    """Return how a hang was detected; None if an event of a rank ended the world."""
    return result.origin.detected_by or result.end.detected_by or None


def build_diagnosis(
    causes: Sequence[Cause],
    states: States,
    result: WorldResult,
    finding: Finding,
    context: SourceContext,
) -> Diagnosis:
    """Return the diagnosis of a world.

    Args:
        causes: At least one: the first is the diagnosis, the others become notes.
    """
    names = result.spec.names
    causes = [replace(each, call=native_call(each, result, context)) for each in causes]
    cause = causes[0]
    # When a rank last made progress, sent an event, or died by itself.
    last_progress_s = result.progress_s or max(
        (
            event.at_s
            for event in result.history
            if isinstance(event.body, RankEventBody)
            or (isinstance(event.body, Exited) and not event.body.by_harness)
        ),
        default=result.started_s,
    )
    judged_s = result.detected_s or result.ended_s
    silent_s = round(max(0.0, judged_s - last_progress_s), DIGITS)
    by_event: DetectedBy = "raise"
    if cause.kind == "died" or (cause.sides and finding.outcome == "crashed"):
        by_event = "exit"
    # The phase is the first culprit's, unless it had returned from the test.
    has_left = kind_of(cause.kind).culprit == "gone"
    first_rank, *_ = (*(() if has_left else cause.culprits), *cause.waiting, *cause.culprits, 0)
    waits_for = tuple(
        WaitsFor(
            wait.rank,
            _name(wait.operation),
            tuple(sorted(wait.missing)),
            by=_medium(wait.rank, wait.operation, result.spec) if result.spec.roles else "",
        )
        for wait in first_waits(cause)
    )
    in_calls = operations_in_calls(result, cause.culprits, _name(cause.operation), waits_for)
    # If the diagnosis is about a thread that runs a function for others, show that thread.
    keys = {key: each.rank for each in result.dumps for key in each.keys}
    inside = (each for each in result.dumps if each.rank not in finding.in_harness)
    result = replace(result, dumps=with_threads(inside, in_calls))
    places = tuple(rank_places(cause, states, result, finding, context))
    return Diagnosis(
        kind=cause.kind,
        confidence=cause.confidence,
        phase=finding.ranks[first_rank].facts.phase,
        culprits=cause.culprits,
        waiting=cause.waiting,
        cycle=cause.cycle,
        waits_for=waits_for,
        operation=_name(cause.operation),
        where=culprit_place(cause, states, result, finding, context),
        places=places,
        silent_s=silent_s,
        detected_after_s=silent_s,
        detected_by=detected_by(result) or by_event,
        headline=sentence(headline(cause, finding, result), waiting_line(cause, places)),
        evidence=tuple(dict.fromkeys(evidence(cause, states, result, finding))),
        groups=tuple(place_groups(result, context)),
        notes=(
            *size_notes(causes, states, finding, names),
            *keys_like(cause, keys, names),
            *notes(causes, states, result, finding),
        ),
    )


def _medium(rank: int, operation: Operation | None, spec: WorldSpec) -> str:
    """Return how a rank waits for others in a world with roles; empty if that is unknown."""
    if operation is None:
        return "lock"
    if operation.medium or operation.child is not None:
        return operation.medium or "child"
    if operation.scope in (HARNESS_SCOPE, READY_SCOPE):
        return operation.scope.kind
    if operation.name.startswith("zmq."):
        return "zmq"
    role = spec.role_of(rank)
    is_of_runtime = operation.scope == RUNTIME_SCOPE or operation.scope.kind == STORE_KIND
    if not is_of_runtime or role is None:
        return ""
    return role.backend if role.backend != "none" else "group"


def _name(operation: Operation | None) -> OperationName | None:
    if operation is None:
        return None
    return OperationName(operation.name, operation.sequence, operation.group)
