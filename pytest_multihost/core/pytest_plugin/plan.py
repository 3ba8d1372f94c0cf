"""Plans how each multihost test runs, once for the whole run and before any world starts.

A test's faults come from its marker and the command line, or from a replay token.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest

from pytest_multihost.core.backends import Backend, find_backend, offered_backends
from pytest_multihost.core.blame.own_failures import has_xfailed, own_failures
from pytest_multihost.core.host_kind import Hosts, offered_host_kinds
from pytest_multihost.core.model.errors import SettingError, known_names, shown
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.replay import Replay, checksum, read_token
from pytest_multihost.core.model.role import RoleSpec, place_roles, ranks_of
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.verdict import Diagnosis, Kind, Status
from pytest_multihost.core.option import (
    BACKENDS,
    HOSTS,
    LAUNCH,
    LOCAL_DEVICES,
    RANKS,
    STARTUP_TIMEOUT,
    TIMEOUT,
    Check,
    Settings,
    as_tuple,
    check_values,
    is_seconds,
    must_be,
)
from pytest_multihost.core.outcome import Finding, Symptoms
from pytest_multihost.core.pytest_plugin.launchers import (
    LaunchRequirements,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.core.pytest_plugin.marks import MarkerSettings, read_markers, world_axes
from pytest_multihost.core.pytest_plugin.server_process import plain_nodeid
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.core.services import ServiceKind, asked_for
from pytest_multihost.core.world_plan import Offers, WorldPlan, plan_world

MAX_NODEID = 30_000
"""Maximum number of characters: the world's spec, with the node id, goes to the server in one
packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one test runs: its markers, the settings and the fault options, resolved.

    Attributes:
        planned: The plan of its world, which all attempts share.
        has_own_timeout: Whether the timeout comes from the test's marker.
        expected: How the world must hang; None for an ordinary test.
        settings: The run's settings with the test's marker applied.
        is_sealed: Whether its host is the default of a test with roles, and may be replaced.
    """

    planned: WorldPlan
    has_own_timeout: bool
    requirements: LaunchRequirements
    expected: Expectation | None
    settings: Settings = field(default_factory=Settings)
    is_sealed: bool = False

    def unsealed(self) -> Plan:
        """Return the plan of a test whose default host cannot be made: on this machine."""
        return replace(self, planned=self.planned.without_hosts(), is_sealed=False)

    @property
    def world(self) -> WorldSpec:
        """The spec that all attempts of the test share."""
        return self.planned.spec

    @property
    def backend(self) -> Backend:
        """The test's backend."""
        return self.planned.backend

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that ranks of the test start, each once."""
        return self.planned.backends

    @property
    def hosts(self) -> Hosts:
        """The setting `hosts`."""
        return self.planned.hosts

    @property
    def primary_leaves_last(self) -> bool:
        """Whether rank 0 hosts a service of its runtime, whose end would end the other ranks."""
        return self.planned.primary_leaves_last

    @property
    def symptoms(self) -> Symptoms:
        """Patterns of failures that follow from another rank's failure."""
        return self.planned.symptoms


FindBackend = Callable[[str, Sequence[Backend]], Backend]
"""Returns the backend with a name among those offered, or raises SettingError."""


def plan_items(
    config: pytest.Config,
    items: Iterable[pytest.Item],
    settings: Settings,
    find: FindBackend = find_backend,
    known: Sequence[str] = (),
) -> dict[str, Plan]:
    """Return the plan of each multihost item, by the item's node id.

    Args:
        find: `named_backend` where other machines start the ranks: they need its package.

    Raises:
        pytest.UsageError: There are problems; the error lists all, of all items.
    """
    offered = offered_backends(config.hook)
    fault_options = read_fault_options(config)
    _check_backends(settings, offered)
    plans: dict[str, Plan] = {}
    problems = [*known]
    for item in items:
        plan, found = _plan_item(item, settings, offered, fault_options, find)
        problems += [f"{item.nodeid}: {_of_marker(each)}" for each in found]
        if plan is not None:
            plans[item.nodeid] = plan
    problems += _unknown_roles(settings, plans.values())
    if problems:
        raise usage_error("\n".join(dict.fromkeys(problems)))
    replay = fault_options.replay
    if replay is not None and not any(replay.is_of(plan.world.nodeid) for plan in plans.values()):
        raise usage_error(
            "--multihost-replay: the token is of another test\n"
            f"None of the {len(plans)} selected multihost tests is the one that it repeats.\n"
            "Copy the test's whole id as well from the line that begins with 'replay'."
        )
    return plans


