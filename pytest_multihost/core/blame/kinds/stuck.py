"""A rank that is blocked, and for which no other rank waits."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import culprit_span, in_operations, lost_children
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import phase_name
from pytest_multihost.core.model.verdict import Sentence, sentence
from pytest_multihost.core.outcome import Finding


def _stuck(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    names = result.spec.names
    ranks, subject = cause.culprits, result.spec.subject
    phases = group_by_value((finding.ranks[rank].facts.phase, rank) for rank in ranks)
    seen = [result.last_seen.get(rank) for rank in ranks]
    sleep = all(each is not None and each.label == "SLEEPING" for each in seen)
    be, them = ("is", "it") if len(ranks) == 1 else ("are", "them")
    state = f" {'sleeps' if be == 'is' else 'sleep'}" if sleep else f" {be} stuck"
    (first, *_), alone = phases, f", and no other rank waits for {them}"
    where = "" if len(phases) > 1 else f" in {phase_name(first, subject)}"
    who = sentence(culprit_span(ranks, cause, names), f"{state}{where}")
    if len(phases) > 1:
        told = (f"{names.of(each)} in {phase_name(it, subject)}" for it, each in phases.items())
        doing = sentence(who, f": {', '.join(told)}")
    else:
        doing = in_operations(cause, ranks, who, names)
    return sentence(doing, alone, lost_children(cause))


STUCK = HangKind(
    name="stuck",
    meaning="A rank is blocked by itself, and no other rank waits for it.",
    next_step="Ask what this line waits for; no other rank takes part in it.",
    sentence=_stuck,
    shown_by="nothing",
    culprit="still",
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
