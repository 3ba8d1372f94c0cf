"""Combine the ranks of several servers into one world for the engine.

The servers may be on several machines, where a launcher or an engine has started them.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.interface import Ending, RankControl, WorldProcesses
from pytest_multihost.core.launch.remote_ranks import RemoteRanks
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.messages import DumpKind, FaultRequest, PauseRank

T = TypeVar("T")


class WorldPart(RankControl, Protocol):
    """The ranks of a world that one server has started.

    Every request raises LaunchError when the server turns out to be gone.
    """

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of this part."""

    @property
    def has_events(self) -> bool:
        """Whether `wait` has events to return although nothing can be read."""

    @property
    def poll_events(self) -> int:
        """The poll events to wait for on its descriptor."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def collect_dumps(self) -> None:
        """Wait, if necessary, until the ranks' dumps are in the world's directory."""

    def begin_end(self, *, grace_s: float) -> None:
        """Have the server start ending the ranks."""

    def finish_end(self) -> Ending:
        """Wait for the end of the ranks, and return the last events and leftovers."""

    def close(self) -> None:
        """Close the streams."""


@dataclass(slots=True)
class CompositeWorld:
    """A world of several parts; it is lost when the server of one part ends.

    Attributes:
        parts: Together they hold each rank once.
        remote: The ranks on other machines, if there are any.
    """

    parts: Sequence[WorldPart]
    remote: RemoteRanks | None = None
    _lost: set[int] = field(default_factory=set, init=False)

    @property
    def processes(self) -> WorldProcesses:
        """The harness's own processes around the ranks."""
        found = [part.processes for part in self.parts]
        servers = frozenset[int]().union(*(each.servers for each in found))
        return WorldProcesses(
            servers=servers,
            companions=frozenset().union(*(each.companions for each in found)),
            exchanges=frozenset().union(*(each.exchanges for each in found)),
            idle=frozenset[int]().union(*(each.idle for each in found)) - servers,
            socket_tables={k: v for each in found for k, v in each.socket_tables.items()},
            remote=self.remote,
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes sent to and received from the ranks."""
        return sum(part.moved_bytes for part in self.parts)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return new events, waiting at most `timeout_s` seconds for the first one.

        Raises:
            LaunchError: A server is gone, and the world with it.
        """
        living = self._living()
        ready = [part for part in living if part.has_events]
        poll, by_descriptor = select.poll(), {part.fileno(): part for part in living}
        for descriptor, part in by_descriptor.items():
            poll.register(descriptor, part.poll_events)
        polled = poll.poll(0.0 if ready else max(0.0, timeout_s) * 1000)
        ready += [by_descriptor[descriptor] for descriptor, _ in polled]
        answers = [self._call(part, partial(part.wait, 0.0)) for part in living if part in ready]
        return _in_order(event for events in answers for event in events)

    def confirm(self) -> None:
        """Wait until every server has passed on all that its ranks had sent by now.

        Raises:
            LaunchError: A server is gone, or does not answer.
        """
        for part in self._living():
            self._call(part, part.confirm)

    def _living(self, ranks: Iterable[int] | None = None) -> list[WorldPart]:
        """Return the parts whose server is alive; if `ranks` is given, only parts with these."""
        wanted = None if ranks is None else set(ranks)
        return [
            part
            for index, part in enumerate(self.parts)
            if index not in self._lost and (wanted is None or not wanted.isdisjoint(part.ranks))
        ]

    def _call(self, part: WorldPart, request: Callable[[], T]) -> T:
        """Return the answer to a request.

        Raises:
            LaunchError: The server or its ranks are gone.
        """
        try:
            return request()
        except LaunchError:
            self._lost.add(self.parts.index(part))
            part.close()
            raise

    def send(self, rank: int, frame: WireFrame[Any]) -> None:
        """Send a frame to a rank; a rank that is gone is not an error here."""
        for part in self._living([rank]):
            part.send(rank, frame)

    def request_dumps(self, ranks: Sequence[int], kind: DumpKind) -> None:
        """Have every rank of `ranks` write a dump to its file.

        All requests are sent before the first wait.
        """
        for part in self._living(ranks):
            theirs = [rank for rank in ranks if rank in part.ranks]
            self._call(part, partial(part.request_dumps, theirs, kind))
        for part in self._living(ranks):
            self._call(part, part.collect_dumps)

    def request(self, message: FaultRequest) -> None:
        """Have a rank paused.

        Raises:
            LaunchError: It is another request: services need a world with one server.
        """
        if not isinstance(message, PauseRank):
            raise LaunchError("faults that a service performs need a world with one server")
        for part in self._living([message.rank]):
            self._call(part, partial(part.request, message))

    def end(self, *, grace_s: float) -> Ending:
        """End all remaining processes, in any state; return the last events and leftovers.

        A server that is gone has ended its ranks: nothing is returned for these.
        """
        endings: list[Ending] = []
        for part in self._living():
            with contextlib.suppress(LaunchError):
                self._call(part, partial(part.begin_end, grace_s=grace_s))
        for part in self._living():
            with contextlib.suppress(LaunchError):
                endings.append(self._call(part, part.finish_end))
        for part in self._living():
            part.close()
        return Ending(
            tuple(_in_order(event for each in endings for event in each.events)),
            tuple(leftover for each in endings for leftover in each.leftovers),
        )


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Return events in order of time."""
    return sorted(events, key=lambda event: event.at_s)
