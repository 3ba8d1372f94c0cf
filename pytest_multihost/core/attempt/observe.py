"""Runs one world with its watchdog and services.

The watchdog also gets the processes that the harness runs around the ranks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_multihost.core.engine import OnTick, Surroundings, run_world
from pytest_multihost.core.launch import Launcher, RunningWorld
from pytest_multihost.core.launch.descriptor_limit import keep_descriptors_free
from pytest_multihost.core.launch.memory_guard import MemoryGuard
from pytest_multihost.core.launch.scratch import make_shared_directories, sockets_directory
from pytest_multihost.core.model.result import RankSnapshot, WorldResult
from pytest_multihost.core.model.setting_values import Early
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import Dump
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import (
    BUILT_IN_SERVICES,
    MachinePart,
    Opening,
    ServiceKind,
    machine_parts,
    open_services,
    with_needed,
)
from pytest_multihost.core.watch import Watchdog, WorldObserver
from pytest_multihost.core.watch.kernel import HarnessProcesses
from pytest_multihost.core.watch.probes import dump_stacks


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedWorld:
    """A world that is to run, and its watchdog.

    Attributes:
        directory: Where logs and stacks go.
        scratch: Its own directory for everything else.
    """

    spec: WorldSpec
    directory: Path
    scratch: Path
    watchdog: Watchdog
    kinds: Sequence[ServiceKind] = BUILT_IN_SERVICES

    @classmethod
    def make(
        cls,
        spec: WorldSpec,
        *,
        directory: Path,
        scratch: Path,
        early: Early,
        others: frozenset[int] = frozenset(),
        kinds: Iterable[Sequence[ServiceKind]] = (BUILT_IN_SERVICES,),
    ) -> WatchedWorld:
        """Make the watchdog of a world, and the directory that its ranks share.

        Args:
            directory: Where logs and stacks go.
            scratch: Its own directory for everything else.
            early: The action when a hang is proven before the timeout.
            others: Ids of other processes on this machine that start ranks as this one does.
            kinds: The kinds of services that each plugin offers; the plugin registered last comes
                first.
        """
        make_shared_directories(scratch)
        offered = tuple(kind for group in kinds for kind in group)
        spec = with_needed(spec, offered)
        harness = harness_processes(directory, scratch, others)
        if spec.is_sealed:
            private = (str(scratch),)
            harness = replace(harness, is_sealed=True, private=private)
        watchdog = Watchdog(
            WorldObserver(scratch, spec.size, harness, spec),
            may_run_jax=spec.backend_facts.may_run_jax,
            early=early,
            patience_s=spec.patience_s,
        )
        return cls(
            spec=spec, directory=directory, scratch=scratch, watchdog=watchdog, kinds=offered
        )

    def run(
        self,
        launcher: Launcher,
        *,
        primary_leaves_last: bool,
        on_tick: OnTick | None = None,
        tick_s: float = 1.0,
        on_hang: Callable[[Sequence[RankFacts]], None] | None = None,
        patience_s: float | None = None,
    ) -> WorldResult:
        """Run the world to its end, and clean up after its services.

        `engine.Surroundings` describes the arguments.
        """
        opening = Opening(
            spec=self.spec,
            scratch=self.scratch,
            watchdog=self.watchdog,
            primary_leaves_last=primary_leaves_last,
        )
        services = open_services(self.kinds, opening)
        parts = machine_parts(self.spec, self.scratch)
        observer = self.watchdog.observer
        observer.time = next((e.time for e in services if e.time is not None), observer.time)
        guard = MemoryGuard()
        surroundings = Surroundings(
            launcher=launcher,
            dumper=partial(_dump, parts),
            now=observer.time.now,
            directory=self.directory,
            scratch=self.scratch,
            primary_leaves_last=primary_leaves_last,
            on_start=partial(_show_to_watchdog, self.watchdog),
            on_tick=on_tick,
            tick_s=tick_s,
            watch=self.watchdog,
            services=services,
            on_hang=on_hang,
            patience_s=patience_s,
            check_machine=lambda facts: _check_machine(guard, observer, facts),
        )
        try:
            result = run_world(self.spec, surroundings)
        finally:
            for each in services:
                each.close()
        result = result.with_events([e for part in parts for e in part.clean_up(result.history)])
        shutil.rmtree(sockets_directory(self.scratch), ignore_errors=True)  # even if it is kept
        return result


def harness_processes(directory: Path, scratch: Path, others: frozenset[int]) -> HarnessProcesses:
    """Return the harness's processes and files on this machine, which no rank can wait for.

    Args:
        directory: Where the world's logs go.
        scratch: The world's own directory for everything else.
        others: Ids of other processes here that start ranks as this one does.
    """
    paths = tuple(f"{place}/rank-*" for place in (directory, scratch))
    return HarnessProcesses(controllers=others | {os.getpid()}, paths=paths)


def _show_to_watchdog(watchdog: Watchdog, world: RunningWorld) -> None:
    """Give the watchdog the harness's processes around a world that has started."""
    found, observer = world.processes, watchdog.observer
    observer.harness = replace(
        observer.harness,
        servers=found.servers,
        socket_tables=found.socket_tables,
        reaper=found.reaper,
        companions=found.companions,
        exchanges=found.exchanges,
        idle=found.idle,
    )
    observer.remote = found.remote


def _dump(
    parts: Sequence[MachinePart],
    world: RunningWorld,
    ranks: Sequence[int],
    directory: Path,
    last: Sequence[RankSnapshot],
) -> tuple[Dump, ...]:
    """Take stacks, after the services have ended work that would slow down the dumps."""
    for each in parts:
        each.before_stacks(ranks)
    return dump_stacks(world, ranks, directory, last)


def _check_machine(guard: MemoryGuard, observer: WorldObserver, facts: Sequence[RankFacts]) -> None:
    """Check that the controller can go on looking at the world, and the machine has memory.

    Raises:
        LaunchError: It cannot, or nearly all memory is used.
    """
    keep_descriptors_free()
    guard.check(partial(observer.local_pids, facts))
