"""How a set of ranks is written."""

from __future__ import annotations

from collections.abc import Iterable


def rank_set(ranks: Iterable[int]) -> str:
    """Return ranks as a reader writes them: "rank 3", "ranks 0-2,5"."""
    numbers = sorted(set(ranks))
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(_span(first, last) for first, last in spans)
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"


def _span(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"
