"""Interfaces to engines, which start processes on the nodes of a cluster.

An engine starts one process on each node, a peer, and connects this process to the peer's standard
input and output. Everything else is common to all engines: authentication, starting ranks, watching
and judging them.
"""

from __future__ import annotations

import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """The order to an engine to start peers.

    Attributes:
        python: The path of the interpreter on the nodes; None: that of this process's interpreter,
            unless the engine has an interpreter there.
        code: The code of a peer, as for ``python -c``. The peer reads from its standard input,
            writes to its standard output, and ends when its input ends.
        count: The number of nodes; None: the engine decides.
        folder: A private folder for the engine's files.
        settings: The run's settings, for the engine's own options.
    """

    python: str | None
    code: str
    count: int | None
    folder: Path
    settings: Settings = field(default_factory=Settings)

    @property
    def command(self) -> Sequence[str]:
        """The command that starts a peer, for an engine that has no interpreter of its own."""
        return (self.python or sys.executable, "-P", "-c", self.code)


def split_words(source: str, text: str) -> list[str]:
    """Return the words of a text, as a shell would.

    Args:
        source: Where the text comes from, for the error.

    Raises:
        SettingError: A quotation mark is missing.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingError(f"{source}: {shown(text)} cannot be read", seen=str(error)) from error


class Node(Protocol):
    """A node on which a peer is being started, or runs."""

    @property
    def name(self) -> str:
        """The node's name in messages."""

    @property
    def connection(self) -> socket.socket:
        """The connection to the peer's standard input and output; the caller may close it."""

    @property
    def pid(self) -> int | None:
        """The child process that carries the peer's bytes; None if there is none for the node."""

    def ended(self) -> str:
        """Return how the peer has ended, such as "exit code 1"; empty while it runs."""

    def last_words(self) -> str:
        """Return the last lines that the peer, or its starter, has written to stderr."""


class Fleet(Protocol):
    """The nodes that an engine provides for one run."""

    def nodes(self) -> Sequence[Node] | None:
        """Return the nodes; None while they are not available. Call it repeatedly.

        Raises:
            LaunchError: The engine does not provide them; the error has its reason.
        """

    def waiting(self) -> str:
        """Return the reason for which nodes wait, such as "job 812: Priority"; empty if unknown."""

    def why_lost(self, index: int) -> str:
        """Return the engine's reason why the node at an index is lost; empty if it has none."""

    def failed(self) -> Sequence[str]:
        """Return the nodes that have failed at their end, and how; ask after `stop`."""

    def stop(self) -> None:
        """End the peers and everything that has been started for them; does nothing twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A way to start processes on nodes.

    Attributes:
        name: The text before the colon of `--multihost-on`.
        begin: Begins to provide nodes, and returns before they are available. Arguments: the text
            after the colon, and the order. It raises SettingError if the text is wrong, and
            LaunchError if nothing can be started.
        signals_ranks: Whether it signals the ranks, too, when it ends a job.
    """

    name: str
    begin: Callable[[str, StartRequest], Fleet]
    signals_ranks: bool = False
