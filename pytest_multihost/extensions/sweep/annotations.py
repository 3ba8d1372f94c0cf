"""Makes an error annotation at the line of each weakness, for a forge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.report.annotation import Annotation
from pytest_multihost.extensions.sweep.references import report_of
from pytest_multihost.extensions.sweep.result import SweepResult, Weakness
from pytest_multihost.extensions.sweep.rows import state_text, weakness_rows
from pytest_multihost.extensions.sweep.words import (
    OUTCOMES,
    disturbance_text,
    mending,
    rating_text,
    replay_command,
    waits_text,
)


def open_weaknesses(results: Iterable[SweepResult]) -> list[tuple[SweepResult, Weakness]]:
    """Return the weaknesses that make their tests fail, each with its sweep."""
    return [(result, each) for result in results for each in result.weaknesses if each.fails_test]


def sweep_annotations(results: Sequence[SweepResult]) -> list[Annotation]:
    """Return an error at the culprit's line of each weakness.

    If that line is unknown, the error is at the disturbed line, or at the waiting ranks' line.
    """
    return [_annotation(result, weakness) for result, weakness in open_weaknesses(results)]


def _annotation(result: SweepResult, weakness: Weakness) -> Annotation:
    run = weakness.witness
    places = (run.culprit, run.disturbance.passed.where, run.waiting)
    lines = [text for _, text in weakness_facts(weakness)]
    lines.append(f"replay: {replay_command(result, run)}")
    return Annotation(
        level="error",
        title=f"{OUTCOMES[run.outcome].upper()} in a sweep of {result.nodeid}",
        text="\n".join([waits_text(run), *lines]),
        places=tuple(each for each in places if each is not None),
    )


def weakness_facts(weakness: Weakness) -> Iterator[tuple[str, str]]:
    """Yield the facts about a weakness for the lines below its headline, each as title and text."""
    run = weakness.witness
    at, fault = run.disturbance.passed.where, disturbance_text(run.disturbance)
    yield "fault", fault if at is None else f"{fault} at {at.file}:{at.line}: {at.source}"
    for row in weakness_rows(run)[1:]:
        there = f" at {row.place}: {row.source}" if row.place else ""
        text = f"{PLAIN.of(row.ranks)} {state_text(row)}{there}"
        yield "culprit" if row.role == "culprit" else "waiting", text
    if run.error:
        yield "error", run.error
    if rating := rating_text(weakness):
        yield "severity", rating
    if seen := report_of(run.disturbance.fault):
        yield "seen in", seen
    cure = mending(run)
    yield "fix", f"{cure.advice} For code, run: {cure.command}"
