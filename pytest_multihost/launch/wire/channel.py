"""A rank's end of its connection to the controller."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# By name: a test may replace it in its module, and we must not notice.
from os import getpid
from typing import Any

from pytest_multihost.launch.wire.framing import Decoder, Frame, encode
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.messages import ToRank

_CHUNK = 1 << 16


@dataclass(slots=True)
class Channel:
    """A rank's end of its connection to the controller.

    Several threads may use it at once: each waits for frames of its own. Whichever of them finds
    nobody reading reads for all, so no thread of ours is needed in the rank. Useless in a forked
    child: two processes that write to one stream would tear each other's frames apart, so a child
    gets an error instead.
    """

    stream: socket.socket
    _owner: int = field(default_factory=getpid)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_being_read: bool = False
    _decoder: Decoder[ToRank] = field(default_factory=lambda: Decoder(ToRank))
    _arrived: list[Frame[ToRank]] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """Whether this process is the rank itself and not a forked child of it."""
        return getpid() == self._owner

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send an event; blocks until the kernel has taken all of it.

        Raises:
            MultihostError: Called in a forked child of the rank.
            OSError: The controller is gone or the descriptor was closed.
        """
        self._check_owner()
        data = encode(Frame(header, payload))
        with self._sending:
            self.stream.sendall(data)

    def receive(self, wanted: Callable[[ToRank], bool]) -> Frame[ToRank]:
        """Return the first frame whose message is `wanted`, waiting as long as it takes.

        Raises:
            EOFError: The controller is gone.
        """
        self._check_owner()
        while True:
            with self._changed:
                for index, frame in enumerate(self._arrived):
                    if wanted(frame.message):
                        return self._arrived.pop(index)
                if self._is_being_read:
                    self._changed.wait()
                    continue
                self._is_being_read = True
            self._read_for_all()

    def _read_for_all(self) -> None:
        frames: list[Frame[ToRank]] = []
        try:
            while not frames:
                frames = self._decoder.feed(self._read())
        finally:
            with self._changed:
                self._arrived += frames
                self._is_being_read = False
                self._changed.notify_all()

    def _read(self) -> bytes:
        data = self.stream.recv(_CHUNK)
        if not data:
            message = "the controller closed the channel"
            raise EOFError(message)
        return data

    def _check_owner(self) -> None:
        if not self.is_ours:
            happened = "a forked child of a rank used the rank's world"
            raise MultihostError(
                happened, remedy="Use world and the fixtures only in the rank's own process."
            )
