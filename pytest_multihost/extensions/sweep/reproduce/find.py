"""Finds the run of a replay token in the files of sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.regular_file import read_regular
from pytest_multihost.core.model.replay import read_token
from pytest_multihost.extensions.sweep.file_names import SWEEP_NAME
from pytest_multihost.extensions.sweep.record import MAX_BYTES, read_sweep
from pytest_multihost.extensions.sweep.result import WEAK, SweepResult, Weakness


@dataclass(frozen=True, slots=True)
class FoundWeakness:
    """A weakness whose witness has the token."""

    sweep: SweepResult
    weakness: Weakness
    path: Path


def find_weakness(token: str, artifacts: Path) -> FoundWeakness:
    """Return the weakness whose witness, or another run that shows it, has a token.

    Raises:
        MultihostError: It is not a token, or no sweep there has such a weakness.
    """
    read_token(token)
    paths = sorted(artifacts.glob(f"*/*/{SWEEP_NAME}"), key=lambda each: -each.lstat().st_mtime)
    for path in paths:
        try:
            if token.encode() not in read_regular(path, max_bytes=MAX_BYTES):
                continue
        except OSError:
            continue
        sweep = read_sweep(path)
        for weakness in sweep.weaknesses:
            shown_by = [sweep.runs[index] for index in weakness.shown_by]
            run = next((e for e in (weakness.witness, *shown_by) if e.token == token), None)
            if run is not None and run.outcome in WEAK:
                return FoundWeakness(sweep, weakness, path)
    raise MultihostError(
        "no sweep has found a weakness with this token",
        seen=f"{len(paths)} files {SWEEP_NAME} below {artifacts} were read.",
        remedy="Name the artifacts directory with --artifacts, or sweep the test again.",
    )
