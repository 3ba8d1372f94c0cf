"""One run of pytest: which tests are worlds, the server that starts them, where results go."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.backends import Backend, find_backend
from pytest_multihost.blame import judge_world
from pytest_multihost.engine import Surroundings, run_world
from pytest_multihost.launch.docker.launcher import ContainerLauncher
from pytest_multihost.launch.fallback import FallbackLauncher
from pytest_multihost.launch.throttle import permit_count, places
from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.model.user_code import SourceContext
from pytest_multihost.nemesis.cleanup import clean_up_faults
from pytest_multihost.outcome import Symptoms
from pytest_multihost.outcome.faults import require_fired
from pytest_multihost.pytest_plugin.attach.state import launcher_of, others_of, ranks_here, sites_of
from pytest_multihost.pytest_plugin.expect import Expectation, apply, expectation
from pytest_multihost.pytest_plugin.fault_options import Disturbing, read_disturbing
from pytest_multihost.pytest_plugin.launching.container_launcher import open_ladder
from pytest_multihost.pytest_plugin.launching.hosts import why_no_hosts
from pytest_multihost.pytest_plugin.launching.launcher_factory import Launching
from pytest_multihost.pytest_plugin.launching.requirements import Need, launch_problems, need_of
from pytest_multihost.pytest_plugin.launching.server_process import offered_backends, plain_nodeid
from pytest_multihost.pytest_plugin.marks import read_markers, world_axes
from pytest_multihost.pytest_plugin.options import Settings
from pytest_multihost.pytest_plugin.results import (
    CompletedAttempt,
    live_display,
    write_artifacts,
    write_through,
)
from pytest_multihost.pytest_plugin.scratch import make_scratch, tidy
from pytest_multihost.pytest_plugin.tally import Tally
from pytest_multihost.pytest_plugin.watchdog_setup import (
    Watched,
    dump_healed,
    keep_alive,
    warn_of,
    watch_on,
)
from pytest_multihost.report.artifacts import RunFolder, new_run_id, open_run
from pytest_multihost.report.text import points_lines, stacks_text
from pytest_multihost.watch.clock import MonotonicClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one item is to run."""

    nodeid: str
    size: int
    backend: Backend
    local_devices: int
    timeout_s: float
    has_own_timeout: bool
    startup_timeout_s: float
    env: Mapping[str, str]
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    hosts: str
    expected: Expectation | None

    @property
    def symptoms(self) -> Symptoms:
        """How failures look that follow from another rank's."""
        return Symptoms(self.backend.symptoms, self.backend.fatal_symptoms)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What a run has once it is known that there are multihost tests."""

    launching: Launching
    ladders: dict[Need, FallbackLauncher | ContainerLauncher]
    folder: RunFolder


@dataclass(slots=True)
class Run:
    """The multihost side of one run of pytest.

    Attributes:
        config: pytest's configuration.
        tally: What is counted in every run.
        plans: The multihost items by node id.
    """

    config: pytest.Config
    tally: Tally
    plans: dict[str, Plan] = field(default_factory=dict)
    _opened: _Opened | None = None
    _disturbing: Disturbing | None = None
    _attempts: Counter[str] = field(default_factory=Counter)

    def plan(self, items: Iterable[pytest.Item]) -> None:
        """Decide how each multihost item is to run.

        Raises:
            pytest.UsageError: With every problem of every item.
        """
        offered = offered_backends(self.config)
        disturbing = read_disturbing(self.config)
        problems: list[str] = []
        for item in items:
            plan, wrong = _plan(item, self.tally.settings, offered)
            problems += [f"{item.nodeid}: @pytest.mark.multihost {each}" for each in wrong]
            if plan is not None:
                faults, wrong = disturbing.faults_of(
                    plan.nodeid, plan.size, plan.faults, hosts=plan.hosts
                )
                wrong += launch_problems(plan.env, faults, self.tally.settings.launch)
                problems += [f"{item.nodeid}: @pytest.mark.multihost {each}" for each in wrong]
                seed = disturbing.seed_of(plan.nodeid)
                self.plans[item.nodeid] = replace(plan, faults=faults, seed=seed)
        if problems:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
        disturbing.check_replay(plan.nodeid for plan in self.plans.values())
        self._disturbing = disturbing
        self.tally.selected = len(self.plans)

    def open(self, items: Sequence[pytest.Item]) -> None:
        """Start the servers that hold `items`.

        Raises:
            pytest.UsageError: The chosen way of launching is not sound, or a server cannot start.
        """
        workerinput: Mapping[str, str] = getattr(self.config, "workerinput", {})
        run_id = self.tally.run_id = workerinput.get("multihost_run_id") or new_run_id()
        folder = _open_folder(self.tally.settings.artifacts, run_id)
        backends = {plan.backend.name: plan.backend for plan in self.plans.values()}
        launching = Launching(self.config, items, backends, folder.path)
        self._opened = _Opened(launching, {}, folder)
        for plan in self.plans.values():
            self._ladder(plan)

    def _ladder(self, plan: Plan) -> FallbackLauncher | ContainerLauncher:
        """Return the launcher for tests with the plan's needs, started."""
        opened = self._get_opened()
        launch = self.tally.settings.launch
        need = need_of(plan.env, plan.faults, launch, plan.hosts)
        if need not in opened.ladders:
            mode = "spawn" if need.is_fresh else launch
            opened.ladders[need] = open_ladder(opened.launching, mode, need, self.tally.settings)
        return opened.ladders[need]

    def describe_launch(self) -> str:
        """Say which ways of launching are in use, and what forced those that are not cheapest."""
        parts = []
        for need, ladder in self._get_opened().ladders.items():
            why = [*need.reasons, *ladder.reasons]
            parts.append(f"{ladder.name} ({'; '.join(why)})" if why else ladder.name)
        return ", ".join(dict.fromkeys(parts))

    def close(self) -> None:
        """End the server."""
        if self._opened is not None:
            for ladder in self._opened.ladders.values():
                ladder.close()

    def _get_opened(self) -> _Opened:
        if self._opened is None:
            message = "a world was asked for before the server was opened"
            raise RuntimeError(message)
        return self._opened

    def check_machine(self, item: pytest.Item) -> None:
        """Skip, or fail, an item whose world this machine cannot hold."""
        plan = self.plans[item.nodeid]
        reason = plan.backend.lacking(ranks_here(self.config, plan.size))
        if self._disturbing and (lacking := self._disturbing.lacking(plan.faults)):
            pytest.skip(lacking)
        if why := why_no_hosts(self.config, plan.hosts, self._ladder(plan)):
            pytest.skip(why)
        if reason is not None:
            end = pytest.fail if self.tally.settings.is_gpu_required else pytest.skip
            end(reason)

    def attempt(self, item: pytest.Item) -> CompletedAttempt:
        """Run one item as a world and write down what happened.

        Raises:
            KeyboardInterrupt: Ctrl-C, after the ranks have been ended and the verdict written.
        """
        plan = self.plans[item.nodeid]
        self._attempts[item.nodeid] += 1
        spec = _spec(
            plan,
            self._attempts[item.nodeid],
            item.stash.get(DEADLINE, None),
            tells_points=self.config.getoption("multihost_points"),
        )
        spec = replace(spec, sites=sites_of(self.config, spec.size))
        scratch = make_scratch(self.config, spec)
        directory = self._make_directory(spec, scratch)
        self.tally.ran += 1
        watchdog = watch_on(spec, self.tally.settings, directory, scratch, others_of(self.config))
        live = live_display(self.config, directory, spec.size, watchdog.blocking_ranks)
        with self._places(spec.size), live:
            surroundings = Surroundings(
                launcher=Watched(launcher_of(self.config, self._ladder(plan)), watchdog),
                dumper=partial(dump_healed, scratch),
                clock=MonotonicClock(),
                directory=directory,
                scratch=scratch,
                primary_leaves_last=plan.backend.primary_leaves_last,
                on_tick=live.show,
                tick_s=live.tick_s,
                watch=watchdog,
                on_hang=partial(keep_alive, self.config) if self._keeps() else None,
            )
            result = clean_up_faults(run_world(spec, surroundings), scratch)
        warn_of(item, watchdog)
        context = SourceContext(str(self.config.rootpath), source_line)
        judged = judge_world(result, plan.symptoms, context)
        finding, diagnosis = judged.finding, judged.diagnosis
        if plan.expected is not None:
            finding = apply(finding, plan.expected, diagnosis)
        finding = require_fired(finding, result)
        if spec.tells_points:
            self.tally.points += points_lines(result)
        completed = CompletedAttempt(result, finding, diagnosis, directory, context)
        is_expected = None if plan.expected is None else finding.status == "passed"
        self.tally.unwritten += write_artifacts(
            completed, self._get_opened().folder, plan.symptoms, is_expected=is_expected
        )
        if finding.status == "passed":
            tidy(scratch, self.config)
        if result.ending == "interrupted":
            lines = ["", "where the ranks were:", stacks_text(result, context), ""]
            write_through(self.config, "\n".join(lines))
            raise KeyboardInterrupt
        return completed

    def _make_directory(self, spec: WorldSpec, scratch: Path) -> Path:
        """Make the attempt's folder, in the scratch directory where the artifacts' disk is full."""
        try:
            return self._get_opened().folder.attempt(spec.nodeid, spec.attempt)
        except OSError as error:
            self.tally.unwritten.append(f"{spec.nodeid}: {error}")
            return scratch

    def _keeps(self) -> bool:
        """Whether ranks that hang stay alive; in a worker of xdist nobody could press Ctrl-C."""
        return bool(self.config.option.multihost_keep) and not hasattr(self.config, "workerinput")

    def _places(self, size: int) -> AbstractContextManager[None]:
        """Hold places for the ranks where other processes of this run start worlds too."""
        if not hasattr(self.config, "workerinput"):
            return nullcontext()
        folder = self._get_opened().folder.path / "places"
        return places(folder, size, count=permit_count())


