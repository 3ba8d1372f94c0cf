"""The page of a world that hung or broke: culprits, times, places, evidence."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.blame import Judgement
from pytest_multihost.model.operation import group_by_value, rank_numbers, rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import token
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.model.verdict import Diagnosis
from pytest_multihost.outcome import Finding, RankFinding
from pytest_multihost.outcome.faults import fault_notes, firings
from pytest_multihost.report.activity import (
    Node,
    innermost_places,
    merge_stacks,
    rank_activity,
    walk,
)
from pytest_multihost.report.text.spans import Line, Role, Span, clip, clip_line, text_of

_WIDTHS = (80, 160)
"""The minimum and maximum width of a page; only text to be copied may exceed it."""

# With these a page has at most 30 lines, however many ranks there are.
_MAX_ROWS = 6
_MAX_EVIDENCE = 5

_LEAST_ROOM = 16
_USUAL = 48  # a longer text moves only its own place to the right
_BETWEEN = 8  # columns between the cells of a row, and for the mark
_INDENT = Span("  ")

_DETECTED_BY = {
    "proof": "nothing could move before the deadline",
    "mismatch": "these can never match",
    "stopped": "a rank is stopped",
    "exit": "a rank died",
    "raise": "a rank raised",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report."""

    title: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """The lines without colours."""
        return text_of(self.lines)


def page_sections(judged: Judgement, *, files: str, columns: int | None = None) -> list[Section]:
    """Return the sections shown below the headline rank's own traceback.

    Args:
        judged: The world.
        files: Where the artifacts are.
        columns: The terminal's width, if there is one; a place in the code is never cut.
    """
    result = judged.result
    least, most = _WIDTHS
    width = most if columns is None else min(most, max(least, columns))
    room = width - len(_INDENT.text)
    lines = [*_world_lines(judged, room)]
    lines += [(Span(f"left behind and ended: {command}"),) for command in result.leftovers]
    lines = [clip_line(line, room) for line in lines]
    if result.spec.faults:
        notes = fault_notes(result) if judged.diagnosis is None else ()  # a diagnosis includes them
        lines += [*_titled("fault", _fault_lines(result), room), *_titled("note", notes, room)]
        replay = f"pytest '{result.spec.nodeid}' --multihost-replay {token(result.spec)}"
        lines.append(_titled_line("replay", replay))
    lines.append(_titled_line("files", files))
    page = Section(_title(result), tuple((_INDENT, *line) for line in lines))
    return [page, *_other_failures(judged.finding)]


def _title(result: WorldResult) -> str:
    size, backend = result.spec.size, result.spec.backend
    count = len(result.spec.all_hosts)
    hosts = f" on {count} hosts" if count > 1 else ""
    return f"world of {size} rank{'s' if size > 1 else ''}{hosts}, {backend}"


def _world_lines(judged: Judgement, width: int) -> Iterator[Line]:
    """Yield the lines between the headline and the files."""
    result, diagnosis = judged.result, judged.diagnosis
    for ground in _grounds(judged):
        yield from ((Span(part),) for part in textwrap.wrap(ground, width, subsequent_indent="  "))
    # The stacks of ranks that had left the test and wait for the harness are the harness's own.
    left = {each.facts.rank for each in judged.finding.ranks if each.facts.waits_at_gate}
    inside = replace(result, dumps=tuple(d for d in result.dumps if d.rank not in left))
    yield from _table(_rows(replace(judged, result=inside)), width)
    yield from stack_lines(inside, judged.context)
    if diagnosis is not None:
        yield from _titled("evidence", _evidence(diagnosis), width)
        yield from _titled("note", diagnosis.notes, width)


def _grounds(judged: Judgement) -> Iterator[str]:
    """Return as words why the world was ended, and how sure its diagnosis is."""
    result, diagnosis = judged.result, judged.diagnosis
    if diagnosis is None:
        if result.reason != judged.finding.reason:  # else the headline has it
            yield from (result.reason or "").splitlines()
        return
    ground = _DETECTED_BY.get(diagnosis.detected_by) or result.reason
    yield (
        f"{diagnosis.kind}, {diagnosis.confidence}: {ground};"
        f" judged {diagnosis.detected_after_s:.1f} s after the last progress"
    )


