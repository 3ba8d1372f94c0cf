"""A time axis on which long silences are short.

A world may work for half a second and hang for a minute: drawn to scale, all that happened would be
a line at the left edge. So every span of time in which nothing happened, and which is long beside
all that did, is given a small share of the width, and is marked as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

_LONG = 0.3
"""A silence is long if it is this share of all time that is not in longer ones."""

_WORTH = 0.1
"""Share of all time that a silence must have to be worth a break in the axis."""

_READABLE = 0.3
"""Where what happened has this share of all time, nothing need be shortened."""

_MAX_LONG = 4
_SHARE = 0.1
_LAST_SHARE = 0.3
"""Share of the width that a long silence gets; the last one is the hang itself."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of time and the part of the width, from 0 to 1, that it is drawn on."""

    begin_s: float
    end_s: float
    left: float
    right: float
    is_silence: bool = False


def stretches(moments: Iterable[float], *, end_s: float) -> tuple[Stretch, ...]:
    """Return the time from 0 to the end as stretches of even scale.

    Args:
        moments: When something happened, in seconds.
        end_s: Where the axis ends.
    """
    silences = _long_silences(sorted({0.0, end_s, *(m for m in moments if 0 < m < end_s)}), end_s)
    shares = [_LAST_SHARE if end == end_s else _SHARE for _, end in silences]
    busy_s = end_s - sum(end - begin for begin, end in silences)
    per_second = (1 - sum(shares)) / busy_s if busy_s > 0 else 0.0
    found: list[Stretch] = []
    for (begin, end), share in zip(silences, shares, strict=True):
        found += _busy(found, begin, per_second)
        left = found[-1].right if found else 0.0
        found.append(Stretch(begin, end, left, left + share, is_silence=True))
    return (*found, *_busy(found, end_s, per_second))


def _busy(found: list[Stretch], until_s: float, per_second: float) -> list[Stretch]:
    begin, left = (found[-1].end_s, found[-1].right) if found else (0.0, 0.0)
    if until_s <= begin:
        return []
    return [Stretch(begin, until_s, left, left + (until_s - begin) * per_second)]


def _long_silences(moments: list[float], end_s: float) -> list[tuple[float, float]]:
    """Return the spans that are long beside the rest, in order."""
    gaps = sorted(pairwise(moments), key=lambda gap: gap[0] - gap[1])
    rest_s, found = end_s, list[tuple[float, float]]()
    for begin, end in gaps[:_MAX_LONG]:
        if end - begin < max(_LONG * rest_s, _WORTH * end_s) or end - begin >= rest_s:
            break
        found.append((begin, end))
        rest_s -= end - begin
    return sorted(found) if rest_s < _READABLE * end_s else []
