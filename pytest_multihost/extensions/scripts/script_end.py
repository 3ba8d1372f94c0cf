"""Let ranks whose script is over leave before the others, if these may wait for that.

A rank whose script is over keeps its connections, so that a hang of ranks in operations with it is
found. But ranks in no operation may wait for the end of its process, or for a file that it holds.
So after a long time without any progress it leaves before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.model.event import Event, Gate
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.outcome.active_faults import active_fault_events, has_pending_actions
from pytest_multihost.core.services.service import Action, Opening, Service, ServiceKind, Turn

QUIET_S = 15.0
"""The time without progress after which ranks leave before others.

Any hang that can be proven has been proven by then, with their connections open."""

LEAVE_S = 5.0
"""How long the ranks may take to leave before the others are judged without them."""

NAME = "script_end"


@dataclass(slots=True)
class ScriptEnd:
    """Lets ranks leave whose script is over, if others may wait for that.

    Attributes:
        quiet_s: Returns how long, at a given time, no rank has made progress.
        are_in_operations: Returns whether any of the given ranks is in an operation.
        stays: Ranks that never leave before others.
    """

    quiet_s: Callable[[float], float]
    are_in_operations: Callable[[Collection[int]], bool]
    stays: frozenset[int] = frozenset()
    _leaving: set[int] = field(default_factory=set)
    _told: frozenset[int] = frozenset()
    _told_s: float = 0.0

    def due(self, turn: Turn) -> Sequence[Action]:
        """Return the action that lets ranks leave, if it is time for that."""
        if self.quiet_s(turn.now) < QUIET_S or _is_disturbed(turn):
            return ()
        over = {each.rank for each in turn.facts if each.is_past_body and not each.is_gone}
        over -= self._told | self.stays
        rest = [each.rank for each in turn.facts if not each.is_past_body]
        if not (over and rest) or self.are_in_operations(rest):
            return ()
        gates: tuple[tuple[int, Gate], ...] = tuple((rank, "teardown") for rank in sorted(over))
        return [Action(perform=lambda now: self._let(over, now), gates=gates, moves_at_s=turn.now)]

    def _let(self, ranks: set[int], now: float) -> None:
        self._told |= ranks
        self._leaving |= ranks
        self._told_s = now

    def after(self, event: Event, facts: Sequence[RankFacts]) -> Sequence[Action]:
        """Let a leaving rank exit once it is torn down, and forget it once it is gone."""
        rank = event.rank
        if rank not in self._leaving:
            return ()
        if facts[rank].is_gone:
            self._leaving.discard(rank)
        return [Action(gates=((rank, "exit"),))] if facts[rank].is_finished else ()

    def is_acting(self, now: float) -> bool:
        """Return whether ranks are about to leave."""
        return bool(self._leaving) and now < self._told_s + LEAVE_S


def _is_disturbed(turn: Turn) -> bool:
    """Return whether a rank has failed, or a fault is still to act."""
    has_failed = any(each.has_died or each.failed_s is not None for each in turn.facts)
    return has_failed or has_pending_actions(active_fault_events(turn.facts), turn.now)


def _open(opening: Opening) -> Service | None:
    if not opening.spec.argv:
        return None
    watchdog = opening.watchdog
    stays = opening.spec.role_hosts | ({0} if opening.primary_leaves_last else set())
    found = ScriptEnd(watchdog.quiet_s, watchdog.has_operations, stays)
    return Service(name=NAME, due=found.due, after=found.after, is_acting=found.is_acting)


SCRIPT_END = ServiceKind(name=NAME, open=_open, is_implied=True)
