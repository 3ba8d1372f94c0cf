"""Hazards in the terminal, where they fail a test, and for GitHub.

For GitHub everything is taken from verdicts, as in `report.github`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_multihost.core.model.json_values import from_json
from pytest_multihost.core.model.verdict import JsonVerdict
from pytest_multihost.core.report.layout import INDENT, Line, Section, Span, titled_line
from pytest_multihost.extensions.github.report import (
    MAX_ERRORS,
    MAX_SUMMARY,
    Checkout,
    append_page,
    escaped,
    fitted,
    last_attempts,
    workflow_command,
)
from pytest_multihost.extensions.hazards.model import Hazard, Hazards

_MAX_ROWS = 30
_LEFT_OUT = "\n_There are more hazards\\: they do not fit into a summary._\n"


def hazard_headline(hazards: Hazards) -> str:
    """Return the first hazard in one line, and how many more there are."""
    first, *more = hazards.open
    return f"{first.rule}: {first.summary}" + (f" (and {len(more)} more)" if more else "")


def hazards_section(hazards: Hazards, *, files: str) -> Section:
    """Return each hazard that is not accepted: what each rank did, and when it hangs.

    Args:
        hazards: What the run has shown.
        files: Where its artifacts are.
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


# For GitHub


def _hazards(verdicts: Sequence[JsonVerdict]) -> Iterator[tuple[str, Hazard]]:
    """Yield the hazards that are not accepted, with their tests."""
    for verdict in last_attempts(verdicts):
        if verdict.get("hazards") is not None:
            found = from_json(Hazards, verdict["hazards"])
            yield from ((str(verdict["nodeid"]), each) for each in found.open)


def hazard_commands(verdicts: Sequence[JsonVerdict], checkout: Checkout) -> list[str]:
    """Return GitHub's workflow commands that put a warning at the first line of each hazard."""
    commands = []
    for nodeid, hazard in list(_hazards(verdicts))[:MAX_ERRORS]:
        places = ((checkout.relative(each.file), each.line) for each in hazard.places)
        file, line = next((at for at in places if at[0] is not None), (None, None))
        title = f"HAZARD {hazard.rule} {nodeid}"
        commands.append(workflow_command("warning", file, line, title, hazard.text))
    return commands


def hazard_summary(verdicts: Sequence[JsonVerdict], *, max_bytes: int = MAX_SUMMARY) -> str:
    """Return the hazards of a run as Markdown; empty if there are none.

    Args:
        verdicts: Of all attempts.
        max_bytes: Its maximum size; rows that do not fit are left out, with a note.
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


def append_hazard_summary(path: Path, verdicts: Sequence[JsonVerdict]) -> None:
    """Append the hazards of a run to a step's summary.

    Raises:
        OSError: The file cannot be written.
    """
    append_page(path, lambda max_bytes: hazard_summary(verdicts, max_bytes=max_bytes))
