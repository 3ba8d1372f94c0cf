"""The faults of a rank: performs them, and records the points that the rank passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.rank.services import RankPart, RankTest, Send
from pytest_multihost.extensions.faults.points import (
    Points,
    bind_faults,
    delay_start,
    start_faults,
)
from pytest_multihost.faults.kind import kinds_by_name


@dataclass(slots=True)
class _Faults:
    """The faults of this rank.

    Attributes:
        points: The points that it passes, once its test has begun.
    """

    spec: RankSpec
    points: list[Points] = field(default_factory=list)

    def delay(self, send: Send) -> None:
        """Delay the rank before its rendezvous."""
        delay_start(self.spec, send)

    def start(self, test: RankTest) -> None:
        """Bind the faults to their points, wrap the functions that these name, and pass the start.

        Raises:
            SettingError: There is no such function.
        """
        found = test.plugins.hook.pytest_multihost_faults() if self.spec.world.faults else ()
        points = bind_faults(self.spec, kinds_by_name(found), current_recorder(), test)
        self.points.append(points)
        start_faults(points, test.modules)

    def pass_sync_point(self, name: str) -> None:
        """Pass a sync point of the test."""
        __tracebackhide__ = True
        for each in self.points:
            if each.bindings or each.record is not None:
                each.pass_point("sync_point", name)

    def heal(self) -> None:
        """End and undo all faults."""
        for each in self.points:
            each.heal()


def join(spec: RankSpec) -> RankPart:
    """Return the part in this rank."""
    faults = _Faults(spec)
    return RankPart(
        delay=faults.delay,
        start=faults.start,
        sync_point=faults.pass_sync_point,
        over=faults.heal,
    )
