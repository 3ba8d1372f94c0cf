"""A hang whose evidence does not show which rank is waited for."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, sentence
from pytest_multihost.core.outcome import Finding


def _unknown(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    names = result.spec.names
    if cause.operation is not None and cause.waiting:
        return _of_unknown_members(cause, cause.operation, names)
    late = [each.facts.rank for each in finding.ranks if each.outcome == "hung"]
    if not late:
        return sentence(result.reason or "the world did not end")
    return sentence(f"{names.of(late)} did not end; it is unknown which rank is waited for")


def _of_unknown_members(cause: Cause, operation: Operation, names: Names) -> Sentence:
    """Return which members of a group wait; the others are unknown."""
    inside = [
        wait.rank
        for wait in cause.concerned_waits
        if wait.operation is not None and wait.operation.is_same_as(operation)
    ]
    size = operation.group_size
    verb = "waits" if len(inside) == 1 else "wait"
    found = sentence(f"{names.of(inside)} {verb} in {operation.title}")
    if operation.kind == "wait" or not size:
        return sentence(found, "; it is unknown for which rank")
    if operation.scope.kind == "creation" and operation.is_open:
        have = "has" if len(inside) == 1 else "have"
        return sentence(found, f": {len(inside)} of {size} members of the group {have} come")
    is_one = len(operation.group) == 1
    known = f"{names.of(operation.group)} {'is' if is_one else 'are'} known"
    return sentence(found, f"; of the {size} members of the group, only {known}")


UNKNOWN = HangKind(
    name="unknown",
    meaning="The evidence does not show which rank is waited for.",
    next_step=(
        "Compare where the ranks are below. A custom transport can report its waits with "
        "pytest_multihost.operation()."
    ),
    sentence=_unknown,
    shown_by="nothing",
    culprit="none",
    is_momentary=False,
    is_certain_alone=False,
    is_one_event=False,
    is_of_absent_ranks=False,
    is_explained_by_cut=True,
    is_vague=True,
    may_be_slow=True,
    has_line_of_waiting=False,
    includes_errors=False,
)
