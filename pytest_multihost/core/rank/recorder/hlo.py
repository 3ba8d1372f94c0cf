"""The collectives of a compiled program of jax, read from XLA's text of it (HLO).

The text is of one process's part of the program, after XLA has partitioned it, so it has every
collective that will run. Devices have numbers there: their places in the program's list of devices.

A collective in a loop of known length runs that many times. How often one runs in another loop,
or in a branch, depends on values that each process computes for itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from pytest_multihost.core.model.operation import IN_BRANCH, IN_LOOP, tensor_text

_PERMUTE = "collective_permute"
_NAMES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": _PERMUTE,
    "collective-broadcast": "broadcast",
}
_COLLECTIVE = re.compile(rf"= (\S+|\(.*?\)) ({'|'.join(_NAMES)})(?:-start)?\((.*)")
_TENSOR = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(
    r"\b(?:body|condition|branch_computations|\w+_computation|called_computations|calls|to_apply)="
    r"\{?(%[^\s,)}]+(?:, ?%[^\s,)}]+)*)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_STRIDED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_OF_MESH = re.compile(r"replica_groups=mesh\[((?:'\w+'=\d+,?)+)\] \{((?:'\w+',?)+)\}")

_SHOWN = 2
"""How many collectives of a program its text names."""

_PAIRS = 4
"""How many senders and receivers of a permutation the text of it names."""

Groups = tuple[tuple[int, ...], ...]
"""The devices that communicate, by number."""


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective of a compiled program.

    Attributes:
        name: The name of it that reports use: ``all_reduce``.
        tensors: The types of its result on each device: ``f32[8]``.
        groups: The devices that communicate with each other; None: all, or unknown.
        runs: How often it runs in one run of the program, as far as the text says.
        inside: ``in a loop`` or ``in a branch`` if values of the process decide it; else empty.
    """

    name: str
    tensors: tuple[str, ...]
    groups: Groups | None
    runs: int = 1
    inside: str = ""

    def __str__(self) -> str:
        """Return its text for the reader: ``all_reduce f32[8]``, ``all_gather f32[2] 3 times``."""
        more = f" +{len(self.tensors) - 1}" if self.tensors[1:] else ""
        times = f"{self.runs} times" if self.runs > 1 and not self.inside else self.inside
        parts = (self.name, "".join(self.tensors[:1]) + more, self._ways(), times)
        return " ".join(each for each in parts if each)

    def _ways(self) -> str:
        """Return who sends to whom in a permutation: ``0>1 1>0``."""
        pairs = sorted(self.groups or ()) if self.name == _PERMUTE else []
        shown = [">".join(map(str, each)) for each in pairs[:_PAIRS]]
        return " ".join([*shown, *([f"+{len(pairs) - _PAIRS}"] if pairs[_PAIRS:] else [])])


@dataclass(frozen=True, slots=True)
class _Part:
    """How a run of the program runs one of its computations.

    Attributes:
        runs: See `HloCollective`.
        inside: See `HloCollective`.
    """

    runs: int = 1
    inside: str = ""


def collectives_of(text: str) -> tuple[HloCollective, ...]:
    """Return the collectives in the text of a compiled program, in the order of the text."""
    found: list[tuple[str, HloCollective]] = []
    calls: dict[str, list[tuple[str, _Part]]] = {}
    own = ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            own = "" if line.startswith("ENTRY ") else line.split(maxsplit=1)[0]
        elif (match := _COLLECTIVE.search(line)) is not None:
            tensors = tuple(_tensors(match[1]))
            each = HloCollective(_NAMES[match[2]], tensors, _groups_of(match[3]))
            found.append((own, each))
        elif "=%" in line or "={%" in line:
            calls.setdefault(own, []).extend(_called(line))
    parts = _parts_of(calls) if any(where for where, _ in found) else {}
    at = [(parts.get(where, _Part()), each) for where, each in found]
    return tuple(replace(each, runs=part.runs, inside=part.inside) for part, each in at)


def _called(line: str) -> Iterator[tuple[str, _Part]]:
    """Yield the computations that an instruction calls, and how it runs them."""
    part = _Part()
    if " conditional(" in line:
        part = _Part(inside=IN_BRANCH)
    elif " while(" in line:
        trips = _TRIPS.search(line)
        part = _Part(int(trips[1])) if trips is not None else _Part(inside=IN_LOOP)
    for names in _CALLED.findall(line):
        yield from ((each, part) for each in re.split(", ?", names))


def _parts_of(calls: Mapping[str, Sequence[tuple[str, _Part]]]) -> Mapping[str, _Part]:
    """Return how a run of the program runs each computation, from the calls of each of them."""
    found, ahead = {"": _Part()}, [""]
    while ahead:
        caller = ahead.pop()
        for name, part in calls.get(caller, ()):
            if name not in found:
                outer = found[caller]
                runs, inside = outer.runs * part.runs, outer.inside or part.inside
                found[name] = _Part(runs, inside)
                ahead.append(name)
    return found


def described(collectives: Sequence[HloCollective]) -> str:
    """Return the text for the reader of a program's collectives: ``all_reduce f32[8], ...``."""
    shown, others = collectives[:_SHOWN], collectives[_SHOWN:]
    text = ", ".join(map(str, shown))
    if not others:
        return text
    inside = [] if any(each.inside for each in shown) else [each.inside for each in others]
    which = next((f", one of them {each}" for each in inside if each), "")
    return f"{text} and {len(others)} more{which}"


def members(collectives: Iterable[HloCollective], device: int, size: int) -> frozenset[int]:
    """Return the devices with which a device communicates in a program, directly or through others.

    Args:
        size: How many devices the program has.
    """
    found, groups = {device}, [_sets(each, size) for each in collectives]
    while True:
        more = {e for sets in groups for each in sets if found & each for e in each} - found
        if not more:
            return frozenset(found)
        found |= more


def _sets(collective: HloCollective, size: int) -> list[set[int]]:
    if collective.groups is None:
        return [{*range(size)}]
    return [{*each} for each in collective.groups]


def _tensors(shape: str) -> Iterator[str]:
    for dtype, sizes in _TENSOR.findall(shape):
        yield tensor_text(dtype, [int(each.strip("<=") or 0) for each in sizes.split(",") if each])


def _groups_of(attributes: str) -> Groups | None:
    """Return which devices communicate, from the attributes of a collective; None if unknown."""
    if (listed := _LISTED.search(attributes)) is not None:
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return tuple(tuple(map(int, each.split(","))) for each in groups) or None
    if (strided := _STRIDED.search(attributes)) is not None:
        shape, sizes, order = (_numbers(each) for each in strided.groups())
        return _rows(_transposed(sizes, order or (*range(len(sizes)),)), shape[-1])
    if (mesh := _OF_MESH.search(attributes)) is not None:
        axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        own = re.findall(r"'(\w+)'", mesh[2])
        names, sizes = [*axes], tuple(map(int, axes.values()))
        if {*own} <= {*names}:
            order = tuple(names.index(each) for each in (*(e for e in names if e not in own), *own))
            return _rows(_transposed(sizes, order), math.prod(int(axes[each]) for each in own))
    return None


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _transposed(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return the numbers 0, 1, ... of an array with these sizes, its axes in another order."""
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    places = product(*(range(sizes[axis]) for axis in order))
    return [
        sum(at * strides[axis] for at, axis in zip(place, order, strict=True)) for place in places
    ]


def _rows(numbers: Sequence[int], width: int) -> Groups:
    return tuple(tuple(numbers[at : at + width]) for at in range(0, len(numbers), width))
