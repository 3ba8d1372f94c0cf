"""Ranks that raise, or that gloo ends, because they receive data of an unexpected size.

The runtime complains where data arrives, and gloo only if more arrives than fits. So the rank that
complains is often not the rank whose tensor differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.payloads import as_mismatch_of_payloads
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.operation import RUNTIME_SCOPE, Operation, group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.outcome import Finding, RankFinding

_COMPLAINT = "op.preamble.length <= op.nbytes"
"""The condition that every version of gloo reports when more data arrives than it expects."""


def as_doubtful(cause: Cause, finding: Finding) -> Cause:
    """Return the cause as only likely if gloo ended its culprit because of a size."""
    return replace(cause, confidence="likely") if complaining(cause, finding) else cause


def with_unfit_payloads(
    causes: Sequence[Cause], states: States, finding: Finding
) -> tuple[Cause, ...]:
    """Return the causes, with a mismatch for ranks that raised because of another's tensor.

    Several ranks may have raised because of one tensor.
    """
    found = [_as_unfit_payload(each, states, finding) for each in causes]
    unique: dict[object, Cause] = {}
    for index, each in enumerate(found):
        unique.setdefault(_mismatched(each) or index, each)
    return tuple(unique.values())


def _mismatched(cause: Cause) -> object:
    """Return the place and payloads of an operation, if these are the cause."""
    operation = cause.operation if cause.passed else None
    return (operation.place, cause.passed) if operation is not None else None


def _as_unfit_payload(cause: Cause, states: States, finding: Finding) -> Cause:
    """Return a mismatch if a rank raised in an operation to which others pass other tensors.

    A runtime raises where data arrives that does not fit, so the tensor of another rank may be
    wrong.
    """
    if cause.kind != "raised":
        return cause
    failed = [
        each
        for rank in cause.culprits
        for each in states[rank].known
        if each.failed and finding.ranks[rank].is_from(each.error)
    ]
    if not failed:
        return cause
    found = as_mismatch_of_payloads(cause, failed[-1], states)
    return found if found is cause else replace(found, confidence="likely")


def size_notes(
    causes: Sequence[Cause], states: States, finding: Finding, names: Names
) -> Iterator[str]:
    """Yield the reason why gloo ended the first cause's culprit, and the members' operations."""
    if causes[0].kind == "mismatch":  # the headline has their operations
        for rank, each in enumerate(finding.ranks):
            if complains_of_size(each):
                yield (
                    f"gloo ended {names.rank(rank)} because it received data of another size than"
                    " it expected"
                )
        return
    for rank in complaining(causes[0], finding):
        inside = [
            (each, tuple(_entered(each, states, names)))
            for each in states[rank].known
            if each.kind == "collective" and each.scope == RUNTIME_SCOPE and each.is_open
        ]
        # gloo names no operation. Of several, take the operation that the members entered
        # differently.
        told = [each for each in inside if each[1]] or (inside if len(inside) == 1 else [])
        operation, entered = told[0] if told else (None, ())
        where = f" in {operation.title}" if operation is not None else ""
        yield (
            f"gloo ended {names.rank(rank)} because it received data of another size than"
            f" it expected{where}{': ' if entered else ''}{'; '.join(entered)}"
        )


def complaining(cause: Cause, finding: Finding) -> tuple[int, ...]:
    """Return the culprits that died with gloo's complaint about a size at the end of their logs."""
    if cause.kind != "died":
        return ()
    return tuple(rank for rank in cause.culprits if complains_of_size(finding.ranks[rank]))


def complains_of_size(finding: RankFinding) -> bool:
    """Return whether a rank's log ends with gloo's complaint about the size of a tensor."""
    return _COMPLAINT in finding.last_words


def _entered(operation: Operation, states: States, names: Names) -> Iterator[str]:
    """Yield the members by their operation at this place in the sequence, if they differ."""
    if not operation.sequence:
        return
    ranks_with = group_by_value(
        (f"{each.name} {each.detail}".rstrip(), rank)
        for rank in sorted(states)
        for each in states[rank].known
        if each.is_same_as(operation)
    )
    if len(ranks_with) > 1:
        for words, ranks in ranks_with.items():
            yield f"{names.of(ranks)} entered {words}"
