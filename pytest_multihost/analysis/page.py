"""The page of a world that hung or broke: who, since when, where, and how that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_multihost.analysis.outcome import Finding
from pytest_multihost.analysis.ranks import rank_set
from pytest_multihost.analysis.summary import operation_words
from pytest_multihost.analysis.telling import Telling, place
from pytest_multihost.analysis.tree import Node, merge_stacks, walk
from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.sighting import RankSighting

_MAX_EVIDENCE = 6
_MAX_BRANCHES = 12
_MAX_TASKS = 6
_DETECTED = {
    "proof": "nothing could move before the deadline",
    "mismatch": "these can never match",
    "stopped": "a rank is stopped",
    "exit": "a rank died",
    "raise": "a rank raised",
}


def hang_lines(
    result: WorldResult, finding: Finding, diagnosis: Diagnosis, telling: Telling
) -> Iterator[str]:
    """Yield the lines between the headline and the files."""
    ground = _DETECTED.get(diagnosis.detected_by) or result.reason
    yield (
        f"{diagnosis.kind}, {diagnosis.confidence}: {ground};"
        f" told {diagnosis.detected_after_s:.1f} s after the last progress"
    )
    left = {each.facts.rank for each in finding.ranks if each.facts.waits_at_gate}
    inside = replace(result, dumps=tuple(d for d in result.dumps if d.rank not in left))
    yield from _rows(inside, finding, diagnosis, telling)
    yield from tree_lines(inside, telling)
    yield from _facts("evidence", _evidence(diagnosis))
    yield from _facts("note", diagnosis.notes)


def _facts(title: str, lines: Sequence[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield f"{title if index == 0 else '':<9} {line}"


def _evidence(diagnosis: Diagnosis) -> list[str]:
    """Return equal claims once, with the ranks they hold for."""
    claims: dict[tuple[str, str], list[int]] = {}
    for each in diagnosis.evidence:
        claim = each.claim.partition(" at +")[0]  # the moment of each rank is in the verdict
        claims.setdefault((claim, each.source), []).append(each.rank)
    lines = [f"{rank_set(ranks)}: {claim} ({source})" for (claim, source), ranks in claims.items()]
    more = len(lines) - _MAX_EVIDENCE
    return lines if more <= 0 else [*lines[:_MAX_EVIDENCE], f"and {more} more in verdict.json"]


# One row for each group of ranks that did the same


def _rows(
    result: WorldResult, finding: Finding, diagnosis: Diagnosis, telling: Telling
) -> Iterator[str]:
    seen = {each.rank: each for each in _last_look(result)}
    places = _places(result, telling)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for each in finding.ranks:
        rank = each.facts.rank
        row = (*doing(each.outcome, seen.get(rank), result), places.get(rank, ""))
        groups.setdefault(row, []).append(rank)
    rows = sorted(groups.items(), key=lambda group: _importance(group[1], diagnosis))
    names = [rank_set(ranks) for _, ranks in rows]
    cells = [[row[column] for row, _ in rows] for column in range(2)]
    widths = [max(map(len, names)), *(min(48, max(map(len, column))) for column in cells)]
    for (row, ranks), name in zip(rows, names, strict=True):
        mark = "►" if set(ranks) & set(diagnosis.culprits) else " "
        state, about, where = row
        yield (
            f"{mark} {name:<{widths[0]}}  {state:<{widths[1]}}  {about:<{widths[2]}}  {where}"
        ).rstrip()


def _importance(ranks: Sequence[int], diagnosis: Diagnosis) -> tuple[bool, bool, int, int]:
    return (
        not set(ranks) & set(diagnosis.culprits),
        not set(ranks) & set(diagnosis.waiting),
        len(ranks),
        min(ranks),
    )


def _last_look(result: WorldResult) -> Sequence[RankSighting]:
    return result.sightings[-1].ranks if result.sightings else ()


def doing(outcome: str, seen: RankSighting | None, result: WorldResult) -> tuple[str, str]:
    """Return a rank's state and what it does, as far as was seen.

    Args:
        outcome: What happened to it.
        seen: The last look at it.
        result: Its world.
    """
    if outcome not in ("hung", "collateral") or seen is None:
        return outcome, ""
    waited = [each for each in seen.operations if each.waited_s is not None]
    operation = _telling_one(waited)
    if operation is not None:
        return "waiting", f"in {operation_words(operation, result)}"
    if outcome == "collateral":
        return outcome, ""
    return (seen.label or "hung").lower(), seen.doing


def _telling_one(operations: Sequence[Operation]) -> Operation | None:
    telling = [each for each in operations if each.kind != "wait"] or list(operations)
    return telling[0] if telling else None


def _places(result: WorldResult, telling: Telling) -> Mapping[int, str]:
    found = {}
    for _, node in walk(merge_stacks(result.dumps)):
        for rank in node.ranks:  # children come later, so the innermost stays
            at = place(node.frames[-1], telling)
            found[rank] = f"{at.file}:{at.line} {at.function}"
    return found


# The tree of stacks


def tree_lines(result: WorldResult, telling: Telling) -> Iterator[str]:
    """Yield the merged stacks; what all ranks share first, then where they part."""
    nodes = merge_stacks(result.dumps)
    drawn = list(walk(nodes)) if len(nodes) > 1 else _under_the_root(nodes)
    shown = drawn[:_MAX_BRANCHES]
    names = max((len(_name(node, result)) for _, node in shown), default=0)
    heads = [f"{lead}{_name(node, result):<{names}}  {_chain(node)}" for lead, node in shown]
    width = min(48, max(map(len, heads), default=0))
    for head, (_, node) in zip(heads, shown, strict=True):
        at = place(node.frames[-1], telling)
        source = f"  » {at.source}" if at.source else ""
        yield f"{head:<{width}}  {at.file}:{at.line}{source}"
    if len(drawn) > _MAX_BRANCHES:
        yield f"and {len(drawn) - _MAX_BRANCHES} more branches in verdict.json"
    for dump in result.dumps:
        for task in dump.tasks[:_MAX_TASKS]:
            yield f"task of rank {dump.rank}: {task}"
    moving = [dump.rank for dump in result.dumps if dump.has_moved]
    if moving:
        yield f"{rank_set(moving)} moved between two dumps"
    silent = [dump.rank for dump in result.dumps if not dump.threads]
    if silent:
        yield f"{rank_set(silent)} gave no stack: it ignores the signal, or waits in the kernel"


def _under_the_root(nodes: Sequence[Node]) -> list[tuple[str, Node]]:
    return [entry for root in nodes for entry in (("", root), *walk(root.children, "  "))]


def _name(node: Node, result: WorldResult) -> str:
    if len(node.ranks) == result.spec.size > 1:
        return f"all {result.spec.size}"
    return f"[{rank_set(node.ranks).partition(' ')[2]}]"


def _chain(node: Node) -> str:
    names = [frame.function for frame in node.frames]
    if len(names) > 3:  # noqa: PLR2004 - both ends and what was called in between
        names = [names[0], "…", names[-1]]
    return " → ".join(names)
