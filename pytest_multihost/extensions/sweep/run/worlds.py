"""Describes the worlds of one sweep: the servers that start them, and the requests to lanes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.fault import hash_seed_of
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.option import LAUNCH
from pytest_multihost.core.outcome import disagreements
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.launchers import (
    LaunchRequirements,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.core.pytest_plugin.plan import Plan
from pytest_multihost.core.pytest_plugin.run import Run
from pytest_multihost.core.report.artifacts import package_versions
from pytest_multihost.core.services import ServiceKind
from pytest_multihost.extensions.sweep.classes import Records
from pytest_multihost.extensions.sweep.judge.outcome import LEAST_WAIT_S, SLOWER
from pytest_multihost.extensions.sweep.lanes import RunWorld, Share
from pytest_multihost.extensions.sweep.local_decisions.service import unwatched
from pytest_multihost.extensions.sweep.rating.launcher import under_launcher
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun
from pytest_multihost.extensions.sweep.run.one_sweep import Clock, OneSweep, SweepStep
from pytest_multihost.extensions.sweep.sharing import is_written_before
from pytest_multihost.faults.kind import FaultKind, kinds_by_name

MOST_LANES = 12
"""The maximum of worlds at a time if most of them only wait."""

LEAST_PATIENCE_S = 10.0
"""The least time of a disturbed run before the sweep gives it up."""

_PATIENCE = 5.0
"""The maximum duration of a disturbed run, in durations of the undisturbed run."""

_MOST_OF_BUDGET = 0.2
"""The most that one disturbed run may take of the budget, if it cannot be judged sooner."""

_CLOCK_USUAL_S = 6.0
"""The usual real time to measure, with a clock that jumps, the end of a wait of minutes."""

_MEASURE_S, _CLOCK_S = 10.0, 60.0
"""The longest real time to measure the end of a wait, with the machine's clock and with a clock
that jumps. A process that has failed ends in well under a second."""


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """The worlds of one sweep.

    Attributes:
        budget_s: The time for the sweep.
        points: The points that its ranks passed.
        usual_lines: The severe lines of its logs.
        numbers: Numbers the requests to all lanes.
    """

    run: Run
    attempt: CompletedAttempt
    budget_s: float
    points: Records
    usual_lines: frozenset[str]
    numbers: Iterator[int]

    @property
    def plan(self) -> Plan:
        """The plan of the test."""
        return self.attempt.plan

    @cached_property
    def kinds(self) -> Mapping[str, FaultKind]:
        """The kinds of faults, by name."""
        return kinds_by_name(self.run.config.hook.pytest_multihost_faults())

    def can_run(self, disturbance: Disturbance) -> bool:
        """Return whether this machine and the user's launch mode allow a disturbance."""
        fault, launch = disturbance.fault, self.run.tally.settings.get(LAUNCH)
        env = dict(self.plan.requirements.env)
        kind = self.kinds.get(fault.kind)
        return (
            kind is not None
            and not kind.lacking(fault)
            and not launch_problems(env, [fault], {kind.name: kind.facts}, launch)
        )

    def _disturbed(self, spec: WorldSpec, disturbance: Disturbance) -> WorldSpec:
        faults, kind = (*spec.faults, disturbance.fault), disturbance.fault.kind
        facts = {**spec.fault_facts, kind: self.kinds[kind].facts}
        return replace(
            spec,
            faults=faults,
            fault_facts=facts,
            tells_points=False,
            keeps_operations=False,
        )

    def prepare_servers(self, disturbances: Iterable[Disturbance]) -> None:
        """Begin to start the servers of worlds that need several: starting one takes seconds."""
        needed = dict.fromkeys(
            needs
            for each in disturbances
            if len(shares := self.shares(each)) > 1
            for needs, _ in shares
        )
        for needs in needed:
            self.run.launchers.prepare(needs)

    def shares(
        self, disturbance: Disturbance
    ) -> Sequence[tuple[LaunchRequirements, tuple[int, ...]]]:
        """Return the requirements on the servers of a world, each with the ranks that it starts.

        A rank with a hash seed of its own would have to be an interpreter of its own, and import
        everything again. So a server is started with each seed, once for all worlds, and its ranks
        are forked from it.
        """
        spec = self._disturbed(self.plan.world, disturbance)
        env, launch = dict(self.plan.requirements.env), self.run.tally.settings.get(LAUNCH)
        preloads = self.plan.requirements.preloads
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

    @cached_property
    def _clock(self) -> ServiceKind | None:
        """The service of a clock that jumps; None if a test's world cannot have it."""
        offered = self.run.config.hook.pytest_multihost_services()
        kinds = [each for group in offered for each in group]
        found = next((each for each in kinds if each.asked_by == ("clock", "jump")), None)
        if found is None or found.preload is None or found.name in self.plan.world.services:
            return None
        launch = self.run.tally.settings.get(LAUNCH)
        is_lacking = found.preload.problems(launch) or found.preload.library.why_missing()
        return None if is_lacking or self.plan.world.hosts else found

    def measures(self, witness: DisturbedRun) -> list[Clock]:
        """Return the clocks with which to measure the end of a witness's wait.

        The machine's clock may do where a rank has failed, because its process ends at once,
        except jax's.
        """
        found: list[Clock] = []
        if _launcher_ends_all(self.plan) and witness.outcome != "hung":
            found.append("own")
        if self._can_jump(witness.disturbance):
            found.append("jumps")
        return found

    def clock_of(self, witness: DisturbedRun) -> Clock:
        """Return the clock on which the witness of an unproven weakness runs again."""
        return "jumps" if self._can_jump(witness.disturbance) else "own"

    def _can_jump(self, disturbance: Disturbance) -> bool:
        """Return whether the world of a disturbance can have a clock that jumps."""
        return len(self.shares(disturbance)) == 1 and self._clock is not None

    def forecast_s(self, step: SweepStep, witness: DisturbedRun) -> float:
        """Return an estimate of the real seconds that it takes to run a witness again."""
        if step.clock == "jumps":
            return (_CLOCK_USUAL_S if step.purpose == "measure" else 2.0) + 2.0 * self.usual_s
        return 1.0 + max(witness.seconds, self.usual_s)

    @property
    def usual_s(self) -> float:
        """The duration of the undisturbed run."""
        world = self.attempt.judged.result
        return world.ended_s - world.started_s

    def prepare_clock(self, sweep: OneSweep, running: Iterable[SweepStep]) -> None:
        """Begin to start the server of the worlds with a clock that jumps, if one may be needed.

        Args:
            running: The worlds that run. A long run may show a weakness without a proof.
        """
        witnesses = [each.witness for each in sweep.weaknesses]
        needed = [
            each.disturbance
            for each in witnesses
            if not each.is_proven or self.measures(each)[:1] == ["jumps"]
        ]
        needed += [each.disturbance for each in running]
        for each in filter(self._can_jump, needed):
            for needs, _ in self.shares_of_step(SweepStep(each, "measure", clock="jumps")):
                with contextlib.suppress(LaunchError):  # the step that needs it says why
                    self.run.launchers.prepare(needs)
            return

    def shares_of_step(
        self, step: SweepStep
    ) -> Sequence[tuple[LaunchRequirements, tuple[int, ...]]]:
        """Return the shares of a world, which may have a clock that its test has not asked for."""
        shares = self.shares(step.disturbance)
        clock = self._clock if step.clock == "jumps" else None
        if clock is None or clock.preload is None:
            return shares
        added = (clock.preload,)
        return [(replace(e, preloads=(*e.preloads, *added)), ranks) for e, ranks in shares]

    def _spec(self, step: SweepStep, spec: WorldSpec, left_s: float) -> WorldSpec:
        """Return the spec of the world of a step."""
        disturbed = self._disturbed(spec, step.disturbance)
        clock = self._clock if step.clock == "jumps" else None
        if clock is not None:
            services = {**disturbed.services, clock.name: clock.part}
            disturbed = replace(disturbed, services=services)
        if step.purpose != "measure":
            return disturbed
        most_s = _MEASURE_S if clock is None else _CLOCK_S
        return under_launcher(
            disturbed, ends_all=_launcher_ends_all(self.plan), most_s=min(most_s, left_s)
        )

    def request(self, step: SweepStep, scratch: Path, left_s: float) -> RunWorld:
        """Return the request to a lane for a step.

        Args:
            left_s: The time that the sweep has left, in seconds.
        """
        attempt, plan = self.attempt, self.plan
        world = attempt.judged.result
        undisturbed = unwatched(world.spec)
        spec = self._spec(step, undisturbed, left_s)
        is_worker = hasattr(self.run.config, "workerinput")
        keep = None
        if step.artifacts is not None:
            keep = str(attempt.directory / f"weakness-{step.artifacts}")
        # A witness that is given up so early is confirmed later, with the test's own timeout.
        least_s = SLOWER * self.usual_s + 2 * LEAST_WAIT_S
        patience_s = max(LEAST_PATIENCE_S, _PATIENCE * self.usual_s)
        patience_s = min(patience_s, max(least_s, _MOST_OF_BUDGET * self.budget_s))
        is_long = step.purpose in ("confirm", "measure") or step.clock == "jumps"
        return RunWorld(
            serial=next(self.numbers),
            shares=tuple(Share(repr(needs), ranks) for needs, ranks in self.shares_of_step(step)),
            spec=spec,
            disturbance=step.disturbance,
            patience_s=spec.timeout_s if is_long else patience_s,
            usual_s=self.usual_s,
            symptoms=plan.symptoms,
            primary_leaves_last=plan.primary_leaves_last,
            scratch=str(scratch),
            root=attempt.judged.context.root,
            artifacts=str(self.run.folder.base),
            keep=keep,
            permits=str(self.run.folder.path / "places") if is_worker else None,
            permit_count=MOST_LANES * spec.size,
            run_id=self.run.folder.run_id,
            environment=package_versions(),
            usual_differences=tuple({each.name for each in disagreements(world)}),
            usual_lines=self.usual_lines,
            measures_end=step.purpose == "measure",
            overwrites=is_written_before(self.points, step.disturbance.passed),
        )

    def launchers(self, step: SweepStep) -> Mapping[str, ServerLauncher]:
        """Return the launchers whose servers a step needs, by the servers' keys.

        Raises:
            LaunchError: A server cannot start.
        """
        shares = self.shares_of_step(step)
        return {repr(needs): self.run.launchers.get(needs) for needs, _ in shares}

    def is_ready_for(self, step: SweepStep) -> bool:
        """Return whether the servers of a step can start its ranks at once."""
        return all(self.run.launchers.is_ready(needs) for needs, _ in self.shares_of_step(step))


def _launcher_ends_all(plan: Plan) -> bool:
    """Return whether a launcher of this backend's jobs ends all processes if one fails.

    Jobs of jax have no such launcher: jax itself ends the other processes.
    """
    return plan.backend.name != "jax"
