"""How a set of ranks is written."""

from __future__ import annotations

from collections.abc import Iterable


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


def _span(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"
