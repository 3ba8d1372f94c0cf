"""Why a world was ended as hung, in one sentence, and how soon that was known."""

from __future__ import annotations

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.setting_values import NO_TIMEOUT_S
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.verdict import Diagnosis

_GROUNDS: dict[str, str] = {
    "mismatch": "the ranks are in operations that can never match",
    "stopped": "a rank is stopped",
    "exit": "a rank died",
    "raise": "a rank raised",
}


_IF_RIGHT = "; set a longer timeout if it may sleep that long"
_LONGER = " (set a longer timeout if that can be right)"

_TWO_DIGITS = 10


def ground(judged: Judgement) -> str:
    """Return why the world counts as hung, and how long after its last progress; empty if not.

    A rank that sleeps for longer than the timeout may be right, so the sentence names both times.
    """
    diagnosis, result = judged.diagnosis, judged.result
    if diagnosis is None:
        return ""
    seconds, by = diagnosis.detected_after_s, diagnosis.detected_by
    if result.origin.ground is not None:
        return result.origin.ground(seconds)
    found = f"found {seconds:.1f} s after the last progress"
    if by == "proof":
        sleeps = _sleepers(judged, diagnosis)
        advice = "" if _is_by_horizon(result) else _IF_RIGHT
        return f"{sleeps}; {found}{advice}" if sleeps else f"{_no_progress(result)}; {found}"
    why = "a rank exited" if judged.finding.word == "exited" else _GROUNDS.get(by)
    why = why or result.reason or "its timeout is over"
    if by == "raise" and diagnosis.kind != "raised":  # as a barrier does that can never complete
        has_raised = any(each.facts.failure is not None for each in judged.finding.ranks)
        why = why if has_raised else "the runtime has ended a rank"
        why = f"{why} because of it"
        if judged.finding.outcome != "hung":  # else the headline stands above
            why = f"{diagnosis.summary}; {why}"
    if by == "deadline" and kind_of(diagnosis.kind).culprit == "busy":  # its steps are progress
        return f"{why}{_LONGER}"
    may_be_slow = by == "deadline" and kind_of(diagnosis.kind).may_be_slow
    return f"{why}{_LONGER if may_be_slow else ''}; {found}"


def _sleepers(judged: Judgement, diagnosis: Diagnosis) -> str:
    """Return how long the culprits sleep, if all of them do; empty otherwise."""
    spec, last = judged.result.spec, judged.result.last_seen
    # A rank that polls within an operation sleeps, too.
    waiting = {each.rank for each in diagnosis.waits_for if each.operation is not None}
    if not waiting.isdisjoint(diagnosis.culprits):
        return ""
    seen = [last[rank].activity for rank in diagnosis.culprits if rank in last]
    left = [each.ends_in_s for each in seen if each is not None and each.is_sleep]
    longest_s = max((each for each in left if each is not None), default=None)
    if longest_s is None or None in left or len(left) < len(diagnosis.culprits):
        return ""
    who = judged.result.spec.names.of(diagnosis.culprits)
    verb = "sleeps" if len(diagnosis.culprits) == 1 else "sleep"
    sleeps = f"{who} {verb} for another {_seconds(longest_s)}"
    if _is_by_horizon(judged.result):
        return f"{sleeps}, which is longer than the {spec.horizon_s:g} s of --horizon"
    return f"{sleeps}, and the timeout is {timeout_text(spec)}"


def _is_by_horizon(result: WorldResult) -> bool:
    return result.spec.is_by_horizon(result.detected_s, result.go_s)


def _no_progress(result: WorldResult) -> str:
    if result.spec.is_by_horizon(result.detected_s, result.go_s):
        return f"no rank can make progress within the next {result.spec.horizon_s:g} s"
    return f"no rank can make progress before the timeout of {timeout_text(result.spec)}"


def timeout_text(spec: WorldSpec) -> str:
    """Return the timeout of a world and its origin: "120 s (the default)"."""
    if spec.timeout_s >= NO_TIMEOUT_S:
        return "none"
    origin = f" ({spec.timeout_from})" if spec.timeout_from else ""
    return f"{_seconds(spec.timeout_s)}{origin}"


def _seconds(value: float) -> str:
    """Return seconds with two digits at least: 150 s, 12 s, 7.8 s."""
    return f"{value:.2g} s" if value < _TWO_DIGITS else f"{value:.0f} s"
