"""Adopts DeepSpeed's `DistributedTest`, its copies in other projects, and the marker `world_size`.

They are recognised by `is_dist_test` and `world_size`. Their harness starts a pool or processes in
`_launch_procs`, which a hook in the suite's conftest calls in place of the test's function.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isabstract
from typing import Any

import pytest

from pytest_multihost.core.model.errors import NoWorldError
from pytest_multihost.core.pytest_plugin.item import MultihostItem
from pytest_multihost.core.pytest_private import fixture_definitions
from pytest_multihost.core.rank import current_world
from pytest_multihost.extensions.adopt.adopted import OUTCOME, Adopted, Refused
from pytest_multihost.extensions.adopt.processes import (
    ProcessGroup,
    RankPool,
    own_arguments,
)
from pytest_multihost.hookspecs import hookimpl

_FIXTURE = "is_dist_fixture"
_SUFFIX = "multihost"
"""Follows the name of the class, so pytest 8.3 meets the fixture after the class and takes it."""

_FLAG, _SIZE = "is_dist_test", "world_size"
_TIMEOUT_S = 600.0
_MODULES = ("multiprocessing", "torch.multiprocessing")


@hookimpl
def pytest_multihost_adopt(item: pytest.Item) -> Adopted | Refused | None:
    """Adopt the tests of such classes, and test functions with the marker."""
    cls: Any = getattr(item, "cls", None)
    mark = item.get_closest_marker(_SIZE)
    if not getattr(cls, _FLAG, False):
        return None if mark is None else _sized(mark.args[0] if mark.args else None)
    names: Sequence[str] = getattr(item, "fixturenames", ())
    definitions = (each for name in names for each in fixture_definitions(item, name))
    if any(getattr(each.func, _FIXTURE, False) for each in definitions):
        return Refused("a fixture starts ranks of its own")
    callspec: Any = getattr(item, "callspec", None)
    size = getattr(cls, _SIZE, None)
    if mark is not None:
        size = mark.args[0] if mark.args else None
    elif _SIZE in names and callspec is None:
        return None  # the definition of a test function, whose parameter has the size
    elif _SIZE in names:
        size = callspec.params.get(_SIZE)
    return _sized(size, timeout=getattr(cls, "exec_timeout", _TIMEOUT_S), enter=_enter)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule() -> Generator[None, pytest.Module | None, pytest.Module | None]:
    """Make the classes of a module that start ranks of their own, `DistributedFixture`, fixtures.

    pytest 8.4 and newer take only functions for fixtures.
    """
    module = yield
    names: dict[str, object] = {}
    with suppress(Exception, pytest.skip.Exception):  # pytest reports it when it collects
        names = {} if module is None else vars(module.obj)
    for name, each in [*names.items()]:
        if isinstance(each, type) and getattr(each, _FIXTURE, False) and not isabstract(each):
            # The class remains: its processes find it by its name.
            names[f"{name}_{_SUFFIX}"] = _fixture(name, each)
    return module


def _fixture(name: str, cls: type[Any]) -> object:
    """Return a fixture whose processes the primary starts, while the other ranks wait."""

    def run(request: pytest.FixtureRequest) -> None:
        try:
            world = current_world()
        except NoWorldError:
            cls()(request)
            return
        skipped = ""
        if world.is_primary:
            try:
                cls()(request)
            except pytest.skip.Exception as skip:
                skipped = str(skip)
        if skipped := world.inherit(skipped, f"the processes of {name}"):
            pytest.skip(skipped)

    return pytest.fixture(name=name)(run)


def _sized(size: Any, **options: Any) -> Adopted | Refused:  # noqa: ANN401 - of Adopted
    sizes = size if isinstance(size, list | tuple) else [size]
    if sizes and all(isinstance(each, int) and each > 0 for each in sizes):
        return Adopted(ranks=sizes if len(sizes) > 1 else sizes[0], **options)
    return Refused("its world_size is not a number")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Keep the suite's own hook from starting processes in pytest's process."""
    cls: Any = getattr(item, "cls", None)
    is_hidden = isinstance(item, MultihostItem) and getattr(cls, _FLAG, False)
    if not is_hidden or OUTCOME not in item.stash:
        return (yield)
    cls.is_dist_test = False
    try:
        return (yield)
    finally:
        cls.is_dist_test = True


def _enter(item: pytest.Item) -> None:
    """Make the class start stand-ins for its processes, for this world's size only."""
    cls: Any = item.cls  # type: ignore[attr-defined]
    world = current_world()
    launch, fixtures_of = cls._launch_procs, cls._get_fixture_kwargs
    modules = (sys.modules[each] for each in _MODULES if each in sys.modules)
    swap = _Swap([launch.__globals__, *map(vars, modules)])

    def launch_procs(self: object, size: int, *args: object) -> None:
        if size == world.size:  # another test has each other size of a list
            pool, processes = RankPool(world, swap.call), ProcessGroup(world, swap.call)
            swap.names = {"Pool": lambda *_, **__: pool, "Process": processes.process}
            swap.names = {**swap.names, "get_context": partial(_Context, swap.names)}
            with swap:
                launch(self, size, *args)

    def fixture_values(self: object, *args: object) -> dict[str, object]:
        found: dict[str, object] = fixtures_of(self, *args)
        values = own_arguments(world, [tuple(found.values())] * world.size)
        return dict(zip(found, values, strict=True))

    cls._launch_procs, cls._get_fixture_kwargs = launch_procs, fixture_values
    cls._pool_cache = {}


@dataclass(frozen=True, slots=True)
class _Context:
    """A context of `multiprocessing` with other processes and pools.

    Attributes:
        names: The replacements of its own.
        method: How its processes would start.
    """

    names: Mapping[str, object]
    method: str | None = None

    def __getattr__(self, name: str) -> object:
        """Return the replacement of a name, or the context's own."""
        if name in self.names:
            return self.names[name]
        return getattr(multiprocessing.get_context(self.method), name)


@dataclass(slots=True)
class _Swap:
    """Names in modules that are replaced while the harness runs, and not while the test does.

    Attributes:
        places: The names of each module.
        names: Their replacements.
    """

    places: list[dict[str, Any]]
    names: Mapping[str, object] = field(default_factory=dict)
    _kept: list[tuple[dict[str, Any], str, object]] = field(default_factory=list)

    def __enter__(self) -> None:
        """Replace the names that a module has."""
        self._kept = [(e, name, e[name]) for e in self.places for name in self.names if name in e]
        for place, name, _ in self._kept:
            place[name] = self.names[name]

    def __exit__(self, *_: object) -> None:
        """Restore them."""
        for place, name, value in self._kept:
            place[name] = value

    def call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:  # noqa: ANN401
        """Call the function of a process, with the names as the suite knows them."""
        self.__exit__()
        try:
            return function(*arguments)
        finally:
            self.__enter__()
