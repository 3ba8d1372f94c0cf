"""A node whose peer is reached through the standard input and output of a local command."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.errors import LaunchError

_LINES = 20
"""How many of the last lines that a process has written a message shows."""

_END_S = 5.0
"""How long a command may take to end after its input has ended."""

_KILL_S = 2.0
"""How long a command may take to end after SIGTERM."""


@dataclass(slots=True)
class CommandNode:
    """A node; its command runs as long as the peer does.

    Attributes:
        errors: The file with the command's standard error.
    """

    name: str
    connection: socket.socket
    process: subprocess.Popen[bytes]
    errors: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str], folder: Path) -> CommandNode:
        """Start a command in a session of its own, so that Ctrl-C reaches only this process.

        Args:
            folder: A folder for the file with its standard error.

        Raises:
            LaunchError: It cannot be started.
        """
        errors = folder / f"{name.replace('/', '_')}.err"
        ours, theirs = socket.socketpair()
        with theirs, files.appending(errors) as log:
            try:
                process = subprocess.Popen(
                    [*command],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                happened = f"{command[0]}, which is to reach node {name}, cannot be started"
                raise LaunchError(happened, seen=str(error)) from error
        return cls(name, ours, process, errors)

    @property
    def pid(self) -> int:
        """The command's process id."""
        return self.process.pid

    def ended(self) -> str:
        """Return how the command has ended; empty while it runs."""
        return describe_code(self.process.poll())

    def last_words(self) -> str:
        """Return the last lines of the command's standard error."""
        return last_lines(self.errors)


def describe_code(code: int | None) -> str:
    """Return an exit code of `subprocess` in words; empty if there is none yet."""
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def last_lines(file: Path) -> str:
    """Return the last lines of a file; empty if it cannot be read."""
    try:
        return last_lines_of(file.read_text("utf-8", "backslashreplace"))
    except OSError:
        return ""


def last_lines_of(text: str) -> str:
    """Return the last lines of a text."""
    return "\n".join(text.rstrip().splitlines()[-_LINES:])


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a process beside pytest, which needs no secret."""
    return {name: value for name, value in environment.items() if "SECRET" not in name}


def end_commands(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End commands whose input has ended: wait, then send SIGTERM and SIGKILL to their sessions."""
    running = list(processes)
    for wait_s, number in ((_END_S, signal.SIGTERM), (_KILL_S, signal.SIGKILL), (_KILL_S, None)):
        deadline_s = time.monotonic() + wait_s
        for each in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, deadline_s - time.monotonic()))
        running = [each for each in running if each.poll() is None]
        for each in running:
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.pid, number)


@dataclass(slots=True)
class CommandFleet:
    """Nodes that are available at once, each through a command."""

    started: Sequence[CommandNode]

    @classmethod
    def start(cls, commands: Iterable[tuple[str, Sequence[str]]], folder: Path) -> CommandFleet:
        """Start a command for each node.

        Args:
            commands: The name of each node, and its command.

        Raises:
            LaunchError: A command cannot be started; none is left running.
        """
        started: list[CommandNode] = []
        try:
            for name, command in commands:
                started.append(CommandNode.start(name, command, folder))
        except LaunchError:
            cls(started).stop()
            raise
        return cls(started)

    def nodes(self) -> Sequence[CommandNode]:
        """Return the nodes."""
        return self.started

    def waiting(self) -> str:
        """Return nothing: there is no queue."""
        return ""

    def why_lost(self, index: int) -> str:
        """Return how a node's command has ended, and its last lines."""
        node = self.started[index]
        ended = f"its command has ended: {node.ended()}" if node.ended() else ""
        return "\n".join(filter(None, (ended, node.last_words())))

    def failed(self) -> Sequence[str]:
        """Return the nodes whose command has failed; a command that had to be ended has not."""
        ours = (0, -signal.SIGTERM, -signal.SIGKILL)
        failed = (each for each in self.started if each.process.returncode not in ours)
        return [f"node {each.name}: {each.ended()}" for each in failed]

    def stop(self) -> None:
        """Close all connections, and end commands that do not end by themselves."""
        for each in self.started:
            each.connection.close()
        end_commands(each.process for each in self.started)