def _unknown_roles(settings: Settings, plans: Iterable[Plan]) -> Iterator[str]:
    """Yield each role to which --ranks gives a size and which no test has."""
    sizes = settings.get(RANKS)
    if isinstance(sizes, Mapping):
        known = dict.fromkeys(role.name for plan in plans for role in plan.world.roles)
        for name in sizes.keys() - known.keys():
            there_are = known_names(known, name) if known else "no test has roles."
            source = settings.sources.get(RANKS.name, "--ranks")
            yield f"{source}: no test has a role {shown(name)}; there are: {there_are}"


def _check_backends(settings: Settings, offered: Sequence[Backend]) -> None:
    """Raise a UsageError for an unknown backend of the run, even if no test takes it."""
    names = [each.name for each in offered]
    for name in settings.get(BACKENDS):
        if name not in names:
            source = settings.sources.get(BACKENDS.name, "")
            known = known_names(names, name)
            raise usage_error(f"{source}: unknown backend {shown(name)}\nThere are: {known}")


def _of_marker(problem: str) -> str:
    """Return a problem with the name of its marker, which other markers than ours bring along."""
    return problem if problem.startswith("@") else f"@pytest.mark.multihost {problem}"


def _plan_item(
    item: pytest.Item,
    settings: Settings,
    offered: Sequence[Backend],
    fault_options: FaultOptions,
    find: FindBackend,
) -> tuple[Plan | None, list[str]]:
    """Return the plan of an item, or None if its backend is unknown, and every problem with it."""
    marked, problems = read_markers(item.iter_markers("multihost"), settings)
    size, name, found = world_axes(item, marked)
    problems += found
    for others in item.config.hook.pytest_multihost_plan(item=item, settings=marked.settings):
        problems += others
    if len(item.nodeid) > MAX_NODEID:
        problems.append(
            f"cannot run a test whose id has {len(item.nodeid)} characters: at most {MAX_NODEID}"
            " can be sent to the ranks. Give the parameter a shorter id."
        )
    roles = place_roles(marked.roles, name)
    expected, found = read_expectation(item, size, roles)
    problems += [f"@pytest.mark.multihost_expect {each}" for each in found]
    try:
        backend = find(name, offered)
        of_roles = tuple(find(each.backend, offered) for each in roles)
    except SettingError as error:
        why = ". ".join(each.rstrip(".") for each in error.parts)
        return None, [*problems, f"cannot run: {why}"]
    problems += [
        f"cannot run: the role {role.name} has the backend {own.name}, which needs the whole world"
        for role, own in zip(roles, of_roles, strict=True)
        if own.services
    ]
    problems += [
        f"cannot run: the role {role.name} has restarts, or is a service: its program runs in a"
        f" child process, and cannot use the process group of its backend {own.name}. Give it"
        " backend='none'; its program may make a group."
        for role, own in zip(roles, of_roles, strict=True)
        if role.has_children and own.package is not None
    ]
    nodeid, launch = plain_nodeid(item), settings.get(LAUNCH)
    hosts = marked.get(HOSTS)
    is_sealed = bool(roles) and not marked.has_own_hosts
    if is_sealed:
        hosts = Hosts.sealed(offered_host_kinds(item.config.hook), size)
    seed, faults, found = fault_options.asked(nodeid, marked, size)
    problems += found
    devices, found = _local_devices(marked, backend)
    problems += found
    draft = WorldSpec(
        nodeid=nodeid,
        attempt=0,
        size=size,
        backend=name,
        local_devices=devices,
        timeout_s=marked.get(TIMEOUT),
        timeout_from="its marker"
        if marked.has_own_timeout
        else settings.sources.get(TIMEOUT.name, "the default"),
        startup_timeout_s=marked.get(STARTUP_TIMEOUT),
        seed=seed,
        faults=faults,
        imports_named=fault_options.imports_named(nodeid, marked),
        selected_by=_selected_by(item.config, nodeid),
        options=_replayed_options(settings, marked.settings),
        roles=roles,
    )
    planned = plan_world(
        draft,
        fault_options.offers,
        backend=backend,
        role_backends=of_roles,
        hosts=hosts,
        services=fault_options.services(nodeid, marked),
    )
    spec, origin = planned.spec, fault_options.origin(marked)
    problems += [f"{origin} {each}" for each in planned.fault_problems]
    problems += launch_problems(marked.env, spec.faults, spec.fault_facts, launch)
    problems += [why for each in planned.preloads for why in each.problems(launch)]
    return Plan(
        planned=planned,
        has_own_timeout=marked.has_own_timeout,
        requirements=launch_requirements(
            marked.env, spec.fault_facts, launch, preloads=planned.preloads
        ),
        expected=expected,
        settings=marked.settings,
        is_sealed=is_sealed,
    ), problems


