"""Ranks in operations that can never match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from pytest_multihost.core.blame.cause import SMALLER, Cause
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.blame.wording import culprit_span, operation_words, side, words_of_all
from pytest_multihost.core.model.operation import REQUEST_SCOPE, Operation, group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, SentencePart, sentence
from pytest_multihost.core.outcome import Finding

_TO_ROOT = frozenset({"reduce", "gather", "gather_object"})
"""Collectives whose root gets the data of the others."""


_MAX_SIDES = 4


def _mismatch(cause: Cause, _: Finding, result: WorldResult) -> Sentence:
    """Return the operation of each side: the culprits' side first or, on a tie, the smallest."""
    names = result.spec.names
    if cause.sides:
        return _unlike_entries(cause, result)
    if cause.unmatched:
        return _unmatched(cause, names)
    if cause.passed:
        return _other_payload(cause, result)
    ranks_in: dict[Sentence, list[int]] = {}
    sides = list(_sides_of_mismatch(cause))
    if len({each.operation.group_key for each in sides if each.operation}) > _MAX_SIDES:
        return _wide_mismatch(sides, cause, result)
    for wait in sides:
        if wait.operation is not None:
            root, frame = wait.operation.root, wait.operation.frame
            to = "to" if wait.operation.name in _TO_ROOT else "from"
            from_root = f" {to} {names.rank(root)}" if root is not None else ""
            at = ""
            if frame is not None and wait.operation.source == "native-frames":
                at = f" at {PurePath(frame.file).name}:{frame.line}"
            words = sentence(operation_words(wait.operation, names), from_root, at)
            ranks_in.setdefault(words, []).append(wait.rank)
    ordered = sorted(
        ranks_in.items(),
        key=lambda each: (not {*each[1]} & {*cause.culprits}, len(each[1]), each[1]),
    )
    found: Sentence = ()
    for number, (words, ranks) in enumerate(ordered):
        be = "is" if len(ranks) == 1 else "are"
        between = ", " if number else ""
        found = sentence(found, between, culprit_span(ranks, cause, names), f" {be} in ", words)
    return found


def _unlike_entries(cause: Cause, result: WorldResult) -> Sentence:
    """Return the operation of each side at one place of the group, the culprits' side first."""
    # The side whose operation is unknown comes last.
    names = result.spec.names
    (first, ranks), *others = sorted(cause.sides, key=lambda each: each[0].name == SMALLER)
    group = (SentencePart(f"({first.group_name(names)})", "group"),)
    found = sentence(
        side(ranks, cause, names), f" entered {first.title}", _detail(first), " ", group
    )
    texts = {(each.name, each.detail) for each, _ in cause.sides}
    if len(texts) == 1:
        than = names.of(rank for _, ranks in others for rank in ranks)
        return sentence(found, f" with another value than {than}")
    for each, theirs in others:
        name = f" {each.name}" if each.name != first.name else ""
        found = sentence(found, ", ", side(theirs, cause, names), name, _detail(each))
    return found


def _detail(operation: Operation) -> str:
    return f" {operation.detail}" if operation.detail else ""


def _wide_mismatch(sides: Sequence[Wait], cause: Cause, result: WorldResult) -> Sentence:
    """Return the same for many groups that are alike: one side for each operation."""
    names = result.spec.names
    found: Sentence = ()
    alike = group_by_value(
        ((each.operation.title, len(each.operation.group)), each)
        for each in sides
        if each.operation
    )
    for number, each in enumerate(sorted(alike.values(), key=len)[:_MAX_SIDES]):
        words = words_of_all([wait.operation for wait in each if wait.operation], names)
        who = culprit_span(sorted(wait.rank for wait in each), cause, names)
        found = sentence(found, ", " if number else "", who, " are in ", words)
    return found


