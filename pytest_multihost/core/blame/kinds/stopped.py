"""A rank whose process something has stopped."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import of_culprits
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence
from pytest_multihost.core.outcome import Finding


def _how_stopped(ranks: Sequence[int], result: WorldResult) -> str:
    """Return how ranks are stopped; the kernel does not name the process that did it."""
    seen = [result.last_seen.get(rank) for rank in ranks]
    if all(each and each.activity and each.activity.name == "held by a tracer" for each in seen):
        return "held by a debugger or another tracer"
    return "stopped by a signal such as SIGSTOP"


def _stopped(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    be = "is" if len(cause.culprits) == 1 else "are"
    stopped = f" {be} {_how_stopped(cause.culprits, result)}"
    return of_culprits(stopped, cause, finding, result)


STOPPED = HangKind(
    name="stopped",
    meaning="Something has stopped its process: SIGSTOP, or a debugger.",
    next_step="Look for what stops it: a debugger, a job's suspension, a frozen container.",
    sentence=_stopped,
    shown_by="process",
    culprit="held",
    is_momentary=True,
    is_certain_alone=True,
    is_one_event=False,
    is_of_absent_ranks=False,
    is_explained_by_cut=False,
    is_vague=False,
    may_be_slow=False,
    has_line_of_waiting=False,
    includes_errors=False,
)
