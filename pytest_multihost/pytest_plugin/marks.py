"""The markers `multihost`, `multihost_expect` and `multihost_sweep`: read, merged, checked.

Markers merge per key from the outermost (module, class) to the innermost (function, parameter).
All problems of all tests are reported together, before any test runs.

The `multihost_expect` marker: a test that passes only if its world hangs as described.

The marker `multihost_sweep`: how one test is to be swept.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, get_args

import pytest

from pytest_multihost.model.errors import SettingError, shown
from pytest_multihost.model.fault import MAX_SECONDS, Fault, Point
from pytest_multihost.model.operation import group_by_value, rank_set
from pytest_multihost.model.spec import MAX_RANKS, ONE, ClockMode, Hosts
from pytest_multihost.model.stack import is_library
from pytest_multihost.model.sweep import DEFAULT_FAMILIES
from pytest_multihost.model.verdict import Diagnosis, Kind, Status
from pytest_multihost.outcome import Finding
from pytest_multihost.outcome.finding import has_xfailed, own_failures
from pytest_multihost.pytest_plugin.options import (
    ALL_FAMILIES,
    Settings,
    SweepRequest,
    SweepSettings,
)

SIGNATURE = (
    "multihost(ranks=None, *, backend=None, timeout=None, startup_timeout=None, faults=(),"
    " hosts=None, local_devices=1, env=None, clock=None): run this test as a world of ranks."
    " `ranks` and `backend` take lists, which parametrize."
)
NO_SIGNATURE = "no_multihost: never run this test as a world, not even in mode auto."
EXPECT_SIGNATURE = (
    "multihost_expect(kind=None, *, culprits=None, waiting=None, match=None, within=None):"
    " pass only if the world hangs or breaks as described. `match`: a regular expression that the"
    " summary contains; `within`: seconds from the last progress to the verdict."
)

Check = Callable[[object], str | None]
"""Returns what is wrong with the value of a marker's key, None if it can be used."""

RANKS_PARAM = "_multihost_ranks"
BACKEND_PARAM = "_multihost_backend"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerSettings:
    """The values of one test's markers, from the settings where they are silent.

    Several sizes or backends parametrize the test.
    """

    ranks: tuple[int, ...]
    backends: tuple[str, ...]
    timeout_s: float
    has_own_timeout: bool
    startup_timeout_s: float
    local_devices: int
    env: Mapping[str, str]
    faults: tuple[Fault, ...] = ()
    hosts: Hosts = ONE
    clock: ClockMode = "real"


def is_multihost(item: pytest.Item, settings: Settings) -> bool:
    """Return whether `item` is to run as a world."""
    if item.get_closest_marker("no_multihost") is not None:
        return False
    if item.get_closest_marker("multihost") is not None:
        return True
    return settings.is_auto and isinstance(item, pytest.Function)


def check_sweep_markers(items: Iterable[pytest.Item], settings: Settings) -> None:
    """Check that what is marked to be swept runs as a world.

    A marker of a module or class may be meant for some of its tests only.

    Raises:
        pytest.UsageError: With every test that has the marker itself, and is no multihost test.
    """
    wrong = [
        f"{item.nodeid}: @pytest.mark.multihost_sweep is on a test that is not a multihost test,"
        " so nothing would be swept. Add @pytest.mark.multihost(ranks=...), or remove it."
        for item in items
        if any(mark.name == "multihost_sweep" for mark in item.own_markers)
        and not is_multihost(item, settings)
    ]
    if wrong:
        raise pytest.UsageError("\n".join(wrong))


def read_markers(
    marks: Iterable[pytest.Mark], settings: Settings
) -> tuple[MarkerSettings, list[str]]:
    """Return the merged values of a test's multihost marks, and every problem with them.

    Args:
        marks: Innermost first, as pytest yields them.
        settings: What applies where they are silent.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for mark in reversed(list(marks)):
        if len(mark.args) > 1:
            problems.append(f"takes one positional argument, ranks, not {len(mark.args)}")
        if mark.args and "ranks" in mark.kwargs:
            problems.append("has ranks twice")
        values |= {**({"ranks": mark.args[0]} if mark.args else {}), **mark.kwargs}
    problems += check_values(values, _CHECKS)
    if problems:
        values = {}
    return MarkerSettings(
        ranks=_each_once(values.get("ranks")) or settings.ranks or (2,),
        backends=_each_once(values.get("backend")) or settings.backends,
        timeout_s=float(values.get("timeout") or settings.timeout_s),
        has_own_timeout=values.get("timeout") is not None,
        startup_timeout_s=float(values.get("startup_timeout") or settings.startup_timeout_s),
        local_devices=int(values.get("local_devices") or settings.local_devices),
        env=dict(values.get("env") or {}),
        faults=as_tuple(values.get("faults")),
        hosts=Hosts.parse(values["hosts"]) if values.get("hosts") is not None else settings.hosts,
        clock=values.get("clock") or settings.clock,
    ), problems


def check_values(values: Mapping[str, object], checks: Mapping[str, Check]) -> Iterator[str]:
    """Yield every problem with the values of a marker's keys; None is never one."""
    if unknown := sorted(values.keys() - checks.keys()):
        yield f"has no key {', '.join(map(repr, unknown))}; there are: {', '.join(checks)}"
    for key, check in checks.items():
        if values.get(key) is not None and (problem := check(values[key])):
            yield f"{key} {problem}"


