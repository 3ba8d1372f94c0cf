"""Finds out whether a replayed run is wrong, as the sweep did that printed its token.

A sweep compares each disturbed run with the undisturbed one. So a replay whose ranks all ended by
themselves is followed by one run without the disturbance, which is the last fault of the token.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pytest_multihost.core.attempt import run_apart
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.recorded_point import RecordedPoint
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.option import LAUNCH
from pytest_multihost.core.outcome import disagreements
from pytest_multihost.core.pytest_plugin.analysis import Analysis
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.launchers import launch_requirements
from pytest_multihost.core.pytest_plugin.run import RUN
from pytest_multihost.core.pytest_private import base_temp
from pytest_multihost.extensions.sweep.classes import Records
from pytest_multihost.extensions.sweep.judge import judge_run
from pytest_multihost.extensions.sweep.remains import Remains, compare, read_remains
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun
from pytest_multihost.extensions.sweep.saved import acts_of
from pytest_multihost.extensions.sweep.sharing import is_written_before
from pytest_multihost.intercept.recorded import recorded_points


@dataclass(frozen=True, slots=True)
class _Undisturbed:
    """A run of the test without the disturbance."""

    judged: Judgement
    remains: Remains


def analyse_replay(item: pytest.Item, attempt: CompletedAttempt) -> Analysis | None:
    """Return the errors in a replayed run; None if there are none, or if that is unknown.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came during the run without the disturbance.
    """
    world = attempt.judged.result
    if not world.spec.faults or world.ending != "self" or not world.spec.shares_files:
        return None
    usual = _run_undisturbed(item, attempt)
    if usual.judged.result.ending == "interrupted":
        raise KeyboardInterrupt(usual.judged.result.reason)
    run = _judged(attempt, usual) if usual.judged.finding.status == "passed" else None
    if run is None or run.outcome != "wrong":
        return None
    return Analysis(
        name="wrong",
        record={"by": run.wrong_by, "summary": run.summary},
        headline=f"WRONG  {run.summary}",
        fails_test=True,
        has_findings=True,
    )


def _judged(attempt: CompletedAttempt, usual: _Undisturbed) -> DisturbedRun:
    world, undisturbed = attempt.judged.result, usual.judged.result
    points = recorded_points(undisturbed.history, usual.judged.context.place)
    passed = _passed(world.spec, points)
    remains = replace(usual.remains, acts=acts_of(points, usual.remains.files.by_path))
    now = read_remains(world, attempt.directory, attempt.scratch, usual=remains)
    return judge_run(
        Disturbance("replay", world.spec.faults[-1], (), passed, 0),
        attempt.judged,
        usual_s=undisturbed.ended_s - undisturbed.started_s,
        usual_differences={each.name for each in disagreements(undisturbed)},
        found=compare(remains, now, overwrites=is_written_before(points, passed)),
    )


def _passed(spec: WorldSpec, points: Records) -> RecordedPoint:
    """Return the point of the disturbance as the undisturbed run passed it."""
    fault = spec.faults[-1]
    rank = fault.ranks[0] if isinstance(fault.ranks, tuple) and fault.ranks else 0
    at = replace(fault.at, onwards=False, when="before")
    found = (each for each in points.get(rank, ()) if each.point == at)
    return next(found, RecordedPoint(rank, fault.at, 0))


def _run_undisturbed(item: pytest.Item, attempt: CompletedAttempt) -> _Undisturbed:
    """Run the world of an attempt without its last fault, and remove its files."""
    config, plan, spec = item.config, attempt.plan, attempt.judged.result.spec
    run = config.stash[RUN]
    faults = spec.faults[:-1]
    kinds = {each.kind for each in faults}
    facts = {kind: each for kind, each in spec.fault_facts.items() if kind in kinds}
    requirements = launch_requirements(
        dict(plan.requirements.env),
        facts,
        plan.settings.get(LAUNCH),
        preloads=plan.requirements.preloads,
    )
    scratch = Path(tempfile.mkdtemp(prefix="usual-", dir=base_temp(config)))
    directory = scratch / "artifacts"
    directory.mkdir()
    try:
        judged = run_apart(
            replace(spec, faults=faults, fault_facts=facts, tells_points=True),
            run.launchers.get(requirements),
            plan.symptoms,
            config.rootpath,
            directory=directory,
            scratch=scratch,
            kinds=config.hook.pytest_multihost_services(),
            primary_leaves_last=plan.primary_leaves_last,
        )
        return _Undisturbed(judged, read_remains(judged.result, directory, scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
