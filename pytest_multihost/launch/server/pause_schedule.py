"""When to stop ranks and when to continue them: once, or in turns.

All times are absolute, so a turn that came late does not put off those after it. Sends nothing: the
caller is given the signals.
"""

from __future__ import annotations

import math
import signal
from dataclasses import dataclass, field

from pytest_multihost.model.event import Pause

Signals = list[tuple[int, int]]
"""Ranks, and the number of the signal that each is to get."""


@dataclass(slots=True)
class _Pause:
    """One rank that is stopped and continued.

    Attributes:
        stopped_s: How long it is stopped in each turn.
        running_s: How long it runs in each turn; 0 if there is one turn only.
        until_s: When it is continued for good.
        due_s: When the next signal is to be sent.
        is_stopped: Whether the last one was SIGSTOP.
    """

    stopped_s: float
    running_s: float
    until_s: float
    due_s: float
    is_stopped: bool = False


@dataclass(slots=True)
class PauseSchedule:
    """The ranks of one world that are stopped and continued."""

    _planned: dict[int, _Pause] = field(default_factory=dict)

    def begin(self, rank: int, pause: Pause, now_s: float) -> Signals:
        """Stop a rank now, and later continue it; return which signals to send now."""
        self._planned[rank] = _Pause(
            stopped_s=_or_for_ever(pause.stopped_s),
            running_s=_or_for_ever(pause.running_s),
            until_s=_or_for_ever(pause.until_s),
            due_s=now_s,
        )
        return self.act(now_s)

    def end(self, rank: int) -> Signals:
        """Continue a rank for good; return which signals to send now."""
        was = self._planned.pop(rank, None)
        return [(rank, signal.SIGCONT)] if was is not None else []

    def forget(self) -> None:
        """Plan nothing any more: the world is being ended."""
        self._planned.clear()

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds there is something to do, None if never."""
        due_s = min(
            (min(each.due_s, each.until_s) for each in self._planned.values()), default=None
        )
        return None if due_s is None or math.isinf(due_s) else max(0.0, due_s - now_s)

    def act(self, now_s: float) -> Signals:
        """Return which signals to send now."""
        sent: Signals = []
        for rank, pause in list(self._planned.items()):
            if now_s >= pause.until_s:
                sent += self.end(rank)
            elif now_s >= pause.due_s:
                pause.is_stopped = not pause.is_stopped
                sent.append((rank, signal.SIGSTOP if pause.is_stopped else signal.SIGCONT))
                pause.due_s += pause.stopped_s if pause.is_stopped else pause.running_s
        return sent


def _or_for_ever(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