def as_tuple(value: object) -> tuple[Any, ...]:
    """Return the values of a list, or of one value, or none of None."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _each_once(value: object) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(as_tuple(value)))


def must_be(is_valid: Callable[[object], bool], expected: str) -> Check:
    """Return a check that says what a value must be where it is not."""
    return lambda value: None if is_valid(value) else f"must be {expected}, not {shown(value)}"


def _one_or_more(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return whether a value, or each of a list that is not empty, is valid."""
    return lambda value: bool(as_tuple(value)) and all(map(is_valid, as_tuple(value)))


def is_seconds(value: object) -> bool:
    """Whether a value is a positive number, and not too large for a timeout."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_SECONDS  # type: ignore[operator]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_RANKS


def _are_faults(value: object) -> bool:
    return all(isinstance(each, Fault) for each in as_tuple(value))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_environment(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(each, str) for each in (*value, *value.values())
    )


def _is_clock(value: object) -> bool:
    return isinstance(value, str) and value in get_args(ClockMode)


def _check_hosts(value: object) -> str | None:
    try:
        Hosts.parse(value)
    except SettingError as error:
        return str(error)
    return None


_CHECKS: Mapping[str, Check] = {
    "ranks": must_be(
        _one_or_more(_is_count), f"a whole number from 1 to {MAX_RANKS}, or a list of them"
    ),
    "backend": must_be(_one_or_more(_is_name), "a name, or a list of names"),
    "timeout": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
    "startup_timeout": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
    "faults": must_be(_are_faults, "a list of pytest_multihost.faults"),
    "hosts": _check_hosts,
    "local_devices": must_be(_is_count, f"a whole number from 1 to {MAX_RANKS}"),
    "clock": must_be(_is_clock, "'real' or 'jump'"),
    "env": must_be(_is_environment, "a mapping of variable names to strings"),
}


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Parametrize a test over the world sizes and backends of its markers, if there are several.

    To be called last, so that these parts of its id follow its own. Problems with the markers are
    not reported here but by the plan of the test, at the end of the collection.
    """
    item = metafunc.definition
    if not is_multihost(item, settings):
        return
    marked, problems = read_markers(item.iter_markers("multihost"), settings)
    if problems:
        return
    axes: Mapping[str, tuple[object, ...]] = {
        RANKS_PARAM: marked.ranks,
        BACKEND_PARAM: marked.backends,
    }
    for name, values in axes.items():
        if len(values) > 1:
            metafunc.fixturenames.append(name)
            metafunc.parametrize(name, values, ids=[str(value) for value in values])


def world_axes(item: pytest.Item, marked: MarkerSettings) -> tuple[int, str, list[str]]:
    """Return the one size and backend of an item, and what is wrong if there are several.

    Several are left only where pytest could not parametrize: TestCase methods, and markers added
    after the test was collected.
    """
    callspec = getattr(item, "callspec", None)
    params: Mapping[str, Any] = callspec.params if callspec is not None else {}
    problems = [
        f"cannot run with several {axis} ({', '.join(map(str, values))}): a TestCase method or a"
        f" marker added after collection takes one. Give it one on its marker."
        for axis, name, values in (
            ("ranks", RANKS_PARAM, marked.ranks),
            ("backends", BACKEND_PARAM, marked.backends),
        )
        if name not in params and len(values) > 1
    ]
    size = params.get(RANKS_PARAM, marked.ranks[0])
    return size, params.get(BACKEND_PARAM, marked.backends[0]), problems


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
    families = tuple(each for each in ALL_FAMILIES if each in wanted)
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
    return bool(as_tuple(value)) and all(each in ALL_FAMILIES for each in as_tuple(value))


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
    "families": must_be(_are_families, f"some of {', '.join(ALL_FAMILIES)}"),
    "decisions": _FUNCTIONS,
    "values": _FUNCTIONS,
    "batches": must_be(_are_loaders, "a list of data loaders, each as 'module:name'"),
    "budget": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
}
