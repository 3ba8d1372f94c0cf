"""One attempt of one test: from spec to world to result to verdict to files.

Also what a world's watchdog must know of the processes that the harness runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.engine import Surroundings, run_world
from pytest_multihost.launch import Launcher, RunningWorld, hold_permits
from pytest_multihost.launch.netns import HOSTS_FOLDER
from pytest_multihost.model.event import now
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.stack import Dump, SourceContext
from pytest_multihost.nemesis import clean_up_faults, heal_files
from pytest_multihost.outcome import RankFacts
from pytest_multihost.outcome.faults import require_fired
from pytest_multihost.pytest_plugin.artifacts import CompletedAttempt, write_artifacts
from pytest_multihost.pytest_plugin.attach.remote_snapshots import watch_remote_ranks
from pytest_multihost.pytest_plugin.attach.state import others_of
from pytest_multihost.pytest_plugin.expect import apply_expectation
from pytest_multihost.pytest_plugin.live_display import live_display, write_through
from pytest_multihost.pytest_plugin.plan import Plan
from pytest_multihost.pytest_plugin.tally import Tally
from pytest_multihost.pytest_private import base_temp
from pytest_multihost.report.artifacts import RunFolder
from pytest_multihost.watch import Watchdog, WorldObserver
from pytest_multihost.watch.kernel import HarnessProcesses
from pytest_multihost.watch.probes import dump_stacks

KEPT_S = 3600.0
"""How long ranks are kept at most, where no Ctrl-C comes."""

_WITHOUT_JAX = ("gloo", "nccl")


def run_attempt(
    config: pytest.Config,
    plan: Plan,
    spec: WorldSpec,
    *,
    launcher: Launcher,
    tally: Tally,
    folder: RunFolder,
) -> CompletedAttempt:
    """Run a world, judge it, and write down what happened.

    Args:
        config: pytest's configuration.
        plan: How the test is to run.
        spec: The world.
        launcher: What starts its ranks.
        tally: Has the settings, and records files that could not be written.
        folder: The run's folder of artifacts.
    """
    # Not by the factory's `mktemp`: it leaves a symbolic link for every name.
    scratch = Path(tempfile.mkdtemp(prefix=f"world-{spec.seed}-", dir=base_temp(config)))
    (scratch / "shared").mkdir()
    try:
        directory = folder.attempt(spec.nodeid, spec.attempt)
    except OSError as error:  # the artifacts' disk is full
        directory = scratch
        tally.unwritten.append(f"{spec.nodeid}: {error}")
    harness = harness_processes(directory, scratch, others_of(config))
    watchdog = Watchdog(
        WorldObserver(scratch, spec.size, harness, spec),
        may_run_jax=spec.backend not in _WITHOUT_JAX,
        early=tally.settings.early,
    )
    # An xdist worker gets no Ctrl-C.
    is_kept = config.option.multihost_keep and not hasattr(config, "workerinput")
    display = live_display(config, directory, spec.size, watchdog.blocking_ranks)
    with _permits(config, folder, spec.size), display as live:
        surroundings = Surroundings(
            launcher=WatchedLauncher(launcher, watchdog),
            dumper=partial(_dump_healed, scratch),
            now=now,
            directory=directory,
            scratch=scratch,
            primary_leaves_last=plan.backend.primary_leaves_last,
            on_tick=live.show,
            tick_s=live.tick_s,
            watch=watchdog,
            on_hang=partial(_keep_alive, config) if is_kept else None,
        )
        result = run_world(spec, surroundings)
        result = result.with_events(clean_up_faults(result.history, scratch))
    judged = _judge(plan, result, SourceContext(str(config.rootpath)))
    attempt = CompletedAttempt(judged, directory, watchdog.warned)
    is_passed = judged.finding.status == "passed"
    is_expected = None if plan.expected is None else is_passed
    tally.unwritten += write_artifacts(attempt, folder, plan.symptoms, is_expected=is_expected)
    if is_passed:
        _remove_scratch(scratch, config)
    return attempt


def _judge(plan: Plan, result: WorldResult, context: SourceContext) -> Judgement:
    judged = judge_world(result, plan.symptoms, context)
    finding = judged.finding
    if plan.expected is not None:
        finding = apply_expectation(finding, plan.expected, judged.diagnosis)
    # Last: a test whose fault never fired has shown nothing, even if it hung as expected.
    return replace(judged, finding=require_fired(finding, result))


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
        with contextlib.suppress(OSError):  # not empty: the test's own files
            directory.rmdir()


def _permits(config: pytest.Config, folder: RunFolder, size: int) -> AbstractContextManager[None]:
    """Hold permits for the ranks where other processes of this run start worlds too."""
    if not hasattr(config, "workerinput"):
        return contextlib.nullcontext()
    return hold_permits(folder.path / "places", size)


@dataclass(frozen=True, slots=True)
class WatchedLauncher:
    """A launcher that shows a world to its watchdog when it has started it."""

    launcher: Launcher
    watchdog: Watchdog

    @property
    def name(self) -> str:
        """The way of launching in use."""
        return self.launcher.name

    def start(self, spec: WorldSpec, *, directory: Path, scratch: Path) -> RunningWorld:
        """Start a world."""
        world = self.launcher.start(spec, directory=directory, scratch=scratch)
        found, observer = world.processes, self.watchdog.observer
        harness = observer.harness
        observer.harness = replace(
            harness,
            servers=harness.servers | found.servers,
            socket_tables=found.socket_tables,
            reaper=found.reaper,
            companions=found.companions,
        )
        if found.remote:
            watch_remote_ranks(self.watchdog, found.remote, scratch)
        return world


def harness_processes(directory: Path, scratch: Path, others: frozenset[int]) -> HarnessProcesses:
    """Return the processes and files of the harness on this machine, which no rank can wait for.

    Args:
        directory: Where the world's logs go.
        scratch: Its own directory for everything else.
        others: Other processes here that start ranks as this one does.
    """
    paths = tuple(f"{place}/rank-*" for place in (directory, scratch))
    starting = frozenset({os.getpid()}) | others
    servers = frozenset(child for pid in starting for child in _children(pid))
    return HarnessProcesses(servers=servers, controllers=starting, paths=paths)


def _children(pid: int) -> list[int]:
    """Return the children of a process.

    From its own lists, see proc_pid_task(5), and not by reading every process: this is asked for
    each world.
    """
    with contextlib.suppress(OSError):  # it is gone, or the kernel has no CONFIG_PROC_CHILDREN
        lists = list(Path(f"/proc/{pid}/task").glob("*/children"))
        if lists:
            return [int(child) for each in lists for child in each.read_text().split()]
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _dump_healed(
    scratch: Path,
    world: RunningWorld,
    ranks: Sequence[int],
    directory: Path,
    computing: Collection[int],
) -> tuple[Dump, ...]:
    """Take stacks, after ending faults of slow I/O: these would slow down the answers, too."""
    heal_files(scratch, ranks)
    return dump_stacks(world, ranks, directory, computing)


def _keep_alive(config: pytest.Config, facts: Sequence[RankFacts]) -> None:
    """Print how to attach to the ranks of a world that hangs, and wait for Ctrl-C."""
    alive = [each for each in facts if each.pid is not None and not each.is_gone]
    lines = [f"  rank {each.rank}  py-spy dump --pid {each.pid}" for each in alive]
    head = "the world hangs and its ranks are kept; Ctrl-C ends them and goes on:"
    write_through(config, "\n".join(["", head, *lines, ""]))
    deadline_s = time.monotonic() + KEPT_S
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < deadline_s:
            time.sleep(0.2)