def _other_payload(cause: Cause, result: WorldResult) -> Sentence:
    """Return the payload of each side in the operation, the culprits' side first."""
    names = result.spec.names
    if cause.operation is not None and cause.operation.kind == "transfer":
        return _other_transfer(cause, cause.operation, names)
    if cause.operation is not None and cause.operation.scope == REQUEST_SCOPE:
        return _other_members(cause, cause.operation, names)
    found: Sentence = ()
    for payload, ranks in cause.passed:
        who = side(ranks, cause, names)
        verb = "passes" if len(ranks) == 1 else "pass"
        to = f" {verb} {payload} to "
        if cause.operation is not None and cause.operation.is_program:
            to = f" {'runs' if len(ranks) == 1 else 'run'} {payload} in "
        words = sentence(to, operation_words(cause.operation, names))
        found = sentence(found, ", ", who, f" {payload}") if found else sentence(who, words)
    return found


def _other_members(cause: Cause, request: Operation, names: Names) -> Sentence:
    """Return which members each side names for a group, the culprits' side first."""
    found: Sentence = ()
    for members, ranks in cause.passed:
        name = "names" if len(ranks) == 1 else "name"
        named = f"the members {members} in new_group #{request.sequence}" if not found else members
        words = sentence(side(ranks, cause, names), f" {name} {named}")
        found = sentence(found, ", ", words) if found else words
    return found


def _unmatched(cause: Cause, names: Names) -> Sentence:
    """Return which transfer has no counterpart, and which other one lacks it."""
    found: Sentence = ()
    for rank, transfer in cause.unmatched:
        is_send = "send" in transfer.name
        words = "sends to" if is_send else "receives from"
        peer = names.rank(transfer.peer) if transfer.peer is not None else "any rank"
        lacks = f", which {'receives nothing from' if is_send else 'sends nothing to'} it"
        more = lacks if not found else ""
        found = sentence(
            found,
            ", while " if found else "",
            side((rank,), cause, names),
            f" {words} {peer}{more}",
        )
    return found


def _other_transfer(cause: Cause, operation: Operation, names: Names) -> Sentence:
    """Return the payloads of a transfer: as sent, and as received."""
    is_send = "send" in operation.name
    found: Sentence = ()
    for payload, ranks in sorted(
        cause.passed, key=lambda each: (operation.peer in each[1]) is is_send
    ):
        verb = "receives" if (operation.peer in ranks) is is_send else "sends"
        words = sentence(side(ranks, cause, names), f" {verb} {payload}")
        found = sentence(found, ", ", words) if found else words
    return found


def _sides_of_mismatch(cause: Cause) -> Iterator[Wait]:
    """Yield one wait of each rank of all sides.

    A rank whose operation let it pass waits in a later one of that group.
    """
    group = cause.operation.group_key if cause.operation is not None else None
    is_told = any(wait.is_mismatch for wait in cause.waits)  # else the programs' lines differ
    waits = [wait for wait in cause.concerned_waits if wait.operation is not None]
    for rank, theirs in group_by_value((wait.rank, wait) for wait in waits).items():
        mismatched = [wait for wait in theirs if wait.is_mismatch]
        inside = [wait for wait in theirs if wait.operation and wait.operation.group_key == group]
        is_side = not is_told or rank in cause.culprits
        yield from (mismatched or inside or (theirs if is_side else []))[:1]


MISMATCH = HangKind(
    name="mismatch",
    meaning=(
        "At the same position in their group's sequence, ranks are in operations that can "
        "never match."
    ),
    next_step=(
        "Compare the branches that led the ranks here: one calls something else, or in "
        "another order."
    ),
    sentence=_mismatch,
    shown_by="operations",
    culprit="none",
    is_momentary=False,
    is_certain_alone=False,
    is_one_event=True,
    is_of_absent_ranks=False,
    is_explained_by_cut=False,
    is_vague=False,
    may_be_slow=False,
    has_line_of_waiting=False,
    includes_errors=False,
)
