"""Words that the headlines of several kinds of hangs have in common."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.core.blame.cause import Cause, first_waits
from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import Sentence, SentencePart, sentence
from pytest_multihost.core.outcome import Finding


def culprit_span(ranks: Sequence[int], cause: Cause, names: Names) -> Sentence:
    """Return ranks, marked and with their child if they are the culprits."""
    is_culprit = set(ranks) == set(cause.culprits)
    child = f" / {cause.child.title}" if is_culprit and cause.child is not None else ""
    return (SentencePart(f"{names.of(ranks)}{child}", "culprit" if is_culprit else ""),)


def side(ranks: Sequence[int], cause: Cause, names: Names) -> Sentence:
    """Return the ranks of one side, marked if all of them are culprits."""
    return (SentencePart(names.of(ranks), "culprit" if {*ranks} <= {*cause.culprits} else ""),)


def operation_words(operation: Operation | None, names: Names, otherwise: str = "") -> Sentence:
    """Return the text of an operation, or another one if there is none."""
    if operation is None:
        return sentence(otherwise)
    if group := operation.group_name(names):
        return sentence(f"{operation.title} ", (SentencePart(f"({group})", "group"),))
    return sentence(operation.title)


def words_of_all(operations: Sequence[Operation], names: Names) -> Sentence:
    """Return the text of an operation that is open in several groups of the same size."""
    first, groups = operations[0], {each.group_key for each in operations}
    if len(groups) == 1:
        return operation_words(first, names)
    alike = f"{len(groups)} groups of {len(first.group)}"
    return sentence(f"{first.title} ", (SentencePart(f"({alike})", "group"),))


def wait_verb(ranks: Sequence[int]) -> str:
    """Return "wait", in the form that fits a number of ranks."""
    return "waits" if len(ranks) == 1 else "wait"


def waiters(cause: Cause, finding: Finding, names: Names) -> Sentence:
    """Return the waiting ranks as in "; ranks 1-3 wait for it in all_reduce #3 (world group)".

    They waited if they no longer do, because the runtime has raised in all of them.
    """
    if not cause.waiting:
        return ()
    have_raised = all(finding.ranks[rank].facts.failure is not None for rank in cause.waiting)
    verb = "waited" if have_raised else wait_verb(cause.waiting)
    them = "it" if len(cause.culprits) == 1 else "them"
    lead = f"; {names.of(cause.waiting)} {verb} for {them}"
    return in_operations(cause, cause.waiting, sentence(lead), names)


def of_culprits(did: str, cause: Cause, finding: Finding, result: WorldResult) -> Sentence:
    """Return the action of the culprits, and the ranks that wait for them."""
    names = result.spec.names
    who = culprit_span(cause.culprits, cause, names)
    return sentence(who, did, waiters(cause, finding, names))


_MAX_WAITS = 3
"""How many operations a headline names in which ranks wait; the page has all of them."""


def in_operations(
    cause: Cause, ranks: Sequence[int], lead: Sentence, names: Names, rest: Sentence = ()
) -> Sentence:
    """Return a sentence about some ranks with the operation of each.

    One operation of all of them follows: "ranks 1-3 wait for it in A". Several are listed: "ranks
    1-3 wait for it: rank 1 in A, ranks 2,3 in B". A rank without an operation is not in the list.

    Args:
        lead: The beginning of the sentence, as in "ranks 1-3 wait".
        rest: The words after the lead and the one operation, as in " for rank 0".
    """
    own = {each.rank: each.operation for each in first_waits(cause) if each.rank in ranks}
    inside = _ranks_in([(rank, each) for rank, each in own.items() if each is not None], names)
    if not inside:
        return sentence(lead, rest)
    if {*inside[0][1]} == {*ranks}:
        return sentence(lead, " in ", inside[0][0], rest)
    found = sentence(lead, rest)
    for number, (words, those) in enumerate(inside[:_MAX_WAITS]):
        found = sentence(found, ", " if number else ": ", f"{names.of(those)} in ", words)
    if others := [rank for _, those in inside[_MAX_WAITS:] for rank in those]:
        found = sentence(found, f", {names.of(others)} in other operations")
    return found


def _ranks_in(
    operations: Sequence[tuple[int, Operation]], names: Names
) -> Sequence[tuple[Sentence, Sequence[int]]]:
    """Return the texts of ranks' operations, and the ranks in each.

    Operations of several groups of the same size are one if there would be too many texts.
    """
    alone = group_by_value(
        (operation_words(each, names), (rank, each)) for rank, each in operations
    )
    if len(alone) > _MAX_WAITS:
        alike = group_by_value(
            ((each.title, len(each.group)), (rank, each)) for rank, each in operations
        )
        alone = {
            words_of_all([each for _, each in those], names): those for those in alike.values()
        }
    return [(words, sorted(rank for rank, _ in those)) for words, those in alone.items()]


_MAX_CHILDREN = 3


def lost_children(cause: Cause) -> str:
    """Return which children of the culprit signals have ended, to append to a sentence."""
    told = [f"its child {each.title} {each.ended}" for each in cause.lost[:_MAX_CHILDREN]]
    return f": {', '.join(told)}" if told else ""
