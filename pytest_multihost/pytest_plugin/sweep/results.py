"""Files that a sweep reads: results of earlier sweeps, and what the project accepts."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_multihost.model.errors import MultihostError, shown
from pytest_multihost.model.json_values import JsonError, from_json, to_json
from pytest_multihost.model.sweep import Acceptance, SweepResult
from pytest_multihost.pytest_plugin.sweep_settings import ACCEPTED_NAME, SweepSettings
from pytest_multihost.report.sweep import SWEEP_NAME, read_sweep

_EXAMPLE = """Each entry has the form
[[accepted]]
test = "tests/test_restore.py::*"
culprit = "src/storage.py:write_marker"
reason = "the launcher ends the job"
"""


def read_acceptances(root: Path, settings: SweepSettings) -> tuple[Acceptance, ...]:
    """Return the weaknesses that the project accepts.

    Args:
        root: pytest's rootdir.
        settings: Name the file; the usual one need not be there.

    Raises:
        pytest.UsageError: It cannot be read, or an entry is wrong; names it.
    """
    path = settings.accepted or root / ACCEPTED_NAME
    if settings.accepted is None and not path.exists():
        return ()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"--multihost-sweep-accept: {path}: {error}\n{_EXAMPLE}") from error
    if set(data) - {"accepted"} or not isinstance(data.get("accepted", []), list):
        seen = f"it has {', '.join(map(repr, data))}, and takes only [[accepted]]"
        raise pytest.UsageError(f"--multihost-sweep-accept: {path}: {seen}.\n{_EXAMPLE}")
    return tuple(_acceptances(path, data.get("accepted", [])))


def _acceptances(path: Path, entries: Sequence[object]) -> Iterator[Acceptance]:
    for number, entry in enumerate(entries, 1):
        try:
            found = from_json(Acceptance, entry)
            unknown = set(entry) - set(to_json(found))  # type: ignore[call-overload] # a mapping
            problem = f"there is no key {shown(min(unknown))}" if unknown else ""
            problem = problem or ("" if found.reason.strip() else "it needs a reason")
        except JsonError as error:
            problem = str(error)
        if problem:
            where = f"--multihost-sweep-accept: {path}: entry {number}: {problem}"
            raise pytest.UsageError(f"{where}.\n{_EXAMPLE}")
        yield found


def earlier_result(artifacts: Path, result: SweepResult) -> SweepResult | None:
    """Return the last sweep of the same test with the same world and part of the plan.

    Args:
        artifacts: The artifacts directory.
        result: The sweep that is about to begin.
    """
    found: list[SweepResult] = []
    for path in artifacts.glob(f"*/*/{SWEEP_NAME}"):
        with contextlib.suppress(MultihostError):
            found.append(read_sweep(path))
    same = [each for each in found if _world(each) == _world(result) and each.plan.disturbances]
    return max(same, key=lambda each: each.run_id, default=None)


def _world(result: SweepResult) -> tuple[object, ...]:
    return result.nodeid, result.backend, result.world_size, result.seed, result.shard
