"""Which rank gets the terminal for its debugger, on hand-made events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.services import Action, Turn
from pytest_multihost.extensions.debugger.messages import (
    NAME,
    TerminalLent,
    TerminalReturned,
    TerminalWanted,
    sent,
)
from pytest_multihost.extensions.debugger.service import STEP_S, TerminalQueue
from pytest_multihost.testing import (
    Event,
    Exited,
    SentByService,
    SentToService,
    from_json,
    to_json,
)

pytestmark = pytest.mark.unit

FACTS = [RankFacts(rank, pid=100 + rank) for rank in range(4)]


@dataclass
class Terminal:
    """Records each process that got the terminal, and None for each time it was taken back."""

    users: list[int | None] = field(default_factory=list)

    def lend(self, pid: int) -> None:
        self.users.append(pid)

    def take_back(self) -> None:
        self.users.append(None)


@dataclass
class Debugged:
    """A queue whose actions are performed as the engine performs them."""

    terminal: Terminal = field(default_factory=Terminal)
    sent: list[tuple[int, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = TerminalQueue(self.terminal)

    def perform(self, actions: Sequence[Action], now: float) -> None:
        for each in actions:
            each.perform(now)
            for rank, answer in each.to_ranks:
                assert isinstance(answer, SentByService)
                assert answer.service == NAME
                self.sent.append((rank, from_json(TerminalLent, answer.message)))

    def wants(self, rank: int, at_s: float = 0.0, *, is_post_mortem: bool = False) -> None:
        self.tells(rank, at_s, TerminalWanted(is_post_mortem))

    def returns(self, rank: int, at_s: float, *, steps: bool = False, quits: bool = False) -> None:
        self.tells(rank, at_s, TerminalReturned(steps, quits))

    def tells(self, rank: int, at_s: float, message: TerminalWanted | TerminalReturned) -> None:
        event = Event(at_s, rank, SentToService(NAME, to_json(message)))
        self.perform(self.queue.after(event, FACTS), at_s)

    def dies(self, rank: int, at_s: float) -> None:
        self.perform(self.queue.after(Event(at_s, rank, Exited(signal=9)), FACTS), at_s)

    def waits_until(self, now: float) -> None:
        turn = Turn(now=now, facts=FACTS, deadline_s=9e9, horizon_s=9e9, is_last=True)
        self.perform(self.queue.due(turn), now)


def test_ranks_get_the_terminal_one_after_another() -> None:
    """In the order in which they asked; each one is sent its turn."""
    world = Debugged()
    world.wants(2, 1.0)
    world.wants(0, 1.1)
    assert world.terminal.users == [102]
    world.returns(2, 5.0)
    assert world.terminal.users == [102, None, 100]
    assert world.sent == [(2, TerminalLent()), (0, TerminalLent())]


def test_a_rank_that_steps_gets_the_terminal_again_before_others() -> None:
    """Otherwise each `next` would end in another rank."""
    world = Debugged()
    world.wants(2, 1.0)
    world.wants(0, 1.1)
    world.returns(2, 5.0, steps=True)
    world.wants(2, 5.0 + STEP_S / 2)
    assert world.terminal.users == [102, None, 102]


def test_a_step_that_waits_for_another_rank_gives_it_the_terminal() -> None:
    """A step over a barrier ends once the others have come, which may wait for the terminal."""
    world = Debugged()
    world.wants(2, 1.0)
    world.wants(0, 1.1)
    world.returns(2, 5.0, steps=True)
    world.waits_until(5.0 + STEP_S / 2)
    assert world.terminal.users == [102, None]
    world.waits_until(5.0 + STEP_S)
    assert world.terminal.users == [102, None, 100]


def test_a_rank_that_dies_in_the_debugger_returns_the_terminal() -> None:
    """And one that dies while it waits never gets it."""
    world = Debugged()
    for rank in (2, 0, 1):
        world.wants(rank)
    world.dies(0, 3.0)
    world.dies(2, 4.0)
    assert world.terminal.users == [102, None, 101]


def test_only_the_first_exception_is_examined() -> None:
    """The others may only follow from it; a breakpoint stops any rank."""
    world = Debugged()
    world.wants(2, 1.0, is_post_mortem=True)
    world.wants(0, 2.0, is_post_mortem=True)
    world.wants(1, 3.0)
    assert world.sent == [(2, TerminalLent()), (0, TerminalLent(is_refused=True))]
    world.returns(2, 9.0)
    assert world.sent[-1] == (1, TerminalLent())


def test_the_time_in_the_debugger_holds_up_the_world() -> None:
    """Only the part of it in the interval that is asked about, also while it goes on."""
    world = Debugged()
    world.wants(2, 10.0)
    assert world.queue.held_s(0.0, 15.0) == 5.0
    world.returns(2, 30.0)
    assert world.queue.held_s(0.0, 99.0) == 20.0
    assert world.queue.held_s(25.0, 99.0) == 5.0
    assert world.queue.held_s(31.0, 99.0) == 0.0


def test_the_world_is_influenced_from_the_first_wish_to_the_last_return() -> None:
    """So that no wait of the other ranks is taken for a hang."""
    world = Debugged()
    assert not world.queue.is_acting(0.0)
    world.wants(2, 1.0)
    world.wants(0, 1.0)
    world.returns(2, 2.0, steps=True)
    assert world.queue.is_acting(2.1)
    world.returns(0, 3.0)
    world.waits_until(9.0)
    world.returns(0, 10.0)
    assert not world.queue.is_acting(11.0)


def test_the_end_of_the_world_takes_the_terminal_back() -> None:
    """Ctrl-C and the settings of the terminal are pytest's again."""
    world = Debugged()
    world.queue.close()
    assert world.terminal.users == []
    world.wants(2)
    world.queue.close()
    assert world.terminal.users == [102, None]


def test_no_rank_stops_once_the_user_has_quit() -> None:
    """Neither those that wait for the terminal, nor those that would ask for it."""
    world = Debugged()
    world.wants(2)
    world.wants(0)
    world.returns(2, 5.0, quits=True)
    world.wants(1, 6.0)
    refused = TerminalLent(is_refused=True)
    assert world.sent == [(2, TerminalLent()), (0, refused), (1, refused)]
    assert world.terminal.users == [102, None]


@pytest.mark.parametrize(
    "body",
    [
        SentToService("another", to_json(TerminalWanted())),
        SentToService(NAME, {"kind": "TerminalStolen"}),
        Exited(code=0),
    ],
)
def test_other_messages_are_none_to_the_service(body: SentToService | Exited) -> None:
    """A test may write anything into the connection of its rank."""
    assert sent(Event(1.0, 0, body)) is None
    world = Debugged()
    assert not world.queue.after(Event(1.0, 0, body), FACTS)
