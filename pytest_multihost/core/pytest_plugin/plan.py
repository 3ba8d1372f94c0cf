"""How each multihost test is to run, decided once for the whole run, before any world starts.

Its faults are its marker's and the command line's, or those of a replay token.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import get_args

import pytest

from pytest_multihost.core.backends import Backend, find_backend
from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import Fault, Point
from pytest_multihost.core.model.operation import group_by_value, rank_set
from pytest_multihost.core.model.spec import (
    ClockMode,
    Replay,
    WorldSpec,
    checksum,
    read_token,
)
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.model.verdict import Diagnosis, Kind, Status
from pytest_multihost.core.nemesis import FaultKind, kinds_by_name, parse_fault, resolve_faults
from pytest_multihost.core.outcome import Finding, Symptoms
from pytest_multihost.core.outcome.finding import has_xfailed, own_failures
from pytest_multihost.core.pytest_plugin.launchers import (
    LaunchRequirements,
    clock_problems,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.core.pytest_plugin.marks import (
    Check,
    MarkerSettings,
    as_tuple,
    check_values,
    is_seconds,
    must_be,
    read_markers,
    world_axes,
)
from pytest_multihost.core.pytest_plugin.options import (
    Settings,
    SweepRequest,
    SweepSettings,
)
from pytest_multihost.core.pytest_plugin.server_process import offered_backends, plain_nodeid
from pytest_multihost.extensions.sweep.families import DEFAULT_FAMILIES, FAMILIES

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


# The marker `multihost_expect`: a test that passes only if its world hangs as described.


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a test requires of the diagnosis of its world; None where any value will do."""

    kind: str | None = None
    culprits: tuple[int, ...] | None = None
    waiting: tuple[int, ...] | None = None
    match: str | None = None
    within: float | None = None

    def __str__(self) -> str:
        """Return it as the marker gives it: "kind=straggler, culprits=[0]"."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ", ".join(
            f"{name}={list(value) if isinstance(value, tuple) else value}"
            for name, value in given.items()
            if value is not None
        )


def read_expectation(item: pytest.Item) -> tuple[Expectation | None, list[str]]:
    """Return what a test's marker expects, and every problem with the marker."""
    mark = item.get_closest_marker("multihost_expect")
    if mark is None:
        return None, []
    given = {**({"kind": mark.args[0]} if mark.args else {}), **mark.kwargs}
    problems = list(check_values(given, _EXPECT_CHECKS))
    if len(mark.args) > 1:
        problems.append(f"takes one positional argument, kind, not {len(mark.args)}")
    if not given:
        problems.append("says nothing that could be expected; give it kind=, culprits= or match=")
    if problems:
        return None, problems
    ranks = {
        name: tuple(sorted(as_tuple(given[name])))
        for name in ("culprits", "waiting")
        if given.get(name) is not None
    }
    return Expectation(**{**given, **ranks}), []


def _are_ranks(value: object) -> bool:
    """Whether a value is a rank or a list of ranks; an empty one expects that there are none."""
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in as_tuple(value))


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


def _differences(expected: Expectation, diagnosis: Diagnosis | None) -> Iterator[str]:
    """Yield how a diagnosis differs from what is expected."""
    if diagnosis is None:
        yield "nothing hung"
        return
    for name in ("kind", "culprits", "waiting"):
        want, got = getattr(expected, name), getattr(diagnosis, name)
        if want is not None and want != got:
            yield f"{name} is {_shown(got)}, not {_shown(want)}"
    if expected.match is not None and not re.search(expected.match, diagnosis.summary):
        yield f"the summary has no match for {expected.match!r}"
    if expected.within is not None and diagnosis.detected_after_s > expected.within:
        took = f"{diagnosis.detected_after_s:.1f} s"
        yield f"the verdict took {took}, not {expected.within:g} s at most"


def _shown(value: str | tuple[int, ...]) -> str:
    return value if isinstance(value, str) else rank_set(value) or "nobody"


