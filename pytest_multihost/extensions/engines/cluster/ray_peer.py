"""The actor that starts a peer on a node of a Ray cluster, and carries its bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from pytest_multihost.extensions.engines.cluster.command_node import describe_code, last_lines_of
from pytest_multihost.extensions.engines.driver.start_peer import IN_COPY

_CHUNK = 1 << 18
_END_S = 10.0
_OF_RAY = ("RAY_", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED")
"""Variables that Ray sets for its own processes: names, or their beginnings."""


class PeerActor:
    """Starts a peer, and carries pieces of bytes to and from it, one after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        # Without a name, because nothing runs here once the actor is ended.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the actor lives

    def start(self, python: str | None, code: str, in_copy: bool) -> str:  # noqa: FBT001 - Ray's
        """Start the peer; return the name of this machine.

        Args:
            python: The interpreter; None: the actor's own.
            in_copy: Whether the working directory is a copy of the project.
        """
        self._process = subprocess.Popen(
            _command(python or sys.executable, code, in_copy=in_copy),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
            env=own_variables(),
        )
        return socket.gethostname()

    def write(self, data: bytes) -> None:
        """Write a piece of bytes to the peer; an empty one ends its input."""
        assert self._process is not None  # noqa: S101 - it is started
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with contextlib.suppress(OSError):  # the peer is gone, which `read` tells
            if data:
                _write_all(self._process.stdin.fileno(), data)
            else:
                self._process.stdin.close()

    def read(self) -> bytes:
        """Return the next piece of bytes from the peer; empty at its end."""
        assert self._process is not None  # noqa: S101 - it is started
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        return os.read(self._process.stdout.fileno(), _CHUNK)

    def ended(self) -> tuple[str, str]:
        """Return how the peer has ended, and the last lines of its standard error."""
        assert self._process is not None  # noqa: S101 - it is started
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "it has closed its output", ""
        with self._process, self._errors:  # which closes all files
            self._errors.seek(0)
            words = self._errors.read().decode("utf-8", "backslashreplace")
        return describe_code(code), last_lines_of(words)


def _command(python: str, code: str, *, in_copy: bool) -> Sequence[str]:
    return [python, "-P", "-c", code, *([IN_COPY] if in_copy else [])]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def own_variables() -> dict[str, str]:
    """Return this process's environment without the variables that Ray has set for itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RAY)}
    if kept.get("OMP_NUM_THREADS") == "1":  # Ray's default, which the peer sets by itself
        del kept["OMP_NUM_THREADS"]
    return kept
