"""The interface to the code that services of a world run in its server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.model.spec import WorldSpec


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPart:
    """A service's part in the server of a world: started before the ranks, closed after them.

    No function may block for long, because the server has only one thread. By default they do
    nothing, and there is nothing.

    Attributes:
        ports: Two sockets that hold the world's ports on the primary's host; empty: none.
        descriptors: Returns descriptors of this part that a rank must not keep.
        companions: Returns the processes of this part, children of the server.
        exchanges: Returns the companions through which ranks wait for each other. The service
            answers for all that such a process does: see `Service.permits_proof`.
        take_tables: Returns sockets that read the socket tables of network namespaces, by
            namespace name. The server closes them once the controller has its copies.
        wait_s: Returns in how many seconds to call `act` at the latest; None: no deadline.
        act: Performs all actions that are due at a time.
        enter: Prepares this process, which was forked to become a rank; takes the rank.
        perform: Performs the world's fault with an index, whose point a rank has passed. Takes
            the rank and the index, and returns an error message; empty if it succeeded.
        undo: Undoes all faults; returns an error message, empty if it succeeded.
        begin_end: Ends everything that must be over before the ranks are ended.
        close: Releases everything; the ranks have ended.
        abandon: Called after that if the controller was killed during the world.
    """

    ports: Sequence[socket.socket] = ()
    descriptors: Callable[[], Sequence[int]] = tuple
    companions: Callable[[], Sequence[int]] = tuple
    exchanges: Callable[[], Sequence[int]] = tuple
    take_tables: Callable[[], Mapping[str, int]] = dict
    wait_s: Callable[[float], float | None] = lambda _now_s: None
    act: Callable[[float], None] = lambda _now_s: None
    enter: Callable[[int], None] = lambda _rank: None
    perform: Callable[[int, int], str] = lambda _rank, _index: "the service has no faults"
    undo: Callable[[], str] = str
    begin_end: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing
    abandon: Callable[[], None] = _nothing


StartPart = Callable[[WorldSpec, Path], ServerPart]
"""The function that `ServicePart.server` names. Arguments: the world, the world's own directory.

Raises LaunchError or OSError if the part cannot be started, and then leaves nothing behind."""
