"""Rates weaknesses, and hides weaknesses that end soon and leave nothing wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    DisturbedRun,
    Rating,
    WaitEnd,
    Weakness,
)

if TYPE_CHECKING:
    from pytest_multihost.extensions.sweep.options import Show

SOON_S = 60.0
"""A wait that ends by itself within this time costs a job no more than its restart does."""


_NOT_MEASURED = WaitEnd(by="not measured", name="there was no clock that jumps, or no time left")


def rate(run: DisturbedRun, end: WaitEnd | None) -> Rating:
    """Return the rating of a weakness.

    Args:
        end: The end of the wait; None if it was not measured.
    """
    says = run.error or run.said
    if run.outcome == "wrong":
        return Rating(stays=run.summary, says=says)
    return Rating(says=says, end=end or _NOT_MEASURED)


def ends_soon(run: DisturbedRun, rating: Rating) -> bool:
    """Return whether a launcher ends the wait soon, an error says why, and nothing wrong stays.

    Only a wait for a rank that has failed with the disturbance's own error can be such. If ranks
    part, it is an accident of gloo on one machine that a lost connection ends the others soon.
    """
    end = rating.end
    if run.outcome != "left waiting" or rating.stays or not rating.says or end is None:
        return False
    is_ended = end.by in ("launcher", "runtime")
    return is_ended and end.after_s is not None and end.after_s <= SOON_S


def rate_all(
    weaknesses: Iterable[Weakness], ends: Mapping[Disturbance, WaitEnd], show: Show
) -> tuple[Weakness, ...]:
    """Return weaknesses with their ratings, and hide short ones unless all are shown.

    Args:
        ends: The ends of the waits of witnesses, as far as they were measured.
    """
    return tuple(_rated(each, ends.get(each.witness.disturbance), show) for each in weaknesses)


def _rated(weakness: Weakness, end: WaitEnd | None, show: Show) -> Weakness:
    rating = rate(weakness.witness, end)
    is_hidden = show == "lasting" and ends_soon(weakness.witness, rating)
    return replace(weakness, rating=rating, is_hidden=is_hidden)
