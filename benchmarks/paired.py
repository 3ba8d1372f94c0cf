"""The rule by which measurements of two revisions are compared, and the table.

Both are measured once a round, one right after the other, and the two of a round make a ratio: what
slows the machine for a while slows both. Beside the median of the ratios stands the range in which
the true median lies with a certainty of 95 %: the most ratios are left out at both ends for which
this still holds. Up to 8 rounds none can be left out, so the range is from the lowest to the
highest; that of 5 rounds is certain to 94 %.

* worse: the median is above 1.1, and the whole range above 1. This fails the comparison.
* ok: the whole range is at most 1.1.
* better: the median is below 1 / 1.1, and the whole range below 1.
* unclear: neither; noise hides what is so, and more rounds or a quieter machine tell. With less
  than 5 rounds everything is unclear: chance alone would too often put all of them above 1.
* FAILED: this revision could not be measured. This fails the comparison, too.
* -: one of the two does not have it, or the other revision could not be measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from figures import Spread

LIMIT = 1.1
FEWEST = 5
CERTAIN = 0.95
_REASON = 200

WORSE, UNCLEAR, OK, BETTER, FAILED, NONE = "worse", "unclear", "ok", "better", "FAILED", "-"
LACKING = "does not have it"
HEAD = ("measure", "then", "now", "ratio", "verdict")


def seconds(value: float) -> str:
    """Return a time: in seconds, or in milliseconds if it is short."""
    if abs(value) < 0.0095:
        return f"{value * 1e3:.2f} ms"
    return f"{value:.3f} s" if abs(value) < 9.5 else f"{value:.1f} s"


def count(value: float) -> str:
    """Return how many there are."""
    return f"{value:g}"


def per_second(value: float) -> str:
    """Return how many a second there are of what takes so many seconds."""
    return f"{1 / value:.1f}/s"


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured; less is better.

    Attributes:
        label: What the reader knows it by.
        text: Makes a text of a value.
    """

    label: str
    text: Callable[[float], str] = seconds


@dataclass(frozen=True, slots=True)
class Compared:
    """One measure of both revisions.

    Attributes:
        measure: Which one.
        then: A value of the other revision for each round.
        now: The same of this one.
        why_not_then: Why the other revision has no more of them, such as `LACKING`; empty if it
            has all.
        why_not_now: The same of this one.
    """

    measure: Measure
    then: Sequence[float]
    now: Sequence[float]
    why_not_then: str = ""
    why_not_now: str = ""

    @property
    def ratios(self) -> Sequence[float]:
        """Now to then, for each round that has both.

        The difference of two runs can be below zero on a busy machine. Such a round says nothing.
        """
        pairs = zip(self.then, self.now, strict=False)
        return [ratio(*pair) for pair in pairs if min(pair) >= 0]

    @property
    def verdict(self) -> str:
        """The verdict."""
        if self.why_not_now and self.why_not_now != LACKING:
            return FAILED
        return judged(self.ratios) if self.ratios else NONE

    def row(self) -> Sequence[str]:
        """Return the row of the table; it quotes why a revision was not measured."""
        cells = [self._cell(self.then, self.why_not_then), self._cell(self.now, self.why_not_now)]
        found = middle(self.ratios).text(2) if self.ratios else "-"
        return [self.measure.label, *cells, found, self.verdict]

    def _cell(self, values: Sequence[float], why_not: str) -> str:
        if why_not:
            return f"- ({shortened(why_not)})"
        return self.measure.text(statistics.median(values)) if values else "-"

    def told(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        found = middle(self.ratios) if self.ratios else None
        return {
            "measure": self.measure.label,
            "then": list(self.then),
            "now": list(self.now),
            "why_not": {"then": self.why_not_then, "now": self.why_not_now},
            "ratio": found and [_finite(each) for each in (found.median, found.low, found.high)],
            "verdict": self.verdict,
        }


def _finite(value: float) -> float | None:
    """Return a value as JSON knows it."""
    return value if math.isfinite(value) else None


def shortened(reason: str) -> str:
    """Return the beginning and the end of a reason, which may quote the output of a program."""
    text = " ".join(reason.split())
    return text if len(text) <= _REASON else f"{text[: _REASON // 4]} ... {text[-_REASON:]}"


def ratio(then: float, now: float) -> float:
    """Return now to then. What there was nothing of has become endlessly more, or is the same."""
    if then > 0:
        return now / then
    return math.inf if now > 0 else 1.0


def certainty(rounds: int, cut: int | None = None) -> float:
    """Return how certainly the true median lies between the lowest and the highest ratio.

    It lies below the lowest with the chance that no throw of a coin, one for each round, comes up
    heads, and in the same way above the highest.

    Args:
        cut: How many ratios have been left out at each end; None: `left_out`.
    """
    number = left_out(rounds) if cut is None else cut
    outside = sum(math.comb(rounds, each) for each in range(number + 1))
    return 1 - 2 * outside / 2**rounds


def left_out(rounds: int) -> int:
    """Return how many ratios can be left out at each end."""
    numbers = range(1, (rounds + 1) // 2)
    return max((each for each in numbers if certainty(rounds, each) >= CERTAIN), default=0)


def middle(ratios: Sequence[float]) -> Spread:
    """Return the median of at least one ratio, and the range in which the true median lies."""
    cut = left_out(len(ratios))
    kept = sorted(ratios)[cut : len(ratios) - cut]
    return Spread(statistics.median(kept), kept[0], kept[-1], len(ratios))


def judged(ratios: Sequence[float]) -> str:
    """Return the verdict on at least one ratio, by the rule above."""
    found = middle(ratios)
    if found.count < FEWEST:
        return UNCLEAR
    if found.median > LIMIT and found.low > 1:
        return WORSE
    if found.high <= LIMIT:
        return BETTER if found.median < 1 / LIMIT and found.high < 1 else OK
    return UNCLEAR


def is_failure(compared: Compared) -> bool:
    """Return whether a row fails the comparison."""
    return compared.verdict in (WORSE, FAILED)
