"""Writes the text of an issue about a weakness. It is pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.report.markdown import block, code, quoted
from pytest_multihost.extensions.sweep.references import report_of
from pytest_multihost.extensions.sweep.reproduce.evidence import (
    first_traceback,
    frames_of,
    stack_at,
    stated_differently,
)
from pytest_multihost.extensions.sweep.reproduce.find import FoundWeakness
from pytest_multihost.extensions.sweep.reproduce.trial import Trial
from pytest_multihost.extensions.sweep.words import disturbance_text, rating_text, waits_text

_RUNTIMES = ("jax/", "jaxlib/", "torch/")
_MAX_FRAMES = 2
"""The first letters of files of runtimes, and the maximum of lines of other packages in a stack."""

_MAX_FILE = 80
"""The maximum of lines of a test's file that the text quotes."""


def issue_text(
    found: FoundWeakness, files: Mapping[str, str], trial: Trial, link: Callable[[Place], str]
) -> str:
    """Return the text.

    Args:
        files: The script and the test's file, by name.
        link: Returns the address of a line; empty if it has none.
    """
    run = found.weakness.witness
    headline = quoted(waits_text(run))
    parts = [
        f"# {_upper(headline)}",
        f"{_upper(quoted(disturbance_text(run.disturbance)))}; then {headline}.",
        *_versions(found),
        "## To reproduce",
        *_quoted(files),
        _ending(trial),
        *_output(found, trial),
        *_lines(found, trial, link),
        "## What ends it",
        f"{_upper(quoted(rating_text(found.weakness)) or 'this was not measured')}.",
    ]
    if seen := report_of(run.disturbance.fault):
        parts += ["## Does the fault occur?", f"It does, for example in {seen}"]
    return "\n\n".join(parts) + "\n"


def _upper(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _quoted(files: Mapping[str, str]) -> Iterator[str]:
    for name, text in files.items():
        if len(text.splitlines()) <= _MAX_FILE:
            yield from (f"{code(name)}:", block(text, "python"))


def _versions(found: FoundWeakness) -> Iterator[str]:
    known = found.sweep.environment.items()
    versions = ", ".join(quoted(f"{name} {version}") for name, version in known if version)
    yield f"Versions: {versions}; {found.sweep.world_size} ranks, {quoted(found.sweep.backend)}."


def _ending(trial: Trial) -> str:
    if trial.code is None:
        return f"It still ran after {trial.seconds:.0f} s, and was ended then."
    return f"It ended after {trial.seconds:.1f} s with exit code {trial.code}."


def _output(found: FoundWeakness, trial: Trial) -> Iterator[str]:
    run = found.weakness.witness
    if differing := stated_differently(trial.output):
        values = [
            f"rank {rank}: {name} = {value}"
            for name, by_rank in differing.items()
            for rank, value in sorted(by_rank.items())
        ]
        yield from ("Ranks differ:", block("\n".join(values)))
    if trace := first_traceback(trial.output, run.error):
        yield from ("The first exception:", block(trace))
    if stack := stack_at(trial.output, run.waiting):
        yield from ("Where another rank waits:", block(stack))


def _lines(found: FoundWeakness, trial: Trial, link: Callable[[Place], str]) -> Iterator[str]:
    run = found.weakness.witness
    places = {
        "disturbed": run.disturbance.passed.where,
        "failed or waited for": run.culprit,
        "in the library": run.library,
        "waiting": run.waiting,
    }
    texts = [
        f"* {title}: {link(place) or quoted(f'{place.file}:{place.line}')} {code(place.source)}"
        for title, place in places.items()
        if place is not None
    ]
    stack = frames_of(stack_at(trial.output, run.waiting))
    links = [link(each) for each in stack if not each.file.startswith(_RUNTIMES)]
    texts += [f"* waiting, in the library: {each}" for each in links if each][:_MAX_FRAMES]
    if texts:
        yield from ("## Lines", "\n".join(texts))
