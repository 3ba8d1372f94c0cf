"""Judge a world: its outcome, the ranks that made the others wait, and the evidence.

Top-down: the world's history gives a finding (the outcome of each rank), finding and snapshots
give the state of each rank, the states give the wait-for graph, its sinks give causes, and the
first cause becomes the diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_multihost.core.blame.build_diagnosis import build_diagnosis, detected_by
from pytest_multihost.core.blame.cause import UNKNOWN, Cause
from pytest_multihost.core.blame.causes import find_causes, with_all_culprits
from pytest_multihost.core.blame.divergence import described, first_divergence, followed
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.masked_symptoms import judge_masked
from pytest_multihost.core.blame.polled_files import with_polled_files
from pytest_multihost.core.blame.program_threads import as_unordered
from pytest_multihost.core.blame.rank_states import rank_states_of
from pytest_multihost.core.blame.refinements import (
    BY_EARLIER_MISTAKES,
    BY_STATES,
    Observed,
    refined,
)
from pytest_multihost.core.blame.rpc_functions import operations_in_calls, with_threads
from pytest_multihost.core.blame.shared_failures import with_shared_failures
from pytest_multihost.core.blame.size_complaint import complaining, with_unfit_payloads
from pytest_multihost.core.blame.wait_graph import with_clashes
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import Dump, SourceContext, group_by_main_stack
from pytest_multihost.core.model.verdict import Diagnosis, sentence
from pytest_multihost.core.outcome import Finding, Symptoms, as_aborted


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judged world.

    Attributes:
        diagnosis: Why it hung or broke; None if there is nothing to diagnose.
    """

    result: WorldResult
    finding: Finding
    diagnosis: Diagnosis | None
    context: SourceContext

    @property
    def in_calls(self) -> Mapping[int, Operation]:
        """The operation of each RPC thread that the diagnosis is about, by rank."""
        found = self.diagnosis
        if found is None:
            return {}
        return operations_in_calls(self.result, found.culprits, found.operation, found.waits_for)

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """The stacks of the ranks that are in the user's code.

        An RPC thread that the diagnosis is about replaces the main thread.
        """
        inside = (d for d in self.result.dumps if d.rank not in self.finding.in_harness)
        return with_threads(inside, self.in_calls)


def judge_world(
    result: WorldResult,
    symptoms: Symptoms,
    context: SourceContext,
    *,
    finding: Finding | None = None,
) -> Judgement:
    """Judge a world.

    Args:
        symptoms: How the backend's failures look when they follow from another rank's.
        finding: The end of the world; judged from `result` if None.
    """
    finding = finding if finding is not None else judge_masked(result, symptoms)
    diagnosis = diagnose(result, finding, context)
    if diagnosis is not None and finding.outcome == "hung":
        says_more = diagnosis.kind != "unknown" or bool(diagnosis.waiting)
        finding = replace(finding, reason=diagnosis.summary) if says_more else finding
    aborted = as_aborted(finding, result.spec.names)
    if diagnosis is not None and diagnosis.kind == "unknown" and aborted is not finding:
        told = sentence(aborted.reason)
        finding, diagnosis = aborted, replace(diagnosis, headline=told, detected_by="exit")
    return Judgement(result, finding, diagnosis, context)


