"""Output for GitHub Actions: an error at the line of each weakness, and all sweeps as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_multihost.model.operation import rank_set
from pytest_multihost.model.sweep import SweepResult, Weakness
from pytest_multihost.model.verdict import Place
from pytest_multihost.report.github import (
    MAX_ERRORS,
    MAX_SUMMARY,
    Checkout,
    escaped,
    workflow_command,
)
from pytest_multihost.report.sweep_words import (
    disturbance_text,
    left_out_texts,
    mending,
    outcomes_text,
    plural,
    repeats_text,
    survives_text,
    waits_text,
)

_LEFT_OUT = "\n_There is more in sweep\\.json\\: it does not fit into a summary._\n"
_HEAD = "| test | ranks | result | survives | outcomes | took |\n|---|--:|---|---|---|--:|\n"
_MAX_TOKEN = 2000


def open_weaknesses(results: Iterable[SweepResult]) -> list[tuple[SweepResult, Weakness]]:
    """Return the weaknesses that make their tests fail, each with its sweep."""
    return [(result, each) for result in results for each in result.weaknesses if each.fails_test]


def sweep_commands(results: Sequence[SweepResult], checkout: Checkout) -> list[str]:
    """Return GitHub's workflow commands that put an error at the culprit's line of each weakness.

    If that line is unknown, the error is at the line that was disturbed or at which others wait.
    """
    found = open_weaknesses(results)[:MAX_ERRORS]
    return [_error(result, weakness, checkout) for result, weakness in found]


def _error(result: SweepResult, weakness: Weakness, checkout: Checkout) -> str:
    run = weakness.witness
    places = (run.culprit, run.disturbance.passed.where, run.waiting)
    known = ((checkout.relative(each.file), each.line) for each in places if each is not None)
    file, line = next(((file, line) for file, line in known if file is not None), (None, None))
    lines = [text for _, text in _facts(weakness)]
    lines.append(f"replay: --multihost-replay {run.token}")
    title = f"{run.outcome.upper()} in a sweep of {result.nodeid}"
    return workflow_command("error", file, line, title, "\n".join([waits_text(run), *lines]))


def _facts(weakness: Weakness) -> Iterator[tuple[str, str]]:
    """Yield what is said of a weakness below its headline, each with what it is about."""
    run = weakness.witness
    yield "fault", _with_place(disturbance_text(run.disturbance), run.disturbance.passed.where)
    if run.culprit is not None and run.culprit != run.disturbance.passed.where:
        who = rank_set(run.culprits) if run.culprits else "the culprit"
        yield "culprit", _with_place(f"{who} is", run.culprit)
    if run.waiting is not None and run.waiting_ranks:
        yield "waiting", _with_place(f"{rank_set(run.waiting_ranks)} waiting", run.waiting)
    if run.error:
        yield "error", run.error
    cure = mending(run)
    yield "mend", f"{cure.advice} See {cure.page}"


def _with_place(text: str, place: Place | None) -> str:
    return text if place is None else f"{text} at {place.file}:{place.line}: {place.source}"


# The summary


def sweep_summary(results: Sequence[SweepResult], *, max_bytes: int = MAX_SUMMARY) -> str:
    """Return sweeps as Markdown; the empty text where nothing was swept.

    Args:
        results: One for each test.
        max_bytes: Its maximum size; parts that do not fit are left out, with a note.
    """
    if not results:
        return ""
    found = open_weaknesses(results)
    swept = f"{plural(len(results), 'test')} swept: {plural(len(found), 'weakness')}"
    parts = [f"### Sweeps\n\n{swept}\n\n", _HEAD, *map(_row, results)]
    parts += [_details(result, weakness) for result, weakness in found]
    text, left = "", max_bytes - len(_LEFT_OUT.encode())
    for part in parts:
        left -= len(part.encode())
        if left < 0:
            return text + (_LEFT_OUT if max_bytes >= len(_LEFT_OUT.encode()) else "")
        text += part
    return text


def _row(result: SweepResult) -> str:
    shard = f" (shard {result.shard[0]} of {result.shard[1]})" if result.shard else ""
    cells = [
        result.nodeid,
        f"{result.world_size} {result.backend}",
        f"{result.status}{shard}",
        "; ".join(
            [survives_text(result), *(f"left out {each}" for each in left_out_texts(result))]
        ),
        outcomes_text(result.runs),
        f"{result.duration_s:.0f} s",
    ]
    return f"| {' | '.join(escaped(cell) for cell in cells)} |\n"


def _details(result: SweepResult, weakness: Weakness) -> str:
    run = weakness.witness
    title = f"{run.outcome.upper()} {result.nodeid}: {waits_text(run)}"
    lines = [f"\n<details><summary>{escaped(title)}</summary>\n"]
    lines += [f"* {name}: {escaped(text)}" for name, text in _facts(weakness)]
    shown = plural(len(weakness.shown_by), "disturbance")
    shown += f", and {repeats_text(weakness.repeated)}"
    lines.append(f"* shown by {escaped(shown)}")
    if run.token:
        lines.append(f"* replay: {escaped(f'--multihost-replay {run.token}', _MAX_TOKEN)}")
    return "\n".join([*lines, "\n</details>\n"])


def append_sweep_summary(path: Path, results: Sequence[SweepResult]) -> None:
    """Append sweeps to a step's summary; other programs write to it as well.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab") as file:
        text = sweep_summary(results, max_bytes=MAX_SUMMARY - file.tell())
        file.write(text.encode())
