"""A cause: why a world hung, in ranks and operations. Words are added later."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.core.model.child import Child
from pytest_multihost.core.model.event import Effect
from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.verdict import Confidence, Kind

Side = tuple[Operation, tuple[int, ...]]
"""The operation that some ranks entered at one place of a group, and these ranks."""

SMALLER = "a smaller one"
"""The name of an operation of which only this is known: less data was expected in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a world hung, in ranks and operations; words are added later.

    Attributes:
        culprits: Ranks whose absence makes the others wait; empty if no single rank is to blame.
        waiting: Ranks that wait for the culprits, directly or through others.
        cycle: Ranks that wait for each other in turn.
        operation: The operation in which the first rank began to wait, if it waits in one.
        at_s: When the cause began, on the monotonic clock; None if unknown.
        error: The exception by which the culprit left the operation, if known.
        cut: The partition that keeps the operation from ending, if any.
        passed: The payloads of the operation that do not match, each with its ranks.
        sides: The operations entered at one place, culprits first, if a failure shows that they
            differ.
        unmatched: A transfer of the culprit without a counterpart, and then the transfer of another
            rank that lacks it, each with its rank.
        begun: Members that have begun the operation in which others wait, and do not wait in it.
        call: Where native code of the culprit holds the GIL, as in "in torch.save".
        is_silent: Whether nothing is known of the culprits.
        is_owed: Whether they wait for something that another rank may provide.
        parts: The causes that this one puts together; empty for a cause of its own.
        child: The process of the culprit, a child of it, that does not do its part; None: itself.
        lost: Children of the culprit that signals have ended, and for which the others wait.
    """

    kind: Kind
    confidence: Confidence
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    operation: Operation | None = None
    waits: tuple[Wait, ...] = ()
    at_s: float | None = None
    error: str = ""
    cut: Effect | None = None
    passed: tuple[tuple[str, tuple[int, ...]], ...] = ()
    sides: tuple[Side, ...] = ()
    unmatched: tuple[tuple[int, Operation], ...] = ()
    begun: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    call: str = ""
    is_silent: bool = False
    is_owed: bool = False
    parts: tuple[Cause, ...] = ()
    child: Child | None = None
    lost: tuple[Child, ...] = ()

    @property
    def concerned_waits(self) -> tuple[Wait, ...]:
        """The waits of the waiting ranks and of the culprits."""
        concerned = {*self.waiting, *self.culprits}
        return tuple(wait for wait in self.waits if wait.rank in concerned)


UNKNOWN = Cause(kind="unknown", confidence="unknown")
"""The cause where none was found."""


def first_waits(cause: Cause) -> list[Wait]:
    """Return one wait of each rank of the cause.

    A rank may wait in several operations, each in a thread of its own. The result has the wait for
    the culprits, for the next rank of the cycle, or in the operation of the cause.
    """
    ahead = dict(zip(cause.cycle, (*cause.cycle[1:], *cause.cycle[:1]), strict=True))

    def concerns_less(wait: Wait) -> tuple[bool, ...]:
        own, its = wait.operation, cause.operation
        return (
            ahead.get(wait.rank) not in wait.missing,
            cause.kind == "mismatch" and not wait.is_mismatch,
            own is None or its is None or not own.is_same_as(its),
            wait.missing.isdisjoint(cause.culprits),
        )

    by_rank = group_by_value((wait.rank, wait) for wait in cause.concerned_waits)
    return [min(waits, key=concerns_less) for waits in by_rank.values()]
