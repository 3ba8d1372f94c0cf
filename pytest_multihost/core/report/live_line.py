"""The line on the terminal while a world runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from pytest_multihost.core.blame import BlockingRanks
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.spec import Subject, phase_name
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.outcome import RankFacts

_MIN_WIDTH = 12
ERASE = "\x1b[K"
"""The escape sequence that erases the live line to the right of the cursor."""


def blocking_text(
    seconds: float, blocking: BlockingRanks, names: Names, *, for_s: float, where: Frame | None
) -> str:
    """Return a line such as "14 s: waiting for rank 0: read(/data/x) at storage.py:17 for 12 s".

    Args:
        seconds: How long the world has been running.
        blocking: The blocking ranks, and the activity of the first one.
        for_s: How long others have waited for them.
        where: The line that the first one is in, if known.
    """
    # The activity's timeout is skipped to keep the line short.
    doing = f": {blocking.activity.call}" if blocking.activity is not None else ""
    place = f" at {PurePath(where.file).name}:{where.line}" if where is not None else ""
    who = names.of(blocking.ranks)
    return f"{seconds:.0f} s: waiting for {who}{doing}{place} for {for_s:.0f} s"


def progress_text(
    seconds: float, facts: Iterable[RankFacts], names: Names, subject: Subject = "test"
) -> str:
    """Return the phases of the ranks, as in "12 s: rank 0 in call, ranks 1-3 done".

    If the subject is not a test, the phase has another name, because pytest's is unknown there.
    """
    places = group_by_value((_progress(each, subject), each.rank) for each in facts)
    where = ", ".join(f"{names.of(ranks)} {place}" for place, ranks in places.items())
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
    shown = f" {printable(text)}"[: width - 1]
    return f"{shown}{ERASE}\x1b[{len(shown)}D"
