"""The parsing and validation of faults, and the built-in kinds.

All problems are reported at once. Nothing that a fault names is imported, and the text of a fault,
as on the command line, is never evaluated.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from types import ModuleType
from typing import Any, TypeVar

from pytest_multihost import at, faults
from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import (
    Fault,
    Point,
    resolve,
    size_problems,
)
from pytest_multihost.core.model.spec import Host
from pytest_multihost.core.nemesis.kind import (
    FaultKind,
    known_names,
)
from pytest_multihost.core.nemesis.pressure import FD_PRESSURE, MEMORY_PRESSURE
from pytest_multihost.core.nemesis.process_faults import PROCESS_FAULTS
from pytest_multihost.core.nemesis.slow_io import SLOW_IO
from pytest_multihost.core.nemesis.targets import target_problem
from pytest_multihost.core.nemesis.views import CLOCK_SKEW, FILE_VIEWS, VALUE_FAULTS

T = TypeVar("T", Fault, Point)
_MAX_TEXT = 200
_NO_LITERALS = {
    text: name for name in ("nan", "inf", "-inf") for text in (name, f"float('{name}')")
}
"""Expressions of numbers that Python has no literals for."""


def parse_fault(text: str) -> Fault:
    """Parse a fault, as ``kill(rank=1, at=at.sync_point("before-commit"))``.

    Raises:
        SettingError: It is no fault; the message has the nearest constructor or argument.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _call(tree, faults, Fault)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        happened = f"{shown(text)} is no expression"
        remedy = "Write it as slow_io(rank=0, seconds=2)."
        raise SettingError(happened, seen=f"{error}.", remedy=remedy) from error


def _call(tree: ast.expr, module: ModuleType, kind: type[T]) -> T:
    """Call the constructor in `module` that `tree` calls."""
    prefix = module.__name__.rpartition(".")[2]
    if not isinstance(tree, ast.Call):
        raise SettingError(f"{_text(tree)} is no call of a function of {prefix}")
    name = _text(tree.func).removeprefix(f"{prefix}.")
    if name not in module.__all__:
        known = known_names(module.__all__, name)
        raise SettingError(f"there is no {prefix}.{name}; there are: {known}")
    make = getattr(module, name)
    args = [_value(each) for each in tree.args]
    kwargs = {each.arg or "**": _value(each.value) for each in tree.keywords}
    if "**" in kwargs or len(kwargs) < len(tree.keywords):
        raise SettingError(f"{name}: name each argument, and each only once")
    signature = inspect.signature(make)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [each for each in kwargs if each not in signature.parameters]
    if unknown and not takes_any:
        known = known_names(signature.parameters, unknown[0])
        raise SettingError(f"{name} takes no {shown(unknown[0])}; it takes: {known}")
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SettingError(f"{name}: {error}") from error
    made = make(*args, **kwargs)
    assert isinstance(made, kind)  # noqa: S101 - the modules make nothing else
    return made


def _value(tree: ast.expr) -> Any:  # noqa: ANN401 - a literal or a point
    if ast.unparse(tree) in _NO_LITERALS:
        return float(_NO_LITERALS[ast.unparse(tree)])
    if isinstance(tree, ast.Call):
        return _call(tree, at, Point)
    try:
        return ast.literal_eval(tree)
    except (ValueError, TypeError) as error:
        happened = f"{_text(tree)} is neither a number, a text, a list nor a point"
        raise SettingError(happened) from error


def _text(tree: ast.expr) -> str:
    """Return the text of an expression for a message."""
    text = ast.unparse(tree)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


BUILT_IN_KINDS: tuple[FaultKind, ...] = (
    *PROCESS_FAULTS,
    SLOW_IO,
    MEMORY_PRESSURE,
    FD_PRESSURE,
    *VALUE_FAULTS,
    *FILE_VIEWS,
    CLOCK_SKEW,
)


def kinds_by_name(groups: Iterable[Sequence[FaultKind]]) -> dict[str, FaultKind]:
    """Return the kinds by name; if two have one name, the first counts.

    Args:
        groups: The kinds of each plugin, the plugin registered last first.
    """
    kinds = [kind for group in groups for kind in group]
    return {kind.name: kind for kind in reversed(kinds)}


