"""The marker `multihost_sweep`: how one test is to be swept."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType

import pytest

from pytest_multihost.model.fault import Point
from pytest_multihost.model.stack import is_library
from pytest_multihost.model.sweep import DEFAULT_FAMILIES
from pytest_multihost.pytest_plugin.marks import (
    Check,
    as_tuple,
    check_values,
    is_seconds,
    must_be,
)
from pytest_multihost.pytest_plugin.sweep_settings import (
    ALL_FAMILIES,
    SweepRequest,
    SweepSettings,
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
    problems = list(check_values(given, _CHECKS))
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

_CHECKS: Mapping[str, Check] = {
    "families": must_be(_are_families, f"some of {', '.join(ALL_FAMILIES)}"),
    "decisions": _FUNCTIONS,
    "values": _FUNCTIONS,
    "batches": must_be(_are_loaders, "a list of data loaders, each as 'module:name'"),
    "budget": must_be(is_seconds, "a positive number of seconds, at most 1e9"),
}
