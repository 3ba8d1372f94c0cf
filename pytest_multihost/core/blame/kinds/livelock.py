"""A rank for which the others wait, and which is busy."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.kinds.straggler import never_came
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, sentence
from pytest_multihost.core.outcome import Finding


def _busy(cause: Cause) -> str:
    is_one = len(cause.culprits) == 1
    it_waits = "it is busy, or waits" if is_one else "they are busy, or wait"
    return f": {it_waits} again and again"


def _livelock(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    return sentence(never_came(cause, finding, result), _busy(cause))


LIVELOCK = HangKind(
    name="livelock",
    meaning="The others wait for it while it computes, or wakes up again and again.",
    next_step="Ask what this loop waits for, and which rank should provide it.",
    sentence=_livelock,
    shown_by="waits",
    culprit="busy",
    is_momentary=True,
    is_certain_alone=False,
    is_one_event=False,
    is_of_absent_ranks=True,
    is_explained_by_cut=False,
    is_vague=False,
    may_be_slow=True,
    has_line_of_waiting=False,
    includes_errors=False,
)
