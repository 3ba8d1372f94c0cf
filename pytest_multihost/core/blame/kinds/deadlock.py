"""Ranks, or threads of one rank, that wait for each other in a cycle."""

from __future__ import annotations

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.lock_cycles import lock_cycle
from pytest_multihost.core.blame.wording import (
    culprit_span,
    in_operations,
    operation_words,
    wait_verb,
)
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, SentencePart, sentence
from pytest_multihost.core.outcome import Finding

_LONG_CYCLE = 6
"""The headline describes a longer cycle by the operations, and not rank by rank."""


def _deadlock(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    names = result.spec.names
    if len(cause.cycle) == 1:
        return _lock_cycle(cause, result)
    if len(cause.cycle) > _LONG_CYCLE:
        return _long_deadlock(cause, result)
    found = sentence(
        culprit_span(cause.cycle or cause.waiting, cause, names),
        " wait for each other: ",
    )
    for rank, ahead in zip(cause.cycle, (*cause.cycle[1:], *cause.cycle[:1]), strict=True):
        wait = next((w for w in cause.waits if w.rank == rank and ahead in w.missing), None)
        operation = wait.operation if wait is not None else None
        words = operation_words(operation, names, otherwise="the lock of a file")
        between = "" if rank == cause.cycle[0] else ", "
        for_whom = f" for {names.rank(ahead)}"
        if wait is not None and operation is not None and not operation.has_members:
            is_shared = operation.kind == "collective" or operation.source == "proc"
            is_one = len(wait.missing) == 1 or not is_shared
            for_whom = for_whom if is_one else f" for some of {names.of(sorted(wait.missing))}"
        found = sentence(found, f"{between}{names.rank(rank)} waits in ", words, for_whom)
    return found


def _long_deadlock(cause: Cause, result: WorldResult) -> Sentence:
    """Return the waits of a long cycle's ranks; groups that are alike are one."""
    names = result.spec.names
    who = sentence(culprit_span(cause.cycle, cause, names), " wait for each other")
    return in_operations(cause, cause.cycle, who, names)


def _lock_cycle(cause: Cause, result: WorldResult) -> Sentence:
    names = result.spec.names
    (rank,) = cause.cycle
    waits = lock_cycle(result.dumps, rank)
    if not waits and cause.operation is not None and cause.operation.child is not None:
        child = cause.operation.child.title
        inside = sentence(f"its child {child} in ", operation_words(cause.operation, names))
        who = sentence(f"processes of {names.rank(rank)} wait for each other: ", inside)
        return sentence(who, ", and another one for a lock that one of them holds on a file")
    *before, last = [each.thread for each in waits]
    locks = sorted({each.lock for each in waits if each.lock})
    which = f" (lock{'s' * (len(locks) > 1)} {', '.join(locks)})"
    who = (SentencePart(names.rank(rank), "culprit"),)
    threads = f"threads {', '.join(before)} and {last} of "
    found = sentence(threads, who, f" wait for each other{which}")
    others = [each for each in cause.waiting if each != rank]
    if not others:
        return found
    found = sentence(
        found,
        f"; {names.of(others)} {wait_verb(others)} for {names.rank(rank)}",
    )
    return in_operations(cause, others, found, names)


DEADLOCK = HangKind(
    name="deadlock",
    meaning=(
        "Ranks, or threads of one rank, wait for each other in a cycle, so none of them can "
        "continue."
    ),
    next_step=(
        "Compare the order in which they enter these operations or take these locks; the same"
        " order on all ranks removes the deadlock."
    ),
    sentence=_deadlock,
    shown_by="operations",
    culprit="none",
    is_momentary=False,
    is_certain_alone=False,
    is_one_event=True,
    is_of_absent_ranks=True,
    is_explained_by_cut=True,
    is_vague=False,
    may_be_slow=False,
    has_line_of_waiting=False,
    includes_errors=False,
)
