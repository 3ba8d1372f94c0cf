"""Sweeps tests one after the other, with lanes that are opened once."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import ValueStated
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.result import utc_text
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.pytest_plugin.analysis import Analysis
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.live_display import write_through
from pytest_multihost.core.pytest_plugin.plan import Plan
from pytest_multihost.core.pytest_plugin.run import RUN, Run
from pytest_multihost.core.pytest_private import base_temp
from pytest_multihost.core.report.artifacts import package_versions
from pytest_multihost.core.report.layout import Section
from pytest_multihost.extensions.sweep.acceptances import apply_acceptances
from pytest_multihost.extensions.sweep.choices import MEASURED, Weight, rare_kinds
from pytest_multihost.extensions.sweep.classes import Records
from pytest_multihost.extensions.sweep.file_names import SWEEP_PAGE_NAME
from pytest_multihost.extensions.sweep.html import write_sweep_page
from pytest_multihost.extensions.sweep.lanes import (
    LanePool,
)
from pytest_multihost.extensions.sweep.local_decisions.decisions import local_decisions
from pytest_multihost.extensions.sweep.local_decisions.source import may_depend_on_hashes
from pytest_multihost.extensions.sweep.marker import REMAINS, SEEN, SweepRequest
from pytest_multihost.extensions.sweep.options import SHOW
from pytest_multihost.extensions.sweep.own_kinds import with_words
from pytest_multihost.extensions.sweep.plan import plan_sweep
from pytest_multihost.extensions.sweep.random_states import NAME as RANDOM_STATES
from pytest_multihost.extensions.sweep.rating.weigh import rate_all
from pytest_multihost.extensions.sweep.record import write_sweep
from pytest_multihost.extensions.sweep.remains import write_usual
from pytest_multihost.extensions.sweep.report import sweep_section
from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    SweepPlan,
    SweepResult,
    SweepStatus,
)
from pytest_multihost.extensions.sweep.run.live_line import SweepLine
from pytest_multihost.extensions.sweep.run.one_sweep import OneSweep, counts_by_kind
from pytest_multihost.extensions.sweep.run.runner import Runner
from pytest_multihost.extensions.sweep.run.worlds import Worlds
from pytest_multihost.extensions.sweep.saved import acts_of
from pytest_multihost.extensions.sweep.sayings import read_logs, usual_lines
from pytest_multihost.extensions.sweep.words import (
    by_chance,
    chance_text,
    headline_text,
    hidden_text,
    left_out_texts,
    survives_text,
    unmet_texts,
    waits_text,
)
from pytest_multihost.intercept.recorded import recorded_points

_NO_PLAN = SweepPlan((), 0, (), 0)


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
            request: The families, budget and functions of the sweep.
            attempt: The undisturbed run, with its recorded points.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM; the results so far have been shown.
            LaunchError: The harness broke; the results so far have been shown.
        """
        result = self.sweep(item, request, attempt)
        summary = summary_text(result)
        found = Analysis(
            name="sweep",
            headline=headline(result),
            fails_test=result.status == "failed",
            sections=partial(_sections, result),
            # Otherwise the failure of the test has it.
            summary=summary if result.status != "failed" or self._hides_failures else "",
            page=SWEEP_PAGE_NAME,
        )
        if result.status == "interrupted":
            files = replace(attempt, analyses=(found,)).files
            lines = [sweep_section(result, files=files).text]
            lines += [printable(summary)] if self.broken else []  # the run has no end that shows it
            self.run.tally.lines.append(summary)
            write_through(self.run.config, "\n".join(["", *lines, ""]))
            raise self.broken or KeyboardInterrupt(result.reason)
        return found

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
        world, began_s = attempt.judged.result, time.monotonic()
        size = world.spec.size
        points = recorded_points(world.history, attempt.judged.context.place)
        worlds = Worlds(
            run=self.run,
            attempt=attempt,
            budget_s=result.budget_s,
            points=points,
            usual_lines=usual_lines(read_logs(attempt.directory, size)),
            numbers=self._numbers,
        )
        planned = plan_sweep(
            points,
            result.families,
            size=size,
            decisions=request.decisions,
            values=request.values,
            local=local_decisions(item.stash[SEEN], finds_data=request.finds_data),
            has_values=any(_is_replica(each.body) for each in world.history),
            has_hashes=_may_depend_on_hashes(item, points),
        )
        planned = with_words(planned, worlds.kinds)
        passed = [(each.point.point, each.rank) for rank in points.values() for each in rank]
        result = replace(result, plan=planned, points=counts_by_kind(passed, size))
        sweep = begin(planned, worlds.can_run, has_rare=request.has_rare)
        sweep.measures, sweep.clock_of = worlds.measures, worlds.clock_of
        # The path is short, because it is part of the paths of sockets.
        scratch = Path(tempfile.mkdtemp(prefix="sweep-", dir=base_temp(self.run.config)))
        remains = item.stash[REMAINS]
        write_usual(scratch, replace(remains, acts=acts_of(points, remains.files.by_path)))
        worlds.prepare_servers(sweep.rest)
        runner = Runner(
            lanes=self._open(),
            sweep=sweep,
            worlds=worlds,
            scratch=scratch,
            began_s=began_s,
            budget_s=result.budget_s,
            line=SweepLine(self.run.config),
        )
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
        except BaseException:
            self._open().stop()  # the next test's sweep needs lanes without worlds
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            runner.line.close()
        sweep.stop("budget")
        for each in sweep.unused_directories():
            shutil.rmtree(self.run.folder.base / each, ignore_errors=True)
        for why in runner.lost:
            self.run.tally.unwritten.append(f"{result.nodeid}: a run was lost: {why}")
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
            lanes=runner.most,
        )


