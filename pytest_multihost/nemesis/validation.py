"""The kinds of faults that exist, and the validation of one test's faults.

All problems are reported at once. Nothing that a fault names is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from pytest_multihost.model.errors import shown
from pytest_multihost.model.fault import (
    NETWORK_KINDS,
    NOT_AT_POINTS,
    Fault,
    Point,
    resolve,
    size_problems,
)
from pytest_multihost.model.spec import Hosts
from pytest_multihost.nemesis.clock import CLOCK_SKEW
from pytest_multihost.nemesis.file_views import FILE_VIEWS
from pytest_multihost.nemesis.kind import FaultKind, known_names
from pytest_multihost.nemesis.network_faults import NETWORK_FAULTS, network_problems
from pytest_multihost.nemesis.process_faults import FD_PRESSURE, MEMORY_PRESSURE, PROCESS_FAULTS
from pytest_multihost.nemesis.slow_io import SLOW_IO
from pytest_multihost.nemesis.targets import target_problem
from pytest_multihost.nemesis.value_faults import VALUE_FAULTS

BUILT_IN_KINDS: tuple[FaultKind, ...] = (
    *PROCESS_FAULTS,
    SLOW_IO,
    MEMORY_PRESSURE,
    FD_PRESSURE,
    *VALUE_FAULTS,
    *FILE_VIEWS,
    CLOCK_SKEW,
    *NETWORK_FAULTS,
)

_EXCLUSIVE_AT_POINT = frozenset({"fails", "freeze", "kill", "raise_at", "returns"})
_STOPPING = frozenset({"cpu_throttle", "freeze"})
_ONE_PER_RANK = frozenset({"clock_skew", "cpu_throttle", "hash_seed"})
_ONE_PER_POINT = frozenset({"fd_pressure", "memory_pressure", "start_skew"})


def kinds_by_name(groups: Iterable[Sequence[FaultKind]]) -> dict[str, FaultKind]:
    """Return the kinds by name; of two with one name the first counts.

    Args:
        groups: What each plugin offers, that of the plugin registered last first.
    """
    kinds = [kind for group in groups for kind in group]
    return {kind.name: kind for kind in reversed(kinds)}


def resolve_faults(
    faults: Sequence[Fault], *, size: int, seed: int, hosts: Hosts, kinds: Mapping[str, FaultKind]
) -> tuple[tuple[Fault, ...], list[str]]:
    """Return the faults of a test with numbers for ranks, and everything that is wrong with them.

    Args:
        faults: As the test has them.
        size: Ranks of its world.
        seed: Decides which rank is "one".
        hosts: What its hosts are made from, as the marker has it.
        kinds: The kinds that exist, by name.
    """
    if problems := fault_problems(faults, size=size, kinds=kinds):
        return (), problems
    resolved = resolve(faults, size=size, seed=seed)
    return resolved, resolved_problems(resolved, hosts=hosts, size=size)


def fault_problems(
    faults: Sequence[Fault], *, size: int, kinds: Mapping[str, FaultKind]
) -> list[str]:
    """Return what is wrong with `faults` in a world of `size` ranks; empty when nothing is.

    Args:
        faults: As the test has them.
        size: Ranks of the world.
        kinds: The kinds that exist, by name.
    """
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
    if fault.at.point == "rendezvous" and fault.kind not in NETWORK_KINDS:
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
    if fault.ranks == "first" and fault.kind in NETWORK_KINDS | NOT_AT_POINTS:
        yield f"{kind.name} happens to no rank that passes a point, so rank cannot be 'first'"


def resolved_problems(faults: Sequence[Fault], *, hosts: Hosts, size: int) -> list[str]:
    """Return which of `faults` exclude each other, and which the test's hosts cannot have.

    Args:
        faults: Without problems of their own; ranks are numbers.
        hosts: What the test's hosts are made from, as the marker has it.
        size: Ranks of its world.
    """
    found = []
    for first, second in combinations(faults, 2):
        shared = [rank for rank in first.ranks if rank in second.ranks]
        if shared and (why := _exclusion(first, second)):
            both = f"{shown(first)} and {shown(second)}"
            found.append(f"{both} exclude each other on rank {shared[0]}: {why}")
    return [*found, *network_problems(faults, hosts=hosts, size=size)]


def _exclusion(first: Fault, second: Fault) -> str:
    """Return why a rank cannot have both faults, empty if it can."""
    kinds = {first.kind, second.kind}
    if kinds <= _EXCLUSIVE_AT_POINT and first.at == second.at:
        return "only one of them can happen at one point"
    if kinds == _STOPPING:
        return "each would continue what the other has stopped"
    if first.kind != second.kind:
        return ""
    if first.kind in _ONE_PER_RANK:
        return "a rank has one of them"
    if first.kind in _ONE_PER_POINT and first.at == second.at:
        return "two of them at one point are one"
    if first.kind == "slow_io" and first.params.get("path") == second.params.get("path"):
        return "both are about the same files"
    return ""