MAX_NODEID = 30_000

RUN = pytest.StashKey[Run]()
DEADLINE = pytest.StashKey[float]()
"""The limit that pytest-timeout would have used, in seconds."""


def _plan(
    item: pytest.Item, settings: Settings, offered: Sequence[Backend]
) -> tuple[Plan | None, list[str]]:
    want, problems = read_markers(item.iter_markers("multihost"), settings)
    size, name, more = world_axes(item, want)
    problems += more
    expected, more = expectation(item)
    problems += [f"(multihost_expect) {each}" for each in more]
    if len(item.nodeid) > MAX_NODEID:
        problems.append(
            f"cannot run a test whose id has {len(item.nodeid)} characters: more than {MAX_NODEID}"
            " do not travel to the ranks. Give the parameter a shorter id."
        )
    try:
        backend = find_backend(name, offered)
    except SettingError as error:
        return None, [*problems, f"cannot run: {'. '.join(str(error).splitlines())}"]
    return Plan(
        nodeid=plain_nodeid(item),
        size=size,
        backend=backend,
        local_devices=want.local_devices,
        timeout_s=want.timeout_s,
        has_own_timeout=want.has_own_timeout,
        startup_timeout_s=want.startup_timeout_s,
        env=want.env,
        faults=want.faults,
        hosts=want.hosts,
        expected=expected,
    ), problems