def _is_replica(body: object) -> bool:
    """Return whether a rank has stated its part of replicated state."""
    return isinstance(body, ValueStated) and body.name != RANDOM_STATES


def _may_depend_on_hashes(item: pytest.Item, points: Records) -> bool:
    """Return whether the user's code may depend on hashes, as far as the first run tells of it."""
    root = item.config.rootpath
    functions = {str(item.path): {getattr(item, "originalname", None) or item.name}}
    for passed in points.values():
        for where in (each.where for each in passed if each.where is not None):
            name = where.function.rpartition(".")[2]
            functions.setdefault(str(root / where.file), set()).add(name)
    for target in {call.target for each in item.stash[SEEN].values() for call in each.calls}:
        module, _, name = target.partition(":")
        if (file := getattr(sys.modules.get(module), "__file__", None)) is not None:
            functions.setdefault(file, set()).add(name.rpartition(".")[2])
    return any(
        may_depend_on_hashes(file, names)
        for file, names in functions.items()
        if not is_library(file)
    )


def begin(
    plan: SweepPlan,
    can_run: Callable[[Disturbance], bool],
    *,
    has_rare: bool,
    measured: Mapping[Weight, tuple[int, int]] = MEASURED,
) -> OneSweep:
    """Return the sweep to run.

    Args:
        can_run: Returns whether this machine can run a disturbance.
        has_rare: Whether kinds run that have found nothing in any corpus.
        measured: See `MEASURED`.
    """
    rare = frozenset(each.name.lower() for each in rare_kinds(measured))
    sweep, possible = OneSweep(deque()), list[Disturbance]()
    for each in plan.disturbances:
        if not can_run(each):
            sweep.leave_out("machine", [each])
        elif each.choice in rare and not has_rare:
            sweep.leave_out("rare", [each])
        else:
            possible.append(each)
    sweep.add(possible)
    return sweep


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
    chance = [f"{chance_text(each)}: {waits_text(each.witness)}" for each in by_chance(result)]
    ended = filter(None, [hidden_text(result)])
    texts = (survives_text(result), *chance, *ended, *left_out, *unmet_texts(result))
    return f"{result.nodeid}: {'; '.join(texts)}"


_ENDS = {"skipped": "was skipped", "error": "ended with an error", "xfailed": "is expected to fail"}
"""How an undisturbed run ends that does not pass, where its status is not a verb."""


def _why_not(plan: Plan, attempt: CompletedAttempt) -> str | None:
    """Return the reason why a test is not swept; None if it is swept."""
    finding = attempt.judged.finding
    if plan.expected is not None:
        return "it is expected to hang (multihost_expect)"
    if finding.status != "passed":
        return f"the first run {_ENDS.get(finding.status, finding.status)}"
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
