"""The clock of a rank's world: the machine's, or one that also jumps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.clock import ClockPage, attach_clock, clock_page_path
from pytest_multihost.model.event import now
from pytest_multihost.model.spec import RankSpec


@dataclass(frozen=True, slots=True, eq=False)
class WorldClock:
    """How time passes in a world.

    In a world with `clock="jump"` all processes share one clock. While nothing but time can end
    their waits, it jumps to the end of the earliest. Otherwise it is the machine's clock.
    """

    _page: ClockPage | None = None

    def __repr__(self) -> str:
        """Say what it shows, as in "<WorldClock: 1234.5 s after 3 jumps>"."""
        return f"<WorldClock: {self.now():.1f} s after {self.jumps} jumps>"

    def now(self) -> float:
        """Return the world's time in seconds: what `time.monotonic()` returns in its ranks."""
        return now()

    @property
    def jumps(self) -> int:
        """How often it has jumped; always 0 with `clock="real"`."""
        return 0 if self._page is None else self._page.jumps

    @property
    def is_jumping(self) -> bool:
        """Whether it jumps whenever it can: not with `clock="real"`, nor while it must not."""
        return self._page is not None and self._page.is_jumping


def join_clock(spec: RankSpec) -> None:
    """Let this process follow its world's clock from now on, if that is not the machine's.

    Raises:
        RuntimeError: This process was started without the library that this takes.
        OSError: There is no such clock.
    """
    if spec.world.clock == "jump":
        attach_clock(clock_page_path(Path(spec.scratch)))


def clock_of(spec: RankSpec) -> WorldClock:
    """Return the clock of a rank's world.

    Raises:
        OSError: There is no such clock.
    """
    if spec.world.clock == "real":
        return WorldClock()
    return WorldClock(ClockPage.open(clock_page_path(Path(spec.scratch))))
