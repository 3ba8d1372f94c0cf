"""Renders worlds as text for the terminal.

`page_sections` returns the page of a world that hung or failed: culprits, times, places, evidence.
With `_MAX_EVIDENCE` and the maximum of rows in a table, a page has at most 30 lines at any size.
`stack_lines` draws the merged stacks: the frames that all ranks share first, then the branches.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.blame.own_failures import later_failures
from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.rank_names import Names, rank_numbers
from pytest_multihost.core.model.replay import replay_command
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import Subject
from pytest_multihost.core.model.stack import Dump, SourceContext
from pytest_multihost.core.model.verdict import Divergence, Place, RankError
from pytest_multihost.core.outcome import Finding, RankFinding
from pytest_multihost.core.outcome.fault_progress import HeldFor, fault_notes, firings, releases
from pytest_multihost.core.report.child_lines import child_lines
from pytest_multihost.core.report.ground import ground
from pytest_multihost.core.report.hints import hints
from pytest_multihost.core.report.layout import (
    INDENT,
    MARGIN,
    WIDTHS,
    FrameTree,
    Line,
    Role,
    Row,
    Section,
    Span,
    clip_line,
    merge_stacks,
    rank_places,
    rank_state,
    service_texts,
    stack_notes,
    table,
    text_of,
    titled,
    titled_line,
    told_operations,
    waited_operation,
    walk,
)
from pytest_multihost.core.report.leftovers import leftover_texts
from pytest_multihost.core.report.lock_lines import lock_lines

_LARGE = 32
"""In a world of more ranks the terminal shows neither stacks nor evidence; report.html does."""

_MAX_GROUPS = 6
"""If the table has more rows, those whose operations differ only in their group are one."""

_MAX_EVIDENCE = 5
_MAX_DOUBTS = 3
_MAX_MESSAGE = 12
"""Maximum number of lines of a further rank's error message."""


def page_sections(
    judged: Judgement,
    *,
    files: str,
    columns: int | None = None,
    added: Mapping[str, Sequence[str]] = MappingProxyType({}),
    quotes_file: bool = False,
) -> list[Section]:
    """Return the sections shown below the headline rank's own traceback.

    Args:
        columns: The terminal's width; a place in the code is never cut. None if there is no
            terminal: then nothing is cut, because the reader of a log cannot widen it.
        quotes_file: Whether the world was read from a file, which may be foreign.
    """
    result = judged.result
    least, most = WIDTHS
    room = (most if columns is None else min(most, max(least, columns))) - len(INDENT.text)
    spec, lines = result.spec, [*_world_lines(judged, room, clips=columns is not None)]
    lines += [(Span(text),) for text in leftover_texts(result)]
    if columns is not None:
        lines = [clip_line(line, room) for line in lines]
    if spec.faults:
        notes = fault_notes(result) if judged.diagnosis is None else ()  # a diagnosis includes them
        lines += [*titled("fault", _fault_lines(result), room), *titled("note", notes, room)]
    if spec.faults or spec.replayed_services:
        says = "as the file says: " if quotes_file else ""
        lines.append(titled_line("replay", f"{says}{replay_command(spec)}"))
    for name, texts in service_texts(result).items():
        lines += titled(name, texts[: 1 + _MAX_DOUBTS], room)
    for name, texts in added.items():
        lines += titled(name, texts, room)
    lines.append(titled_line("files", files))
    count = len(spec.all_hosts)
    hosts = f" on {count} hosts" if count > 1 else ""
    roles = ", ".join(f"{len(each.ranks)} {each.name} ({each.backend})" for each in spec.roles)
    size = f"{spec.size} rank{'s' if spec.size > 1 else ''}"
    title = f"world of {size}{hosts}, {roles or spec.backend}"
    page = Section(title, tuple((INDENT, *line) for line in lines))
    return [page, *_other_failures(judged.finding, spec.names)]


