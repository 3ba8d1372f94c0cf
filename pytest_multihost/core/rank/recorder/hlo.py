"""The collectives of a compiled program of jax, read from XLA's text of it (HLO).

The text is of one process's part of the program, after XLA has partitioned it, so it has every
collective that will run. Devices have numbers there: their places in the program's list of devices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from pytest_multihost.core.model.operation import tensor_text

_NAMES = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "broadcast",
}
_COLLECTIVE = re.compile(rf"= (\S+|\(.*?\)) ({'|'.join(_NAMES)})(?:-start)?\((.*)")
_TENSOR = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_STRIDED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_OF_MESH = re.compile(r"replica_groups=mesh\[((?:'\w+'=\d+,?)+)\] \{((?:'\w+',?)+)\}")

_SHOWN = 2
"""How many collectives of a program its text names."""

Groups = tuple[tuple[int, ...], ...]
"""The devices that communicate, by number."""


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective of a compiled program.

    Attributes:
        name: The name of it that reports use: ``all_reduce``.
        tensors: The types of its result on each device: ``f32[8]``.
        groups: The devices that communicate with each other; None: all, or unknown.
    """

    name: str
    tensors: tuple[str, ...]
    groups: Groups | None

    def __str__(self) -> str:
        """Return its text for the reader: ``all_reduce f32[8]``."""
        more = f" +{len(self.tensors) - 1}" if self.tensors[1:] else ""
        return f"{self.name} {''.join(self.tensors[:1])}{more}".rstrip()


def collectives_of(text: str) -> tuple[HloCollective, ...]:
    """Return the collectives in the text of a compiled program, in the order of the text."""
    found = []
    for line in text.splitlines():
        if (match := _COLLECTIVE.search(line)) is not None:
            tensors = tuple(_tensors(match[1]))
            found.append(HloCollective(_NAMES[match[2]], tensors, _groups_of(match[3])))
    return tuple(found)


def described(collectives: Sequence[HloCollective]) -> str:
    """Return the text for the reader of a program's collectives: ``all_reduce f32[8], ...``."""
    more = len(collectives) - _SHOWN
    shown = ", ".join(map(str, collectives[:_SHOWN]))
    return f"{shown} and {more} more" if more > 0 else shown


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
