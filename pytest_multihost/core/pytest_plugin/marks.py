"""The `multihost` marker: read, merged, checked.

Markers merge per key from the outermost (module, class) to the innermost (function, parameter).
All problems of all tests are reported together, before any test runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import pytest

from pytest_multihost.core.launch.host_kind import Hosts
from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import MAX_SECONDS, Fault
from pytest_multihost.core.model.spec import MAX_RANKS
from pytest_multihost.core.pytest_plugin.options import ClockMode, Settings

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
    hosts: Hosts = field(default_factory=Hosts)
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
    problems += check_values(values, {**_CHECKS, "hosts": partial(_check_hosts, settings)})
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
        hosts=_hosts(values.get("hosts"), settings),
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


def _hosts(value: object, settings: Settings) -> Hosts:
    return settings.hosts if value is None else Hosts.parse(value, settings.host_kinds)


def _check_hosts(settings: Settings, value: object) -> str | None:
    try:
        Hosts.parse(value, settings.host_kinds)
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
    "hosts": lambda _: None,  # `_check_hosts` needs the settings
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
