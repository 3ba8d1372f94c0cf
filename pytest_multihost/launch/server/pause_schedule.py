"""Ranks that are stopped for a while, or again and again, and when to continue them.

All moments are absolute, so a turn that came late does not put off those after it. No I/O: who
keeps them is told what to send to whom.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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

    def begin(self, rank: int, wish: Mapping[str, Any], now_s: float) -> list[tuple[int, int]]:
        """Stop a rank now, and later continue it; return who is to get which signal now.

        Args:
            rank: Whom.
            wish: `stopped_s` and `running_s` of a turn, and `until_s`; None or absent is for ever.
            now_s: The time.
        """
        self._planned[rank] = _Pause(
            stopped_s=_seconds(wish.get("stopped_s")),
            running_s=_seconds(wish.get("running_s")),
            until_s=_seconds(wish.get("until_s")),
            due_s=now_s,
        )
        return self.act(now_s)

    def end(self, rank: int) -> list[tuple[int, int]]:
        """Continue a rank for good; return who is to get which signal now."""
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

    def act(self, now_s: float) -> list[tuple[int, int]]:
        """Return who is to get which signal now."""
        sent: list[tuple[int, int]] = []
        for rank, pause in list(self._planned.items()):
            if now_s >= pause.until_s:
                sent += self.end(rank)
            elif now_s >= pause.due_s:
                pause.is_stopped = not pause.is_stopped
                sent.append((rank, signal.SIGSTOP if pause.is_stopped else signal.SIGCONT))
                pause.due_s += pause.stopped_s if pause.is_stopped else pause.running_s
        return sent


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.inf