def _world_lines(judged: Judgement, width: int, *, clips: bool) -> Iterator[Line]:
    """Yield the lines between the headline and the files."""
    result, diagnosis, finding = judged.result, judged.diagnosis, judged.finding
    names = result.spec.names
    if finding.outcome == "hung" and finding.headline is not None:
        # The page begins with the runtime's exception in a rank, and not with the headline.
        yield from _wrapped(f"HUNG  {finding.reason}", width)
    grounds: list[str] = []  # why the world was ended, and the confidence of its diagnosis
    if diagnosis is not None:
        known = f"{diagnosis.kind}, {diagnosis.confidence}"
        label = "cause unknown" if diagnosis.kind == "unknown" else known
        grounds = [f"{ground(judged)} ({label})"]
    elif result.reason != finding.reason:  # else the headline has it
        grounds = (result.reason or "").splitlines()
    for each in grounds:
        yield from _wrapped(each, width)
    yield from table(_rows(judged), width if clips else sys.maxsize, names)
    if diagnosis is not None and diagnosis.divergence is not None:
        yield from _divergence_lines(diagnosis.divergence, diagnosis.culprits, names)
    is_short = diagnosis is not None and result.spec.size > _LARGE
    if not is_short:
        yield from stack_lines(judged)
    yield from titled("threads", lock_lines(judged), width)
    yield from titled("children", child_lines(judged), width)
    if diagnosis is not None:  # equal facts are shown once; their times are in the verdict
        evidence_shown = () if is_short else diagnosis.evidence
        found = group_by_value((each.fact, each.rank) for each in evidence_shown)
        evidence = [f"{names.of(ranks)}: {fact}" for fact, ranks in found.items()]
        if (more := len(evidence) - _MAX_EVIDENCE) > 0:
            evidence[_MAX_EVIDENCE:] = [f"and {more} more in verdict.json"]
        yield from titled("evidence", evidence, width)
        yield from titled("note", diagnosis.notes, width)
    yield from titled("hint", hints(judged), width)


def _wrapped(text: str, width: int) -> Iterator[Line]:
    return ((Span(part),) for part in textwrap.wrap(text, width, subsequent_indent="  "))


def _divergence_lines(
    divergence: Divergence, culprits: Collection[int], names: Names
) -> Iterator[Line]:
    """Yield how many operations the ranks had in common, and the next operation of each side."""
    yield titled_line("diverged", divergence.lead)
    for side in divergence.sides:
        is_culprit = set(side.ranks) <= set(culprits)
        text = f"{'►' if is_culprit else ' '} {names.of(side.ranks)} {side.text}"
        line = side.through.source if side.through is not None else side.source
        source = (Span(f"  » {line}", "source"),) if line else ()
        yield (Span(" " * MARGIN), Span(text, "culprit" if is_culprit else "plain"), *source)


def _held_for(held: Sequence[HeldFor]) -> str:
    """Return how long a rank was held the first time, and why it was released."""
    until = {"max_s": "its limit"}
    return "".join(
        f", held for {each.seconds:.2f} s: {until.get(each.reason, each.reason)}"
        for each in held[:1]
    )


def _fault_lines(result: WorldResult) -> Iterator[str]:
    """Yield each fault with the time at which it first fired in each rank."""
    for index, fault in enumerate(result.spec.faults):
        held = releases(result, index)
        times = [
            f"{result.spec.names.rank(rank)} at +{found[0] - result.started_s:.2f} s"
            f"{_held_for(held.get(rank, ()))}"
            for rank, found in firings(result, index).items()
        ]
        yield f"{fault!r}: {', '.join(times) if times else 'never fired'}"


