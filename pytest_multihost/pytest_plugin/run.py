"""One run of pytest: which tests are worlds, the server that starts them, where results go."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import pytest

from pytest_multihost.analysis.outcome import Finding, Symptoms, judge
from pytest_multihost.analysis.record import Attempt, verdict
from pytest_multihost.backends.backend import Backend
from pytest_multihost.backends.registry import find
from pytest_multihost.engine import Surroundings, run_world
from pytest_multihost.launch.launcher import ForkLauncher
from pytest_multihost.model.errors import LaunchError, SettingError
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.pytest_plugin.live import LiveLine
from pytest_multihost.pytest_plugin.marks import is_multihost, scalars, wanted
from pytest_multihost.pytest_plugin.options import Defaults
from pytest_multihost.rank.agent import run_rank
from pytest_multihost.rank.environment import thread_variables
from pytest_multihost.rank.threads import limit_threads
from pytest_multihost.reporting.artifacts import RunFolder, open_run, write_attempt
from pytest_multihost.watch.clock import MonotonicClock
from pytest_multihost.watch.dump import dump_stacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one item is to run."""

    size: int
    backend: Backend
    local_devices: int
    timeout_s: float
    startup_timeout_s: float


@dataclass(frozen=True, slots=True)
class Attempted:
    """One attempt of one item: what was observed, what was found, where it is written."""

    result: WorldResult
    finding: Finding
    directory: Path


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a run has once it is known that there are multihost tests."""

    launcher: ForkLauncher
    folder: RunFolder


@dataclass(slots=True)
class Run:
    """The multihost side of one run of pytest.

    Attributes:
        config: pytest's configuration.
        defaults: What holds where markers say nothing.
        plans: The multihost items by node id.
        ran: How many worlds were started.
        fatal: Why the run is to fail although no test did.
    """

    config: pytest.Config
    defaults: Defaults
    plans: dict[str, Plan] = field(default_factory=dict)
    ran: int = 0
    fatal: str | None = None
    _opened: _Opened | None = None
    _attempts: Counter[str] = field(default_factory=Counter)

    def plan(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Find the multihost items and decide how each is to run.

        Raises:
            pytest.UsageError: With every problem of every item.
        """
        chosen = [item for item in items if is_multihost(item, self.defaults)]
        offered = _offered(self.config) if chosen else []
        problems: list[str] = []
        for item in chosen:
            plan, wrong = _plan(item, self.defaults, offered)
            problems += [f"{item.nodeid}: @pytest.mark.multihost {each}" for each in wrong]
            if plan is not None:
                self.plans[item.nodeid] = plan
        if problems:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
        return chosen

    def open(
        self, items: Sequence[pytest.Item], restore: Callable[[pytest.Item], pytest.Item]
    ) -> None:
        """Start the server that holds `items`.

        Args:
            items: The multihost items.
            restore: Gives an item back the class that pytest collected it with.

        Raises:
            pytest.UsageError: The controller cannot be forked, or the server cannot start.
        """
        backends = {plan.backend.name: plan.backend for plan in self.plans.values()}
        found = {item.nodeid: item for item in items}
        launcher = ForkLauncher(
            run_rank=partial(
                run_rank, find_item=lambda nodeid: restore(found[nodeid]), backends=backends
            ),
            prepare_server=partial(_prepare_server, self.config, list(backends.values())),
        )
        try:
            launcher.open()
        except LaunchError as error:
            raise pytest.UsageError(str(error)) from error
        self._opened = _Opened(launcher, open_run(self.defaults.artifacts))

    def close(self) -> None:
        """End the server."""
        if self._opened is not None:
            self._opened.launcher.close()

    def _get_opened(self) -> _Opened:
        if self._opened is None:
            message = "a world was asked for before the server was opened"
            raise RuntimeError(message)
        return self._opened

    def attempt(self, item: pytest.Item) -> Attempted:
        """Run one item as a world and write down what happened.

        Raises:
            KeyboardInterrupt: Ctrl-C, after the ranks have been ended and the verdict written.
        """
        opened = self._get_opened()
        plan = self.plans[item.nodeid]
        self._attempts[item.nodeid] += 1
        spec = _spec(item.nodeid, self._attempts[item.nodeid], plan)
        directory = opened.folder.attempt(spec.nodeid, spec.attempt)
        scratch = _make_scratch(self.config, spec)
        self.ran += 1
        with LiveLine(self.config) as live:
            around = Surroundings(
                launcher=opened.launcher,
                dumper=dump_stacks,
                clock=MonotonicClock(),
                directory=directory,
                scratch=scratch,
                primary_leaves_last=plan.backend.primary_leaves_last,
                on_tick=live.show,
            )
            result = run_world(spec, around)
        finding = judge(result, Symptoms(plan.backend.symptoms, plan.backend.fatal_symptoms))
        self._write(result, finding, directory)
        if finding.status == "passed" and _forgets_scratch(self.config):
            shutil.rmtree(scratch, ignore_errors=True)
        if result.ending == "interrupted":
            raise KeyboardInterrupt
        return Attempted(result, finding, directory)

    def _write(self, result: WorldResult, finding: Finding, directory: Path) -> None:
        folder = self._get_opened().folder
        where = Attempt(
            run_id=folder.run_id,
            directory=directory.name,
            worker=os.environ.get("PYTEST_XDIST_WORKER"),
            environment=_environment(),
        )
        data = verdict(result, finding, where).to_json()
        write_attempt(directory, data, result.history, origin_s=result.started_s)
        folder.append_verdict(data)


