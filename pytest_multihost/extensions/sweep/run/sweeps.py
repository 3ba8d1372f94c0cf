"""Sweeps tests one after the other, with lanes that are opened once."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.fault import Fault, hash_seed_of
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.result import utc_text
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.outcome import disagreements
from pytest_multihost.core.outcome.points import recorded_points
from pytest_multihost.core.pytest_plugin.analysis import Analysis
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.launchers import (
    LaunchRequirements,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.core.pytest_plugin.live_display import write_through
from pytest_multihost.core.pytest_plugin.options import LAUNCH
from pytest_multihost.core.pytest_plugin.plan import Plan
from pytest_multihost.core.pytest_plugin.run import RUN, Run
from pytest_multihost.core.pytest_private import base_temp
from pytest_multihost.core.report.artifacts import package_versions
from pytest_multihost.core.report.layout import Section
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.extensions.sweep.acceptances import apply_acceptances
from pytest_multihost.extensions.sweep.file_names import SWEEP_PAGE_NAME
from pytest_multihost.extensions.sweep.html import write_sweep_page
from pytest_multihost.extensions.sweep.lanes import (
    LanePool,
    RunWorld,
    Share,
    WaitMeasured,
    WorldRun,
)
from pytest_multihost.extensions.sweep.local_decisions.decisions import local_decisions
from pytest_multihost.extensions.sweep.local_decisions.service import unwatched
from pytest_multihost.extensions.sweep.made_with.code import Project, read_code
from pytest_multihost.extensions.sweep.made_with.comparison import combined
from pytest_multihost.extensions.sweep.made_with.in_rank import loaded_files
from pytest_multihost.extensions.sweep.made_with.service import (
    read_record,
    recording_into,
    write_known,
)
from pytest_multihost.extensions.sweep.made_with.settings import settings_of
from pytest_multihost.extensions.sweep.marker import REMAINS, SEEN, USED_CODE, SweepRequest
from pytest_multihost.extensions.sweep.options import BEGAN_S, CONTINUE, SHOW
from pytest_multihost.extensions.sweep.plan import plan_sweep
from pytest_multihost.extensions.sweep.rating.launcher import under_launcher
from pytest_multihost.extensions.sweep.rating.sayings import read_logs, usual_lines
from pytest_multihost.extensions.sweep.rating.weigh import rate_all
from pytest_multihost.extensions.sweep.record import write_sweep
from pytest_multihost.extensions.sweep.remains import write_usual
from pytest_multihost.extensions.sweep.report import sweep_section
from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    DisturbedRun,
    EarlierRuns,
    MadeWith,
    SweepPlan,
    SweepResult,
    SweepStatus,
    WaitEnd,
)
from pytest_multihost.extensions.sweep.run.earlier import EarlierSweep, earlier_sweep
from pytest_multihost.extensions.sweep.run.live_line import TICK_S, SweepLine, sweep_progress
from pytest_multihost.extensions.sweep.run.one_sweep import (
    Measure,
    OneSweep,
    Step,
    counts_by_kind,
)
from pytest_multihost.extensions.sweep.sharing import is_written_before
from pytest_multihost.extensions.sweep.words import (
    by_chance,
    chance_text,
    earlier_texts,
    headline_text,
    hidden_text,
    left_out_texts,
    survives_text,
    waits_text,
)

LEAST_PATIENCE_S = 10.0
"""The least time of a disturbed run before the sweep gives it up."""

_PATIENCE = 5.0
"""The maximum duration of a disturbed run, in durations of the undisturbed run."""

_MEASURE_S, _CLOCK_S = 10.0, 60.0
"""The longest real time to measure what ends a wait, with the machine's clock and with a clock that
jumps. A process that has failed ends in well under a second."""

_USUAL_MEASURE_S = 6.0
"""The usual real time to measure what ends a wait of minutes."""

_MEASURE_SHARE = 0.5
"""How long measurements may begin after all else is done, in budgets."""

_NO_PLAN = SweepPlan((), 0, (), 0)


_MOST_LANES = 12
"""The maximum of worlds at a time if most of them only wait."""


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def has_room(running: int) -> bool:
    """Return whether another world can be started beside the running ones.

    Hung and held ranks use no processor, so the number of runnable threads of the machine decides,
    not the number of ranks.

    Args:
        running: The number of running worlds.
    """
    processors = _processors()
    if running < processors + 2:
        return True
    runnable, _, _ = Path("/proc/loadavg").read_text().split()[3].partition("/")
    return running < _MOST_LANES and int(runnable) <= 2 * processors


@dataclass(slots=True, eq=False)  # a plugin must be hashable: pluggy keeps them in sets
class Sweeps:
    """The sweeps of one run of pytest.

    Attributes:
        broken: The harness's error that ended the last sweep, if any.
    """

    run: Run
    broken: LaunchError | None = None
    _lanes: LanePool | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def prepare(self) -> None:
        """Begin to start the lanes, beside the server and the undisturbed run."""
        self._open().start()

    def _open(self) -> LanePool:
        if self._lanes is None:
            self._lanes = LanePool(self.run.folder.path / "lanes.log", dict(os.environ))
        return self._lanes

    def pytest_unconfigure(self) -> None:
        """End the lanes; called before the servers end, because it is registered after the run."""
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None

    def explore(
        self, item: pytest.Item, request: SweepRequest, attempt: CompletedAttempt
    ) -> Analysis:
        """Sweep a test whose undisturbed run is over, and return the analysis.

        Args:
            item: The test.
            request: The families, budget and functions of the sweep.
            attempt: The undisturbed run, with its recorded points.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM; the results so far have been shown.
            LaunchError: The harness broke; the results so far have been shown.
        """
        result = self.sweep(item, request, attempt)
        summary = summary_text(result)
        if result.status == "interrupted":
            self.run.tally.lines.append(summary)
            text = f"{sweep_section(result).text}\n{printable(summary)}"
            write_through(self.run.config, f"\n{text}\n")
            raise self.broken or KeyboardInterrupt(result.reason)
        return Analysis(
            name="sweep",
            headline=headline(result),
            fails_test=result.status == "failed",
            sections=partial(_sections, result),
            # Otherwise the failure of the test has it.
            summary=summary if result.status != "failed" or self._hides_failures else "",
            page=SWEEP_PAGE_NAME,
        )

    @property
    def _hides_failures(self) -> bool:
        return bool(self.run.config.getoption("tbstyle", "auto") == "no")

    def sweep(
        self, item: pytest.Item, request: SweepRequest, attempt: CompletedAttempt
    ) -> SweepResult:
        """Sweep a test, write sweep.json and its page, and return the result."""
        plan = attempt.plan
        self.broken = None
        result = _blank_result(request, attempt, self.run.folder.run_id)
        reason = _why_not(plan, attempt)
        if reason is not None:
            result = replace(result, status="not swept", reason=reason)
        else:
            result = self._sweep(item, result, request, attempt)
        with self.run.tally.noting(f"{result.nodeid}: the result of the sweep"):
            write_sweep(attempt.directory, result)
        with self.run.tally.noting(f"{result.nodeid}: the page of the sweep"):
            write_sweep_page(attempt.directory, result)
        return result

    def _sweep(
        self,
        item: pytest.Item,
        result: SweepResult,
        request: SweepRequest,
        attempt: CompletedAttempt,
    ) -> SweepResult:
        plan, world, began_s = attempt.plan, attempt.judged.result, time.monotonic()
        size = world.spec.size
        points = recorded_points(world.history, attempt.judged.context.place)
        planned = plan_sweep(
            points,
            result.families,
            size=size,
            decisions=request.decisions,
            values=request.values,
            local=local_decisions(item.stash[SEEN], finds_data=request.finds_data),
        )
        last = max((each.class_ for each in planned.disturbances), default=0)
        suspected = self._suspected(attempt, class_=last + 1)  # first: they are likely
        planned = replace(planned, disturbances=(*suspected, *planned.disturbances))
        passed = [(each.point.point, each.rank) for rank in points.values() for each in rank]
        result = replace(result, plan=planned, points=counts_by_kind(passed, size))
        used, read = item.stash[USED_CODE], partial(self._made_with, item, attempt)
        made_with = read(used)
        sweep, earlier = self._begin(replace(result, made_with=made_with), plan)
        taken_over = len(sweep.runs)
        usual = usual_lines(read_logs(attempt.directory, size))
        sweep.measures = partial(self._measures, plan)
        runner = _Runner(
            lanes=self._open(),
            sweep=sweep,
            began_s=began_s,
            budget_s=result.budget_s,
            request=lambda step: replace(
                self._request(step, plan, attempt, scratch, usual),
                overwrites=is_written_before(points, step.disturbance.passed),
            ),
            launchers=lambda step: {
                repr(needs): self.run.launchers.get(needs)
                for needs, _ in self._shares_of_step(plan, step)
            },
            prepare=lambda: self._prepare_clock(plan, sweep),
            is_ready=lambda each: all(
                self.run.launchers.is_ready(needs) for needs, _ in self._shares(plan, each)
            ),
            line=SweepLine(self.run.config),
            lost=[],
        )
        # The path is short, because it is part of the paths of sockets.
        scratch = Path(tempfile.mkdtemp(prefix="sweep-", dir=base_temp(self.run.config)))
        write_known(scratch, used)
        write_usual(scratch, item.stash[REMAINS])
        self._prepare_servers(plan, sweep.rest)
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
            made_with = combined(read(used | read_record(scratch)), made_with)
            if earlier is not None and earlier.result.made_with and not earlier.reason:
                made_with = combined(made_with, earlier.result.made_with)
            shutil.rmtree(scratch, ignore_errors=True)
            runner.line.close()
        sweep.stop("budget")
        for each in sweep.unused_directories():
            shutil.rmtree(self.run.folder.base / each, ignore_errors=True)
        for why in runner.lost:
            self.run.tally.unwritten.append(f"{result.nodeid}: a disturbed run was lost: {why}")
        weaknesses, unmet = apply_acceptances(
            sweep.with_directories(), self.run.accepted, nodeid=result.nodeid
        )
        weaknesses = rate_all(weaknesses, sweep.ends, self.run.tally.settings.get(SHOW))
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
            made_with=made_with,
            earlier=_earlier_runs(earlier, taken_over),
        )

    def _suspected(self, attempt: CompletedAttempt, *, class_: int) -> list[Disturbance]:
        """Return disturbances that other extensions suggest, each in a class of its own.

        Args:
            attempt: The undisturbed run.
            class_: The class number of the first disturbance.
        """
        config = self.run.config
        groups = config.hook.pytest_multihost_suspects(config=config, attempt=attempt)
        found = [each for group in groups for each in group.items()]
        return [
            _suspicion(fault, where, number) for number, (fault, where) in enumerate(found, class_)
        ]

    def _made_with(
        self, item: pytest.Item, attempt: CompletedAttempt, used: frozenset[str]
    ) -> MadeWith:
        """Return what runs depend on whose ranks have loaded these files of code."""
        config = self.run.config
        plugins = {getattr(each, "__file__", None) for each in config.pluginmanager.get_plugins()}
        project = Project(
            root=config.rootpath,
            own=item.path,
            test_files=tuple(config.getini("python_files")),
            plugins=frozenset(filter(None, plugins)),
            temporary=base_temp(config),
            began_s=config.stash[BEGAN_S],
        )
        code = read_code(used | loaded_files(), project)
        settings = settings_of(config, attempt.plan, attempt.judged.result.spec)
        return MadeWith(
            code=code.digests, packages=code.packages, settings=settings, changed=code.changed
        )

    def _begin(self, result: SweepResult, plan: Plan) -> tuple[OneSweep, EarlierSweep | None]:
        """Return the sweep to run, and the earlier one if it is to be continued."""
        todo = list(result.plan.disturbances)
        sweep = OneSweep(deque())
        possible = [each for each in todo if self._can_run(plan, each)]
        sweep.leave_out("machine", (each for each in todo if each not in possible))
        earlier = None
        if self.run.config.getoption(CONTINUE) and result.made_with is not None:
            earlier = earlier_sweep(
                self.run.folder.base, result, result.made_with, self.run.config.rootpath
            )
            # Keyed by text, because a fault that returns NaN is not equal to itself once read.
            known = {repr(each.disturbance.fault): each for each in earlier.runs} if earlier else {}
            again = []
            for each in possible:
                if (run := known.get(repr(each.fault))) is None:
                    again.append(each)
                else:
                    sweep.runs.append(replace(run, disturbance=each, directory=None))
            possible = again
        sweep.add(possible)
        return sweep, earlier

    def _can_run(self, plan: Plan, disturbance: Disturbance) -> bool:
        """Return whether this machine and the user's launch mode allow a disturbance."""
        fault, launch = disturbance.fault, self.run.tally.settings.get(LAUNCH)
        env = dict(plan.requirements.env)
        kind = self.run.kinds.get(fault.kind)
        return (
            kind is not None
            and not kind.lacking(fault)
            and not launch_problems(env, [fault], {kind.name: kind.facts}, launch)
        )

    def _disturbed(self, spec: WorldSpec, disturbance: Disturbance) -> WorldSpec:
        faults, kind = (*spec.faults, disturbance.fault), disturbance.fault.kind
        facts = {**spec.fault_facts, kind: self.run.kinds[kind].facts}
        return replace(
            spec,
            faults=faults,
            fault_facts=facts,
            tells_points=False,
            keeps_operations=False,
            debugger=None,
        )

    def _prepare_servers(self, plan: Plan, disturbances: Iterable[Disturbance]) -> None:
        """Begin to start the servers of worlds that need several: starting one takes seconds."""
        needed = dict.fromkeys(
            needs
            for each in disturbances
            if len(shares := self._shares(plan, each)) > 1
            for needs, _ in shares
        )
        for needs in needed:
            self.run.launchers.prepare(needs)

    def _shares(
        self, plan: Plan, disturbance: Disturbance
    ) -> Sequence[tuple[LaunchRequirements, tuple[int, ...]]]:
        """Return what the servers of a world must be like, and which ranks each of them starts.

        A rank with a hash seed of its own would have to be an interpreter of its own, and import
        everything again. So a server is started with each seed, once for all worlds, and its ranks
        are forked from it.
        """
        spec = self._disturbed(plan.world, disturbance)
        env, launch = dict(plan.requirements.env), self.run.tally.settings.get(LAUNCH)
        preloads = plan.requirements.preloads
        needs = launch_requirements(env, spec.fault_facts, launch, preloads=preloads)
        has_server_parts = any(each.server for each in spec.services.values())
        if not needs.has_fresh_interpreters or launch == "spawn" or spec.hosts or has_server_parts:
            return [(needs, tuple(range(spec.size)))]
        facts = {k: v for k, v in spec.fault_facts.items() if not v.needs_fresh_interpreters}
        ranks_of: dict[int | None, list[int]] = {}
        for rank in range(spec.size):
            seed = hash_seed_of(spec.faults, rank, spec.seed)
            ranks_of.setdefault(seed, []).append(rank)
        return [
            (
                launch_requirements(
                    {**env, "PYTHONHASHSEED": str(seed)}, facts, launch, preloads=preloads
                ),
                tuple(ranks),
            )
            for seed, ranks in ranks_of.items()
        ]

    def _clock(self, plan: Plan) -> ServiceKind | None:
        """Return the service of a clock that jumps; None if a test's world cannot have it."""
        offered = self.run.config.hook.pytest_multihost_services()
        kinds = [each for group in offered for each in group]
        found = next((each for each in kinds if each.asked_by == ("clock", "jump")), None)
        if found is None or found.preload is None or found.name in plan.world.services:
            return None
        launch = self.run.tally.settings.get(LAUNCH)
        is_lacking = found.preload.problems(launch) or found.preload.library.why_missing()
        return None if is_lacking or plan.world.hosts else found

    def _measures(self, plan: Plan, witness: DisturbedRun) -> list[Measure]:
        """Return how to measure what ends the wait of a witness: without a clock if that may do.

        It may where a rank has failed, because its process ends at once, except jax's.
        """
        found: list[Measure] = []
        if _launcher_ends_all(plan) and witness.outcome != "hung":
            found.append("measure")
        needs = self._shares(plan, witness.disturbance)
        if len(needs) == 1 and self._clock(plan) is not None:
            found.append("measure by clock")
        return found

    def _prepare_clock(self, plan: Plan, sweep: OneSweep) -> None:
        """Begin to start the server of the worlds with a clock that jumps, if one is needed."""
        for each in sweep.weaknesses:
            if self._measures(plan, each.witness)[:1] == ["measure by clock"]:
                step = Step(each.witness.disturbance, "measure by clock")
                for needs, _ in self._shares_of_step(plan, step):
                    with contextlib.suppress(LaunchError):  # the step that needs it says why
                        self.run.launchers.prepare(needs)
                return

    def _shares_of_step(
        self, plan: Plan, step: Step
    ) -> Sequence[tuple[LaunchRequirements, tuple[int, ...]]]:
        """Return the shares of a world, which may have a clock that its test has not asked for."""
        shares = self._shares(plan, step.disturbance)
        clock = self._clock(plan) if step.purpose == "measure by clock" else None
        if clock is None or clock.preload is None:
            return shares
        added = (clock.preload,)
        return [(replace(e, preloads=(*e.preloads, *added)), ranks) for e, ranks in shares]

    def _spec(self, step: Step, plan: Plan, spec: WorldSpec) -> WorldSpec:
        """Return the spec of the world of a step."""
        disturbed = self._disturbed(spec, step.disturbance)
        if not step.is_measurement:
            return disturbed
        has_clock = step.purpose == "measure by clock"
        return under_launcher(
            disturbed,
            ends_all=_launcher_ends_all(plan),
            most_s=_CLOCK_S if has_clock else _MEASURE_S,
            clock=self._clock(plan) if has_clock else None,
        )

    def _request(
        self,
        step: Step,
        plan: Plan,
        attempt: CompletedAttempt,
        scratch: Path,
        usual: frozenset[str],
    ) -> RunWorld:
        world = attempt.judged.result
        undisturbed = unwatched(world.spec)
        spec = recording_into(self._spec(step, plan, undisturbed), scratch)
        is_worker = hasattr(self.run.config, "workerinput")
        keep = None
        if step.artifacts is not None:
            keep = str(attempt.directory / f"weakness-{step.artifacts}")
        usual_s = world.ended_s - world.started_s
        patience_s = max(LEAST_PATIENCE_S, _PATIENCE * usual_s)
        is_long = step.purpose == "confirm" or step.is_measurement
        return RunWorld(
            serial=next(self._numbers),
            shares=tuple(
                Share(repr(needs), ranks) for needs, ranks in self._shares_of_step(plan, step)
            ),
            spec=spec,
            disturbance=step.disturbance,
            patience_s=spec.timeout_s if is_long else patience_s,
            usual_s=usual_s,
            symptoms=plan.symptoms,
            primary_leaves_last=plan.primary_leaves_last,
            scratch=str(scratch),
            root=attempt.judged.context.root,
            artifacts=str(self.run.folder.base),
            keep=keep,
            permits=str(self.run.folder.path / "places") if is_worker else None,
            permit_count=_MOST_LANES * spec.size,
            run_id=self.run.folder.run_id,
            environment=package_versions(),
            usual_differences=tuple({each.name for each in disagreements(world)}),
            usual_lines=usual,
            measures_end=step.is_measurement,
        )