# Facts under a title


def _titled(title: str, facts: Iterable[str], width: int) -> Iterator[Line]:
    """Yield facts under their title, each folded to the width."""
    for fact in facts:
        margin = " " * len(_margin(title))
        folded = textwrap.wrap(
            fact,
            width,
            initial_indent=margin,
            subsequent_indent=f"{margin}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield _titled_line(title, folded[0].strip() if folded else "")
        yield from ((Span(line),) for line in folded[1:])
        title = ""


def _titled_line(title: str, text: str) -> Line:
    return (Span(title, "title"), Span(f"{_margin(title)[len(title) :]}{text}"))


def _margin(title: str) -> str:
    return f"{title:<9} "


def _evidence(diagnosis: Diagnosis) -> list[str]:
    """Return equal facts once, with the ranks they hold for; their times are in the verdict."""
    facts = group_by_value(((each.fact, each.source), each.rank) for each in diagnosis.evidence)
    lines = [f"{rank_set(ranks)}: {fact} ({source})" for (fact, source), ranks in facts.items()]
    more = len(lines) - _MAX_EVIDENCE
    return lines if more <= 0 else [*lines[:_MAX_EVIDENCE], f"and {more} more in verdict.json"]


def _fault_lines(result: WorldResult) -> Iterator[str]:
    """Yield each fault with the time at which it first fired in each rank."""
    for index, fault in enumerate(result.spec.faults):
        times = [
            f"rank {rank} at +{found[0] - result.started_s:.2f} s"
            for rank, found in firings(result, index).items()
        ]
        yield f"{fault!r}: {', '.join(times) if times else 'never fired'}"


# One row for each group of ranks with the same outcome


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table: a group of ranks.

    Attributes:
        ranks: The members.
        is_marked: Whether one of them is a culprit, or decided the outcome.
        state: One word.
        details: Details of the state.
        place: A line of code.
    """

    ranks: tuple[int, ...]
    is_marked: bool
    state: str
    details: str
    place: str

    @property
    def role(self) -> Role:
        """The role that gives the row its colour."""
        if self.is_marked:
            return "culprit"
        return "waiting" if self.state == "waiting" else "plain"


def _rows(judged: Judgement) -> list[_Row]:
    result, finding, diagnosis = judged.result, judged.finding, judged.diagnosis
    places = {
        rank: f"{at.file}:{at.line} {at.function}"
        for rank, at in innermost_places(result.dumps, judged.context).items()
    }
    culprits = frozenset(diagnosis.culprits if diagnosis is not None else ())
    marked: frozenset[int | None] = culprits or frozenset({finding.headline})
    groups = group_by_value(
        ((rank in culprits, _cells(each, result, places.get(rank, ""))), each)
        for rank, each in enumerate(finding.ranks)
    )
    rows = []
    for (_, (state, details, place)), group in groups.items():
        ranks = tuple(each.facts.rank for each in group)
        times_s = [each.at_s - result.started_s for each in group if each.at_s is not None]
        timed = f"{state} +{min(times_s):.2f} s" if times_s else state
        rows.append(_Row(ranks, not marked.isdisjoint(ranks), timed, details, place))
    waiting = set(diagnosis.waiting if diagnosis is not None else ())
    return sorted(
        rows, key=lambda e: (not e.is_marked, waiting.isdisjoint(e.ranks), len(e.ranks), e.ranks)
    )


def _cells(finding: RankFinding, result: WorldResult, place: str) -> tuple[str, str, str]:
    """Return a rank's state, its details, and the place in the code."""
    if finding.at_s is not None:
        error = finding.error
        raised_at = f"{error.file}:{error.line}" if error is not None and error.file else ""
        return finding.outcome, finding.summary, raised_at
    seen = result.last_seen.get(finding.facts.rank)
    state, details = rank_activity(finding.outcome, seen, result)
    own = "" if finding.summary == finding.outcome else finding.summary
    return state, details or ("" if finding.outcome == "hung" else own), place


def _table(rows: Sequence[_Row], width: int) -> Iterator[Line]:
    """Yield rows in columns; details are cut if they do not fit."""
    shown = rows[:_MAX_ROWS]
    names = [rank_set(row.ranks) for row in shown]
    name, state, place = (
        max(map(len, column), default=0)
        for column in (names, [row.state for row in shown], [row.place for row in shown])
    )
    room = max(_LEAST_ROOM, width - name - state - place - _BETWEEN)
    details = min(room, _USUAL, max((len(row.details) for row in shown), default=0))
    for title, row in zip(names, shown, strict=True):
        text = (
            f"{'►' if row.is_marked else ' '} {title:<{name}}  {row.state:<{state}}"
            f"  {clip(row.details, room):<{details}}  {row.place}"
        )
        yield (Span(text.rstrip(), row.role),)
    if len(rows) > _MAX_ROWS:
        yield (Span(f"  and {len(rows) - _MAX_ROWS} more groups of ranks in verdict.json"),)


# Failures besides the headline's


def _other_failures(finding: Finding) -> Iterator[Section]:
    """Yield the full text of failures that are neither the headline nor a symptom."""
    groups = group_by_value((each.identity, each) for each in finding.ranks)
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0].facts.rank)):
        first = group[0]
        ranks = {each.facts.rank for each in group}
        if finding.headline in ranks or first.error is None or first.outcome == "collateral":
            continue
        lines = tuple((Span(line),) for line in first.error.text.splitlines())
        yield Section(f"{rank_set(ranks)}: {first.error.type}", lines)


