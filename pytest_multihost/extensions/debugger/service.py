"""Lend the controller's terminal to the debugger of one rank at a time.

A rank asks for the terminal each time its debugger stops, and returns it as soon as its program
runs on, because the program may then wait for a rank that asks as well. After a step it asks again
within moments, so the others wait for `STEP_S` before the next one gets the terminal.

While a rank has the terminal, no wait is a hang, and all deadlines are put off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_multihost.core.model.event import Event, Exited
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.messages import SentByService
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Action, Opening, Service, ServiceKind, Turn
from pytest_multihost.extensions.debugger.messages import (
    NAME,
    Debugger,
    TerminalLent,
    TerminalReturned,
    TerminalWanted,
    sent,
)

STEP_S = 0.5
"""How long the other ranks wait after a step of the rank that had the terminal."""

_CHECK_S = 0.05


class Terminal(Protocol):
    """The controller's terminal."""

    def lend(self, pid: int) -> None:
        """Leave it to a process, and forward Ctrl-C to that process from now on."""

    def take_back(self) -> None:
        """Restore its settings, and let Ctrl-C end the run again."""


@dataclass(slots=True)
class TerminalQueue:
    """The ranks that want the terminal, and the rank that has it."""

    terminal: Terminal
    _owner: int | None = None
    _lent_s: float = 0.0
    _waiting: list[int] = field(default_factory=list)
    _stepping: int | None = None
    _steps_until_s: float = 0.0
    _held: list[tuple[float, float]] = field(default_factory=list)
    _has_examined: bool = False
    _has_quit: bool = False

    def after(self, event: Event, facts: Sequence[RankFacts]) -> Sequence[Action]:
        """Lend the terminal, refuse it or take it back, as an event demands.

        Only the first exception of a world is examined: the others may only follow from it. Once
        the user has quit, no rank stops any more.
        """
        rank = event.rank
        match sent(event) or event.body:
            case TerminalWanted(is_post_mortem=True) if self._has_examined:
                return [_refusal([rank])]
            case TerminalWanted() if self._has_quit:
                return [_refusal([rank])]
            case TerminalWanted(is_post_mortem=is_post_mortem):
                self._has_examined |= is_post_mortem
                self._waiting.append(rank)
                return self._next(event.at_s, facts)
            case TerminalReturned(quits=True):
                refused, self._waiting, self._has_quit = self._waiting, [], True
                return [self._returned(event.at_s), _refusal(refused)]
            case TerminalReturned(steps=steps):
                self._stepping = rank if steps else None
                self._steps_until_s = event.at_s + STEP_S
                return [self._returned(event.at_s), *self._next(event.at_s, facts)]
            case Exited():
                self._waiting = [each for each in self._waiting if each != rank]
                self._stepping = None if self._stepping == rank else self._stepping
                if rank == self._owner:
                    return [self._returned(event.at_s), *self._next(event.at_s, facts)]
        return ()

    def due(self, turn: Turn) -> Sequence[Action]:
        """Return the action that lends the terminal to the next rank, if the last step is over."""
        return self._next(turn.now, turn.facts)

    def is_acting(self, _now: float) -> bool:
        """Return whether a rank has the terminal, or waits for it."""
        return self._owner is not None or bool(self._waiting)

    def interval_s(self) -> float:
        """Return the longest time until the next call of `due`."""
        return _CHECK_S if self._waiting and self._owner is None else math.inf

    def held_s(self, since_s: float, until_s: float) -> float:
        """Return for how long a rank had the terminal from one time to another."""
        open_span = [] if self._owner is None else [(self._lent_s, until_s)]
        return sum(
            max(0.0, min(end_s, until_s) - max(begin_s, since_s))
            for begin_s, end_s in (*self._held, *open_span)
        )

    def close(self) -> None:
        """Take the terminal back if a rank still has it."""
        if self._owner is not None:
            self._owner = None
            self.terminal.take_back()

    def _next(self, now: float, facts: Sequence[RankFacts]) -> Sequence[Action]:
        if self._owner is not None or not self._waiting:
            return ()
        is_stepping = self._stepping is not None and now < self._steps_until_s
        if is_stepping and self._stepping not in self._waiting:
            return ()
        chosen = self._stepping if is_stepping and self._stepping is not None else self._waiting[0]
        self._waiting.remove(chosen)
        self._owner, self._lent_s = chosen, now
        pid = facts[chosen].pid
        return [
            Action(
                perform=lambda _now: self.terminal.lend(pid or 0),
                to_ranks=(_answer(chosen),),
                is_certain=True,
            )
        ]

    def _returned(self, at_s: float) -> Action:
        self._held.append((self._lent_s, at_s))
        self._owner = None
        return Action(perform=lambda _now: self.terminal.take_back(), moves_at_s=at_s)


def _refusal(ranks: Sequence[int]) -> Action:
    return Action(to_ranks=tuple(_answer(rank, is_refused=True) for rank in ranks))


def _answer(rank: int, *, is_refused: bool = False) -> tuple[int, SentByService]:
    return rank, SentByService(NAME, to_json(TerminalLent(is_refused)))


def _open(opening: Opening) -> Service:
    from pytest_multihost.extensions.debugger.in_pytest import BorrowedTerminal

    queue = TerminalQueue(BorrowedTerminal.of_run(Debugger.of(opening.spec)))
    return Service(
        name=NAME,
        interval_s=queue.interval_s,
        after=queue.after,
        due=queue.due,
        is_acting=queue.is_acting,
        held_s=queue.held_s,
        close=queue.close,
    )


# Services that are needed are asked first: nothing else is due while a rank has the terminal.
DEBUGGER = ServiceKind(name=NAME, open=_open, needed_by=lambda spec: NAME in spec.services)