def _earlier_runs(earlier: EarlierSweep | None, used: int) -> EarlierRuns | None:
    if earlier is None:
        return None
    return EarlierRuns(
        used=used,
        unused=len(earlier.result.runs) if earlier.reason else 0,
        reason=earlier.reason or None,
    )


def _launcher_ends_all(plan: Plan) -> bool:
    """Return whether a launcher of this backend's jobs ends all processes if one fails.

    Jobs of jax have no such launcher: jax itself ends the other processes.
    """
    return plan.backend.name != "jax"


PLUGIN = "multihost_sweeps"
"""The name of the plugin that ends the lanes at the end of a run."""


def sweeps_of(config: pytest.Config) -> Sweeps:
    """Return the sweeps of a run with worlds."""
    found: Sweeps | None = config.pluginmanager.get_plugin(PLUGIN)
    if found is None:
        found = Sweeps(config.stash[RUN])
        config.pluginmanager.register(found, PLUGIN)
    return found


def _sections(result: SweepResult, files: str, columns: int | None) -> Sequence[Section]:
    return [sweep_section(result, files=files, columns=columns)]


def headline(result: SweepResult) -> str:
    """Return the first line about a test that passes and has a weakness."""
    return f"WEAK  {headline_text(result)}"


def summary_text(result: SweepResult) -> str:
    """Return the line of the terminal's summary about a sweep, with or without weaknesses."""
    left_out = [f"left out {each}" for each in left_out_texts(result)]
    unmet = [f"accepted and not found: {each}" for each in result.unmet_acceptances]
    chance = [f"{chance_text(each)}: {waits_text(each.witness)}" for each in by_chance(result)]
    ended = filter(None, [hidden_text(result)])
    texts = (survives_text(result), *chance, *ended, *left_out, *earlier_texts(result), *unmet)
    return f"{result.nodeid}: {'; '.join(texts)}"


