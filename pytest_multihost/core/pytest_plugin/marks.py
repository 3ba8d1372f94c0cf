"""Reads, merges and checks the `multihost` markers of a test.

Markers merge per key from the outermost (module, class) to the innermost (function, parameter).
All problems of all tests are reported together, before any test runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_multihost.core.option import (
    BACKENDS,
    HOSTS,
    MODE,
    RANKS,
    TIMEOUT,
    Check,
    Option,
    Settings,
    T,
    are_faults,
    as_tuple,
    check_values,
    is_environment,
    must_be,
)

if TYPE_CHECKING:
    from pytest_multihost.core.model.fault import Fault
    from pytest_multihost.core.model.role import Role

SIGNATURE = (
    "multihost(ranks=None, *, backend=None, timeout=None, startup_timeout=None, faults=(),"
    " hosts=None, local_devices=1, env=None, clock=None, roles=None, semantics=None): run this test"
    " on several ranks. `ranks` and `backend` take lists, which parametrize. `roles` maps names of"
    " roles to numbers of ranks, or to Role(...)."
)
NO_SIGNATURE = "no_multihost: never run this test on several ranks, not even in mode auto."
EXPECT_SIGNATURE = (
    "multihost_expect(kind=None, *, culprits=None, waiting=None, match=None, within=None):"
    " pass only if the world hangs or breaks as described. `match`: a regular expression that the"
    " summary contains; `within`: seconds from the last progress to the verdict."
)

RANKS_PARAM = "_multihost_ranks"
BACKEND_PARAM = "_multihost_backend"


@dataclass(frozen=True, slots=True)
class Axes:
    """The sizes and backends of a collected test.

    Attributes:
        is_of_any_size: Whether its markers give no size, so that --ranks does.
        is_of_any_backend: The same for backends and --multihost-backend.
    """

    ranks: tuple[int, ...]
    backends: tuple[str, ...]
    is_of_any_size: bool
    is_of_any_backend: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerSettings:
    """The settings of one test: the run's, overridden by the test's markers.

    Several sizes or backends parametrize the test.

    Attributes:
        has_own_timeout: Whether a marker gives the timeout.
        env: Variables for the environment of the ranks.
        roles: The test's roles, by name; empty: it has none.
        has_own_hosts: Whether a marker, an option or a setting gives the kind of hosts.
    """

    settings: Settings
    has_own_timeout: bool = False
    env: Mapping[str, str]
    faults: tuple[Fault, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    has_own_hosts: bool = False

    def get(self, option: Option[T]) -> T:
        """Return the value of an option."""
        return self.settings.get(option)

    @property
    def ranks(self) -> tuple[int, ...]:
        """World sizes."""
        if self.roles:
            return (sum(each.ranks for each in self.roles.values()),)
        given = self.get(RANKS)
        return given if isinstance(given, tuple) and given else (2,)

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of backends."""
        return self.get(BACKENDS)


def is_multihost(item: pytest.Item, settings: Settings) -> bool:
    """Return whether `item` runs as a world."""
    if item.get_closest_marker("no_multihost") is not None:
        return False
    if item.get_closest_marker("multihost") is not None:
        return True
    return settings.get(MODE) == "auto" and isinstance(item, pytest.Function)


def misplaced_markers(name: str, items: Iterable[pytest.Item], settings: Settings) -> list[str]:
    """Return a problem for each test that has a marker and does not run as a world.

    Markers of a module or class are skipped, because they may be meant for some of its tests only.

    Args:
        name: The marker's name; it is of no use to other tests.
    """
    return [
        f"{item.nodeid}: @pytest.mark.{name} is on a test that is not a multihost test, so it has"
        " no effect. Add @pytest.mark.multihost(ranks=...), or remove it."
        for item in items
        if any(mark.name == name for mark in item.own_markers) and not is_multihost(item, settings)
    ]


def read_markers(
    marks: Iterable[pytest.Mark], settings: Settings
) -> tuple[MarkerSettings, list[str]]:
    """Return the merged values of a test's multihost marks, and every problem with them.

    Args:
        marks: Innermost first, as pytest yields them.
        settings: The run's settings, which the marks override.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for mark in reversed(list(marks)):
        if len(mark.args) > 1:
            problems.append(f"takes one positional argument, ranks, not {len(mark.args)}")
        if mark.args and "ranks" in mark.kwargs:
            problems.append("has ranks twice")
        if mark.kwargs.get("roles") and (mark.args or mark.kwargs.get("ranks")):
            problems.append("has ranks and roles: the roles say how many ranks there are")
        values |= {**({"ranks": mark.args[0]} if mark.args else {}), **mark.kwargs}
    keys = {each.name: each.key for each in settings.options if each.key is not None}
    problems += check_values(values, {**{name: keys[name].check for name in keys}, **_CHECKS})
    if problems:
        values = {}
    own = {
        name: key.read(values[name]) for name, key in keys.items() if values.get(name) is not None
    }
    return MarkerSettings(
        settings=replace(settings, values={**settings.values, **own}),
        has_own_timeout=TIMEOUT.name in own,
        env=dict(values.get("env") or {}),
        faults=as_tuple(values.get("faults")),
        roles=_roles(values.get("roles"), settings),
        has_own_hosts=HOSTS.name in own or HOSTS.name in settings.values,
    ), problems


def _roles(value: Mapping[str, int | Role] | None, settings: Settings) -> Mapping[str, Role]:
    """Return the roles of a marker, with the sizes that --ranks gives them."""
    if not value:
        return {}
    from pytest_multihost.core.model.role import read_roles, sized_roles

    sizes = settings.get(RANKS)
    return sized_roles(read_roles(value), sizes if isinstance(sizes, Mapping) else {})


def _check_roles(value: object) -> str | None:
    from pytest_multihost.core.model.role import role_problems

    return role_problems(value)


_CHECKS: Mapping[str, Check] = {
    "faults": must_be(are_faults, "a list of pytest_multihost.faults"),
    "env": must_be(is_environment, "a mapping of variable names to strings"),
    "roles": _check_roles,
}
"""The keys of the marker that are not options."""


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> Axes | None:
    """Parametrize a test over the world sizes and backends of its markers, if there are several.

    Call it after other plugins, so that these parts of the test's id come last. Problems with the
    markers are not reported here but in the test's plan, at the end of the collection.

    Returns:
        The test's sizes and backends; None if it is not a multihost test or its markers are wrong.
    """
    item = metafunc.definition
    if not is_multihost(item, settings):
        return None
    marked, problems = read_markers(item.iter_markers("multihost"), settings)
    if problems:
        return None
    axes: Mapping[str, tuple[object, ...]] = {
        RANKS_PARAM: marked.ranks,
        BACKEND_PARAM: marked.backends,
    }
    for name, values in axes.items():
        if len(values) > 1:
            metafunc.fixturenames.append(name)
            metafunc.parametrize(name, values, ids=[str(value) for value in values])
    return Axes(
        marked.ranks,
        marked.backends,
        is_of_any_size=not marked.roles and marked.get(RANKS) == settings.get(RANKS),
        is_of_any_backend=marked.backends == settings.get(BACKENDS),
    )


def world_axes(item: pytest.Item, marked: MarkerSettings) -> tuple[int, str, list[str]]:
    """Return the size and the backend of an item, and a problem for each that is not unique.

    Several values remain only where pytest could not parametrize: for TestCase methods, and for
    markers added after the test was collected.
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
