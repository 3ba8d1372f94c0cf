"""A rank for which the others wait, and which is still."""

from __future__ import annotations

from pathlib import PurePath

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import (
    culprit_span,
    in_operations,
    lost_children,
    of_culprits,
    operation_words,
    wait_verb,
)
from pytest_multihost.core.model.operation import READY_SCOPE
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import innermost_user_frame
from pytest_multihost.core.model.verdict import Sentence, sentence
from pytest_multihost.core.outcome import Finding


def _straggler(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    return sentence(never_came(cause, finding, result), lost_children(cause))


def _computing(cause: Cause, result: WorldResult) -> str:
    """Return the words for culprits of an attached job that compute, with the line; else "".

    They may come to the operation yet.
    """
    seen = [result.last_seen.get(rank) for rank in cause.culprits]
    if result.ending != "unwatched" or not all(each and each.label == "RUNNING" for each in seen):
        return ""
    first = next((each for each in result.dumps if each.rank == cause.culprits[0]), None)
    main = first.main if first is not None else None
    frame = innermost_user_frame(main.frames) if main is not None else None
    at = f" at {PurePath(frame.file).name}:{frame.line}" if frame is not None else ""
    return f" computes{at}" if len(seen) == 1 else " compute"


def never_came(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return the sentence for culprits that never came, and the ranks that wait for them."""
    operation, names = cause.operation, result.spec.names
    who = culprit_span(cause.culprits, cause, names)
    wait = f"{names.of(cause.waiting)} {wait_verb(cause.waiting)}"
    if operation is None:
        direct = [w.rank for w in cause.concerned_waits if w.missing & {*cause.culprits}]
        waiters = sorted({*direct} & {*cause.waiting}) or cause.waiting
        waiting = f"{names.of(waiters)} {wait_verb(waiters)} for a lock that "
        return sentence(waiting, who, f" {'holds' if len(cause.culprits) == 1 else 'hold'}")
    if computing := _computing(cause, result):
        return of_culprits(computing, cause, finding, result)
    words = operation_words(operation, names)
    into = [w for w in cause.concerned_waits if w.operation and {*cause.culprits} & w.missing]
    if operation.scope == READY_SCOPE:
        return sentence(who, f" never became ready ({operation.detail}); {wait} for that")
    if cause.is_silent:
        nothing = sentence(" for ", who, ", of which nothing was recorded")
        return in_operations(cause, cause.waiting, sentence(wait), names, nothing)
    if operation.kind == "collective":
        return sentence(who, " never reached ", words)
    waiter = next((w.rank for w in cause.waits if w.operation is operation), cause.waiting[0])
    if operation.kind == "transfer" and len(cause.culprits) > 1:
        of = names.of(w.rank for w in into if w.operation and w.operation.kind == "transfer")
        return sentence(who, f" never did their part in transfers of {of}")
    if operation.kind == "transfer":
        return sentence(who, " never did its part in ", words, f" of {names.rank(waiter)}")
    lacking = sentence(" for something that ", who, " did not provide")
    return in_operations(cause, cause.waiting, sentence(wait), names, lacking)


STRAGGLER = HangKind(
    name="straggler",
    meaning=(
        "The others wait for it, and it is in no operation with them: one long wait, sleep, "
        "read or lock of its own."
    ),
    next_step="Ask why it does not get past this line; the waiting ranks are where they should be.",
    sentence=_straggler,
    shown_by="waits",
    culprit="still",
    is_momentary=True,
    is_certain_alone=False,
    is_one_event=False,
    is_of_absent_ranks=True,
    is_explained_by_cut=False,
    is_vague=True,
    may_be_slow=True,
    has_line_of_waiting=False,
    includes_errors=False,
)
