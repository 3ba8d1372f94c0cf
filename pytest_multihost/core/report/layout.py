"""The layout of text for the terminal, and words that several reports share.

`Span` and `Section` are pieces of text with colours, `table` lays out rows in columns, and
`merge_stacks` draws the stacks of all ranks as one tree, like LLNL's Stack Trace Analysis Tool
(https://github.com/LLNL/STAT). The tree shows common frames once, and each branch with its ranks.
It skips library frames if there are user frames. A chain of frames with the same ranks is one node.
The branch with fewer ranks comes first, because readers look for the outlier.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.operation import CALLEE_SCOPE, Operation, group_by_value
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot, WorldResult
from pytest_multihost.core.model.stack import Dump, Frame, inside_the_test, is_library
from pytest_multihost.core.model.verdict import Place, RankOutcome
from pytest_multihost.core.outcome import RankFinding

Role = Literal[
    "plain",
    "culprit",  # a row of the table: the culprit, or the rank that decided
    "waiting",  # a row of the table: ranks that wait for another
    "title",  # the title of the text to its right
    "source",  # a line of the user's code
    "good",  # a statement that nothing is wrong
]

COLOURS: Mapping[Role, Mapping[str, bool]] = {
    "plain": {},
    "culprit": {"red": True, "bold": True},
    "waiting": {"yellow": True},
    "title": {"cyan": True},
    "source": {"light": True},
    "good": {"green": True},
}
"""Arguments for pytest's terminal writer by role; it decides whether to use colours."""


