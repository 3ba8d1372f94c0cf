"""The divergence of a world: the parting that explains its hang, and its description."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.partings import differing_lines
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import States
from pytest_multihost.core.model.history import Parting, Side
from pytest_multihost.core.model.operation import (
    REQUEST_SCOPE,
    Operation,
    group_by_value,
    group_name,
    nth,
)
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import Frame, SourceContext, inside_the_test, is_ours
from pytest_multihost.core.model.verdict import Divergence, DivergenceSide, OperationName


def first_divergence(partings: Sequence[Parting], cause: Cause, states: States) -> Parting | None:
    """Return the first parting that explains more than the cause does.

    Args:
        cause: Why the world hung, judged by the ranks' states at the end.
    """
    explaining = [each for each in partings if _explains(each, cause, states)]
    counted = {each.group for each in partings if each.evidence == "counts"}
    # In a group whose ranks parted by their counts, lines are weaker evidence.
    less = [each for each in explaining if each.evidence == "lines" and each.group in counted]
    for evidence in ("operations", "lines", "counts", "details"):
        found = [each for each in explaining if each.evidence == evidence and each not in less]
        if found:
            return min(found, key=lambda each: each.at_s)
    of_culprits = [each for each in less if cause.culprits in {side.ranks for side in each.sides}]
    if cause.kind != "finished":
        return None
    return min(of_culprits, key=lambda each: each.at_s, default=None)


def _explains(parting: Parting, cause: Cause, states: States) -> bool:
    """Return whether a parting shows more than ranks that are late for, or lost to, an operation.

    A parting after a failed operation does not: it may follow from the failure.
    """
    ended = [each for state in states.values() for each in state.known if each.failed]
    if any((each.ended_s or 0.0) < parting.at_s for each in ended):
        return False
    if parting.evidence == "operations":
        return True
    if parting.group[2] == REQUEST_SCOPE:  # such ranks may go on for long
        return _is_by_payload(cause, parting)
    if parting.evidence == "details":
        return cause.cut is None and (cause.kind == "transport" or _is_by_payload(cause, parting))
    # The contract of verdict.json gives counts and lines only if the absent ranks have finished or
    # wait elsewhere. A straggler, or a rank that raised, was on its way to the others' operation:
    # that is the diagnosis, not a parting. Operations that differ are reported for every kind
    # (above). Other mismatches are of payloads, or of operations of two groups.
    is_elsewhere = cause.kind == "deadlock" or (cause.kind == "mismatch" and not cause.passed)
    if not (is_elsewhere or cause.kind == "finished"):
        return False
    absent = [rank for side in parting.sides if side.operation is None for rank in side.ranks]
    entered = [side for side in parting.sides if side.operation is not None]
    there = {rank for side in entered for rank in side.ranks}
    is_awaited = parting.evidence == "lines" or any(
        side.operation is not None and side.operation.is_same_as(each)
        for side in entered
        for rank in side.ranks
        for each in states[rank].pending
    )
    are_elsewhere = all(
        states[rank].condition == "finished" or _waits_for_all(states[rank], there)
        for rank in absent
    )
    is_loop = any(side.count for side in parting.sides if side.operation is None)
    return is_awaited and are_elsewhere and (is_loop or is_elsewhere or not absent)


def _is_by_payload(cause: Cause, parting: Parting) -> bool:
    """Return whether the members' payloads of an operation of this group do not match."""
    operation = cause.operation
    is_there = operation is not None and operation.group_key == parting.group
    return bool(cause.passed) and is_there


def _waits_for_all(state: RankState, others: Collection[int]) -> bool:
    """Return whether a rank waits in an operation of a group of all these ranks."""
    return any(each.has_members and {*each.group}.issuperset(others) for each in state.pending)


def followed(cause: Cause, parting: Parting | None, *, is_of_size: bool = False) -> Cause:
    """Return a mismatch with the culprits that follow from where the ranks parted.

    If all ranks entered the last operation, but earlier ones can never match, it is a mismatch.

    Args:
        is_of_size: Whether the culprit was ended because data did not fit. The data is of an
            operation that does not match, perhaps long after the first such operation.
    """
    if parting is None or parting.evidence != "operations" or cause.cut is not None:
        return cause
    is_late_mismatch = cause.kind == "transport" and not cause.culprits
    if not (cause.kind == "mismatch" or is_late_mismatch or is_of_size):
        return cause
    culprits = parting.minority
    waiting = {*cause.waiting, *cause.culprits} - {*culprits}
    return replace(cause, kind="mismatch", culprits=culprits, waiting=tuple(sorted(waiting)))


