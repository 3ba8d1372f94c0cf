"""The summary of a step of GitHub Actions: the verdicts and other extensions' findings, as a page.

It is GitHub Flavored Markdown, in which HTML is allowed. A test's own text must stay text in it, so
punctuation is written as character references; see `escaped`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.verdict import JsonVerdict, names_of, outcome_word, run_word
from pytest_multihost.core.report.artifacts import last_attempts
from pytest_multihost.core.report.markdown import escaped, fitted
from pytest_multihost.core.report.renderer import Renderer
from pytest_multihost.extensions.github.facts import (
    MAX_CLAIMS,
    claims_of,
    divergence_texts,
    has_failed,
    headline,
    sides_of,
)

_MAX_COMMAND = 4000

MAX_SUMMARY = 1024 * 1024
"""Maximum bytes of one step's summary; GitHub drops a larger file as a whole."""


def summary(verdicts: Sequence[JsonVerdict], *, max_bytes: int = MAX_SUMMARY) -> str:
    """Return the run's verdicts as Markdown; the empty text where no world ran.

    Args:
        max_bytes: Its maximum size; parts that do not fit are left out, with a note.
    """
    last = last_attempts(verdicts)
    if not last:
        return ""
    bad = [each for each in last if has_failed(each) or each["status"] == "xfailed"]
    outcomes = Counter(map(run_word, last))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    tests = "test" if len(last) == 1 else "tests"
    heading = f"### Multi-host tests\n\n{len(last)} {tests} ran on several ranks: {counts}\n\n"
    parts = [heading, *([_TABLE_HEAD] if bad else []), *map(_row, bad), *map(_details, bad)]
    return fitted(parts, _LEFT_OUT, max_bytes)


_TABLE_HEAD = (
    "| test | ranks | result | kind | culprits | waiting | where | found after |\n"
    "|---|--:|---|---|---|---|---|--:|\n"
)
_LEFT_OUT = "\n_There is more in the artifacts\\: it does not fit into a summary._\n"


def _row(verdict: JsonVerdict) -> str:
    found, names = verdict["diagnosis"] or {}, names_of(verdict)
    where = found.get("where")
    sides = [
        f"{file}:{line} ({names.of(ranks)})" for (file, line), ranks in sides_of(found).items()
    ]
    result = run_word(verdict).upper() if has_failed(verdict) else verdict["status"]
    attempt = f" (attempt {verdict['attempt']})" if verdict["attempt"] > 1 else ""
    cells = [
        verdict["nodeid"],
        f"{verdict['world_size']} {verdict['backend']}",
        f"{result}{attempt}",
        f"{found['kind']}, {found['confidence']}" if found else "",
        names.of(found["culprits"]) if found.get("culprits") else "",
        names.of(found["waiting"]) if found.get("waiting") else "",
        f"{where['file']}:{where['line']} {where['function']}" if where else "; ".join(sides),
        f"{found['detected_after_s']:.1f} s" if found else "",
    ]
    return f"| {' | '.join(escaped(cell) for cell in cells)} |\n"


def _details(verdict: JsonVerdict) -> str:
    title = f"{verdict['nodeid']}: {headline(verdict)}"
    lines = [f"\n<details><summary>{escaped(title)}</summary>\n"]
    diagnosis, names = verdict["diagnosis"], names_of(verdict)
    if diagnosis is not None:
        claims = [f"{claim} ({source})" for claim, source in claims_of(diagnosis, names)]
        lines += [
            f"* {escaped(each)}"
            for each in [*divergence_texts(diagnosis), *claims, *diagnosis["notes"][:MAX_CLAIMS]]
        ]
    alike = group_by_value(
        ((outcome_word(each["outcome"], [each.get("exit_code")]), each["label"]), each["rank"])
        for each in verdict["rank_results"]
    )
    for (outcome, label), ranks in alike.items():
        state = f"{outcome}{f', {label.lower()}' if label else ''}"
        lines.append(f"* {escaped(f'{names.of(ranks)}: {state}')}")
    if (clock := verdict["clock_jumps"]) is not None:
        real_s = f"{clock['real_s']:.1f} s"
        jumped = f"jumped {clock['jumped_s']:.1f} s; the world took {real_s}"
        lines.append(f"* clock: {escaped(jumped)}")
    lines.append(f"* artifacts: {escaped(verdict['run_id'] + '/' + verdict['dir'])}")
    if verdict["replay"]:
        lines.append(f"* replay: {escaped(verdict['replay_command'], _MAX_COMMAND)}")
    return "\n".join([*lines, "\n</details>\n"])


def append_summaries(
    path: Path, run: Path, verdicts: Sequence[JsonVerdict], renderers: Sequence[Renderer]
) -> None:
    """Append the run to a step's summary; other programs write to that as well.

    Raises:
        OSError: The file cannot be written.
    """
    of_extensions = [each.markdown for each in renderers if each.markdown is not None]
    append_page(path, lambda max_bytes: summary(verdicts, max_bytes=max_bytes))
    for each in of_extensions:
        append_page(path, partial(each, run, verdicts))


def append_page(path: Path, page: Callable[[int], str]) -> None:
    """Append a page to a step's summary.

    Args:
        page: Returns the page, given its maximum size in bytes.

    Raises:
        OSError: The file cannot be written.
    """
    with files.appending(path) as file:
        file.write(page(MAX_SUMMARY - file.tell()).encode())
