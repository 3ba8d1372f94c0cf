"""Renders all sweeps of a run as Markdown, for the summary of a forge."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.core.report.markdown import escaped, fitted
from pytest_multihost.extensions.sweep.annotations import open_weaknesses, weakness_facts
from pytest_multihost.extensions.sweep.result import SweepResult, Weakness
from pytest_multihost.extensions.sweep.words import (
    OUTCOMES,
    left_out_texts,
    outcomes_text,
    plural,
    replay_command,
    shown_by_text,
    survives_text,
    waits_text,
)

_LEFT_OUT = "\n_There is more in sweep\\.json\\: it does not fit into a summary._\n"
_HEAD = "| test | ranks | result | survives | outcomes | took |\n|---|--:|---|---|---|--:|\n"
_MAX_COMMAND = 4000


def sweep_summary(results: Sequence[SweepResult], *, max_bytes: int) -> str:
    """Return sweeps as Markdown; empty if there are none.

    Args:
        max_bytes: The maximum size; parts that do not fit are skipped, and a note replaces them.
    """
    if not results:
        return ""
    found = open_weaknesses(results)
    swept = f"{plural(len(results), 'test')} swept: {plural(len(found), 'weakness')}"
    parts = [f"### Sweeps\n\n{swept}\n\n", _HEAD, *map(_table_row, results)]
    parts += [_details(result, weakness) for result, weakness in found]
    return fitted(parts, _LEFT_OUT, max_bytes)


def _table_row(result: SweepResult) -> str:
    cells = [
        result.nodeid,
        f"{result.world_size} {result.backend}",
        result.status,
        "; ".join(
            [survives_text(result), *(f"left out {each}" for each in left_out_texts(result))]
        ),
        outcomes_text(result.runs),
        f"{result.duration_s:.0f} s",
    ]
    return f"| {' | '.join(escaped(cell) for cell in cells)} |\n"


def _details(result: SweepResult, weakness: Weakness) -> str:
    run = weakness.witness
    title = f"{OUTCOMES[run.outcome].upper()} {result.nodeid}: {waits_text(run)}"
    lines = [f"\n<details><summary>{escaped(title)}</summary>\n"]
    lines += [f"* {name}: {escaped(text)}" for name, text in weakness_facts(weakness)]
    lines.append(f"* shown by {escaped(shown_by_text(result, weakness))}")
    if run.token:
        lines.append(f"* replay: {escaped(replay_command(result, run), _MAX_COMMAND)}")
    return "\n".join([*lines, "\n</details>\n"])
