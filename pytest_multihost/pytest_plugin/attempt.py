"""One attempt of one test: from spec to world to result to verdict to files, with no way back."""

from __future__ import annotations

import linecache
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.blame import judge_world
from pytest_multihost.engine import Surroundings, run_world
from pytest_multihost.launch.interface import Launcher
from pytest_multihost.launch.netns import HOSTS_FOLDER
from pytest_multihost.launch.throttle import hold_permits, permit_count
from pytest_multihost.model.event import now
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.nemesis import clean_up_faults
from pytest_multihost.outcome.faults import require_fired
from pytest_multihost.pytest_plugin.expect import apply_expectation
from pytest_multihost.pytest_plugin.options import Settings
from pytest_multihost.pytest_plugin.plan import Plan
from pytest_multihost.pytest_plugin.results import CompletedAttempt, live_display, write_artifacts
from pytest_multihost.pytest_plugin.watchdog_setup import (
    WatchedLauncher,
    dump_healed,
    keep_alive,
    make_watchdog,
)
from pytest_multihost.pytest_private import base_temp
from pytest_multihost.report.artifacts import RunFolder


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What came of one attempt.

    Attributes:
        completed: What was observed and found, and where it is written.
        unwritten: What could not be written, and why.
        proven_hang: What proved a hang whose deadline was waited for: multihost_early = warn.
    """

    completed: CompletedAttempt
    unwritten: list[str]
    proven_hang: str | None


def run_attempt(
    config: pytest.Config,
    plan: Plan,
    spec: WorldSpec,
    *,
    launcher: Launcher,
    settings: Settings,
    folder: RunFolder,
) -> AttemptOutcome:
    """Run a world, judge it, and write down what happened.

    Args:
        config: pytest's configuration.
        plan: How the test is to run.
        spec: The world.
        launcher: What starts its ranks.
        settings: The settings.
        folder: The run's folder of artifacts.
    """
    scratch = _make_scratch(config, spec)
    directory, unwritten = _make_directory(folder, spec, scratch)
    watchdog = make_watchdog(config, spec, settings, directory, scratch)
    display = live_display(config, directory, spec.size, watchdog.blocking_ranks)
    with _permits(config, folder, spec.size), display as live:
        surroundings = Surroundings(
            launcher=WatchedLauncher(launcher, watchdog),
            dumper=partial(dump_healed, scratch),
            now=now,
            directory=directory,
            scratch=scratch,
            primary_leaves_last=plan.backend.primary_leaves_last,
            on_tick=live.show,
            tick_s=live.tick_s,
            watch=watchdog,
            on_hang=partial(keep_alive, config) if _keeps_ranks(config) else None,
        )
        result = run_world(spec, surroundings)
        result = result.with_events(clean_up_faults(result.history, scratch))
    completed = _judge(plan, result, directory, source_context(config))
    is_expected = None if plan.expected is None else completed.finding.status == "passed"
    unwritten += write_artifacts(completed, folder, plan.symptoms, is_expected=is_expected)
    if completed.finding.status == "passed":
        _remove_scratch(scratch, config)
    return AttemptOutcome(completed, unwritten, watchdog.warned)


def _judge(
    plan: Plan, result: WorldResult, directory: Path, context: SourceContext
) -> CompletedAttempt:
    judged = judge_world(result, plan.symptoms, context)
    finding = judged.finding
    if plan.expected is not None:
        finding = apply_expectation(finding, plan.expected, judged.diagnosis)
    # Last: a test whose fault never fired has shown nothing, even if it hung as expected.
    finding = require_fired(finding, result)
    return CompletedAttempt(result, finding, judged.diagnosis, directory, context)


def _make_scratch(config: pytest.Config, spec: WorldSpec) -> Path:
    """Make the world's directory for temporary files, below pytest's own base directory.

    Not by the factory's `mktemp`: it leaves a symbolic link for every name.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"world-{spec.seed}-", dir=base_temp(config)))
    (scratch / "shared").mkdir()
    return scratch


def _remove_scratch(scratch: Path, config: pytest.Config) -> None:
    """Remove what a world that passed has left in its scratch directory.

    All of it, or with tmp_path_retention_policy = "all" only what is empty or not the test's.
    """
    if str(config.getini("tmp_path_retention_policy")) != "all":
        shutil.rmtree(scratch, ignore_errors=True)
        return
    for store in scratch.glob("*-store"):
        store.unlink(missing_ok=True)
    shutil.rmtree(scratch / HOSTS_FOLDER, ignore_errors=True)
    for directory in (*scratch.iterdir(), scratch):
        with suppress(OSError):  # not empty: the test's own files
            directory.rmdir()


def _make_directory(folder: RunFolder, spec: WorldSpec, scratch: Path) -> tuple[Path, list[str]]:
    """Make the attempt's folder of artifacts, and return it with what went wrong.

    Where the artifacts' disk is full, the scratch directory serves instead.
    """
    try:
        return folder.attempt(spec.nodeid, spec.attempt), []
    except OSError as error:
        return scratch, [f"{spec.nodeid}: {error}"]


def _keeps_ranks(config: pytest.Config) -> bool:
    """Whether ranks that hang stay alive; in an xdist worker nobody could press Ctrl-C."""
    return bool(config.option.multihost_keep) and not hasattr(config, "workerinput")


def _permits(config: pytest.Config, folder: RunFolder, size: int) -> AbstractContextManager[None]:
    """Hold permits for the ranks where other processes of this run start worlds too."""
    if not hasattr(config, "workerinput"):
        return nullcontext()
    return hold_permits(folder.path / "places", size, count=permit_count())


def source_context(config: pytest.Config) -> SourceContext:
    """Return the root of the user's code, and how to read a line of it."""
    return SourceContext(str(config.rootpath), _source_line)


def _source_line(file: str, line: int) -> str:
    """Return the text of a line of a file; empty where it cannot be read."""
    return linecache.getline(file, line).strip()