_CODES = {"bold": "1", "light": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""Codes of terminal escape sequences for the names in `COLOURS`."""


class Span(NamedTuple):
    """A part of a line, with the role that determines its colour."""

    text: str
    role: Role = "plain"


Line = tuple[Span, ...]

WIDTHS = (80, 160)
"""The minimum and maximum width of a page; only text to be copied may exceed it."""

INDENT = Span("  ")
MARGIN = 10  # columns for a title, left of its facts

_MAX_ROWS = 6
_LEAST_ROOM = 16
_USUAL = 48  # a longer text shifts only the place in its own row
_BETWEEN = 8  # columns between the cells of a row, and for the mark


def text_of(lines: Iterable[Line]) -> str:
    """Return lines without their roles."""
    return "\n".join(printable("".join(span.text for span in line)) for line in lines)


def clip(text: str, width: int) -> str:
    """Return a text cut to the width, with an ellipsis if it was cut."""
    return text if len(text) <= width else text[: width - 1] + "…"


def clip_line(line: Line, width: int) -> Line:
    """Return a line cut to the width, with an ellipsis if it was cut."""
    if sum(len(span.text) for span in line) <= width:
        return line
    spans, room = [], width - 1
    for span in line:
        spans.append(span._replace(text=span.text[:room]))
        room -= len(spans[-1].text)
    return (*(span for span in spans if span.text), Span("…"))


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report."""

    title: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """The lines without colours."""
        return text_of(self.lines)

    @property
    def painted(self) -> str:
        """The lines with the escape sequences of their colours."""
        return "\n".join("".join(map(_painted, line)) for line in self.lines)


def _painted(span: Span) -> str:
    codes, text = ";".join(_CODES[name] for name in COLOURS[span.role]), printable(span.text)
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def titled(title: str, facts: Iterable[str], width: int) -> Iterator[Line]:
    """Yield facts to the right of their title, each folded to the width."""
    margin = " " * MARGIN
    for fact in facts:
        folded = textwrap.wrap(
            fact,
            width,
            initial_indent=margin,
            subsequent_indent=f"{margin}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield titled_line(title, folded[0].strip() if folded else "")
        yield from ((Span(line),) for line in folded[1:])
        title = ""


def titled_line(title: str, text: str) -> Line:
    """Return one line with its title."""
    return (Span(title, "title"), Span(" " * (MARGIN - len(title)) + text))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a group of ranks.

    Attributes:
        role: "culprit" if one of the ranks is a culprit, or decided the outcome.
        place: Its file and line, such as "train.py:7".
        function: Its function; left out of the table where the details need the room.
        source: The text of the line at `place`; empty if it is not shown.
    """

    ranks: tuple[int, ...]
    role: Role
    state: str
    details: str
    place: str
    function: str = ""
    source: str = ""


def table(rows: Sequence[Row], width: int, names: Names) -> Iterator[Line]:
    """Yield rows in columns.

    If the details do not fit, functions are left out, because the stacks below have them; details
    that still do not fit are cut.
    """
    shown = rows[:_MAX_ROWS]
    titles = [names.of(row.ranks) for row in shown]
    name, state, longest = (
        max(map(len, column), default=0)
        for column in (titles, [row.state for row in shown], [row.details for row in shown])
    )
    left = width - name - state - _BETWEEN
    places = [f"{row.place} {row.function}".rstrip() for row in shown]
    if longest > left - max(map(len, places), default=0):
        places = [row.place for row in shown]
    place = max(map(len, places), default=0)
    room = max(_LEAST_ROOM, left - place)
    details = min(room, _USUAL, longest)
    for title, where, row in zip(titles, places, shown, strict=True):
        text = (
            f"{'►' if row.role == 'culprit' else ' '} {title:<{name}}  {row.state:<{state}}"
            f"  {clip(row.details, room):<{details}}  {where:<{place}}"
        )
        if row.source:
            yield (Span(text, row.role), Span(f"  » {row.source}", "source"))
        else:
            yield (Span(text.rstrip(), row.role),)
    if len(rows) > _MAX_ROWS:
        yield (Span(f"  and {len(rows) - _MAX_ROWS} more groups of ranks in verdict.json"),)


_INNERMOST = 6
"""Number of frames shown of a stack without user frames."""


@dataclass(frozen=True, slots=True)
class FrameTree:
    """Frames that the same ranks are in, outermost first, and the branches below them."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    children: tuple[FrameTree, ...] = ()


def merge_stacks(dumps: Iterable[Dump]) -> tuple[FrameTree, ...]:
    """Return the tree of the main threads' stacks; it skips ranks without a stack."""
    stacks = {}
    for dump in dumps:
        if dump.main is not None:
            inside = list(reversed(inside_the_test(dump.main.frames)))  # the outermost first
            own = [frame for frame in inside if not is_library(frame.file)]
            stacks[dump.rank] = own or inside[-_INNERMOST:]
    return _nodes({rank: frames for rank, frames in stacks.items() if frames})


def _nodes(stacks: Mapping[int, Sequence[Frame]]) -> tuple[FrameTree, ...]:
    parts = ((each[0], (rank, each[1:])) for rank, each in sorted(stacks.items()) if each)
    nodes = []
    for frame, rest in group_by_value(parts).items():
        node = FrameTree(tuple(rank for rank, _ in rest), (frame,), _nodes(dict(rest)))
        if len(node.children) == 1 and node.children[0].ranks == node.ranks:
            [only] = node.children
            node = FrameTree(node.ranks, (frame, *only.frames), only.children)
        nodes.append(node)
    return tuple(sorted(nodes, key=lambda node: (len(node.ranks), node.ranks)))


def walk(nodes: Sequence[FrameTree], prefix: str = "") -> Iterator[tuple[str, FrameTree]]:
    """Yield every node with the lines that lead to it, parents first."""
    for index, node in enumerate(nodes):
        is_last = index == len(nodes) - 1
        yield f"{prefix}{'└─ ' if is_last else '├─ '}", node
        yield from walk(node.children, f"{prefix}{'   ' if is_last else '│  '}")


def rank_places(judged: Judgement) -> dict[int, Place]:
    """Return each rank's place: the diagnosis's, else that of its main thread's innermost frame."""
    found: dict[int, Place] = {}
    for _, node in walk(merge_stacks(judged.dumps)):
        at = judged.context.place(node.frames[-1])
        found.update(dict.fromkeys(node.ranks, at))  # children come later: the innermost is kept
    for each in judged.diagnosis.places if judged.diagnosis is not None else ():
        found[each.rank] = Place(each.file, each.line, each.function, each.source)
    return found


def waited_operation(seen: RankSnapshot) -> Operation | None:
    """Return the operation that a rank waits in; None if it waits in none."""
    waited = [each for each in seen.operations if each.waited_s is not None]
    # A collective is more informative than a wait inside it, such as one for a store key.
    return next((e for e in waited if e.kind != "wait"), waited[0] if waited else None)


def told_operations(judged: Judgement) -> Mapping[int, Operation]:
    """Return the operations of ranks as the diagnosis tells them, where a snapshot does not.

    These are calls in other threads, and collectives that torch's flight recorder counts: the
    rank's own count lacks the calls of C++ code.
    """
    found = dict(judged.in_calls)
    for wait in judged.diagnosis.waits_for if judged.diagnosis is not None else ():
        seen, told = judged.result.last_seen_of(wait.rank), wait.operation
        own = waited_operation(seen) if seen is not None else None
        if own is None or told is None or (own.name, own.group) != (told.name, told.group):
            continue
        if own.sequence != told.sequence:
            found.setdefault(wait.rank, replace(own, sequence=told.sequence))
    return found


def rank_state(
    finding: RankFinding, result: WorldResult, told: Operation | None
) -> tuple[str, str]:
    """Return a rank's state and its details: ``waiting``, ``in all_reduce #3``.

    A rank that has raised or died is in no operation any more: its details are its error or its
    end.

    Args:
        told: Its operation in `told_operations`, if it is there.
    """
    own = "" if finding.summary == finding.outcome else finding.summary
    if finding.at_s is not None:
        return finding.word, own
    seen = result.last_seen_of(finding.facts.rank)
    state, details = _activity(finding.outcome, seen, result, told)
    return state, details or own


def _activity(
    outcome: RankOutcome,
    seen: RankSnapshot | None,
    result: WorldResult,
    told: Operation | None,
) -> tuple[str, str]:
    is_dumped = seen is not None and seen.label is None and seen.activity is not None
    if seen is None or not (is_dumped or outcome in ("hung", "collateral")):
        return outcome, ""
    if told is not None and told.scope == CALLEE_SCOPE:
        return "serving", f"runs {told.detail}"
    operation = told or waited_operation(seen)
    if operation is not None:
        child = f" of its child {operation.child.title}" if operation.child is not None else ""
        state = "stopped" if seen.label == "STOPPED" else "waiting"
        return state, f"in {operation.describe(result.spec.names, names_world=False)}{child}"
    if is_dumped and seen.activity is not None:  # known from its dump alone, not by the kernel
        return seen.activity.name, seen.activity.target
    if outcome == "collateral":
        return outcome, ""
    if seen.sleep is not None:
        return "sleeping", seen.sleep.until.strip()
    return (seen.label or "hung").lower(), seen.details


def stack_notes(dumps: Sequence[Dump], names: Names) -> Iterator[str]:
    """Yield which ranks moved between two dumps, and which have no stack."""
    if moving := [dump.rank for dump in dumps if dump.has_moved]:
        yield f"{names.of(moving)} moved between two dumps"
    if silent := [dump.rank for dump in dumps if not dump.threads]:
        why = "it ignores the signal, waits in the kernel, or cannot write its stack"
        yield f"{names.of(silent)} gave no stack: {why}"


def service_texts(result: WorldResult) -> Mapping[str, Sequence[str]]:
    """Return the lines that each service of a world adds to reports, the most important first."""
    return {name: each.lines for name, each in result.records.items() if each.lines}