def _open_folder(base: Path, run_id: str) -> RunFolder:
    try:
        return open_run(base, run_id)
    except OSError as error:
        message = (
            f"the artifacts directory {base} cannot be used\n{error}\n"
            "Name another: --multihost-artifacts=DIR"
        )
        raise pytest.UsageError(message) from error


def _spec(
    plan: Plan, attempt: int, deadline_s: float | None, *, tells_points: bool = False
) -> WorldSpec:
    """Return what a world is to be.

    Args:
        plan: How the test is to run.
        attempt: Which attempt of it this is.
        deadline_s: pytest-timeout's limit for it; the marker's own is kept where it is shorter.
        tells_points: Whether each rank is to tell of the points that it passes.
    """
    timeout_s = plan.timeout_s
    if deadline_s is not None:
        timeout_s = min(deadline_s, plan.timeout_s) if plan.has_own_timeout else deadline_s
    return WorldSpec(
        nodeid=plan.nodeid,
        attempt=attempt,
        size=plan.size,
        backend=plan.backend.name,
        local_devices=plan.local_devices,
        timeout_s=timeout_s,
        startup_timeout_s=plan.startup_timeout_s,
        seed=plan.seed,
        faults=plan.faults,
        tells_points=tells_points,
        hosts=plan.hosts,
    )


def source_line(file: str, line: int) -> str:
    """Return the text of a line of a file; empty where it cannot be read."""
    return linecache.getline(file, line).strip()
