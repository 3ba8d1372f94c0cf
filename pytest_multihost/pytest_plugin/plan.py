"""How each multihost test is to run, decided once for the whole run, before any world starts.

Its faults are its marker's and the command line's, or those of a replay token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_multihost.backends import Backend, find_backend
from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.spec import ClockMode, Replay, WorldSpec, checksum, read_token
from pytest_multihost.nemesis import FaultKind, kinds_by_name, parse_fault, resolve_faults
from pytest_multihost.outcome import Symptoms
from pytest_multihost.pytest_plugin.launchers import (
    LaunchRequirements,
    clock_problems,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.pytest_plugin.marks import (
    Expectation,
    MarkerSettings,
    read_expectation,
    read_markers,
    read_sweep_request,
    world_axes,
)
from pytest_multihost.pytest_plugin.options import Settings, SweepRequest
from pytest_multihost.pytest_plugin.server_process import offered_backends, plain_nodeid

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
        sweep: How it is to be swept; None if it is not.
    """

    world: WorldSpec
    backend: Backend
    has_own_timeout: bool
    requirements: LaunchRequirements
    expected: Expectation | None
    sweep: SweepRequest | None = None

    @property
    def symptoms(self) -> Symptoms:
        """How a failure looks that only follows from another rank's."""
        return Symptoms(self.backend.symptoms, self.backend.fatal_symptoms)


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
    replay = fault_options.replay
    if replay is not None and not any(replay.is_of(plan.world.nodeid) for plan in plans.values()):
        raise pytest.UsageError(
            "--multihost-replay: the token is of another test\n"
            f"None of the {len(plans)} selected multihost tests is the one that it repeats.\n"
            "Copy the test's whole id as well from the line that begins with 'replay'."
        )
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
    sweep, found = read_sweep_request(item, settings.sweep)
    problems += [f"(multihost_sweep) {each}" for each in found]
    if len(item.nodeid) > MAX_NODEID:
        problems.append(
            f"cannot run a test whose id has {len(item.nodeid)} characters: more than {MAX_NODEID}"
            " do not travel to the ranks. Give the parameter a shorter id."
        )
    try:
        backend = find_backend(name, offered)
    except SettingError as error:
        why = ". ".join(each.rstrip(".") for each in error.parts)
        return None, [*problems, f"cannot run: {why}"]
    nodeid = plain_nodeid(item)
    seed, faults, found = fault_options.resolve(nodeid, size, marked)
    clock = fault_options.clock(nodeid, marked)
    problems += [*found, *launch_problems(marked.env, faults, settings.launch)]
    problems += clock_problems(clock, settings.launch, marked.hosts)
    world = WorldSpec(
        nodeid=nodeid,
        attempt=0,
        size=size,
        backend=backend.name,
        local_devices=marked.local_devices,
        timeout_s=marked.timeout_s,
        startup_timeout_s=marked.startup_timeout_s,
        seed=seed,
        faults=faults,
        hosts=marked.hosts,
        clock=clock,
    )
    return Plan(
        world=world,
        backend=backend,
        has_own_timeout=marked.has_own_timeout,
        requirements=launch_requirements(
            marked.env, faults, settings.launch, marked.hosts, clock=clock
        ),
        expected=expected,
        sweep=sweep if fault_options.replay is None else None,
    ), problems


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """What the command line says about faults.

    Attributes:
        kinds: The kinds of faults that exist, by name.
        everywhere: Faults for every multihost test: --multihost-fault.
        seed: The seed of every world: --multihost-seed.
        replay: What a token says is to be repeated: --multihost-replay.
    """

    kinds: Mapping[str, FaultKind]
    everywhere: tuple[Fault, ...] = ()
    seed: int | None = None
    replay: Replay | None = None

    def resolve(
        self, nodeid: str, size: int, marked: MarkerSettings
    ) -> tuple[int, tuple[Fault, ...], list[str]]:
        """Return a test's seed, its faults with numbers for ranks, and every problem with them.

        The seed is the same in every run unless an option sets it.

        Args:
            nodeid: The test.
            size: Ranks of its world.
            marked: The values of its markers.
        """
        if self.replay is not None and self.replay.is_of(nodeid):
            seed, faults = self.replay.seed, self.replay.faults
            if size != self.replay.size:
                replayed = self.replay.size
                return seed, (), [f"is replayed with {replayed} ranks: --ranks {replayed}"]
        else:
            seed = checksum(nodeid) % 1_000_000 if self.seed is None else self.seed
            faults = (*marked.faults, *self.everywhere)
        resolved, problems = resolve_faults(
            faults, size=size, seed=seed, hosts=marked.hosts, kinds=self.kinds
        )
        return seed, resolved, [f"faults: {each}" for each in problems]

    def clock(self, nodeid: str, marked: MarkerSettings) -> ClockMode:
        """Return how time passes in a test's world: as in the one that is repeated, if one is."""
        if self.replay is not None and self.replay.is_of(nodeid):
            return self.replay.clock
        return marked.clock


def read_fault_options(config: pytest.Config) -> FaultOptions:
    """Read the options about faults.

    Raises:
        pytest.UsageError: An option cannot be read.
    """
    problems: list[str] = []
    everywhere = []
    for text in config.getoption("multihost_fault") or ():
        try:
            everywhere.append(parse_fault(text))
        except SettingError as error:
            problems.append(f"--multihost-fault: {error}")
    replay = None
    if text := config.getoption("multihost_replay"):
        try:
            replay = read_token(text)
        except SettingError as error:
            problems.append(f"--multihost-replay: {error}")
    if problems:
        raise pytest.UsageError("\n".join(problems))
    kinds = kinds_by_name(config.hook.pytest_multihost_faults())
    return FaultOptions(kinds, tuple(everywhere), config.getoption("multihost_seed"), replay)
