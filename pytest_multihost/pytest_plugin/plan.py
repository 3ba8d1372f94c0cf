"""How each multihost test is to run, decided once for the whole run, before any world starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_multihost.backends import Backend, find_backend
from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.spec import Site, WorldSpec
from pytest_multihost.outcome import Symptoms
from pytest_multihost.pytest_plugin.expect import Expectation, read_expectation
from pytest_multihost.pytest_plugin.fault_options import FaultOptions, read_fault_options
from pytest_multihost.pytest_plugin.launching import (
    LaunchRequirements,
    launch_problems,
    launch_requirements,
    offered_backends,
    plain_nodeid,
)
from pytest_multihost.pytest_plugin.marks import read_markers, world_axes
from pytest_multihost.pytest_plugin.options import Settings

MAX_NODEID = 30_000
"""Characters: the world's spec, and the node id in it, travels to the server in one packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one test is to run: its markers, the settings and the fault options, resolved.

    Attributes:
        world: What all attempts of the test have in common.
        backend: How the ranks form a process group.
        has_own_timeout: Whether the timeout is that of the test's marker.
        requirements: What the test requires of its launcher.
        expected: How its world must hang; None for an ordinary test.
    """

    world: WorldSpec
    backend: Backend
    has_own_timeout: bool
    requirements: LaunchRequirements
    expected: Expectation | None

    @property
    def symptoms(self) -> Symptoms:
        """How a failure looks that only follows from another rank's."""
        return Symptoms(self.backend.symptoms, self.backend.fatal_symptoms)

    def spec(
        self, attempt: int, *, timeout_s: float | None, sites: tuple[Site, ...], tells_points: bool
    ) -> WorldSpec:
        """Return the spec of the world of one attempt.

        Args:
            attempt: Its number, from 1.
            timeout_s: pytest-timeout's timeout for the test, if it has one. A shorter one on the
                multihost marker is kept.
            sites: The machines of an attached run.
            tells_points: Whether each rank is to report the points that it passes.
        """
        own_s = self.world.timeout_s
        if timeout_s is None:
            timeout_s = own_s
        elif self.has_own_timeout:
            timeout_s = min(timeout_s, own_s)
        return replace(
            self.world, attempt=attempt, timeout_s=timeout_s, sites=sites, tells_points=tells_points
        )


def plan_items(
    config: pytest.Config, items: Iterable[pytest.Item], settings: Settings
) -> dict[str, Plan]:
    """Return the plan of each multihost item, by the item's node id.

    Raises:
        pytest.UsageError: With every problem of every item.
    """
    offered = offered_backends(config)
    fault_options = read_fault_options(config)
    plans: dict[str, Plan] = {}
    problems: list[str] = []
    for item in items:
        plan, found = _plan_item(item, settings, offered, fault_options)
        problems += [f"{item.nodeid}: @pytest.mark.multihost {each}" for each in found]
        if plan is not None:
            plans[item.nodeid] = plan
    if problems:
        raise pytest.UsageError("\n".join(dict.fromkeys(problems)))
    fault_options.check_replay(plan.world.nodeid for plan in plans.values())
    return plans


def _plan_item(
    item: pytest.Item, settings: Settings, offered: Sequence[Backend], fault_options: FaultOptions
) -> tuple[Plan | None, list[str]]:
    """Return the plan of an item, None if its backend is unknown, and every problem with it."""
    marked, problems = read_markers(item.iter_markers("multihost"), settings)
    size, name, found = world_axes(item, marked)
    problems += found
    expected, found = read_expectation(item)
    problems += [f"(multihost_expect) {each}" for each in found]
    if len(item.nodeid) > MAX_NODEID:
        problems.append(
            f"cannot run a test whose id has {len(item.nodeid)} characters: more than {MAX_NODEID}"
            " do not travel to the ranks. Give the parameter a shorter id."
        )
    try:
        backend = find_backend(name, offered)
    except SettingError as error:
        return None, [*problems, f"cannot run: {'. '.join(str(error).splitlines())}"]
    nodeid = plain_nodeid(item)
    faults, found = fault_options.faults_for(nodeid, size, marked.faults, hosts=marked.hosts)
    problems += [*found, *launch_problems(marked.env, faults, settings.launch)]
    world = WorldSpec(
        nodeid=nodeid,
        attempt=0,
        size=size,
        backend=backend.name,
        local_devices=marked.local_devices,
        timeout_s=marked.timeout_s,
        startup_timeout_s=marked.startup_timeout_s,
        seed=fault_options.seed_for(nodeid),
        faults=faults,
        hosts=marked.hosts,
    )
    return Plan(
        world=world,
        backend=backend,
        has_own_timeout=marked.has_own_timeout,
        requirements=launch_requirements(marked.env, faults, settings.launch, marked.hosts),
        expected=expected,
    ), problems
