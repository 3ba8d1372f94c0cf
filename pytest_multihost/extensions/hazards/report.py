"""Shows hazards in the terminal if they fail a test, in pages, and in annotations and summaries.

Pages, annotations and summaries are made from verdicts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_multihost.core.model.json_values import JsonError, from_json
from pytest_multihost.core.model.verdict import JsonVerdict
from pytest_multihost.core.report.annotation import Annotation
from pytest_multihost.core.report.artifacts import last_attempts
from pytest_multihost.core.report.html import render_part
from pytest_multihost.core.report.layout import INDENT, Line, Section, Span, titled_line
from pytest_multihost.core.report.markdown import escaped, fitted
from pytest_multihost.core.report.renderer import PageSection, Renderer, RowPart
from pytest_multihost.extensions.hazards.model import Hazard, Hazards

_MAX_ROWS = 30
_LEFT_OUT = "\n_There are more hazards\\: they do not fit into a summary._\n"


def hazard_headline(hazards: Hazards) -> str:
    """Return the first hazard and the number of other hazards, in one line."""
    first, *more = hazards.open
    return f"{first.rule}: {first.summary}" + (f" (and {len(more)} more)" if more else "")


def hazards_section(hazards: Hazards, *, files: str) -> Section:
    """Return the terminal's section of the hazards that are not accepted.

    Args:
        files: Where the artifacts of the run are.
    """
    lines = [line for each in hazards.open for line in (*_block(each), ())]
    lines.append((INDENT, *titled_line("files", files)))
    return Section("hazards: the run has passed, and can hang elsewhere", tuple(lines))


def _block(hazard: Hazard) -> Iterator[Line]:
    yield (Span(f"{hazard.rule}  ", "culprit"), Span(hazard.summary))
    for side in hazard.sides:
        for number, step in enumerate(side.steps):
            title = f"rank {side.rank}" if number == 0 else ""
            source = f"  » {step.where.source}" if step.where and step.where.source else ""
            yield (
                INDENT,
                *titled_line(title, str(step)),
                *((Span(source, "source"),) * bool(source)),
            )
    yield (INDENT, *titled_line("hangs", hazard.when))
    if hazard.count > 1:
        yield (INDENT, *titled_line("seen", f"{hazard.count} times in this run"))


_TEMPLATES = Path(__file__).parent


def _open(verdict: JsonVerdict) -> tuple[Hazard, ...]:
    """Return the hazards of a verdict that are not accepted."""
    try:
        return from_json(Hazards, verdict["hazards"]).open if verdict.get("hazards") else ()
    except JsonError:  # of another version, or damaged
        return ()


def page_section(verdict: JsonVerdict) -> PageSection | None:
    """Return the section of report.html; None if there is no hazard."""
    hazards = _open(verdict)
    if not hazards:
        return None
    html = render_part(_TEMPLATES, "section.html.j2", hazards=hazards)
    return PageSection("hazards", "Hazards", html)


def row_part(_run: Path, verdict: JsonVerdict) -> RowPart:
    """Return the hazards for the row of a test in the page of a run."""
    hazards = _open(verdict)
    return RowPart(html=render_part(_TEMPLATES, "row.html.j2", hazards=hazards) if hazards else "")


def _hazards(verdicts: Sequence[JsonVerdict]) -> Iterator[tuple[str, Hazard]]:
    """Yield the hazards that are not accepted, with their tests."""
    for verdict in last_attempts(verdicts):
        yield from ((str(verdict["nodeid"]), each) for each in _open(verdict))


def hazard_annotations(_run: Path, verdicts: Sequence[JsonVerdict]) -> list[Annotation]:
    """Return a warning at the first line of each hazard."""
    return [
        Annotation(
            level="warning",
            title=f"HAZARD {hazard.rule} {nodeid}",
            text=hazard.text,
            places=hazard.places,
        )
        for nodeid, hazard in _hazards(verdicts)
    ]


def hazard_summary(_run: Path, verdicts: Sequence[JsonVerdict], max_bytes: int) -> str:
    """Return the hazards of a run as Markdown; empty if there are none.

    Args:
        max_bytes: The maximum size; rows that do not fit are skipped, and a note replaces them.
    """
    found = list(_hazards(verdicts))
    rows = [
        f"| {' | '.join(map(escaped, (nodeid, each.rule, each.summary, _lines(each))))} |\n"
        for nodeid, each in found[:_MAX_ROWS]
    ]
    if not rows:
        return ""
    more = [f"\n_and {len(found) - _MAX_ROWS} more_\n"] if len(found) > _MAX_ROWS else []
    head = "\n### Hazards: these tests passed, and can hang elsewhere\n\n"
    table = "| test | rule | what was seen | lines |\n|---|---|---|---|\n"
    return fitted([head + table, *rows, *more], _LEFT_OUT, max_bytes)


def _lines(hazard: Hazard) -> str:
    return ", ".join(f"{each.file}:{each.line}" for each in hazard.places)


RENDERER = Renderer(
    name="hazards",
    section=page_section,
    row=row_part,
    annotations=hazard_annotations,
    markdown=hazard_summary,
)
