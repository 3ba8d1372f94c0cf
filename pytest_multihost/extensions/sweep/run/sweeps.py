"""Sweep tests one after the other, with lanes that are opened once."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.result import utc_text
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.sweep import (
    Acceptance,
    Disturbance,
    SweepPlan,
    SweepResult,
    SweepStatus,
)
from pytest_multihost.core.nemesis import FaultKind
from pytest_multihost.core.outcome.points import recorded_points
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt, overwrite
from pytest_multihost.core.pytest_plugin.launchers import (
    Launchers,
    LaunchRequirements,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.core.pytest_plugin.options import SweepRequest
from pytest_multihost.core.pytest_plugin.plan import Plan
from pytest_multihost.core.pytest_plugin.tally import Tally
from pytest_multihost.core.pytest_private import (
    base_temp,
)
from pytest_multihost.core.report.artifacts import RunFolder, package_versions
from pytest_multihost.core.report.text import ERASE, overlay
from pytest_multihost.extensions.hazards import RULES, disturbances_of
from pytest_multihost.extensions.sweep.lanes import LanePool, RunWorld, WorldRun
from pytest_multihost.extensions.sweep.plan import plan_sweep
from pytest_multihost.extensions.sweep.report import sweep_progress, write_sweep
from pytest_multihost.extensions.sweep.run.one_sweep import (
    OneSweep,
    Step,
    counts_by_kind,
    earlier_result,
)
from pytest_multihost.extensions.sweep.weaknesses import apply_acceptances

# The line on the terminal while a test is swept.


TICK_S = 0.5
"""How often the line is updated."""


@dataclass(slots=True)
class SweepLine:
    """A line that says how far a sweep is; only on a terminal, and not where that is a CI log.

    Attributes:
        config: The run's.
    """

    config: pytest.Config
    _shown_s: float = 0.0
    _is_shown: bool = False

    def show(self, now_s: float, text: str) -> None:
        """Show `text`, if it is time."""
        if now_s >= self._shown_s + TICK_S:
            self._shown_s = now_s
            is_shown = overwrite(self.config, lambda width: overlay(text, width))
            self._is_shown = self._is_shown or is_shown

    def close(self) -> None:
        """Take the line away."""
        if self._is_shown:
            overwrite(self.config, lambda _: ERASE)


LEAST_PATIENCE_S = 10.0
"""No disturbed run is given up sooner."""

_PATIENCE = 5.0
"""How many times as long as the undisturbed run a disturbed one may take."""

_NO_PLAN = SweepPlan((), 0, (), 0)


_MOST_LANES = 12
"""How many worlds run at a time where most of them only wait."""


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def has_room(running: int) -> bool:
    """Return whether another world can be started beside those that run.

    Ranks that hang or are held use no processor; so their number is no measure, but how many
    threads of the machine want one.

    Args:
        running: Number of worlds.
    """
    processors = _processors()
    if running < processors + 2:
        return True
    runnable, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
    return running < _MOST_LANES and int(runnable) <= 2 * processors


@dataclass(slots=True)
class Sweeps:
    """The sweeps of one run of pytest.

    Attributes:
        config: pytest's configuration.
        tally: Has the settings, and records files that could not be written.
        launchers: What starts the worlds.
        folder: The run's folder of artifacts.
        kinds: The kinds of faults, by name.
        accepted: What the project accepts.
        broken: Why the last sweep could not go on, if the harness is to blame.
    """

    config: pytest.Config
    tally: Tally
    launchers: Launchers
    folder: RunFolder
    kinds: Mapping[str, FaultKind]
    accepted: Sequence[Acceptance]
    broken: LaunchError | None = None
    _lanes: LanePool | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def prepare(self) -> None:
        """Begin to start the lanes, beside the server and the undisturbed run."""
        self._open().start()

    def _open(self) -> LanePool:
        if self._lanes is None:
            self._lanes = LanePool(self.folder.path / "lanes.log", dict(os.environ))
        return self._lanes

    def close(self) -> None:
        """End the lanes."""
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None

    def sweep(self, plan: Plan, attempt: CompletedAttempt) -> SweepResult:
        """Sweep a test whose undisturbed run is over.

        Args:
            plan: How the test runs.
            attempt: The undisturbed run, with its points recorded.
        """
        assert plan.sweep is not None  # noqa: S101 - for the type checker
        self.broken = None
        result = _blank_result(plan.sweep, attempt, self.folder.run_id)
        reason = _why_not(plan, attempt)
        if reason is not None:
            result = replace(result, status="not swept", reason=reason)
        else:
            result = self._sweep(result, plan, plan.sweep, attempt)
        with self.tally.noting(f"{result.nodeid}: the result of the sweep"):
            write_sweep(attempt.directory, result)
        with self.tally.noting(f"{result.nodeid}: the page of the sweep"):
            from pytest_multihost.core.report.html import write_sweep_page

            write_sweep_page(attempt.directory, result)
        return result

    def _sweep(
        self, result: SweepResult, plan: Plan, request: SweepRequest, attempt: CompletedAttempt
    ) -> SweepResult:
        world, began_s = attempt.judged.result, time.monotonic()
        size = world.spec.size
        points = recorded_points(world.history, attempt.judged.context.place)
        planned = plan_sweep(
            points,
            result.families,
            size=size,
            decisions=request.decisions,
            values=request.values,
        )
        if attempt.hazards is not None:  # first: they are known to be wrong somewhere
            last = max((each.class_ for each in planned.disturbances), default=0)
            tried = disturbances_of(attempt.hazards, RULES, size=size, class_=last + 1)
            planned = replace(planned, disturbances=(*tried, *planned.disturbances))
        passed = [(each.point.point, each.rank) for rank in points.values() for each in rank]
        result = replace(result, plan=planned, points=counts_by_kind(passed, size))
        sweep = self._begin(result, plan)
        runner = _Runner(
            lanes=self._open(),
            sweep=sweep,
            began_s=began_s,
            budget_s=result.budget_s,
            request=lambda step: self._request(step, plan, attempt, scratch),
            launcher=lambda step: self.launchers.get_local(
                self._requirements(plan, step.disturbance)
            ),
            line=SweepLine(self.config),
            lost=[],
        )
        # Short: sockets have their paths in it.
        scratch = Path(tempfile.mkdtemp(prefix="sweep-", dir=base_temp(self.config)))
        status: SweepStatus = "passed"
        reason: str | None = None
        try:
            runner.run()
        except KeyboardInterrupt as error:
            status, reason = "interrupted", f"interrupted by {str(error) or 'Ctrl-C'}"
            sweep.stop("interrupted")
            self._open().stop()
        except LaunchError as error:
            status, reason, self.broken = "interrupted", str(error), error
            sweep.stop("interrupted")
            self._open().stop()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            runner.line.close()
        sweep.stop("budget")
        for each in sweep.unused_directories():
            shutil.rmtree(self.folder.base / each, ignore_errors=True)
        for why in runner.lost:
            self.tally.unwritten.append(f"{result.nodeid}: a disturbed run was lost: {why}")
        weaknesses, unmet = apply_acceptances(
            sweep.with_directories(), self.accepted, nodeid=result.nodeid
        )
        if status == "passed" and any(each.fails_test for each in weaknesses):
            status = "failed"
        return replace(
            result,
            status=status,
            reason=reason,
            runs=tuple(sweep.runs),
            weaknesses=weaknesses,
            left_out=sweep.left_out,
            unmet_acceptances=tuple(map(str, unmet)),
            duration_s=round(time.monotonic() - began_s, 3),
            lanes=self._open().size,
        )

    def _begin(self, result: SweepResult, plan: Plan) -> OneSweep:
        """Return what is to be run, without what earlier sweeps have run."""
        todo = list(result.plan.disturbances)
        sweep = OneSweep(deque())
        possible = [each for each in todo if self._can_run(plan, each)]
        sweep.leave_out("machine", (each for each in todo if each not in possible))
        if self.tally.settings.sweep.is_continued:
            earlier = earlier_result(self.folder.base, result)
            # By their texts: a fault that returns NaN is not equal to itself once it has been read.
            known = {repr(each.disturbance.fault): each for each in earlier.runs} if earlier else {}
            again = []
            for each in possible:
                if (run := known.get(repr(each.fault))) is None:
                    again.append(each)
                else:
                    sweep.runs.append(replace(run, disturbance=each, directory=None))
            possible = again
        sweep.rest.extend(possible)
        return sweep

    def _can_run(self, plan: Plan, disturbance: Disturbance) -> bool:
        """Whether this machine, and the way of launching that was asked for, allow for a fault."""
        fault, settings = disturbance.fault, self.tally.settings
        env = dict(plan.requirements.env)
        kind = self.kinds.get(fault.kind)
        return (
            kind is not None
            and not kind.lacking(fault)
            and not launch_problems(env, [fault], settings.launch)
        )

    def _requirements(self, plan: Plan, disturbance: Disturbance) -> LaunchRequirements:
        faults = (*plan.world.faults, disturbance.fault)
        env, launch = dict(plan.requirements.env), self.tally.settings.launch
        hosts, clock = plan.world.hosts, plan.world.clock
        return launch_requirements(env, faults, launch, hosts, clock=clock)

    def _request(
        self, step: Step, plan: Plan, attempt: CompletedAttempt, scratch: Path
    ) -> RunWorld:
        world = attempt.judged.result
        spec = _disturbed(world.spec, step.disturbance)
        is_worker = hasattr(self.config, "workerinput")
        keep = None
        if step.artifacts is not None:
            keep = str(attempt.directory / f"weakness-{step.artifacts}")
        usual_s = world.ended_s - world.started_s
        patience_s = max(LEAST_PATIENCE_S, _PATIENCE * usual_s)
        return RunWorld(
            serial=next(self._numbers),
            server=repr(self._requirements(plan, step.disturbance)),
            spec=spec,
            disturbance=step.disturbance,
            patience_s=spec.timeout_s if step.purpose == "confirm" else patience_s,
            usual_s=usual_s,
            symptoms=plan.symptoms,
            primary_leaves_last=plan.backend.primary_leaves_last,
            scratch=str(scratch),
            root=attempt.judged.context.root,
            artifacts=str(self.folder.base),
            keep=keep,
            permits=str(self.folder.path / "places") if is_worker else None,
            permit_count=_MOST_LANES * spec.size,
            run_id=self.folder.run_id,
            environment=package_versions(),
        )


def _disturbed(spec: WorldSpec, disturbance: Disturbance) -> WorldSpec:
    faults = (*spec.faults, disturbance.fault)
    return replace(spec, faults=faults, tells_points=False, keeps_operations=False)


def _why_not(plan: Plan, attempt: CompletedAttempt) -> str | None:
    """Return why a test is not swept; None if it is."""
    finding = attempt.judged.finding
    if plan.expected is not None:
        return "it is expected to hang (multihost_expect)"
    if finding.status != "passed":
        return f"it does not pass undisturbed: {finding.status}"
    if attempt.judged.result.spec.sites:
        return "its ranks are on hosts of an attached run"
    if plan.world.hosts.kind == "docker":
        return "its hosts are containers"
    return None


def _blank_result(request: SweepRequest, attempt: CompletedAttempt, run_id: str) -> SweepResult:
    spec = attempt.judged.result.spec
    return SweepResult(
        run_id=run_id,
        nodeid=spec.nodeid,
        backend=spec.backend,
        world_size=spec.size,
        seed=spec.seed,
        status="passed",
        families=request.families,
        points={},
        plan=_NO_PLAN,
        budget_s=request.budget_s,
        duration_s=0.0,
        started_at=utc_text(),
        environment=package_versions(),
    )


@dataclass(slots=True, kw_only=True)
class _Runner:
    """Runs the steps of one sweep in the lanes.

    Attributes:
        lanes: Where worlds run.
        sweep: What to run next, and what has been found.
        began_s: When the sweep began.
        budget_s: How long disturbances may be started.
        request: Returns how to run a step.
        launcher: Returns the launcher whose server a step needs.
        line: Shows how far the sweep is.
        lost: Why worlds could not be run.
    """

    lanes: LanePool
    sweep: OneSweep
    began_s: float
    budget_s: float
    request: Callable[[Step], RunWorld]
    launcher: Callable[[Step], ServerLauncher]
    line: SweepLine
    lost: list[str]
    _steps: dict[int, Step] = field(default_factory=dict)

    def run(self) -> None:
        """Run everything that there is time for.

        Raises:
            LaunchError: No lane or no server can be had.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        self._fill()
        while self._steps:
            for request, answer in self.lanes.wait(TICK_S):
                step = self._steps.pop(request.serial)
                if isinstance(answer, WorldRun):
                    run = replace(answer.run, disturbance=step.disturbance)
                    self.sweep.take(step, run)
                elif not self.sweep.lose(step):
                    self.lost.append(answer.why)
            self._fill()
            self._show()

    def _fill(self) -> None:
        """Begin as many steps as there are lanes."""
        while has_room(len(self._steps)):
            has_time = time.monotonic() + self._reserve_s() < self.began_s + self.budget_s
            step = self.sweep.next_step(has_time=has_time)
            if step is None:
                return
            self.lanes.grow(len(self._steps) + 1)
            request = self.request(step)
            self._steps[request.serial] = step
            self.lanes.begin(request, self.launcher(step))

    def _reserve_s(self) -> float:
        """Return how long it will take to repeat the witnesses; at most half of the budget."""
        seconds = self.sweep.last_s * (1 + 5 / (_processors() + 2))
        return min(seconds, self.budget_s / 2)

    def _show(self) -> None:
        now_s = time.monotonic()
        done = len(self.sweep.runs)
        planned = done + len(self.sweep.rest) + len(self._steps)
        text = sweep_progress(
            done,
            planned,
            weaknesses=len(self.sweep.weaknesses),
            left_s=max(0.0, self.began_s + self.budget_s - now_s),
        )
        self.line.show(now_s, text)
