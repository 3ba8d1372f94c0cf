"""The headline of a diagnosis: the culprits, and the operation in which others wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.planned_freeze import planned_freeze
from pytest_multihost.core.blame.wording import of_culprits
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import RankPlace, Sentence, SentencePart, sentence
from pytest_multihost.core.outcome import Finding


def headline(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return one line: the culprits, and the operation in which the other ranks wait for them."""
    if cause.parts:
        return _together(cause, finding, result)
    if fault := planned_freeze(cause, result):
        be = "is" if len(cause.culprits) == 1 else "are"
        return of_culprits(f" {be} frozen by {fault!r}", cause, finding, result)
    return kind_of(cause.kind).sentence(cause, finding, result)


_MAX_PARTS = 3


def _together(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return the headlines of the first causes that one puts together, and the other culprits."""
    found: Sentence = ()
    for each in cause.parts[:_MAX_PARTS]:
        found = sentence(found, "; " if found else "", headline(each, finding, result))
    more = {rank for each in cause.parts[_MAX_PARTS:] for rank in each.culprits}
    if more:
        found = sentence(found, "; also ", (SentencePart(result.spec.names.of(more), "culprit"),))
    return found


def waiting_line(cause: Cause, places: Sequence[RankPlace]) -> str:
    """Return the line at which the others wait for a culprit that is gone and has no line."""
    if not kind_of(cause.kind).has_line_of_waiting:
        return ""
    waits = (each for each in cause.concerned_waits if each.operation is cause.operation)
    ranks = [wait.rank for wait in waits if wait.rank in cause.waiting][:1]
    at = next((each for each in places if each.rank in ranks), None)
    return f" at {at.file}:{at.line}" if at is not None else ""