def _local_devices(marked: MarkerSettings, backend: Backend) -> tuple[int, list[str]]:
    """Return the devices of each rank, as the marker or its `env` says, and why they disagree."""
    given, of_env = marked.get(LOCAL_DEVICES), backend.devices_of_env(marked.env)
    if of_env is None or given == of_env:
        return given, []
    if given == LOCAL_DEVICES.default:
        return of_env, []
    why = f"cannot run: local_devices={given}, but env asks for {of_env} devices: give one of them"
    return given, [f"{why}."]


def _selected_by(config: pytest.Config, nodeid: str) -> tuple[str, ...]:
    """Return the arguments that select a test from the directory where pytest was started."""
    path, *names = nodeid.split("::")
    relative = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    chosen = (("-c", config.getoption("inifilename")), ("--rootdir", config.getoption("rootdir")))
    given = [text for flag, value in chosen if value for text in (flag, str(value))]
    return (*given, "::".join([relative, *names]))


def _replayed_options(run: Settings, test: Settings) -> Mapping[str, str]:
    """Return the texts of the run's replayed options that the test's markers do not replace."""
    return {
        option.name: run.replayed[option.name]
        for option in run.options
        if option.name in run.replayed and run.get(option) == test.get(option)
    }


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """The command line's options about faults.

    Attributes:
        offers: The offers of plugins for worlds.
        everywhere: Faults for every multihost test, from --multihost-fault.
        seed: The seed of every world, from --multihost-seed.
        replay: The world to repeat, from the token of --multihost-replay.
    """

    offers: Offers
    everywhere: tuple[Fault, ...] = ()
    seed: int | None = None
    replay: Replay | None = None

    def asked(
        self, nodeid: str, marked: MarkerSettings, size: int
    ) -> tuple[int, tuple[Fault, ...], list[str]]:
        """Return a test's seed, its faults as the user gives them, and why it has none.

        Unless an option sets the seed, it depends only on the node id.
        """
        if self.replay is None or not self.replay.is_of(nodeid):
            seed = checksum(nodeid) % 1_000_000 if self.seed is None else self.seed
            return seed, (*marked.faults, *self.everywhere), []
        if size == self.replay.size:
            return self.replay.seed, self.replay.faults, []
        why = f"has {size} ranks now, and the token repeats a world of {self.replay.size}"
        problem = f"faults: {why}. Leave out --ranks, or set the marker back."
        return self.replay.seed, (), [problem]

    def origin(self, marked: MarkerSettings) -> str:
        """Return the setting that names a test's faults, for messages."""
        is_of_command_line = bool(self.everywhere) and not marked.faults
        return "(--multihost-fault)" if is_of_command_line else "faults:"

    def imports_named(self, nodeid: str, marked: MarkerSettings) -> bool:
        """Return whether all modules that a test's faults name are named by the user's own faults.

        A token may be foreign, and a named module is run.
        """
        if self.replay is None or not self.replay.is_of(nodeid):
            return True
        own, named = (
            frozenset[str]().union(*(each.modules for each in faults))
            for faults in ((*marked.faults, *self.everywhere), self.replay.faults)
        )
        return named <= own

    def services(self, nodeid: str, marked: MarkerSettings) -> list[ServiceKind]:
        """Return the services that a test asks for, or those of the world that is replayed."""
        if self.replay is not None and self.replay.is_of(nodeid):
            names = self.replay.services
            return [each for each in self.offers.services if each.name in names]
        return asked_for([self.offers.services], marked.settings.values)


