"""Renders the sweep of a test for the terminal: each weakness, then the coverage of the sweep.

Its page for a browser is in `html`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.report.layout import (
    INDENT,
    WIDTHS,
    Line,
    Role,
    Section,
    Span,
    clip_line,
    table,
    titled,
    titled_line,
)
from pytest_multihost.extensions.sweep.result import SweepResult, Weakness
from pytest_multihost.extensions.sweep.rows import weakness_rows
from pytest_multihost.extensions.sweep.words import (
    OUTCOMES,
    alike_texts,
    budget_text,
    by_chance,
    chance_text,
    disturbance_text,
    hidden_text,
    left_out_texts,
    mending,
    outcomes_text,
    plural,
    rating_text,
    replay_command,
    roles_text,
    shown_by_text,
    stands_for_text,
    survives_text,
    unmet_texts,
    unsteady_texts,
    waits_text,
)

_MAX_BLOCKS = 10
_WITH_SOURCE = 100  # columns from which on a line of code fits behind its place
_UNLIMITED = 1_000_000  # columns where nothing is cut


def sweep_section(result: SweepResult, *, files: str = "", columns: int | None = None) -> Section:
    """Return the result of a sweep, weaknesses first.

    Args:
        files: Where the artifacts of the sweep are.
        columns: The terminal's width; lines to copy are never cut. None if there is no terminal;
            then no line is cut.
    """
    least, most = WIDTHS
    room = most if columns is None else min(most, max(least, columns))
    lines: list[Line] = []
    open_ = [*(each for each in result.weaknesses if each.fails_test), *by_chance(result)]
    for number, weakness in enumerate(open_[:_MAX_BLOCKS]):
        # The headline above the section says the effect of the first one.
        effect = waits_text(weakness.witness) if number else ""
        lines += [*_block(result, weakness, effect, room, files, clips=columns is not None), ()]
    if (more := len(open_) - _MAX_BLOCKS) > 0:
        lines += [(Span(f"and {plural(more, 'more weakness')} in sweep.html and sweep.json"),), ()]
    lines += _coverage(result, room)
    if files:
        lines.append((INDENT, *titled_line("files", files)))
    ranks = plural(result.world_size, "rank")
    return Section(f"sweep of {result.nodeid}: {ranks}, {result.backend}", tuple(lines))


def _block(
    result: SweepResult, weakness: Weakness, effect: str, width: int, files: str, *, clips: bool
) -> Iterator[Line]:
    """Yield the lines of one weakness; `files` as in `sweep_section`."""
    run = weakness.witness
    word = OUTCOMES[run.outcome].upper()
    if weakness.is_confirmed is False:
        word += f" ({chance_text(weakness)})"
    stands = f"; {text}" if (text := stands_for_text(run)) else ""
    fault = f"when {disturbance_text(run.disturbance)}{stands}"
    head = textwrap.wrap(fault, width - len(word) - 2, subsequent_indent="  ")
    yield (Span(f"{word}  ", "culprit"), Span(head[0] if head else ""))
    lines: list[Line] = [(Span(each),) for each in head[1:]]
    room = width - len(INDENT.text)
    lines += titled("then", [effect] if effect else [], room)
    rows = weakness_rows(run)
    rows = rows if width >= _WITH_SOURCE else [replace(each, source="") for each in rows]
    drawn = list(table(rows, room if clips else _UNLIMITED, PLAIN))
    lines += [clip_line(each, room) for each in drawn] if clips else drawn
    if run.error:
        lines += titled("error", [run.error], room)
    rating = rating_text(weakness)
    lines += titled("severity", [rating] if rating else [], room)
    cure = mending(run)
    lines += titled("fix", [cure.advice], room)
    lines += titled("", [f"for code, run: {cure.command}"], room)
    lines += titled("alike", alike_texts(result, weakness), room)
    lines += titled("shown by", [shown_by_text(result, weakness)], room)
    lines += titled("unsteady", unsteady_texts(result, weakness), room)
    if run.token:
        lines.append(titled_line("replay", replay_command(result, run)))
    if run.directory:
        lines.append(titled_line("files", _from_here(run.directory, files)))
    yield from ((INDENT, *line) for line in lines)


def _from_here(directory: str, files: str) -> str:
    """Return a directory as a path that can be opened, if it is beside the sweep's own files."""
    own, other = PurePosixPath(files).parent, PurePosixPath(directory)
    is_beside = own.parts[-len(other.parts) + 1 :] == other.parts[:-1]
    return str(own / other.name) if is_beside else directory


def _coverage(result: SweepResult, width: int) -> Iterator[Line]:
    """Yield the lines about survived and skipped disturbances."""
    is_weak = any(each.fails_test for each in result.weaknesses)
    role: Role = "culprit" if is_weak else "good" if result.status == "passed" else "plain"
    yield (Span(survives_text(result), role),)
    facts = list(_facts(result))
    for title, texts in facts:
        yield from ((INDENT, *line) for line in titled(title, texts, width - len(INDENT.text)))


def _facts(result: SweepResult) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield titles, each with its texts."""
    if result.status == "not swept":
        return
    kinds = {kind: sum(counts) for kind, counts in result.points.items() if sum(counts)}
    by_kind = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    roles = f"{plural(len(result.plan.roles), 'class')} of ranks: {roles_text(result.plan.roles)}"
    count = f"{result.plan.point_count} ({by_kind})" if by_kind else f"{result.plan.point_count}"
    yield "points", [f"{count}, {roles}"]
    if result.runs:
        yield "outcomes", [outcomes_text(result.runs)]
    yield "hidden", [text] if (text := hidden_text(result)) else []
    yield "left out", left_out_texts(result)
    yield "accepted", [_accepted(each) for each in result.weaknesses if each.accepted is not None]
    yield "gone", unmet_texts(result)
    yield "took", [_took(result)]
    if result.reason:
        yield "note", [result.reason]


def _accepted(weakness: Weakness) -> str:
    place = weakness.witness.waiting or weakness.witness.culprit
    where = f" at {place.file}:{place.line}" if place is not None else ""
    return f"{waits_text(weakness.witness)}{where}: {weakness.accepted}"


def _took(result: SweepResult) -> str:
    return (
        f"{budget_text(result)}, {plural(result.lanes, 'world')} at a time; every fault"
        f" at every point of every rank would be {result.plan.brute_force} runs"
    )
