"""The page of a world that hung or broke: who, since when, where, and how that is known."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.model.diagnosis import Diagnosis, Place
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.snapshot import RankSnapshot
from pytest_multihost.model.user_code import SourceContext
from pytest_multihost.outcome import Finding, RankFinding
from pytest_multihost.report.stack_tree import Node, merge_stacks, walk

# With these a page has at most 30 lines, however many ranks there are.
_MAX_ROWS = 6
_MAX_BRANCHES = 9
_MAX_EVIDENCE = 5
_MAX_TASKS = 4

_LEAST_ROOM = 16
_USUAL = 48  # what is longer pushes its own place to the right, and no other's
_BETWEEN = 8  # columns between the cells of a row, and for the mark
_DETECTED = {
    "proof": "nothing could move before the deadline",
    "mismatch": "these can never match",
    "stopped": "a rank is stopped",
    "exit": "a rank died",
    "raise": "a rank raised",
}


def world_lines(
    result: WorldResult,
    finding: Finding,
    diagnosis: Diagnosis | None,
    context: SourceContext,
    *,
    width: int,
) -> Iterator[str]:
    """Yield the lines between the headline and the files.

    Args:
        result: What was observed.
        finding: What was found.
        diagnosis: Why it hung or broke, where that is to be told.
        context: Names files, and reads lines of them.
        width: Columns there are; a place in the code is never cut.
    """
    for ground in _grounds(result, finding, diagnosis):
        yield from textwrap.wrap(ground, width, subsequent_indent="  ")
    left = {each.facts.rank for each in finding.ranks if each.facts.waits_at_gate}
    inside = replace(result, dumps=tuple(d for d in result.dumps if d.rank not in left))
    yield from _laid_out(_rows(inside, finding, diagnosis, context), width)
    yield from tree_lines(inside, context)
    if diagnosis is not None:
        yield from facts_lines("evidence", _evidence(diagnosis), width)
        yield from facts_lines("note", diagnosis.notes, width)


def _grounds(result: WorldResult, finding: Finding, diagnosis: Diagnosis | None) -> Iterator[str]:
    """Say what the world was ended for, and how sure its diagnosis is."""
    if diagnosis is None:
        if result.reason != finding.reason:  # else it stands in the headline
            yield from (result.reason or "").splitlines()
        return
    ground = _DETECTED.get(diagnosis.detected_by) or result.reason
    yield (
        f"{diagnosis.kind}, {diagnosis.confidence}: {ground};"
        f" told {diagnosis.detected_after_s:.1f} s after the last progress"
    )


def facts_lines(title: str, facts: Sequence[str], width: int) -> Iterator[str]:
    """Yield facts under their title, each folded to the width."""
    for index, fact in enumerate(facts):
        head = f"{title if index == 0 else '':<9} "
        yield from textwrap.wrap(
            fact,
            width,
            initial_indent=head,
            subsequent_indent=" " * (len(head) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [head]


def _evidence(diagnosis: Diagnosis) -> list[str]:
    """Return equal claims once, with the ranks they hold for."""
    claims: dict[tuple[str, str], list[int]] = {}
    for each in diagnosis.evidence:
        # without its time: that of each rank is in the verdict
        claims.setdefault((each.fact, each.source), []).append(each.rank)
    lines = [f"{rank_set(ranks)}: {claim} ({source})" for (claim, source), ranks in claims.items()]
    more = len(lines) - _MAX_EVIDENCE
    return lines if more <= 0 else [*lines[:_MAX_EVIDENCE], f"and {more} more in verdict.json"]


# One row for each group of ranks to which the same happened


@dataclass(frozen=True, slots=True)
class _Row:
    """What happened to some ranks."""

    ranks: tuple[int, ...]
    is_marked: bool
    state: str
    about: str
    where: str


def _rows(
    result: WorldResult, finding: Finding, diagnosis: Diagnosis | None, context: SourceContext
) -> list[_Row]:
    seen = last_look(result)
    places = {
        rank: f"{at.file}:{at.line} {at.function}"
        for rank, at in innermost_places(result, context).items()
    }
    culprits = frozenset(diagnosis.culprits if diagnosis is not None else ())
    marked: frozenset[int | None] = culprits or frozenset({finding.headline})
    groups: dict[tuple[bool, tuple[str, str, str]], list[RankFinding]] = {}
    for each in finding.ranks:
        rank = each.facts.rank
        row = _story(each, seen.get(rank), result, places.get(rank, ""))
        groups.setdefault((rank in culprits, row), []).append(each)
    waiting = set(diagnosis.waiting if diagnosis is not None else ())
    rows = [
        _Row(
            ranks := tuple(each.facts.rank for each in group),
            not marked.isdisjoint(ranks),
            _state(state, group, result),
            about,
            where,
        )
        for (_, (state, about, where)), group in groups.items()
    ]
    return sorted(
        rows,
        key=lambda row: (
            not row.is_marked,
            waiting.isdisjoint(row.ranks),
            len(row.ranks),
            row.ranks,
        ),
    )


def _story(
    finding: RankFinding, seen: RankSnapshot | None, result: WorldResult, where: str
) -> tuple[str, str, str]:
    """Return a rank's state, what it did, and where."""
    if finding.at_s is not None:
        error = finding.error
        raised_at = f"{error.file}:{error.line}" if error is not None and error.file else ""
        return finding.outcome, finding.summary, raised_at
    state, about = doing(finding.outcome, seen, result)
    own = "" if finding.summary == finding.outcome else finding.summary
    return state, about or ("" if finding.outcome == "hung" else own), where