def apply_expectation(
    finding: Finding, expected: Expectation, diagnosis: Diagnosis | None
) -> Finding:
    """Return the finding of a test that must hang as expected: passed if it did, else failed."""
    if finding.status not in ("passed", "failed", "error", "xfailed", "xpassed"):
        return finding  # skipped: nothing was run
    differences = "; ".join(_differences(expected, diagnosis))
    if differences or diagnosis is None:
        got = f"{finding.outcome}: {finding.reason}" if diagnosis is None else diagnosis.summary
        reason = f"expected {expected}; {differences} ({got})"
        return replace(finding, status="failed", reason=reason, when="call")
    own = group_by_value((text, each) for each, text in own_failures(finding, diagnosis))
    if not own:
        status: Status = "xfailed" if has_xfailed(finding, diagnosis) else "passed"
        return replace(finding, status=status, when="call")
    told = (f"{rank_set(e.facts.rank for e in ranks)}: {text}" for text, ranks in own.items())
    first = next(iter(own.values()))[0]
    return replace(
        finding,
        status="failed",
        reason=f"ended as expected ({diagnosis.summary}), but {'; '.join(told)}",
        headline=first.facts.rank if first.outcome in ("failed", "error") else None,
        when="call",
    )


# The marker `multihost_sweep`: how one test is to be swept.

_DATA = re.compile(
    r"(^|_)(data|dataset|dataloader|loader|(mini)?batch(es)?|examples?|samples?)($|_)"
)
"""Words in the name of a function that yields a rank's data."""


def read_sweep_request(
    item: pytest.Item, settings: SweepSettings
) -> tuple[SweepRequest | None, list[str]]:
    """Return how a test is to be swept, None if it is not, and every problem with its marker."""
    mark = item.get_closest_marker("multihost_sweep")
    if mark is None:
        if not settings.families:
            return None, []
        return SweepRequest(settings.families, settings.budget_s, batches=_own_data(item)), []
    given = {**({"families": mark.args[0]} if mark.args else {}), **mark.kwargs}
    problems = list(check_values(given, _SWEEP_CHECKS))
    if len(mark.args) > 1:
        problems.append(f"takes one positional argument, families, not {len(mark.args)}")
    if problems:
        return None, problems
    wanted = as_tuple(given.get("families")) or settings.families or DEFAULT_FAMILIES
    families = tuple(each for each in FAMILIES if each in wanted)
    return SweepRequest(
        families=families,
        budget_s=float(given.get("budget") or settings.budget_s),
        decisions=as_tuple(given.get("decisions")),
        values=as_tuple(given.get("values")),
        batches=as_tuple(given["batches"]) if "batches" in given else _own_data(item),
    ), []


def _own_data(item: pytest.Item) -> tuple[str, ...]:
    """Return the functions of a test's module that by their kind and name yield a rank's data."""
    module = getattr(item, "module", None)
    return tuple(data_functions(module)) if isinstance(module, ModuleType) else ()


def data_functions(module: ModuleType) -> Iterator[str]:
    """Yield the generator functions of a module whose names say that they yield data.

    Also those that it has imported by name, unless from an installed library. Each is one that can
    be found by its own name again.
    """
    functions = [each for each in vars(module).values() if isinstance(each, FunctionType)]
    for each in filter(inspect.isgeneratorfunction, functions):
        owner = sys.modules.get(each.__module__)
        is_found = getattr(owner, each.__name__, None) is each
        if is_found and _DATA.search(each.__name__) and not is_library(each.__code__.co_filename):
            yield f"{each.__module__}:{each.__name__}"


def _are_families(value: object) -> bool:
    return bool(as_tuple(value)) and all(each in FAMILIES for each in as_tuple(value))


def _are_functions(value: object) -> bool:
    return all(
        isinstance(each, str) and not Point("call", each).problems() for each in as_tuple(value)
    )


def _are_loaders(value: object) -> bool:
    return all(
        isinstance(each, str) and not Point("batch", each).problems() for each in as_tuple(value)
    )


_FUNCTIONS = must_be(_are_functions, "a list of functions, each as 'module:function'")

_SWEEP_CHECKS: Mapping[str, Check] = {
    "families": must_be(_are_families, f"some of {', '.join(FAMILIES)}"),
    "decisions": _FUNCTIONS,
    "values": _FUNCTIONS,
    "batches": must_be(_are_loaders, "a list of data loaders, each as 'module:name'"),
    "budget": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
}
