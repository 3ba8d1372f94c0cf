"""Makes a rank follow the clock of its world."""

from __future__ import annotations

from pathlib import Path

from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.services import RankPart, WorldClock
from pytest_multihost.extensions.clock.page import ClockPage, attach_clock, clock_page_path


def join(spec: RankSpec) -> RankPart:
    """Make this process follow its world's clock from now on.

    Raises:
        RuntimeError: This process was started without the preloaded library.
        OSError: The world has no page of a clock.
    """
    path = clock_page_path(Path(spec.scratch))
    attach_clock(path)
    page = ClockPage.open(path)
    return RankPart(
        clock=WorldClock(
            _jumps=lambda: page.jumps,
            _is_jumping=lambda: page.is_jumping,
            _ahead_s=lambda: page.offset_s,
        )
    )
