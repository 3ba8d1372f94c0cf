"""The parts that services of a world have in its server: they run as long as its ranks do."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pytest_multihost.core.model.spec import WorldSpec


class ServerPart(Protocol):
    """What a service does in the server of a world; started before the ranks.

    The server has one thread, and must not wait long in any of these.
    """

    @property
    def ports(self) -> Sequence[socket.socket]:
        """Two sockets that hold the world's ports on the primary's host; empty: it has none."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors of this part that a rank must not keep."""

    @property
    def companions(self) -> Sequence[int]:
        """Processes of this part, children of the server."""

    def take_tables(self) -> Mapping[str, int]:
        """Return sockets that read the socket tables of network namespaces, by their names.

        The server closes them, once the controller has them.
        """

    def wait_s(self, now_s: float) -> float | None:
        """Return in how many seconds `act` is to be called; None: not by itself."""

    def act(self, now_s: float) -> None:
        """Do what is due."""

    def enter(self, rank: int) -> None:
        """Prepare this process, which has just been forked to become a rank."""

    def perform(self, rank: int, index: int) -> str:
        """Perform the world's fault `index`, whose point a rank has passed.

        Returns:
            What went wrong; empty if nothing did.
        """

    def undo(self) -> str:
        """Undo all faults; return what went wrong, empty if nothing did."""

    def begin_end(self) -> None:
        """End what must be over before the ranks are ended."""

    def close(self) -> None:
        """Release everything; the ranks have ended."""


StartPart = Callable[[WorldSpec, Path], ServerPart]
"""The function that `ServicePart.server` names: takes the world, and its own directory.

Raises LaunchError or OSError if the part cannot be started; then nothing of it is left."""