def described(
    first: Parting, states: States, result: WorldResult, context: SourceContext
) -> Divergence:
    """Return a parting as it is shown to people and written to verdict.json.

    Groups whose ranks parted alike, such as all pairs of a mesh, are one divergence.
    """
    parting, alike = _with_those_alike(first, result.partings)
    names, group = result.spec.names, parting.group
    told = [
        _described(side, entered, through, parting, context, result.spec)
        for side, entered, through in _with_stacks_of_waits(parting, states, result)
    ]
    common = f"after {parting.common} operation{'s' * (parting.common != 1)} in common"
    more = f" and {alike} more group{'s' * (alike != 1)} with the same" if alike else ""
    lead = f"{common} ({group_name(group[0], names, group[1])}{more})"
    sides = ", where ".join(f"{names.of(each.ranks)} {each.text}" for each in told)
    return Divergence(
        common=parting.common,
        group=group[0],
        evidence=parting.evidence,
        minority=parting.minority,
        sides=tuple(told),
        lead=lead,
        summary=f"{lead}, {sides}",
    )


def _with_those_alike(parting: Parting, others: Sequence[Parting]) -> tuple[Parting, int]:
    """Return a parting with the ranks of its likes, and the number of these."""
    look = _look_of(parting)
    alike = [each for each in others if each.group != parting.group and _look_of(each) == look]
    sides = tuple(
        replace(side, ranks=tuple(sorted({*side.ranks, *(r for e in their for r in e.ranks)})))
        for side, *their in zip(parting.sides, *(each.sides for each in alike), strict=True)
    )
    return replace(parting, sides=sides), len(alike)


def _look_of(parting: Parting) -> tuple[object, ...]:
    """Return the key that is equal for partings that are alike."""
    sides = tuple(
        (each.operation and each.operation.name, each.frame, each.through, each.count)
        for each in parting.sides
    )
    return parting.common, parting.evidence, len(parting.group[0]), sides


def _with_stacks_of_waits(
    parting: Parting, states: States, result: WorldResult
) -> Iterator[tuple[Side, Operation | None, Frame | None]]:
    """Yield each side, the operation it entered or waits in elsewhere, and the line that differs.

    The line comes from the stacks if all sides are still in that operation, at one user line.
    """
    sides = [part for each in parting.sides for part in _split_by_waits(each, states)]
    pending = [states[each.ranks[0]].pending if each.ranks else () for each in sides]
    entered = [
        each.operation or next(iter(waits), None)
        for each, waits in zip(sides, pending, strict=True)
    ]
    throughs: Sequence[Frame | None] = [each.through for each in sides]
    dumps = {each.rank: each.main.frames for each in result.dumps if each.main is not None}
    are_there = all(
        operation is not None and any(map(operation.is_same_as, waits))
        for operation, waits in zip(entered, pending, strict=True)
    )
    if are_there and not any(throughs) and all(e.ranks[0] in dumps for e in sides):
        stacks = [inside_the_test(dumps[each.ranks[0]]) for each in sides]
        throughs = differing_lines([[e for e in each if not is_ours(e.file)] for each in stacks])
    yield from zip(sides, entered, throughs, strict=True)


def _split_by_waits(side: Side, states: States) -> Iterator[Side]:
    """Yield the parts of a side that wait elsewhere: in other operations, or at other lines."""
    if side.operation is not None or not side.ranks:
        yield side
        return
    waits = ((next(iter(states[rank].pending), None), rank) for rank in side.ranks)
    alike = group_by_value(
        ((each and (each.name, each.tag, each.group, each.frame)), rank) for each, rank in waits
    )
    for ranks in alike.values():
        yield replace(side, ranks=tuple(ranks))


def _described(
    side: Side,
    entered: Operation | None,
    through: Frame | None,
    parting: Parting,
    context: SourceContext,
    spec: WorldSpec,
) -> DivergenceSide:
    frame = side.frame or (entered.frame if entered is not None else None)
    place = context.place(frame) if frame is not None else None
    line = context.place(through) if through is not None else None
    name = None
    if entered is not None:
        name = OperationName(entered.name, entered.sequence, entered.group)
    at = f" from {place.function}(), {place.file}:{place.line}" if place is not None else ""
    if line is not None:
        at += f", through {line.function}(), {line.file}:{line.line}"
    return DivergenceSide(
        ranks=side.ranks,
        operation=name,
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        function=place.function if place is not None else None,
        source=place.source if place is not None else None,
        through=line,
        count=side.count,
        text=_did(side, entered, parting, spec, at),
    )


def _did(side: Side, entered: Operation | None, parting: Parting, spec: WorldSpec, at: str) -> str:
    """Return the words for the action of a side's ranks; `at` names the line."""
    others = [each.operation for each in parting.sides if each.operation is not None]
    if side.operation is not None:
        alike = [each for each in others if each.name == side.operation.name]
        root, detail = side.operation.root, side.operation.detail
        more = f" (root {root})" if len({each.root for each in alike}) > 1 else ""
        more += f" {detail}" if len({each.detail for each in alike}) > 1 else ""
        time = f", for the {nth(side.count)} time" if side.count and side.count > 1 else ""
        return f"entered {side.operation.name}{more}{at}{time}"
    returned = f"returned from the {spec.subject}"
    did = f"went on to {entered.describe(spec.names)}{at}" if entered else returned
    times = f"{side.count} time{'s' * (side.count != 1)}"
    return f"{did}, having entered that {others[0].name} {times}" if side.count and others else did
