"""The watchdog of one world, and what it must know of the processes that the harness runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from pytest_multihost.launch import Launcher, RunningWorld
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.stack import Dump
from pytest_multihost.nemesis import heal_files
from pytest_multihost.outcome import RankFacts
from pytest_multihost.pytest_plugin.attach.remote_snapshots import watch_remote_ranks
from pytest_multihost.pytest_plugin.attach.state import others_of
from pytest_multihost.pytest_plugin.options import Settings
from pytest_multihost.pytest_plugin.results import write_through
from pytest_multihost.watch import Watchdog, WorldObserver
from pytest_multihost.watch.kernel import HarnessProcesses
from pytest_multihost.watch.probes import dump_stacks

KEPT_S = 3600.0
"""How long ranks are kept at most, where no Ctrl-C comes."""

_WITHOUT_JAX = ("gloo", "nccl")


def make_watchdog(
    config: pytest.Config, spec: WorldSpec, settings: Settings, directory: Path, scratch: Path
) -> Watchdog:
    """Return the watchdog of a world.

    Args:
        config: pytest's configuration.
        spec: The world.
        settings: The settings.
        directory: Where its logs go.
        scratch: Its own directory for everything else.
    """
    harness = harness_processes(directory, scratch, others_of(config))
    return Watchdog(
        WorldObserver(scratch, spec.size, harness, spec),
        may_run_jax=spec.backend not in _WITHOUT_JAX,
        early=settings.early,
    )


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


def dump_healed(
    scratch: Path,
    world: RunningWorld,
    ranks: Sequence[int],
    directory: Path,
    computing: Collection[int],
) -> tuple[Dump, ...]:
    """Take stacks, after ending faults of slow I/O: these would slow down the answers, too."""
    heal_files(scratch, ranks)
    return dump_stacks(world, ranks, directory, computing)


def keep_alive(config: pytest.Config, facts: Sequence[RankFacts]) -> None:
    """Print how to attach to the ranks of a world that hangs, and wait for Ctrl-C."""
    alive = [each for each in facts if each.pid is not None and not each.is_gone]
    lines = [f"  rank {each.rank}  py-spy dump --pid {each.pid}" for each in alive]
    head = "the world hangs and its ranks are kept; Ctrl-C ends them and goes on:"
    write_through(config, "\n".join(["", head, *lines, ""]))
    deadline_s = time.monotonic() + KEPT_S
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < deadline_s:
            time.sleep(0.2)