def _rows(judged: Judgement) -> list[Row]:
    # One row for each group of ranks with the same outcome, the culprits first.
    result, finding, diagnosis = judged.result, judged.finding, judged.diagnosis
    places = rank_places(judged)
    told = told_operations(judged)
    culprits = frozenset(diagnosis.blamed if diagnosis is not None else ())
    decided = () if finding.headline is None else (finding.headline,)
    marked = culprits or {r for r in decided if finding.ranks[r].outcome != "collateral"}
    groups = group_by_value(
        ((rank in culprits, _cells(each, result, places.get(rank), told.get(rank))), each)
        for rank, each in enumerate(finding.ranks)
    )
    if len(groups) > _MAX_GROUPS:
        groups = _with_groups_alike(groups, result)
    rows = []
    for (_, (state, details, place, function)), group in groups.items():
        ranks = tuple(each.facts.rank for each in group)
        times_s = [each.at_s - result.started_s for each in group if each.at_s is not None]
        timed = f"{state} +{min(times_s):.2f} s" if times_s else state
        role: Role = "waiting" if timed == "waiting" else "plain"
        role = role if marked.isdisjoint(ranks) else "culprit"
        rows.append(Row(ranks, role, timed, details, place, function))
    waiting = set(diagnosis.waiting if diagnosis is not None else ())
    return sorted(
        rows,
        key=lambda e: (e.role != "culprit", waiting.isdisjoint(e.ranks), len(e.ranks), e.ranks),
    )


_Cells = tuple[str, str, str, str]


def _with_groups_alike(
    groups: Mapping[tuple[bool, _Cells], list[RankFinding]], result: WorldResult
) -> dict[tuple[bool, _Cells], list[RankFinding]]:
    """Return the groups of rows as one where only the groups of their operations differ."""
    found: dict[tuple[object, ...], list[tuple[_Cells, list[RankFinding], Operation | None]]] = {}
    for (is_culprit, cells), ranks in groups.items():
        seen = result.last_seen_of(ranks[0].facts.rank)
        operation = waited_operation(seen) if seen is not None else None
        state, details, place, function = cells
        what: object = (operation.title, len(operation.group)) if operation is not None else details
        kind: tuple[object, ...] = (is_culprit, state, what, place, function)
        found.setdefault(kind, []).append((cells, ranks, operation))
    merged: dict[tuple[bool, _Cells], list[RankFinding]] = {}
    for key, alike in found.items():
        (state, details, place, function), _, operation = alike[0]
        if operation is not None and len(alike) > 1:
            size = len(operation.group)
            details = f"in {operation.title} ({len(alike)} groups of {size})"
        cells = (state, details, place, function)
        merged[bool(key[0]), cells] = [each for _, ranks, _ in alike for each in ranks]
    return merged


def _cells(
    finding: RankFinding, result: WorldResult, at: Place | None, told: Operation | None
) -> tuple[str, str, str, str]:
    """Return a rank's state, the details of it, and the line and function in the code."""
    place, function = (f"{at.file}:{at.line}", at.function) if at is not None else ("", "")
    if finding.at_s is not None and (error := finding.error) is not None:
        place, function = f"{error.file}:{error.line}" * bool(error.file), ""
    state, details = rank_state(finding, result, told)
    is_of_all = finding.outcome == "hung" and details == finding.summary  # as of a job's ranks
    return state, "" if is_of_all else details, place, function


def _other_failures(finding: Finding, names: Names) -> Iterator[Section]:
    """Yield the full text of failures that are neither the headline nor a symptom."""
    groups = group_by_value((each.identity, each) for each in finding.ranks)
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0].facts.rank)):
        first = group[0]
        ranks = {each.facts.rank for each in group}
        if finding.headline in ranks or first.error is None or first.outcome == "collateral":
            continue
        yield Section(f"{names.of(ranks)}: {first.error.type}", _short(first.error))
    later = group_by_value(
        ((f"{error.type} in {phase}", _short(error.rank_error)), each.facts.rank)
        for each in finding.ranks
        for phase, error in later_failures(each, finding.symptoms)
    )
    for (title, lines), those in later.items():
        yield Section(f"{names.of(those)}: {title}", lines)


