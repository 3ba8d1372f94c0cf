"""The values of hazards, and the record of a run in which rules find them.

`Hazards` is a field of verdict.json, see docs/results.md: fields are added, never renamed.
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
    """An operation that a rank launched.

    Attributes:
        number: Orders the operations of the rank: later ones have higher numbers.
        thread: The thread that launched the operation.
        frame: The user's line that launched the operation.
        operation: The operation's last state; its thread and line are those of the last wait.
        nth: 1 for the rank's first operation of this name in the test.
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
        is_truncated: Whether the rank launched more operations than are kept.
    """

    rank: int
    launches: tuple[Launch, ...] = ()
    is_truncated: bool = False


@dataclass(frozen=True, slots=True)
class HazardStep:
    """The action of a rank at one line.

    Attributes:
        operation: None if the rank launched no operation.
        where: The user's line; None if the user's code is not on the stack.
        nth: 1 for the rank's first operation of this name, as `at.collective` counts.
        point: Always None.
    """

    text: str
    operation: OperationName | None
    where: Place | None
    nth: int = 0
    point: Point | None = None

    def __str__(self) -> str:
        """Return the description, with the line."""
        return f"{self.text} at {self.where.file}:{self.where.line}" if self.where else self.text


@dataclass(frozen=True, slots=True)
class HazardSide:
    """The steps of one rank, in order."""

    rank: int
    steps: tuple[HazardStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A way in which a program that passed can hang.

    Attributes:
        rule: The name of the rule that found the hazard.
        summary: The finding of the rule, in one sentence.
        when: When the program hangs, in one sentence.
        count: The number of findings at these lines.
        accepted: The project's reason to accept the hazard; None if it is not accepted.
    """

    rule: str
    summary: str
    when: str
    sides: tuple[HazardSide, ...]
    count: int = 1
    accepted: str | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """The user's lines, in the order of the sides."""
        steps = (step for side in self.sides for step in side.steps)
        return tuple(dict.fromkeys(step.where for step in steps if step.where is not None))

    @property
    def text(self) -> str:
        """The whole hazard, one line each for the summary, each side, and when it hangs."""
        sides = [
            f"  rank {side.rank}: {', then '.join(map(str, side.steps))}" for side in self.sides
        ]
        often = [f"  seen {self.count} times in this run"] if self.count > 1 else []
        return "\n".join([f"{self.rule}: {self.summary}", *sides, *often, f"  {self.when}"])


@dataclass(frozen=True, slots=True)
class Hazards:
    """The hazards of a run that passed.

    Attributes:
        rules: The names of the applied rules.
        truncated: Ranks that launched more operations than are kept: later ones were not judged.
    """

    rules: tuple[str, ...]
    found: tuple[Hazard, ...] = ()
    truncated: tuple[int, ...] = ()

    @property
    def open(self) -> tuple[Hazard, ...]:
        """The hazards that the project does not accept."""
        return tuple(each for each in self.found if each.accepted is None)


PlaceOf = Callable[[Frame], Place]
"""Returns the place of a frame, as `SourceContext.place` does."""
