"""Results of shards of sweeps, merged to one result for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.operation import group_by_value, rank_numbers
from pytest_multihost.model.sweep import SweepResult
from pytest_multihost.report import Checkout
from pytest_multihost.report.artifacts import attempt_name
from pytest_multihost.report.html import write_sweep_page
from pytest_multihost.report.sweep import (
    SWEEP_NAME,
    append_sweep_summary,
    read_sweep,
    sweep_commands,
    sweep_section,
    write_sweep,
)
from pytest_multihost.sweep import merge_results


@dataclass(frozen=True, slots=True)
class Merged:
    """The sweep of one test.

    Attributes:
        result: All shards together.
        missing: Shards of which there is no result.
    """

    result: SweepResult
    missing: tuple[int, ...]

    @property
    def is_bad(self) -> bool:
        """Whether there is a weakness that is not accepted, or something was not done."""
        return self.result.status in ("failed", "not swept") or bool(self.missing)


def merge_sweeps(directories: Sequence[Path]) -> list[Merged]:
    """Return the sweeps whose results are in some directories.

    Of two results of one shard, the one of the later run counts: a job may have been repeated.

    Args:
        directories: With sweep.json in them or anywhere below.

    Raises:
        MultihostError: There is none, or one cannot be used.
    """
    # `latest` links to a run that is there as well.
    paths = {path.resolve() for each in directories for path in each.rglob(SWEEP_NAME)}
    if not paths:
        raise MultihostError(
            f"there is no {SWEEP_NAME} in {', '.join(map(str, directories))}",
            seen="No test was swept, or the artifacts of the jobs were not downloaded.",
            remedy="With actions/upload-artifact, say include-hidden-files: true.",
        )
    results = sorted((read_sweep(path) for path in paths), key=lambda each: each.run_id)
    found = group_by_value((_identity(each), each) for each in results)
    return [_merged(each) for each in found.values()]


def _identity(result: SweepResult) -> tuple[object, ...]:
    """Return what shards of one sweep have in common."""
    versions = tuple(sorted((name, str(version)) for name, version in result.environment.items()))
    return result.nodeid, result.backend, result.world_size, result.seed, versions


def _merged(results: Iterable[SweepResult]) -> Merged:
    last = {each.shard: each for each in results}
    if None in last:  # the whole sweep
        return Merged(last[None], ())
    parts = [shard for shard in last if shard is not None]
    count = max(n for _, n in parts)
    missing = set(range(1, count + 1)) - {k for k, n in parts if n == count}
    return Merged(merge_results(list(last.values())), tuple(sorted(missing)))


def sweep_merge(directories: Sequence[Path], into: Path | None) -> int:
    """Print the merged sweeps; return 1 if one is bad, else 0.

    Args:
        directories: With sweep.json anywhere below.
        into: Where the merged results and their pages are written; None: nowhere.

    Raises:
        MultihostError: There is no result, or one cannot be used.
        OSError: Something cannot be written.
    """
    found = merge_sweeps(directories)
    for each in found:
        files = ""
        if into is not None:
            folder = into / attempt_name(each.result.nodeid, 1)
            folder.mkdir(parents=True, exist_ok=True)
            write_sweep(folder, each.result)
            files = str(write_sweep_page(folder, each.result))
        section = sweep_section(each.result, files=files)
        sys.stdout.write(f"--- {section.title}\n{section.text}\n")
        if each.missing:
            missing = rank_numbers(each.missing)
            sys.stdout.write(f"  missing   the results of shard {missing}: see those jobs\n")
    _tell_github([each.result for each in found])
    return int(any(each.is_bad for each in found))


def _tell_github(results: Sequence[SweepResult]) -> None:
    """Write annotations and a summary, where this is a step of GitHub Actions."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return
    here = str(Path.cwd())
    checkout = Checkout(root=here, workspace=os.environ.get("GITHUB_WORKSPACE") or here)
    for command in sweep_commands(results, checkout):
        sys.stdout.write(f"{command}\n")
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_sweep_summary(Path(path), results)
