"""The `multihost` marker: read, merged, checked.

Markers merge per key from the outermost (module, class) to the innermost (function, parameter).
All problems of a test are found at once, and all tests are looked at before pytest stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.hosts import ONE, parse_hosts
from pytest_multihost.pytest_plugin.options import DEFAULT_RANKS, Settings
from pytest_multihost.pytest_private import is_doctest

if TYPE_CHECKING:
    from pytest_multihost.model.fault import Fault

SIGNATURE = (
    "multihost(ranks=None, *, backend=None, timeout=None, startup_timeout=None, faults=(),"
    " hosts=None, local_devices=1, env=None): run this test as a world of ranks."
    " `ranks` and `backend` take lists, which parametrize."
)
NO_SIGNATURE = "no_multihost: never run this test as a world, not even in mode auto."
EXPECT_SIGNATURE = (
    "multihost_expect(kind=None, *, culprits=None, waiting=None, match=None, within=None):"
    " pass only if the world hangs or breaks as described. `match`: a regular expression that the"
    " summary contains; `within`: seconds from the last progress to the verdict."
)

RANKS_PARAM = "_multihost_ranks"
BACKEND_PARAM = "_multihost_backend"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerSettings:
    """What one test's markers and the settings ask for; several sizes or backends parametrize."""

    ranks: tuple[int, ...]
    backends: tuple[str, ...]
    timeout_s: float
    has_own_timeout: bool
    startup_timeout_s: float
    local_devices: int
    env: Mapping[str, str]
    faults: tuple[Fault, ...] = ()
    hosts: str = ONE


def is_multihost(item: pytest.Item, settings: Settings) -> bool:
    """Return whether `item` is to run as a world."""
    if item.get_closest_marker("no_multihost") is not None:
        return False
    if item.get_closest_marker("multihost") is not None:
        return True
    return settings.is_auto and isinstance(item, pytest.Function) and not is_doctest(item)


def read_markers(
    marks: Iterable[pytest.Mark], settings: Settings
) -> tuple[MarkerSettings, list[str]]:
    """Return what `marks` ask for, and every problem with them.

    Args:
        marks: The test's multihost marks, innermost first as pytest yields them.
        settings: What holds where they say nothing.
    """
    values, problems = _merge(marks)
    for key, value in values.items():
        if value is not None:
            problems += [f"{key} {problem}" for problem in _CHECKS[key](value)]
    if problems:
        values = {}
    ranks = _as_tuple(values.get("ranks")) or settings.ranks or (DEFAULT_RANKS,)
    return MarkerSettings(
        ranks=ranks,
        backends=_as_tuple(values.get("backend")) or settings.backends,
        timeout_s=float(values.get("timeout") or settings.timeout_s),
        has_own_timeout=values.get("timeout") is not None,
        startup_timeout_s=float(values.get("startup_timeout") or settings.startup_timeout_s),
        local_devices=int(values.get("local_devices") or 1),
        env=dict(values.get("env") or {}),
        faults=_as_faults(values.get("faults")),
        hosts=parse_hosts(values["hosts"]) if values.get("hosts") is not None else settings.hosts,
    ), problems


def _merge(marks: Iterable[pytest.Mark]) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for mark in reversed(list(marks)):
        if len(mark.args) > 1:
            problems.append(f"takes one positional argument, ranks, not {len(mark.args)}")
        given = {**({"ranks": mark.args[0]} if mark.args else {}), **mark.kwargs}
        if mark.args and "ranks" in mark.kwargs:
            problems.append("has ranks twice")
        unknown = sorted(given.keys() - _CHECKS.keys())
        if unknown:
            known = ", ".join(_CHECKS)
            problems.append(f"has no key {', '.join(map(repr, unknown))}; there are: {known}")
        values |= {key: value for key, value in given.items() if key in _CHECKS}
    return values, problems


def _as_tuple(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - checked before
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(value))
    return (value,)


def _as_faults(value: Any) -> tuple[Fault, ...]:  # noqa: ANN401 - checked before
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_ranks(value: object) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    if values and all(_whole(each) for each in values):
        return []
    return [f"must be a whole number of at least 1, or a list of them, not {value!r}"]


def _check_backend(value: object) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    if values and all(isinstance(each, str) and each for each in values):
        return []
    return [f"must be a name, or a list of names, not {value!r}"]


def _check_seconds(value: object) -> list[str]:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return []
    return [f"must be a positive number of seconds, not {value!r}"]


def _check_devices(value: object) -> list[str]:
    return [] if _whole(value) else [f"must be a whole number of at least 1, not {value!r}"]


def _check_env(value: object) -> list[str]:
    if isinstance(value, Mapping) and all(
        isinstance(each, str) for each in (*value, *value.values())
    ):
        return []
    return [f"must map names of variables to texts, not {value!r}"]


def _check_faults(value: object) -> list[str]:
    from pytest_multihost.model.fault import Fault

    values = value if isinstance(value, list | tuple) else [value]
    wrong = [each for each in values if not isinstance(each, Fault)]
    return [f"must be a list of pytest_multihost.faults, not {each!r}" for each in wrong]


def _check_hosts(value: object) -> list[str]:
    try:
        parse_hosts(value)
    except SettingError as error:
        return [str(error)]
    return []


_CHECKS: Mapping[str, Callable[[object], list[str]]] = {
    "ranks": _check_ranks,
    "backend": _check_backend,
    "timeout": _check_seconds,
    "startup_timeout": _check_seconds,
    "faults": _check_faults,
    "hosts": _check_hosts,
    "local_devices": _check_devices,
    "env": _check_env,
}


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Give a test one id part per axis that has several values, after all its own.

    Problems are left for `read_markers` at the end of the collection, which names the test.
    """
    item = metafunc.definition
    if not is_multihost(item, settings):
        return
    want, problems = read_markers(item.iter_markers("multihost"), settings)
    if problems:
        return
    _add_axis(metafunc, RANKS_PARAM, want.ranks)
    _add_axis(metafunc, BACKEND_PARAM, want.backends)


def _add_axis(metafunc: pytest.Metafunc, name: str, values: Sequence[object]) -> None:
    if len(values) > 1:
        metafunc.fixturenames.append(name)
        metafunc.parametrize(name, values, ids=[str(value) for value in values])


def world_axes(item: pytest.Item, want: MarkerSettings) -> tuple[int, str, list[str]]:
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
            ("ranks", RANKS_PARAM, want.ranks),
            ("backends", BACKEND_PARAM, want.backends),
        )
        if name not in params and len(values) > 1
    ]
    size = params.get(RANKS_PARAM, want.ranks[0])
    return size, params.get(BACKEND_PARAM, want.backends[0]), problems