def _short(error: RankError) -> tuple[Line, ...]:
    """Return the line and the message of a further error, as `--tb=short` shows its last entry.

    Its whole traceback is in report.html: here it would push the verdict off the screen.
    """
    function = f" in {error.function}" if error.function else ""
    at = [f"{error.file}:{error.line}:{function}"] if error.file else []
    message = error.message.splitlines() or [""]
    name = error.type.rpartition(".")[2]
    told = [f"E   {name}: {message[0]}" if message[0] else f"E   {name}"]
    told += [f"E   {line}" for line in message[1:_MAX_MESSAGE]]
    return tuple((Span(line),) for line in at + told)


_MAX_BRANCHES = 9
_MAX_TASKS = 4
_MAX_HEAD = 48  # a longer branch shifts only its own place


def stacks_text(judged: Judgement) -> str:
    """Return the merged stacks as plain text, and the ends of ranks that have left the code."""
    lines = [*stack_lines(judged), *((Span(text),) for text in _ends(judged))]
    return text_of(lines)


def _ends(judged: Judgement) -> Iterator[str]:
    """Yield how ranks have left the user's code: by its end, or by an exception with its line."""
    left = (judged.finding.ranks[rank] for rank in sorted(judged.finding.in_harness))
    ends = ((_end(each, judged.result.spec.subject), each.facts.rank) for each in left)
    names = judged.result.spec.names
    yield from (f"{names.of(ranks)} {text}" for text, ranks in group_by_value(ends).items())


def _end(finding: RankFinding, subject: Subject) -> str:
    error = finding.error
    if error is None:
        return f"had left the {subject}"
    at = f"  {error.file}:{error.line}" if error.file else ""
    return f"had raised {finding.summary}{at}"


def stack_lines(judged: Judgement) -> Iterator[Line]:
    """Yield the merged stacks, tasks, and notes on ranks that moved or have no stack."""
    dumps, names = judged.dumps, judged.result.spec.names
    yield from _branches(dumps, names, judged.context)
    for dump in dumps:
        for task in dump.tasks[:_MAX_TASKS]:
            yield (Span(f"task of {names.rank(dump.rank)}: {task}"),)
    yield from ((Span(text),) for text in stack_notes(dumps, names))


def _branches(dumps: Sequence[Dump], names: Names, context: SourceContext) -> Iterator[Line]:
    nodes = merge_stacks(dumps)
    drawn = list(walk(nodes))
    if len(nodes) == 1:  # a single root is not indented
        drawn = [("", nodes[0]), *walk(nodes[0].children, "  ")]
    shown = drawn[:_MAX_BRANCHES]
    titles = [
        f"all {names.size}"
        if len(node.ranks) == names.size > 1
        else f"[{names.in_roles(node.ranks) or rank_numbers(node.ranks)}]"
        for _, node in shown
    ]
    longest = max(map(len, titles), default=0)
    heads = [
        f"{lead}{name:<{longest}}  {_chain(node)}"
        for (lead, node), name in zip(shown, titles, strict=True)
    ]
    width = min(_MAX_HEAD, max(map(len, heads), default=0))
    for head, (_, node) in zip(heads, shown, strict=True):
        at = context.place(node.frames[-1])
        source = (Span(f"  » {at.source}", "source"),) if at.source else ()
        yield (Span(f"{head:<{width}}  {at.file}:{at.line}"), *source)
    if len(drawn) > _MAX_BRANCHES:
        yield (Span(f"and {len(drawn) - _MAX_BRANCHES} more branches in verdict.json"),)


def _chain(node: FrameTree) -> str:
    names = [frame.function for frame in node.frames]
    if len(names) > 3:  # noqa: PLR2004 - both ends and the calls in between
        names = [names[0], "…", names[-1]]
    return " → ".join(names)
