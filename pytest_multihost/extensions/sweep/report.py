"""Renders the sweep of a test for the terminal: each weakness, then the coverage of the sweep.

Its page for a browser is in `html`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.report.layout import (
    INDENT,
    WIDTHS,
    Line,
    Role,
    Row,
    Section,
    Span,
    clip_line,
    table,
    titled,
    titled_line,
)
from pytest_multihost.extensions.sweep.result import DisturbedRun, SweepResult, Weakness
from pytest_multihost.extensions.sweep.words import (
    OUTCOMES,
    alike_texts,
    budget_text,
    by_chance,
    chance_text,
    disturbance_text,
    families_text,
    hidden_text,
    left_out_texts,
    mending,
    operation_text,
    outcomes_text,
    place_text,
    plural,
    ranks_at_culprit,
    rating_text,
    repeats_text,
    replay_command,
    roles_text,
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
    fault = f"when {disturbance_text(run.disturbance)}{_stands_for(run)}"
    head = textwrap.wrap(fault, width - len(word) - 2, subsequent_indent="  ")
    yield (Span(f"{word}  ", "culprit"), Span(head[0] if head else ""))
    lines: list[Line] = [(Span(each),) for each in head[1:]]
    room = width - len(INDENT.text)
    lines += titled("then", [effect] if effect else [], room)
    rows = _rows(run) if width >= _WITH_SOURCE else [replace(e, source="") for e in _rows(run)]
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
    lines += titled("shown by", [_shown_by(result, weakness)], room)
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


def _stands_for(run: DisturbedRun) -> str:
    role, rank = run.disturbance.role, run.disturbance.passed.rank
    return f"; rank {rank} stands for {PLAIN.of(role)}" if len(role) > 1 else ""


def _rows(run: DisturbedRun) -> list[Row]:
    """Return rows for the disturbed ranks, for culprits at another line, and for waiting ranks."""
    fault, passed = run.disturbance.fault, run.disturbance.passed
    disturbed = fault.ranks if isinstance(fault.ranks, tuple) else (passed.rank,)
    if fault.is_first:  # the run names that rank if the others wait for it
        disturbed = run.culprits or (passed.rank,)
    role: Role = "culprit" if set(disturbed) & set(run.culprits or disturbed) else "plain"
    rows = [_row(disturbed, role, "injected", place_text(fault), passed.where)]
    others = tuple(each for each in run.waiting_ranks if each not in run.culprits)
    if run.culprit is not None and not _is_same(run.culprit, passed.where):
        state = _state_of_culprit(run)
        is_shared = state == "waiting" and not others
        details = operation_text(run.operation) if is_shared else ""
        there = ranks_at_culprit(run) or disturbed
        rows.append(_row(there, "culprit", state, details, run.culprit))
    if run.library is not None:
        rows.append(_row(run.culprits or disturbed, "culprit", "failed", "", run.library))
    if others:
        state = "entered" if run.outcome == "mismatched" else "waiting"
        rows.append(_row(others, "waiting", state, operation_text(run.operation), run.waiting))
    return rows


def _state_of_culprit(run: DisturbedRun) -> str:
    """Return the action of the culprits at their line."""
    if run.has_decided:
        return "decided"
    if run.outcome == "mismatched":
        return "entered"
    if set(run.culprits) & set(run.waiting_ranks):
        return "waiting"
    return "failed" if run.outcome == "left waiting" else "waited for"


def _row(ranks: tuple[int, ...], role: Role, state: str, details: str, place: Place | None) -> Row:
    if place is None:
        return Row(ranks, role, state, details, "")
    where = f"{place.file}:{place.line}"
    return Row(ranks, role, state, details, where, place.function, place.source)


def _is_same(one: Place, other: Place | None) -> bool:
    return other is not None and (one.file, one.line) == (other.file, other.line)


def _shown_by(result: SweepResult, weakness: Weakness) -> str:
    families = [result.runs[index].disturbance.family for index in weakness.shown_by]
    text = f"{len(families)} of {plural(len(result.runs), 'injection')}"
    text += f" ({families_text(families)})" if families else ""
    return f"{text}, and {repeats_text(weakness.repeated)}" if weakness.repeated[0] else text


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
