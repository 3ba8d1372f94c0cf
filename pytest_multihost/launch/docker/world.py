"""A world whose hosts have a server each, as the engine sees it: as one."""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pytest_multihost.launch.interface import DumpKind, Ending
from pytest_multihost.launch.server.world import ServerWorld
from pytest_multihost.launch.wire.framing import Frame
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event, Exited

T = TypeVar("T")


@dataclass(slots=True)
class JoinedWorld:
    """The shares of one world.

    A host whose server is gone has failed as a whole, as by a power cut: its ranks were killed. The
    world goes on, for that is what its other ranks would see.

    Attributes:
        shares: Each holds other ranks, and all ranks together.
    """

    shares: Sequence[ServerWorld]
    _announced: bool = field(default=False, init=False)
    _exited: set[int] = field(default_factory=set, init=False)
    _lost: set[int] = field(default_factory=set, init=False)
    _deaths: list[Event] = field(default_factory=list, init=False)

    @property
    def tables(self) -> dict[str, socket.socket]:
        """What the hosts' tables of sockets are read from, by the names of their networks."""
        return {name: table for share in self.shares for name, table in share.tables.items()}

    @property
    def servers(self) -> frozenset[int]:
        """The processes that have forked the ranks."""
        return frozenset(share.server.pid for share in self.shares)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return what happened, waiting at most `timeout_s` seconds for the first event."""
        if not self._announced:
            self._announced = True
            return [event for share in self.shares for event in share.wait(0.0)]
        ready = self._ready(0.0 if self._deaths else timeout_s)
        heard = [self._ask(share, partial(share.wait, 0.0)) or () for share in ready]
        return self._told(event for events in heard for event in events)

    def _told(self, heard: Iterable[Event]) -> list[Event]:
        """Return what was heard and the deaths of ranks with their hosts, in order of time."""
        events = [*heard, *self._deaths]
        self._deaths = []
        self._exited |= {event.rank for event in events if isinstance(event.body, Exited)}
        return sorted(events, key=lambda event: event.at_s)

    def _ready(self, timeout_s: float) -> list[ServerWorld]:
        poll = select.poll()
        by_descriptor = {share.fileno(): share for share in self._living()}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(max(0.0, timeout_s) * 1000)
        return [by_descriptor[descriptor] for descriptor, _ in ready]

    def _living(self, ranks: Iterable[int] | None = None) -> list[ServerWorld]:
        """Return the hosts that are there, only those of `ranks` if some are named."""
        wanted = set().union(*(share.streams for share in self.shares)) if ranks is None else ranks
        return [
            share
            for index, share in enumerate(self.shares)
            if index not in self._lost and not share.streams.keys().isdisjoint(wanted)
        ]

    def _ask(self, share: ServerWorld, request: Callable[[], T]) -> T | None:
        """Return the answer to a request; None from a host that turns out to be gone."""
        try:
            return request()
        except LaunchError:
            self._lost.add(self.shares.index(share))
            share.let_go()
            at_s = time.monotonic()
            alive = [rank for rank in share.streams if rank not in self._exited]
            self._deaths += [_killed(rank, at_s) for rank in alive]
            return None

    def send(self, rank: int, frame: Frame) -> None:
        """Send a frame to a rank; a rank that is gone is no error here."""
        for share in self._living([rank]):
            share.send(rank, frame)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write what is asked for to its file."""
        for share in self._living(ranks):
            theirs = [rank for rank in ranks if rank in share.streams]
            self._ask(share, partial(share.request_dumps, theirs, kind))

    def pause(self, rank: int, wish: Mapping[str, Any]) -> None:
        """Have a rank stopped, once or in turns, and continued by the clock."""
        for share in self._living([rank]):
            self._ask(share, partial(share.pause, rank, wish))

    def resume(self, rank: int) -> None:
        """End what `pause` began."""
        for share in self._living([rank]):
            self._ask(share, partial(share.resume, rank))

    def disturb(self, rank: int, index: int) -> None:
        """Refuse: these hosts are not made from namespaces, which is known as tests are planned."""
        raise LaunchError(f"fault {index} of rank {rank} needs hosts made from namespaces")

    def calm(self) -> None:
        """Let the network be: nothing disturbs it."""

    def end(self, *, grace_s: float) -> Ending:
        """End what is left, whatever state it is in, and return what was found."""
        for share in self._living():
            self._ask(share, partial(share.begin_end, grace_s=grace_s))
        endings = [self._ask(share, share.finish_end) for share in self._living()]
        found = [ending for ending in endings if ending is not None]
        for share in self._living():
            share.let_go()
        return Ending(
            tuple(self._told(event for ending in found for event in ending.events)),
            tuple(leftover for ending in found for leftover in ending.leftovers),
        )


def _killed(rank: int, at_s: float) -> Event:
    return Event(at_s, rank, Exited(signal=int(signal.SIGKILL)))