RUN = pytest.StashKey[Run]()


def _offered(config: pytest.Config) -> list[Backend]:
    """Return all backends, those of the plugin registered last first."""
    groups: list[Sequence[Backend]] = config.hook.pytest_multihost_backends()
    return [backend for group in groups for backend in group]


def _plan(
    item: pytest.Item, defaults: Defaults, offered: Sequence[Backend]
) -> tuple[Plan | None, list[str]]:
    want, problems = wanted(item.iter_markers("multihost"), defaults)
    size, name, more = scalars(item, want)
    problems += more
    if item.get_closest_marker("multihost_expect") is not None:
        problems.append("cannot be judged by multihost_expect: not available in this version")
    try:
        backend = find(name, offered)
    except SettingError as error:
        return None, [*problems, f"cannot run: {'. '.join(str(error).splitlines())}"]
    return Plan(
        size=size,
        backend=backend,
        local_devices=want.local_devices,
        timeout_s=want.timeout_s,
        startup_timeout_s=want.startup_timeout_s,
    ), problems


def _spec(nodeid: str, attempt: int, plan: Plan) -> WorldSpec:
    return WorldSpec(
        nodeid=nodeid,
        attempt=attempt,
        size=plan.size,
        backend=plan.backend.name,
        local_devices=plan.local_devices,
        timeout_s=plan.timeout_s,
        startup_timeout_s=plan.startup_timeout_s,
        # The same in every run: a test that draws random numbers is repeatable by default.
        seed=zlib.crc32(nodeid.encode()) % 1_000_000,
    )


def _prepare_server(config: pytest.Config, backends: Iterable[Backend]) -> None:
    """Load what every rank needs, with one thread, in the server that all are forked from."""
    variables = thread_variables(os.environ)
    os.environ.update(variables)
    for backend in backends:
        backend.preload()
    config.hook.pytest_multihost_server_start(config=config)
    if variables:  # the user had not said otherwise
        limit_threads(1)
    others = [thread.name for thread in threading.enumerate()][1:]
    if others:
        happened = "loading what the ranks need has started threads"
        remedy = "Start them in a fixture or test, not in pytest_multihost_server_start."
        raise LaunchError(happened, seen=f"Threads: {', '.join(others)}.", remedy=remedy)


def _make_scratch(config: pytest.Config, spec: WorldSpec) -> Path:
    """Make the world's directory for temporary files, below pytest's own base directory."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
    scratch = factory.mktemp(f"world-{spec.seed}-")
    (scratch / "shared").mkdir()
    return scratch


def _forgets_scratch(config: pytest.Config) -> bool:
    return str(config.getini("tmp_path_retention_policy")) != "all"


@cache
def _environment() -> Mapping[str, str | None]:
    """Return the versions that a verdict depends on."""
    packages = {name: _version(name) for name in ("pytest", "torch", "jax")}
    return {"python": platform.python_version(), "platform": sys.platform, **packages}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