def _suspicion(fault: Fault, where: Place | None, class_: int) -> Disturbance:
    """Return the disturbance for a fault that another extension suggests."""
    ranks = fault.ranks if isinstance(fault.ranks, tuple) else ()
    passed = RecordedPoint(ranks[0] if ranks else 0, fault.at, 0, where=where)
    return Disturbance("hazards", fault, ranks, passed, class_)


def _why_not(plan: Plan, attempt: CompletedAttempt) -> str | None:
    """Return the reason why a test is not swept; None if it is swept."""
    finding = attempt.judged.finding
    if plan.expected is not None:
        return "it is expected to hang (multihost_expect)"
    if finding.status != "passed":
        return f"it does not pass undisturbed: {finding.status}"
    if not attempt.judged.result.spec.shares_files:
        return "its ranks are on hosts of an attached run"
    return None


def _blank_result(request: SweepRequest, attempt: CompletedAttempt, run_id: str) -> SweepResult:
    spec = attempt.judged.result.spec
    return SweepResult(
        run_id=run_id,
        nodeid=spec.nodeid,
        selected_by=spec.selected_by,
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
        began_s: The start of the sweep, by the monotonic clock.
        budget_s: The time in which disturbances may be started.
        request: Returns the request to a lane for a step.
        launchers: Returns the launchers whose servers a step needs, by the servers' keys.
        is_ready: Returns whether these can start the ranks of a disturbance at once.
        prepare: Begins to start servers that only measurements need.
        lost: The reasons why worlds could not be run.
    """

    lanes: LanePool
    sweep: OneSweep
    began_s: float
    budget_s: float
    request: Callable[[Step], RunWorld]
    launchers: Callable[[Step], Mapping[str, ServerLauncher]]
    is_ready: Callable[[Disturbance], bool]
    prepare: Callable[[], None]
    line: SweepLine
    lost: list[str]
    _steps: dict[int, Step] = field(default_factory=dict)
    _judged_s: float = 0.0

    def run(self) -> None:
        """Run all steps for which there is time.

        Raises:
            LaunchError: A lane or a server could not be started.
            KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        self._fill()
        while self._steps:
            for request, answer in self.lanes.wait(TICK_S):
                step = self._steps.pop(request.serial)
                if isinstance(answer, WorldRun):
                    run = replace(answer.run, disturbance=step.disturbance)
                    self.sweep.take(step, run)
                    self._judged_s = time.monotonic()
                elif isinstance(answer, WaitMeasured):
                    self.sweep.take_end(step, answer.end)
                elif not self.sweep.lose(step):
                    self.lost.append(answer.why)
            if self.sweep.weaknesses:
                self.prepare()
            self._fill()
            self._show()

    def _fill(self) -> None:
        """Begin steps while the machine has room for more worlds."""
        while has_room(len(self._steps)):
            left_s = self.began_s + self.budget_s - time.monotonic()
            step = self.sweep.next_step(
                has_time=left_s > self._reserve_s(),
                has_budget=time.monotonic() < self._measures_until_s(),
                is_ready=self.is_ready,
            )
            if step is None:
                return
            try:
                launchers = self.launchers(step)
            except LaunchError as error:
                if step.purpose != "measure by clock":
                    raise
                self.sweep.take_end(step, WaitEnd(by="not measured", name=error.happened))
                continue
            self.lanes.grow(len(self._steps) + 1)
            request = self.request(step)
            self._steps[request.serial] = step
            self.lanes.begin(request, launchers)

    def _measures_until_s(self) -> float:
        """Return until when slow measurements may begin."""
        return max(self.began_s, self._judged_s) + _MEASURE_SHARE * self.budget_s

    def _reserve_s(self) -> float:
        """Return the estimated time for all that is done last, at most half of the budget.

        The witnesses are repeated, and what ends their waits is measured.
        """
        count, at_once = len(self.sweep.weaknesses), _processors() + 2
        seconds = self.sweep.last_s * (1 + 5 / at_once) + count * _USUAL_MEASURE_S / at_once
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
