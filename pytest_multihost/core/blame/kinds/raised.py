"""A rank that raised an exception out of the test."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import of_culprits
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence
from pytest_multihost.core.outcome import Finding


def _raised(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    raised = f" raised {finding.ranks[cause.culprits[0]].summary}"
    return of_culprits(raised, cause, finding, result)


RAISED = HangKind(
    name="raised",
    meaning="It left by an exception of its own while others still wait for it.",
    next_step="Fix the exception, and ask whether the other ranks should have been told of it.",
    sentence=_raised,
    shown_by="failure",
    culprit="gone",
    is_momentary=False,
    is_certain_alone=False,
    is_one_event=True,
    is_of_absent_ranks=False,
    is_explained_by_cut=False,
    is_vague=False,
    may_be_slow=False,
    has_line_of_waiting=False,
    includes_errors=True,
)
