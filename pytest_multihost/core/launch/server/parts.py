"""The interface to the code that services of a world run in its server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_multihost.core.model.spec import WorldSpec


class ServerPart(Protocol):
    """A service's part in the server of a world: started before the ranks, closed after them.

    No method may block for long, because the server has only one thread.
    """

    @property
    def ports(self) -> Sequence[socket.socket]:
        """Two sockets that hold the world's ports on the primary's host; empty: none."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors of this part that a rank must not keep."""

    @property
    def companions(self) -> Sequence[int]:
        """Processes of this part, children of the server."""

    @property
    def exchanges(self) -> Sequence[int]:
        """The companions through which ranks wait for each other.

        The service answers for all that such a process does: see `Service.permits_proof`.
        """

    def take_tables(self) -> Mapping[str, int]:
        """Return sockets that read the socket tables of network namespaces, by namespace name.

        The server closes them once the controller has its copies.
        """

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds to call `act` at the latest; None: no deadline."""

    def act(self, now_s: float) -> None:
        """Perform all actions that are due."""

    def enter(self, rank: int) -> None:
        """Prepare this process, which was forked to become a rank."""

    def perform(self, rank: int, index: int) -> str:
        """Perform the world's fault `index`, whose point a rank has passed.

        Returns:
            An error message; empty if it succeeded.
        """

    def undo(self) -> str:
        """Undo all faults; return an error message, empty if it succeeded."""

    def begin_end(self) -> None:
        """End everything that must be over before the ranks are ended."""

    def close(self) -> None:
        """Release everything; the ranks have ended."""


StartPart = Callable[[WorldSpec, Path], ServerPart]
"""The function that `ServicePart.server` names. Arguments: the world, the world's own directory.

Raises LaunchError or OSError if the part cannot be started, and then leaves nothing behind."""
