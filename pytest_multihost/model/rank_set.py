"""How ranks are grouped, and how a set of them is written."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def rank_set(ranks: Iterable[int]) -> str:
    """Return ranks as a reader writes them: "rank 3", "ranks 0-2,5"."""
    numbers = sorted(set(ranks))
    return f"rank{'' if len(numbers) == 1 else 's'} {rank_numbers(numbers)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """Return the numbers alone: "3", "0-2,5"."""
    return ",".join(_span(first, last) for first, last in spans(sorted(set(ranks))))


def spans(ranks: Iterable[int]) -> list[list[int]]:
    """Return ascending ranks as spans, each its first and its last."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found


def group_by_value(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return what belongs to equal keys together, in the order in which the keys were met.

    Mostly ranks to which the same applies, because equal things are told once.
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _span(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"
