"""A rank whose process ended."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import of_culprits
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence
from pytest_multihost.core.outcome import Finding


def _died(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    what = finding.ranks[cause.culprits[0]].summary
    return of_culprits(f" {what}", cause, finding, result)


DIED = HangKind(
    name="died",
    meaning="Its process ended unexpectedly.",
    next_step=(
        "Read the end of its log below; a signal shows who ended it (SIGKILL: often the "
        "kernel, for memory)."
    ),
    sentence=_died,
    shown_by="failure",
    culprit="gone",
    is_momentary=False,
    is_certain_alone=True,
    is_one_event=True,
    is_of_absent_ranks=False,
    is_explained_by_cut=False,
    is_vague=False,
    may_be_slow=False,
    has_line_of_waiting=True,
    includes_errors=False,
)
