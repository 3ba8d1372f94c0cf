"""A world whose clock jumps, with a clock that only we move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_multihost.core.model.event import Event, Exited, Pause
from pytest_multihost.core.model.result import ClockRecord
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.testing import well_behaved

Run = Callable[..., Any]
TWO = [*well_behaved(0), *well_behaved(1)]


@dataclass
class Asked:
    """Jumps as one wants them, and what was asked for.

    Attributes:
        wanted: What `due_s` returns, one after the other, then None.
        asked: For each question the next deadline, and whether it is the last.
        made: The jumps.
    """

    wanted: list[float | None] = field(default_factory=list)
    asked: list[tuple[float, bool]] = field(default_factory=list)
    made: list[float] = field(default_factory=list)
    interval_s: float = math.inf

    def due_s(
        self, now: float, facts: Sequence[RankFacts], deadline_s: float, *, is_last: bool
    ) -> float | None:
        self.asked.append((deadline_s, is_last))
        return self.wanted.pop(0) if self.wanted else None

    def jump(self, to_s: float) -> None:
        self.made.append(to_s)

    def in_world_time(self, event: Event) -> Event:
        late = isinstance(event.body, Exited)
        return replace(event, at_s=event.at_s + 500.0) if late else event

    def in_machine_time(self, pause: Pause) -> Pause | None:
        return replace(pause, until_s=None)

    def record(self) -> ClockRecord | None:
        return ClockRecord(len(self.made), 0.0)


def test_the_clock_jumps_to_the_time_that_is_due(run: Run) -> None:
    """As soon as no event of a rank is unread."""
    jumps = Asked([None] * 5 + [1050.0])
    run([*well_behaved(0), *well_behaved(1, stays_in="call")], jumps=jumps)
    assert jumps.made == [1050.0]


def test_the_record_of_the_clock_is_part_of_the_result(run: Run) -> None:
    """The page and the verdict say how often it has jumped."""
    assert run(TWO, jumps=Asked()).result.clock == ClockRecord(0, 0.0)


def test_events_of_the_server_get_the_time_of_the_world(run: Run) -> None:
    """Its clock is the machine's."""
    result = run(TWO, jumps=Asked()).result
    exits = [each.at_s for each in result.history if isinstance(each.body, Exited)]
    assert min(exits) >= 1500.0


def test_until_the_ranks_are_ready_the_deadline_is_the_startups(run: Run) -> None:
    """And the last: nothing but the end of the world comes after it."""
    jumps = Asked()
    run([*well_behaved(0, stays_in="startup"), *well_behaved(1)], jumps=jumps)
    assert set(jumps.asked) == {(1030.0, True)}
