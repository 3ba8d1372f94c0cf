"""Hazards: what a passing run shows of hangs elsewhere, and the record that they are found in.

`Hazards` is a field of verdict.json, see docs/verdict.md: fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_multihost.core.model.fault import Point
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.core.model.verdict import OperationName, Place


@dataclass(frozen=True, slots=True)
class Launch:
    """An operation that a rank has launched.

    Attributes:
        rank: The rank.
        number: Its place among the operations of the rank: later ones have higher numbers.
        thread: The thread that launched it.
        frame: The user's line that launched it.
        operation: The operation as it was at the end; its thread and line are of the last wait.
        nth: Which of the rank's operations of this name it is in the test.
    """

    rank: int
    number: int
    thread: int
    frame: Frame | None
    operation: Operation
    nth: int = 0


@dataclass(frozen=True, slots=True)
class RankRecord:
    """All operations of one rank, in the order in which it launched them.

    Attributes:
        is_truncated: Whether there were more than are kept.
    """

    rank: int
    launches: tuple[Launch, ...] = ()
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class HazardStep:
    """What a rank did at one line.

    Attributes:
        text: What it did, for the reader.
        operation: The operation; None if it is none.
        where: The user's line; None if the user's code is not on the stack.
        nth: Which of the rank's operations of this name it is, as `at.collective` counts them.
        point: Always None.
    """

    text: str
    operation: OperationName | None
    where: Place | None
    nth: int = 0
    point: Point | None = None

    def __str__(self) -> str:
        """Return it with its line."""
        return f"{self.text} at {self.where.file}:{self.where.line}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class HazardSide:
    """What one rank did, in order."""

    rank: int
    steps: tuple[HazardStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A way in which a program that has passed can hang.

    Attributes:
        rule: The name of the rule that has found it.
        summary: What was seen, in one sentence.
        when: When it hangs, in one sentence.
        sides: What the ranks did.
        count: How often this run shows it, at the same lines.
        accepted: Why the project accepts it; None if it does not.
    """

    rule: str
    summary: str
    when: str
    sides: tuple[HazardSide, ...]
    count: int = 1
    accepted: str | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """The lines, in the order of the sides."""
        steps = (step for side in self.sides for step in side.steps)
        return tuple(dict.fromkeys(step.where for step in steps if step.where is not None))

    @property
    def text(self) -> str:
        """All of it: a line for the summary, each side, and when it hangs."""
        sides = [
            f"  rank {side.rank}: {', then '.join(map(str, side.steps))}" for side in self.sides
        ]
        often = [f"  seen {self.count} times in this run"] if self.count > 1 else []
        return "\n".join([f"{self.rule}: {self.summary}", *sides, *often, f"  {self.when}"])


@dataclass(frozen=True, slots=True)
class Hazards:
    """What was looked for in a run that has passed, and found.

    Attributes:
        rules: The names of the rules that were applied.
        found: What they have found.
        truncated: Ranks with more operations than are kept: later ones were not judged.
    """

    rules: tuple[str, ...]
    found: tuple[Hazard, ...] = ()
    truncated: tuple[int, ...] = ()

    @property
    def open(self) -> tuple[Hazard, ...]:
        """Those that the project does not accept."""
        return tuple(each for each in self.found if each.accepted is None)


PlaceOf = Callable[[Frame], Place]
"""Returns the place of a frame, as `SourceContext.place` does."""