def diagnose(result: WorldResult, finding: Finding, context: SourceContext) -> Diagnosis | None:
    """Return why a world hung or broke; None if there is nothing to diagnose.

    A world that failed is diagnosed if other ranks were waiting for the rank that failed.
    """
    if finding.outcome in ("passed", "skipped") or result.end.is_lost:
        return None
    known = result.known
    seen = (
        replace(
            each,
            is_silent=each.rank in known.silent,
            unrecorded=known.unrecorded.get(each.rank, frozenset()),
        )
        for each in with_polled_files(rank_states_of(result, finding), result, finding)
        if each.rank not in known.unseen
    )
    states = {each.rank: each for each in with_clashes(seen)}
    observed = Observed(states, result, finding)
    causes = refined(find_causes(states.values()), BY_STATES, observed)
    # Whether a rank died or raised, and no hang was detected. Example: rank 1 dies while the others
    # are in a barrier that rank 0 has not entered yet. By the graph rank 0 is late, but it might
    # have arrived in time; the death ended the world.
    by_event = finding.outcome != "hung" and detected_by(result) is None
    if by_event:
        # A rank that was only late is not the cause: the event that ended the world comes first.
        causes = tuple(sorted(causes, key=_is_momentary))
    causes = with_shared_failures(causes, states, result, finding)
    is_shared = bool(causes) and bool(causes[0].sides)
    if (
        finding.outcome in ("failed", "error") and not is_shared
    ):  # the exception explains it, unless others waited
        if not causes or not causes[0].waiting or causes[0].kind == "unknown":
            return None
        # If no runtime aborted, a rank that had not arrived yet at the failure was only slow.
        if by_event and _is_momentary(causes[0]) and not any(e.has_given_up for e in finding.ranks):
            return None
    if finding.outcome == "hung":
        causes = _unique(refined(causes, BY_EARLIER_MISTAKES, observed))
    causes = with_unfit_payloads(causes, states, finding)
    if not causes or _is_ambiguous(causes[0], result) or _may_lack(causes[0], known.unseen):
        causes = (UNKNOWN, *causes[1:])
    parting = first_divergence(result.partings, causes[0], states)
    is_of_size = bool(complaining(causes[0], finding))
    parted = followed(causes[0], parting, is_of_size=is_of_size)
    first = as_unordered(parted, states)
    told = _of_one_instant((first, *causes[1:]), result)
    diagnosis = build_diagnosis(told, states, result, finding, context)
    if parting is None:
        return diagnosis
    divergence = described(parting, states, result, context)
    divergence = divergence if first is parted else replace(divergence, minority=())
    if first.kind != causes[0].kind:  # the operations at the end do not show it
        diagnosis = replace(diagnosis, headline=sentence(divergence.summary))
    return replace(diagnosis, divergence=divergence)


def _unique(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return the causes; mismatches with the same culprits and operation are one."""
    found: dict[object, Cause] = {}
    for index, each in enumerate(causes):
        is_one = each.kind == "mismatch" and bool(each.passed or each.unmatched)
        key = (each.culprits, each.operation) if is_one else index
        other = found.setdefault(key, each)
        found[key] = replace(other, waiting=tuple(sorted({*other.waiting, *each.waiting})))
    return tuple(found.values())


def _of_one_instant(causes: tuple[Cause, ...], result: WorldResult) -> tuple[Cause, ...]:
    """Return the causes; without an order in time, all with culprits are in front."""
    return causes if result.origin.is_ordered else with_all_culprits(causes)


def _is_momentary(cause: Cause) -> bool:
    """Return whether a cause says only that a rank had not arrived yet at the end."""
    return kind_of(cause.kind).is_momentary and not (cause.kind == "transport" and cause.culprits)


def _may_lack(cause: Cause, unseen: frozenset[int]) -> bool:
    """Return whether an operation that all have entered may lack a rank that was not seen."""
    operation = cause.operation if cause.kind == "transport" and not cause.culprits else None
    return operation is not None and not unseen.isdisjoint(operation.group)


def _is_ambiguous(cause: Cause, result: WorldResult) -> bool:
    """Return whether ranks are blocked at different places for an unknown reason.

    They may wait for each other in a way that no recorder has seen: over sockets, for instance.
    """
    if cause.kind != "stuck" or len(cause.culprits) == 1:
        return False
    seen = [result.last_seen[rank] for rank in cause.culprits if rank in result.last_seen]
    waits = [each.activity for each in seen]
    # Nothing outside the process ends these: a timer does, or another of its threads.
    wait_for_themselves = all(e is not None and (e.is_sleep or e.is_lock) for e in waits)
    if len(cause.culprits) == result.spec.size and not wait_for_themselves:
        return True
    groups = group_by_main_stack(dump for dump in result.dumps if dump.rank in cause.culprits)
    return len(groups) > 1
