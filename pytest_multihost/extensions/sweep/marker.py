"""Reads the marker `multihost_sweep` of a test."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_multihost.core.model.fault import Point
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.option import (
    Check,
    Settings,
    as_tuple,
    check_values,
    is_seconds,
    must_be,
)
from pytest_multihost.core.pytest_plugin.marks import misplaced_markers
from pytest_multihost.core.pytest_plugin.tally import TALLY
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error
from pytest_multihost.extensions.sweep.families import (
    DEFAULT,
    DEFAULT_FAMILIES,
    FAMILIES,
    REMOVED,
)
from pytest_multihost.extensions.sweep.local_decisions.names import DATA, ITERATOR
from pytest_multihost.extensions.sweep.options import BUDGET, SWEEP
from pytest_multihost.extensions.sweep.remains import Remains

if TYPE_CHECKING:
    from pytest_multihost.extensions.sweep.local_decisions.facts import RankRecords


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The families, budget and functions for the sweep of one test.

    Attributes:
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.
        batches: Data loaders, as ``module:name``, in addition to those of torch and grain.
        finds_data: Whether functions whose names say so count as data loaders as well.
        has_rare: Whether the kinds of choices run that have found nothing in any corpus.
    """

    families: tuple[str, ...]
    budget_s: float
    decisions: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    finds_data: bool = True
    has_rare: bool = False


REQUEST = pytest.StashKey[SweepRequest]()
"""The request of a test; absent if the test is not swept."""


REMAINS = pytest.StashKey[Remains]()
"""The remains of a test's undisturbed run."""


SEEN: pytest.StashKey[RankRecords] = pytest.StashKey()
"""The calls and reads of each rank in a test's undisturbed run."""


def read_sweep_request(
    item: pytest.Item, settings: Settings
) -> tuple[SweepRequest | None, list[str]]:
    """Return the request of a test, None if it is not swept, and every problem with its marker."""
    mark = item.get_closest_marker("multihost_sweep")
    if mark is None:
        if not settings.get(SWEEP):
            return None, []
        families, has_rare = _families(settings.get(SWEEP))
        found = SweepRequest(
            families, settings.get(BUDGET), batches=_own_data(item), has_rare=has_rare
        )
        return found, []
    given = {**({"families": mark.args[0]} if mark.args else {}), **mark.kwargs}
    asked_for = as_tuple(given.get("families"))
    problems = list(check_values(given, _SWEEP_CHECKS))
    if len(mark.args) > 1:
        problems.append(f"takes one positional argument, families, not {len(mark.args)}")
    if problems:
        return None, [
            *problems,
            *(f"no longer has {e!r}. {REMOVED[e]}" for e in asked_for if e in REMOVED),
        ]
    families, has_rare = _families(asked_for or settings.get(SWEEP) or (DEFAULT,))
    return SweepRequest(
        families=families,
        budget_s=float(given.get("budget") or settings.get(BUDGET)),
        decisions=as_tuple(given.get("decisions")),
        values=as_tuple(given.get("values")),
        batches=as_tuple(given["batches"]) if "batches" in given else _own_data(item),
        finds_data="batches" not in given,
        has_rare=has_rare,
    ), []


def _families(wanted: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
    """Return the families to plan, and whether the user has named them."""
    if DEFAULT in wanted:
        return DEFAULT_FAMILIES, False
    return tuple(each for each in FAMILIES if each in wanted), True


def _own_data(item: pytest.Item) -> tuple[str, ...]:
    """Return the functions of a test's module that probably yield a rank's data."""
    module = getattr(item, "module", None)
    return tuple(data_functions(module)) if isinstance(module, ModuleType) else ()


def data_functions(module: ModuleType) -> Iterator[str]:
    """Yield the generator functions and iterator classes of a module with names of data.

    This includes imported ones, except from installed libraries. Each is an attribute of the module
    that defines it, under its own name.
    """
    values: list[Any] = list(vars(module).values())
    for each in values:
        owner = sys.modules.get(getattr(each, "__module__", None) or "")
        file = getattr(owner, "__file__", None)
        if file is None or is_library(file):
            continue
        name = getattr(each, "__name__", "")
        if _yields_data(each) and getattr(owner, name, None) is each:
            yield f"{each.__module__}:{name}"


def thread_classes() -> tuple[str, ...]:
    """Return the `run` methods of all classes of threads that the user's code defines."""
    found, left = list[str](), [threading.Thread]
    while left:
        for each in left.pop().__subclasses__():
            left.append(each)
            owner = sys.modules.get(each.__module__)
            file = getattr(owner, "__file__", None)
            is_named_so = getattr(owner, each.__name__, None) is each
            if "run" in vars(each) and is_named_so and file is not None and not is_library(file):
                found.append(f"{each.__module__}:{each.__name__}.run")
    return tuple(found)


def _yields_data(value: Any) -> bool:  # noqa: ANN401 - any value of a module
    """Return whether a function or a class is named and written like the user's data."""
    if isinstance(value, FunctionType):
        return inspect.isgeneratorfunction(value) and bool(DATA.search(value.__name__))
    if not isinstance(value, type) or not {"__iter__", "__next__"} <= vars(value).keys():
        return False
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", value.__name__).lower()
    return bool(DATA.search(name) or ITERATOR.search(name))


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
    "families": must_be(_are_families, f"a list of families ({', '.join(FAMILIES)})"),
    "decisions": _FUNCTIONS,
    "values": _FUNCTIONS,
    "batches": must_be(_are_loaders, "a list of data loaders, each as 'module:name'"),
    "budget": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
}


def plan_sweep_of(item: pytest.Item, settings: Settings) -> list[str]:
    """Store the request of a test; return every problem with its marker."""
    request, problems = read_sweep_request(item, settings)
    if request is not None and not item.config.getoption("multihost_replay"):
        item.stash[REQUEST] = request
    return [f"@pytest.mark.multihost_sweep {each}" for each in problems]


def check_markers(session: pytest.Session) -> None:
    """Check that every test with the marker runs as a world.

    Raises:
        pytest.UsageError: Some do not; lists all such tests.
    """
    settings = session.config.stash[TALLY].settings
    if problems := misplaced_markers("multihost_sweep", session.items, settings):
        raise usage_error("\n".join(problems))
