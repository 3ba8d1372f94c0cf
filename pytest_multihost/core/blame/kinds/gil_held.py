"""A rank in which native code holds the GIL."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import culprit_span, waiters
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, sentence
from pytest_multihost.core.outcome import Finding


def _gil_held(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    names = result.spec.names
    holds = f" holds the GIL {cause.call}".rstrip()
    who = sentence("native code in ", culprit_span(cause.culprits, cause, names), holds)
    return sentence(who, waiters(cause, finding, names))


GIL_HELD = HangKind(
    name="gil_held",
    meaning="Native code holds the GIL, so no Python of this rank can run.",
    next_step="Look for a native call that waits without releasing the GIL.",
    sentence=_gil_held,
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