def resolve_faults(
    faults: Sequence[Fault],
    *,
    size: int,
    seed: int,
    hosts: Sequence[Host],
    kinds: Mapping[str, FaultKind],
) -> tuple[tuple[Fault, ...], list[str]]:
    """Return the faults of a test with numbers for ranks, and all problems with them.

    Args:
        seed: Decides which rank is "one".
        hosts: Its hosts; empty: its ranks are on this machine.
    """
    if problems := fault_problems(faults, size=size, kinds=kinds):
        return (), problems
    resolved = resolve(faults, size=size, seed=seed)
    return resolved, resolved_problems(resolved, hosts=hosts, size=size, kinds=kinds)


def fault_problems(
    faults: Sequence[Fault], *, size: int, kinds: Mapping[str, FaultKind]
) -> list[str]:
    """Return what is wrong with `faults` in a world of `size` ranks; empty when nothing is."""
    return [
        f"{shown(each)}: {problem}" for each in faults for problem in _problems(each, size, kinds)
    ]


def _problems(fault: Fault, size: int, kinds: Mapping[str, FaultKind]) -> Iterator[str]:
    yield from fault.problems()
    yield from size_problems(fault, size)
    if not isinstance(fault.kind, str):
        return
    if fault.kind in kinds:
        yield from kinds[fault.kind].problems(fault.params)
        yield from _point_problems(fault, kinds[fault.kind])
    else:
        known = known_names(sorted(kinds), fault.kind)
        yield f"there is no fault {shown(fault.kind)}; there are: {known}"
    if not isinstance(fault.at, Point) or fault.at.problems():
        return
    is_loader = fault.at.point == "batch"
    if is_loader or fault.at.point == "call":
        problem = target_problem(fault.at.name, is_loader=is_loader)
        yield from (f"{shown(fault.at)}: {problem}",) if problem else ()
    if fault.at.point == "rendezvous" and not (fault.kind in kinds and kinds[fault.kind].service):
        yield "at.rendezvous() is for faults of the network alone; start_skew makes a rank late"


def _point_problems(fault: Fault, kind: FaultKind) -> Iterator[str]:
    """Yield why a kind of fault cannot happen at the fault's point."""
    if not isinstance(fault.at, Point):
        return
    if kind.points and fault.at.point not in kind.points:
        known = " or ".join(f"at.{each}(...)" for each in sorted(kind.points))
        yield f"{kind.name} happens at {known}, not at {fault.at!r}"
    if fault.kind == "fails" and fault.at.point == "collective" and "error" in fault.params:
        yield "error is that of a call on a file; raise_at raises any exception"
    if fault.at.onwards and kind.lasts:
        yield f"{kind.name} lasts until it is undone, so it cannot begin again: leave out onwards"
    if fault.ranks == "first" and (kind.service or kind.is_before_test):
        yield f"{kind.name} happens to no rank that passes a point, so rank cannot be 'first'"


def resolved_problems(
    faults: Sequence[Fault], *, hosts: Sequence[Host], size: int, kinds: Mapping[str, FaultKind]
) -> list[str]:
    """Return which of `faults` exclude each other, and which the test's hosts cannot have.

    Args:
        faults: Faults without problems of their own; ranks are numbers.
        hosts: The test's hosts; empty: its ranks are on this machine.
    """
    found = []
    for first, second in combinations(faults, 2):
        shared = [rank for rank in first.ranks if rank in second.ranks]
        if shared and (why := _exclusion(first, second, kinds)):
            both = f"{shown(first)} and {shown(second)}"
            found.append(f"{both} exclude each other on rank {shared[0]}: {why}")
    checks = [kinds[each.kind].conflicts for each in faults]
    for check in dict.fromkeys(each for each in checks if each is not None):
        found += check(faults, hosts, size)
    return found


def _exclusion(first: Fault, second: Fault, kinds: Mapping[str, FaultKind]) -> str:
    """Return why a rank cannot have both faults, empty if it can."""
    one, other = kinds[first.kind], kinds[second.kind]
    if one.is_exclusive and other.is_exclusive and first.at == second.at:
        return "only one of them can happen at one point"
    if one is not other:
        stop_both = one.stops_process and other.stops_process
        return "each would continue what the other has stopped" if stop_both else ""
    match one.one_per:
        case "rank":
            return "a rank has one of them"
        case "point" if first.at == second.at:
            return "two of them at one point are one"
        case "path" if first.params.get("path") == second.params.get("path"):
            return "both are about the same files"
        case _:
            return ""
