"""Frames through a connection on which nobody waits: the controller has others to serve."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pytest_multihost.launch.wire.framing import (
    Authenticator,
    Decoder,
    Frame,
    GarbledError,
    encode,
)

M = TypeVar("M")

_CHUNK = 1 << 16
_RAISING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
"""Signals whose handlers may raise."""


@dataclass(slots=True)
class FrameStream(Generic[M]):
    """Frames in both directions.

    Attributes:
        socket: The connection; it is made non-blocking.
        decoder: Reads what comes in.
        authenticator: Makes the tags of what goes out, where the other side wants any.
        ended: Why nothing comes any more; None as long as something may.
        is_garbled: Whether that is because what came was not ours.
    """

    socket: socket.socket
    decoder: Decoder[M]
    authenticator: Authenticator | None = None
    ended: str | None = None
    is_garbled: bool = False
    _outbox: bytearray = field(default_factory=bytearray)
    _arrived: list[Frame[M]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.socket.setblocking(False)  # noqa: FBT003 - the standard library's signature

    def fileno(self) -> int:
        """Return the descriptor, for a poll; -1 when it is closed."""
        return self.socket.fileno()

    @property
    def has_more_to_send(self) -> bool:
        """Whether the other side has yet to take something."""
        return bool(self._outbox) and self.ended is None

    @property
    def poll_events(self) -> int:
        """What to wait for in a poll: something to read, and room where something is to be sent."""
        return select.POLLIN | (select.POLLOUT if self.has_more_to_send else 0)

    def send(self, frame: Frame[Any]) -> None:
        """Send a frame, or keep it until the other side takes it. One that is gone is no error."""
        with signals_deferred():
            if self.ended is None:
                self._outbox += encode(frame, self.authenticator)
            self._flush()

    def flush(self) -> None:
        """Send what is waiting, as far as the other side takes it."""
        with signals_deferred():
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and self.ended is None:
                del self._outbox[: self.socket.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._outbox.clear()
            self._read()  # what it sent before it went
            self._end(str(error))

    def receive(self) -> list[Frame[M]]:
        """Return the frames that have arrived; look at `ended` when there are none."""
        with signals_deferred():
            self._read()
            arrived, self._arrived = self._arrived, []
        return arrived

    def await_frames(self, deadline_s: float) -> list[Frame[M]]:
        """Return the next frames, none at the deadline or when nothing will come any more."""
        while True:
            frames = self.receive()
            left_s = deadline_s - time.monotonic()
            if frames or self.ended is not None or left_s <= 0:
                return frames
            self._wait(left_s)

    def drain(self, deadline_s: float) -> None:
        """Wait until the other side has taken everything, at most until the deadline."""
        while self.has_more_to_send and (left_s := deadline_s - time.monotonic()) > 0:
            self._wait(left_s)
            self.flush()

    def _wait(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self.socket, self.poll_events)
        poll.poll(timeout_s * 1000)
        self.flush()

    def _read(self) -> None:
        if self.ended is not None:
            return
        try:
            while data := self.socket.recv(_CHUNK):
                self._arrived += self.decoder.feed(data)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
        except GarbledError as error:
            self.is_garbled = True
            self._end(str(error))
        else:
            self._end("it closed the connection")

    def _end(self, why: str) -> None:
        self.ended = self.ended or why

    def give_up(self, why: str) -> None:
        """Neither send nor receive any more, and let the other side notice."""
        self._end(why)
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._end("we closed it")
        self.socket.close()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let no signal's handler raise in the block: it comes afterwards.

    Ctrl-C between a piece that was sent and the note that it was would send it twice. That holds
    in a process of one thread: another one would take the signal, and Python has the main thread
    handle it all the same.
    """
    # Read before it is changed: the call that blocks runs handlers of signals that came just
    # before it, and one that raises there would leave the signals blocked for good.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