def _state(state: str, group: Sequence[RankFinding], result: WorldResult) -> str:
    """Add when it happened to the first of a group to whom something happened."""
    times_s = [each.at_s for each in group if each.at_s is not None]
    return f"{state} +{min(times_s) - result.started_s:.2f} s" if times_s else state


def _laid_out(rows: Sequence[_Row], width: int) -> Iterator[str]:
    """Yield rows as a table; what was done is cut where there is too little room for it."""
    shown = rows[:_MAX_ROWS]
    names = [rank_set(row.ranks) for row in shown]
    name, state, where = (
        max(map(len, column), default=0)
        for column in (names, [row.state for row in shown], [row.where for row in shown])
    )
    room = max(_LEAST_ROOM, width - name - state - where - _BETWEEN)
    about = min(room, _USUAL, max((len(row.about) for row in shown), default=0))
    for title, row in zip(names, shown, strict=True):
        yield (
            f"{'►' if row.is_marked else ' '} {title:<{name}}  {row.state:<{state}}"
            f"  {clipped(row.about, room):<{about}}  {row.where}"
        ).rstrip()
    if len(rows) > _MAX_ROWS:
        yield f"  and {len(rows) - _MAX_ROWS} more groups of ranks in verdict.json"


def clipped(text: str, width: int) -> str:
    """Return as much of a text as has room, saying where it is cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def last_look(result: WorldResult) -> dict[int, RankSnapshot]:
    """Return what was seen of each rank last."""
    last = result.snapshots[-1].ranks if result.snapshots else ()
    return {each.rank: each for each in last}


def doing(outcome: str, seen: RankSnapshot | None, result: WorldResult) -> tuple[str, str]:
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
        return "waiting", f"in {operation.describe(result.spec.size, names_world=False)}"
    if outcome == "collateral":
        return outcome, ""
    return (seen.label or "hung").lower(), str(seen.activity or "")


def _telling_one(operations: Sequence[Operation]) -> Operation | None:
    specific = [each for each in operations if each.kind != "wait"] or list(operations)
    return specific[0] if specific else None


def innermost_places(result: WorldResult, context: SourceContext) -> dict[int, Place]:
    """Return where the main thread of each rank was: the innermost frame that is of interest."""
    found: dict[int, Place] = {}
    for _, node in walk(merge_stacks(result.dumps)):
        at = context.place(node.frames[-1])
        found.update(dict.fromkeys(node.ranks, at))  # children come later: the innermost stays
    return found


# The tree of stacks


def tree_lines(result: WorldResult, context: SourceContext) -> Iterator[str]:
    """Yield the merged stacks; what all ranks share first, then where they part."""
    nodes = merge_stacks(result.dumps)
    drawn = list(walk(nodes)) if len(nodes) > 1 else _under_the_root(nodes)
    shown = drawn[:_MAX_BRANCHES]
    names = max((len(_name(node, result)) for _, node in shown), default=0)
    heads = [f"{lead}{_name(node, result):<{names}}  {_chain(node)}" for lead, node in shown]
    width = min(48, max(map(len, heads), default=0))
    for head, (_, node) in zip(heads, shown, strict=True):
        at = context.place(node.frames[-1])
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
