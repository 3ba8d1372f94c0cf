"""The validation of faults.

All problems are reported at once. Nothing that a fault names is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from pytest_multihost.core.model.errors import known_names, shown
from pytest_multihost.core.model.fault import (
    RANK_WORDS,
    Fault,
    Point,
    resolve,
    size_problems,
)
from pytest_multihost.core.model.role import RoleSpec, ranks_of
from pytest_multihost.core.model.spec import Host
from pytest_multihost.faults.kind import FaultKind
from pytest_multihost.intercept.targets import target_problem


def resolve_faults(
    faults: Sequence[Fault],
    *,
    size: int,
    seed: int,
    hosts: Sequence[Host],
    kinds: Mapping[str, FaultKind],
    roles: tuple[RoleSpec, ...] = (),
) -> tuple[tuple[Fault, ...], list[str]]:
    """Return the faults of a test with numbers for ranks, and all problems with them.

    Args:
        seed: Decides which rank is "one".
        hosts: Its hosts; empty: its ranks are on this machine.
        roles: Its roles, which faults may name in place of ranks: "engine", "engine:1".
    """
    if roles:
        try:
            faults = [_without_roles(each, roles) for each in faults]
        except ValueError as error:
            return (), [str(error)]
    if problems := fault_problems(faults, size=size, kinds=kinds):
        return (), problems
    resolved = resolve(faults, size=size, seed=seed)
    return resolved, resolved_problems(resolved, hosts=hosts, size=size, kinds=kinds)


def _without_roles(fault: Fault, roles: tuple[RoleSpec, ...]) -> Fault:
    """Return a fault with numbers in place of the names of roles.

    Raises:
        ValueError: There is no such role.
    """
    given: object = fault.ranks
    if isinstance(given, str):
        return fault if given in RANK_WORDS else replace(fault, ranks=ranks_of(given, roles))
    if not isinstance(given, tuple) or not any(isinstance(each, str) for each in given):
        return fault
    found = [ranks_of(each, roles) if isinstance(each, str) else (each,) for each in given]
    return replace(fault, ranks=tuple(rank for each in found for rank in each))


def fault_problems(
    faults: Sequence[Fault], *, size: int, kinds: Mapping[str, FaultKind]
) -> list[str]:
    """Return the problems of `faults` in a world of `size` ranks; empty if there are none."""
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
        yield (
            "at.rendezvous() is only for faults of the network; to make a rank late, use start_skew"
        )


def _point_problems(fault: Fault, kind: FaultKind) -> Iterator[str]:
    """Yield why a kind of fault cannot happen at the fault's point."""
    if not isinstance(fault.at, Point):
        return
    if kind.points and fault.at.point not in kind.points:
        known = " or ".join(f"at.{each}(...)" for each in sorted(kind.points))
        yield f"{kind.name} happens at {known}, not at {fault.at!r}"
    if fault.kind == "fails" and fault.at.point == "collective" and "error" in fault.params:
        yield "error= is for calls on files; to raise an exception here, use raise_at"
    if fault.at.onwards and kind.lasts:
        yield f"{kind.name} lasts until it is undone, so it cannot begin again: leave out onwards"
    if fault.ranks == "first" and (kind.service or kind.is_before_test):
        yield (
            f"{kind.name} does not happen at a point that a rank passes, so rank cannot be 'first'"
        )


def resolved_problems(
    faults: Sequence[Fault],
    *,
    hosts: Sequence[Host],
    size: int,
    kinds: Mapping[str, FaultKind],
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
        return "each would continue the rank that the other has stopped" if stop_both else ""
    match one.one_per:
        case "rank":
            return "a rank can have only one of them"
        case "point" if first.at == second.at:
            return "two of them at one point would act as one"
        case "path" if first.params.get("path") == second.params.get("path"):
            return "both are about the same files"
        case _:
            return ""
