"""An operation that all members have entered, and in which nothing moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from pytest_multihost.core.blame.cause import Cause, first_waits
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wording import (
    culprit_span,
    in_operations,
    operation_words,
    wait_verb,
    waiters,
)
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, sentence
from pytest_multihost.core.outcome import Finding


def _transport(cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    operation, names = cause.operation, result.spec.names
    words = operation_words(operation, names, otherwise="an operation")
    if cause.culprits:
        are_told = {*_inside(cause)} >= {*cause.waiting}
        rest = waiters(replace(cause, waits=()) if are_told else cause, finding, names)
        who = culprit_span(cause.culprits, cause, names)
        return sentence(who, " left ", words, f" by {cause.error}", rest)
    entered = sorted({*(inside := _inside(cause)), *cause.begun})
    have = "has" if len(entered) == 1 else "have"
    if not entered:  # of the operation nothing is known
        waits = f"{names.of(cause.waiting)} {wait_verb(cause.waiting)}"
        return sentence(waits, f", and {cause.cut.words if cause.cut else 'nothing moves'}")
    if cause.cut is not None:
        return sentence(f"{names.of(entered)} {have} entered ", words, f", and {cause.cut.words}")
    lines = _lines_in_unknown_groups(cause)
    if operation is not None and len(lines) > 1:
        where = "; ".join(f"{names.of(ranks)} at {line}" for line, ranks in lines.items())
        return sentence(
            f"{names.of(entered)} wait in {operation.name} at different lines, of one group or of"
            f" several: {where}"
        )
    if cause.left:
        has = "has" if len(cause.left) == 1 else "have"
        found = sentence(f"{names.of(inside)} {wait_verb(inside)} in ", words)
        found = sentence(found, f", which {names.of(cause.left)} {has} left")
        waiting = {each.rank for each in first_waits(cause) if each.operation is not None}
        if gone := [rank for rank in cause.left if rank in waiting]:
            found = sentence(found, f"; {names.of(gone)} now {wait_verb(gone)}")
            return in_operations(cause, gone, found, names)
        return sentence(found, ", and nothing moves")
    return sentence(f"{names.of(entered)} {have} entered ", words, ", and nothing moves")


def _inside(cause: Cause) -> Sequence[int]:
    """Return the ranks that wait in the operation of a cause; of a transfer, in its side of it."""
    operation = cause.operation
    if operation is None:
        return []
    waits = [each for each in cause.concerned_waits if each.operation is not None]
    its = [each for each in waits if each.operation and each.operation.is_same_as(operation)]
    if operation.kind == "transfer":  # other pairs of the group count theirs alike
        its = [wait for wait in its if wait.operation is operation]
    return sorted({wait.rank for wait in its})


def _lines_in_unknown_groups(cause: Cause) -> Mapping[str, Sequence[int]]:
    """Return the ranks at each line of a collective whose group frames alone do not show."""
    operation = cause.operation
    if operation is None or operation.has_members or operation.source != "python-frames":
        return {}
    return group_by_value(
        (f"{PurePath(each.frame.file).name}:{each.frame.line}", wait.rank)
        for wait in cause.concerned_waits
        if (each := wait.operation) is not None and each.is_same_as(operation) and each.frame
    )


TRANSPORT = HangKind(
    name="transport",
    meaning=(
        "All ranks have entered the same operation and nothing moves: the network, or the way"
        " to it."
    ),
    next_step="Look at addresses, interfaces and ports: the ranks agree, the bytes do not arrive.",
    sentence=_transport,
    shown_by="operations",
    culprit="none",
    is_momentary=True,
    is_certain_alone=False,
    is_one_event=False,
    is_of_absent_ranks=True,
    is_explained_by_cut=True,
    is_vague=True,
    may_be_slow=False,
    has_line_of_waiting=False,
    includes_errors=True,
)
