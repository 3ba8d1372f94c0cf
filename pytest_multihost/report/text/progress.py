"""The progress of ranks: the live line while a world runs, and the points they have passed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath

from pytest_multihost.blame import BlockingRanks
from pytest_multihost.model.operation import group_by_value, rank_set
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import Subject, phase_name
from pytest_multihost.model.stack import Frame
from pytest_multihost.model.sweep import RecordedPoint
from pytest_multihost.outcome import RankFacts
from pytest_multihost.outcome.passed_points import recorded_points, unrecorded_points

_MIN_WIDTH = 12
ERASE = "\x1b[K"
"""The escape sequence that erases the live line, which is right of the cursor."""


def blocking_text(
    seconds: float, blocking: BlockingRanks, *, for_s: float, where: Frame | None
) -> str:
    """Return, say, "14 s: waiting for rank 0: read(/data/x) at storage.py:17 for 12 s".

    Args:
        seconds: How long the world has been running.
        blocking: The blocking ranks, and the activity of the first one.
        for_s: How long others have waited for them.
        where: The line that the first one is in, if known.
    """
    # Without its timeout: the line is short.
    doing = f": {blocking.activity.call}" if blocking.activity is not None else ""
    place = f" at {PurePath(where.file).name}:{where.line}" if where is not None else ""
    who = rank_set(blocking.ranks)
    return f"{seconds:.0f} s: waiting for {who}{doing}{place} for {for_s:.0f} s"


def progress_text(seconds: float, facts: Iterable[RankFacts], subject: Subject = "test") -> str:
    """Return the phases of the ranks, as in "12 s: rank 0 in call, ranks 1-3 done".

    Of what is no test the phase has its name: pytest's word is not known there.
    """
    places = group_by_value((_progress(each, subject), each.rank) for each in facts)
    where = ", ".join(f"{rank_set(ranks)} {place}" for place, ranks in places.items())
    return f"{seconds:.0f} s: {where}"


def _progress(facts: RankFacts, subject: Subject) -> str:
    if facts.is_gone:
        return "gone"
    return "done" if facts.is_past_body else f"in {phase_name(facts.phase, subject)}"


def overlay(text: str, width: int) -> str:
    """Return the output that shows `text` right of the cursor without moving the cursor.

    pytest may be in the middle of a line of dots or of a test's name; its next output overwrites
    this text.

    Args:
        text: The text to show; cut to fit.
        width: Columns that are left in the line.
    """
    if width < _MIN_WIDTH:
        return ""
    shown = f" {text}"[: width - 1]
    return f"{shown}{ERASE}\x1b[{len(shown)}D"


def _passed_points(points: Iterable[RecordedPoint], more: int) -> tuple[str, ...]:
    """Return points in order, repeated ones once with a count, and how many more there are."""
    runs = groupby(replace(each.point, nth=1) for each in points)
    counts = [(point, len(list(same))) for point, same in runs]
    found = [f"{point!r} x{count}" if count > 1 else repr(point) for point, count in counts]
    return (*found, f"and {more} more") if more else tuple(found)


def points_lines(result: WorldResult) -> list[str]:
    """Return the points of a world, one line for ranks that have passed the same points."""
    points, more = recorded_points(result.history), unrecorded_points(result.history)
    ranks = range(result.spec.size)
    together = group_by_value(
        (_passed_points(points.get(rank, ()), more.get(rank, 0)), rank) for rank in ranks
    )
    lines = [f"{rank_set(ranks)}  {', '.join(seen) or 'none'}" for seen, ranks in together.items()]
    return [f"points of {result.spec.nodeid}", *(f"  {line}" for line in lines)]