# The merged stacks: the frames that all ranks share first, then the branches

_MAX_BRANCHES = 9
_MAX_TASKS = 4
_MAX_HEAD = 48  # a longer branch moves only its own place to the right


def stacks_text(result: WorldResult, context: SourceContext) -> str:
    """Return the merged stacks as plain text."""
    return text_of(stack_lines(result, context))


def stack_lines(result: WorldResult, context: SourceContext) -> Iterator[Line]:
    """Yield the merged stacks, and notes on how they were taken."""
    yield from _branches(result, context)
    for dump in result.dumps:
        for task in dump.tasks[:_MAX_TASKS]:
            yield (Span(f"task of rank {dump.rank}: {task}"),)
    moving = [dump.rank for dump in result.dumps if dump.has_moved]
    if moving:
        yield (Span(f"{rank_set(moving)} moved between two dumps"),)
    silent = [dump.rank for dump in result.dumps if not dump.threads]
    if silent:
        why = "it ignores the signal, or waits in the kernel"
        yield (Span(f"{rank_set(silent)} gave no stack: {why}"),)


def _branches(result: WorldResult, context: SourceContext) -> Iterator[Line]:
    nodes = merge_stacks(result.dumps)
    drawn = list(walk(nodes))
    if len(nodes) == 1:  # the root of a single tree is left of its branches
        drawn = [("", nodes[0]), *walk(nodes[0].children, "  ")]
    shown = drawn[:_MAX_BRANCHES]
    names = max((len(_name(node, result)) for _, node in shown), default=0)
    heads = [f"{lead}{_name(node, result):<{names}}  {_chain(node)}" for lead, node in shown]
    width = min(_MAX_HEAD, max(map(len, heads), default=0))
    for head, (_, node) in zip(heads, shown, strict=True):
        at = context.place(node.frames[-1])
        source = (Span(f"  » {at.source}", "source"),) if at.source else ()
        yield (Span(f"{head:<{width}}  {at.file}:{at.line}"), *source)
    if len(drawn) > _MAX_BRANCHES:
        yield (Span(f"and {len(drawn) - _MAX_BRANCHES} more branches in verdict.json"),)


def _name(node: Node, result: WorldResult) -> str:
    if len(node.ranks) == result.spec.size > 1:
        return f"all {result.spec.size}"
    return f"[{rank_numbers(node.ranks)}]"


def _chain(node: Node) -> str:
    names = [frame.function for frame in node.frames]
    if len(names) > 3:  # noqa: PLR2004 - both ends and the calls in between
        names = [names[0], "…", names[-1]]
    return " → ".join(names)
