"""A rank that returned while others still wait for it."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import of_culprits
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence
from pytest_multihost.core.outcome import Finding


def _finished(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    returned = f" returned from the {result.spec.subject}"
    return of_culprits(returned, cause, finding, result)


FINISHED = HangKind(
    name="finished",
    meaning="It returned while others still wait for it.",
    next_step="Look for a branch, a loop count or an early return that depends on the rank.",
    sentence=_finished,
    shown_by="waits",
    culprit="gone",
    is_momentary=False,
    is_certain_alone=False,
    is_one_event=False,
    is_of_absent_ranks=True,
    is_explained_by_cut=False,
    is_vague=False,
    may_be_slow=False,
    has_line_of_waiting=True,
    includes_errors=False,
)
