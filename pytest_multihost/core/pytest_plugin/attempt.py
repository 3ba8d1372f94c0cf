"""Runs one attempt of one test: from spec to world, result, verdict and files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pluggy
import pytest

from pytest_multihost.core.attempt import WatchedWorld, judge, write
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.launch import Launcher, hold_permits
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.option import EARLY
from pytest_multihost.core.outcome import Finding, RankFacts
from pytest_multihost.core.pytest_plugin.analysis import Analysis
from pytest_multihost.core.pytest_plugin.live_display import live_display, write_through
from pytest_multihost.core.pytest_plugin.plan import Expectation, Plan, apply_expectation
from pytest_multihost.core.pytest_plugin.scratch_folders import ScratchFolders
from pytest_multihost.core.pytest_plugin.tally import Tally
from pytest_multihost.core.registry import offered_renderers
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    package_versions,
)
from pytest_multihost.core.report.html import PAGE_NAME


@dataclass(frozen=True, slots=True)
class CompletedAttempt:
    """One attempt of one item, after its world has ended.

    Attributes:
        directory: The folder of the attempt's artifacts.
        scratch: The private directory of the world; removed at the end if the world passed.
        proven_hang: The proof of a hang, if the world ran on until its deadline nevertheless
            (multihost_early = warn).
        failed_by: The analysis that fails the test, if any.
    """

    plan: Plan
    judged: Judgement
    directory: Path
    scratch: Path
    proven_hang: str | None = None
    analyses: tuple[Analysis, ...] = ()
    failed_by: Analysis | None = None

    @property
    def files(self) -> str:
        """The path that the terminal shows: that of the page for a browser, else of the folder."""
        root, directory = Path(self.judged.context.root), self.directory
        where = directory.relative_to(root) if directory.is_relative_to(root) else directory
        pages = (*(each.page for each in self.analyses if each.page), PAGE_NAME)
        page = next((each for each in pages if (directory / each).is_file()), "")
        return str(where / page)


def run_attempt(
    item: pytest.Item,
    plan: Plan,
    spec: WorldSpec,
    *,
    launcher: Launcher,
    tally: Tally,
    folder: RunFolder,
    scratches: ScratchFolders,
) -> CompletedAttempt:
    """Run a world, judge it, and write its artifacts.

    Args:
        tally: Has the settings, and records files that could not be written.
    """
    config = item.config
    scratch = scratches.take(spec.seed)
    directory = scratch  # used if the artifacts' disk is full
    with tally.noting(spec.nodeid):
        directory = folder.attempt(spec.nodeid, spec.attempt)
    scratches.lend_stacks(scratch, directory, spec.size)
    processes = config.hook.pytest_multihost_processes(config=config)
    world = WatchedWorld.make(
        spec,
        directory=directory,
        scratch=scratch,
        early=tally.settings.get(EARLY),
        others=frozenset(pid for pids in processes for pid in pids),
        kinds=config.hook.pytest_multihost_services(),
    )
    watchdog = world.watchdog
    # An xdist worker gets no Ctrl-C, and shares the machine with other workers.
    is_worker = hasattr(config, "workerinput")
    is_kept = config.option.multihost_keep and not is_worker
    places = hold_permits(folder.path / "places", spec.size)
    display = live_display(config, directory, spec.names, watchdog.blocking_ranks)
    with places if is_worker else contextlib.nullcontext(), display as live:
        result = world.run(
            launcher,
            primary_leaves_last=plan.primary_leaves_last,
            on_tick=live.show,
            tick_s=live.tick_s,
            on_hang=partial(_keep_alive, config, names=spec.names) if is_kept else None,
        )
    expected = plan.expected
    judged = judge(
        result,
        plan.symptoms,
        SourceContext(str(config.rootpath)),
        None if expected is None else partial(_as_expected, expected),
    )
    attempt = CompletedAttempt(plan, judged, directory, scratch, watchdog.warned)
    analyses = config.hook.pytest_multihost_analyse(item=item, attempt=attempt)
    attempt = replace(attempt, analyses=tuple(analyses))
    has_passed = judged.finding.status == "passed"
    if has_passed:
        scratches.take_stacks(scratch, directory)
    _write_artifacts(attempt, folder, tally, config.hook)
    if has_passed:
        scratches.give_back(scratch, is_clean=not result.leftovers)
    return attempt


def _write_artifacts(
    attempt: CompletedAttempt, folder: RunFolder, tally: Tally, hook: pluggy.HookRelay
) -> None:
    """Write all records of an attempt; the tally notes files that could not be written."""
    judged, directory = attempt.judged, attempt.directory
    finding, nodeid = judged.finding, judged.result.spec.nodeid
    about = Attempt(
        run_id=folder.run_id,
        directory=directory.name,
        worker=os.environ.get("PYTEST_XDIST_WORKER"),
        environment=package_versions(),
    )
    is_expected = None if attempt.plan.expected is None else finding.status == "passed"
    records = {each.name: each.record for each in attempt.analyses}
    with tally.noting(nodeid):
        verdict = replace(build_verdict(judged, about), expected=is_expected, analyses=records)
        has_findings = any(each.has_findings for each in attempt.analyses)
        has_page = finding.outcome not in ("passed", "skipped") or has_findings
        renderers = offered_renderers(hook) if has_page else None
        for name, error in write(directory, judged, verdict, about, renderers, run=folder):
            tally.note(f"{nodeid}: {name}" if name else nodeid, error)


def _as_expected(expected: Expectation, judged: Judgement) -> Finding:
    return apply_expectation(judged.finding, expected, judged.diagnosis, judged.result.spec.names)


def _keep_alive(config: pytest.Config, facts: Sequence[RankFacts], *, names: Names) -> None:
    """Print how to attach to the ranks of a hanging world; wait an hour, or until Ctrl-C."""
    alive = [each for each in facts if each.pid is not None and not each.is_gone]
    lines = [f"  {names.rank(each.rank)}  py-spy dump --pid {each.pid}" for each in alive]
    head = "the test hangs, and its ranks are kept alive. Press Ctrl-C to end them and to continue:"
    write_through(config, "\n".join(["", head, *lines, ""]))
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(3600)