def read_fault_options(config: pytest.Config) -> FaultOptions:
    """Return the options about faults.

    Raises:
        pytest.UsageError: An option cannot be read.
    """
    problems: list[str] = []
    everywhere, offers = [], Offers.of(config.hook)
    for text in config.getoption("multihost_fault") or ():
        try:
            everywhere.append(offers.planner.parse(text))
        except SettingError as error:
            problems.append(f"--multihost-fault: {error}")
    if problems:
        raise usage_error("\n".join(problems))
    text = config.getoption("multihost_replay")
    replay = read_token(text) if text else None
    return FaultOptions(offers, tuple(everywhere), config.getoption("multihost_seed"), replay)


# The marker `multihost_expect`: such a test passes only if its world hangs as described.


@dataclass(frozen=True, slots=True)
class Expectation:
    """The diagnosis that a test requires of its world; None where any value is fine."""

    kind: str | None = None
    culprits: tuple[int, ...] | None = None
    waiting: tuple[int, ...] | None = None
    match: str | None = None
    within: float | None = None

    def __str__(self) -> str:
        """Return the arguments of the marker: "kind=straggler, culprits=[0]"."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ", ".join(
            f"{name}={list(value) if isinstance(value, tuple) else value}"
            for name, value in given.items()
            if value is not None
        )


def read_expectation(
    item: pytest.Item, size: int, roles: tuple[RoleSpec, ...] = ()
) -> tuple[Expectation | None, list[str]]:
    """Return the expectation of a test's marker, and every problem with the marker.

    Args:
        roles: The test's roles, which the marker may name in place of ranks.
    """
    mark = item.get_closest_marker("multihost_expect")
    if mark is None:
        return None, []
    given = {**({"kind": mark.args[0]} if mark.args else {}), **mark.kwargs}
    checks = {**_EXPECT_CHECKS, **(_CHECKS_WITH_ROLES if roles else {})}
    problems = list(check_values(given, checks))
    if len(mark.args) > 1:
        problems.append(f"takes one positional argument, kind, not {len(mark.args)}")
    if not given:
        problems.append("expects nothing; give it kind=, culprits= or match=")
    if problems:
        return None, problems
    try:
        ranks = {
            name: _ranks(given[name], roles)
            for name in ("culprits", "waiting")
            if given.get(name) is not None
        }
    except ValueError as error:
        return None, [str(error)]
    problems += [
        f"{name} has rank {max(named)}, and the world has ranks 0 to {size - 1}"
        for name, named in ranks.items()
        if max(named, default=0) >= size
    ]
    return (None if problems else Expectation(**{**given, **ranks})), problems


def _are_ranks(value: object) -> bool:
    """Return whether a value is a rank or a list of ranks; an empty list expects no ranks."""
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in as_tuple(value))


def _are_ranks_or_roles(value: object) -> bool:
    return _are_ranks([v for v in as_tuple(value) if not isinstance(v, str)])


def _ranks(value: object, roles: tuple[RoleSpec, ...]) -> tuple[int, ...]:
    """Return the ranks of a marker's value.

    Raises:
        ValueError: There is no such role.
    """
    named = [ranks_of(v, roles) if isinstance(v, str) else (v,) for v in as_tuple(value)]
    return tuple(sorted({rank for each in named for rank in each}))


def _check_match(value: object) -> str | None:
    try:
        re.compile(value)  # type: ignore[call-overload]
    except (TypeError, OverflowError, RecursionError, re.error) as error:
        return f"must be a regular expression, not {shown(value)}: {error}"
    return None


_KINDS = get_args(Kind)
_EXPECT_CHECKS: Mapping[str, Check] = {
    "kind": must_be(_KINDS.__contains__, f"one of {', '.join(_KINDS)}"),
    "culprits": must_be(_are_ranks, "a rank or a list of ranks"),
    "waiting": must_be(_are_ranks, "a rank or a list of ranks"),
    "match": _check_match,
    "within": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
}


_CHECKS_WITH_ROLES: Mapping[str, Check] = dict.fromkeys(
    ("culprits", "waiting"), must_be(_are_ranks_or_roles, "a rank, a role, or a list of them")
)


def _other_than_passed(finding: Finding) -> str:
    """Return how a world has ended that did not hang; empty if it has passed."""
    return "" if finding.outcome == "passed" else f"{finding.word}: {finding.reason}"


def _differences(expected: Expectation, diagnosis: Diagnosis | None, names: Names) -> Iterator[str]:
    """Yield how a diagnosis differs from the expected one."""
    if diagnosis is None:
        yield "nothing hung"
        return
    for name in ("kind", "culprits", "waiting"):
        want, got = getattr(expected, name), getattr(diagnosis, name)
        if want is not None and want != got:
            yield f"{name} is {_shown(got, names)}, not {_shown(want, names)}"
    if expected.match is not None and not re.search(expected.match, diagnosis.summary):
        yield f"the summary has no match for {expected.match!r}"
    if expected.within is not None and diagnosis.detected_after_s > expected.within:
        took = f"{diagnosis.detected_after_s:.1f} s"
        yield f"the verdict took {took}, not {expected.within:g} s at most"


def _shown(value: str | tuple[int, ...], names: Names) -> str:
    return value if isinstance(value, str) else names.of(value) or "nobody"


def apply_expectation(
    finding: Finding, expected: Expectation, diagnosis: Diagnosis | None, names: Names
) -> Finding:
    """Return the finding of a test that must hang as expected: passed if it did, else failed."""
    if finding.status not in ("passed", "failed", "error", "xfailed", "xpassed"):
        return finding  # skipped: nothing ran
    differences = "; ".join(_differences(expected, diagnosis, names))
    if differences or diagnosis is None:
        got = diagnosis.summary if diagnosis is not None else _other_than_passed(finding)
        reason = f"expected {expected}; {differences}{f' ({got})' if got else ''}"
        return replace(finding, status="failed", reason=reason, when="call")
    own = group_by_value((text, each) for each, text in own_failures(finding, diagnosis))
    if not own:
        status: Status = "xfailed" if has_xfailed(finding, diagnosis) else "passed"
        return replace(finding, status=status, when="call")
    told = (f"{names.of(e.facts.rank for e in ranks)}: {text}" for text, ranks in own.items())
    first = next(iter(own.values()))[0]
    return replace(
        finding,
        status="failed",
        reason=f"ended as expected ({diagnosis.summary}), but {'; '.join(told)}",
        headline=first.facts.rank if first.outcome in ("failed", "error") else None,
        when="call",
    )
