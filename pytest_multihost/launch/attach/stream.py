"""One connection between two processes of an attached run: sealed frames, and nobody waits.

A forked child must not keep it: while a copy is open, the other side does not see its owner end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pytest_multihost.launch.attach.handshake import Handshake, Opener, RefusedError, Role, Sealer
from pytest_multihost.launch.wire.framing import (
    Decoder,
    Frame,
    GarbledError,
    encode,
    read_available,
)
from pytest_multihost.model.errors import LaunchError

_RAISING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
"""Signals whose handlers may raise."""

_PINGS = 8
PING_S = 30.0
"""How long a process may take to answer when it has nothing else to do."""

SILENCE_S = 20
"""How long a machine may not answer at all before its connection counts as lost."""


@dataclass(slots=True, weakref_slot=True)
class AuthenticatedStream:
    """Sealed frames in both directions.

    Attributes:
        stream: The connection, which never waits.
        sealer: Seals what goes out.
        opener: Opens what comes in.
        ended: Why nothing comes any more; None as long as something may.
    """

    stream: socket.socket
    sealer: Sealer
    opener: Opener
    ended: str | None = None
    _outbox: bytearray = field(default_factory=bytearray)
    _arrived: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream.setblocking(False)  # noqa: FBT003 - the standard library's signature
        enable_keepalive(self.stream)
        close_in_children(self.stream)

    @classmethod
    def between(
        cls, stream: socket.socket, handshake: Handshake, secret: bytes, *, sender: Role
    ) -> AuthenticatedStream:
        """Return a stream whose frames are sealed for this one connection."""
        other: Role = "agent" if sender == "controller" else "controller"
        sealer = Sealer(handshake.key(secret, sender))
        return cls(stream, sealer, Opener(handshake.key(secret, other)))

    def fileno(self) -> int:
        """Return the descriptor, for a selector; -1 when it is closed."""
        return self.stream.fileno()

    @property
    def has_more_to_send(self) -> bool:
        """Whether the other side has yet to take something."""
        return bool(self._outbox) and self.ended is None

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send a frame, or keep it until the other side takes it. One that is gone is no error."""
        data = encode(Frame(header, payload))
        with signals_deferred():
            if self.ended is None:
                self._outbox += self.sealer.seal(data)
        self.flush()

    def flush(self) -> None:
        """Send what is waiting, as far as the other side takes it."""
        with signals_deferred():
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outbox and self.ended is None:
                del self._outbox[: self.stream.send(self._outbox)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._outbox.clear()
            self._read_last_words()
            self._end(str(error))

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived; look at `ended` when there are none."""
        with signals_deferred():
            self._read()
            arrived, self._arrived = self._arrived, []
        return arrived

    def await_frames(self, deadline_s: float) -> list[Frame]:
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
        poll.register(self.stream, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        poll.poll(timeout_s * 1000)
        self.flush()

    def _read(self) -> None:
        if self.ended is not None:
            return
        try:
            data = read_available(self.stream)
            for content in self.opener.feed(data or b""):
                self._arrived += Decoder().feed(content)
        except OSError as error:
            self._end(str(error))
        except (RefusedError, GarbledError) as error:
            self._end(str(error) or "it sent what is no frame of ours")
        else:
            if data is None:
                self._end("it closed the connection")

    def _read_last_words(self) -> None:
        """Read what came before the connection broke."""
        with contextlib.suppress(OSError):
            self._read()

    def _end(self, why: str) -> None:
        self.ended = self.ended or why

    def give_up(self, why: str) -> None:
        """Neither send nor receive any more, and let the other side notice."""
        self._end(why)
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._end("we closed it")
        self.stream.close()


def kernel_identity() -> list[str]:
    """Return which kernel this is, and in which of its clocks and tables of processes we are.

    Processes with the same kernel and clock have the same monotonic time; those that share the
    table of processes too see each other in /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return [boot, *(os.readlink(f"/proc/self/ns/{name}") for name in ("time", "pid"))]


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Let no signal's handler raise in the block: it comes afterwards.

    Ctrl-C between a piece that was sent and the note that it was would send it twice. That holds
    in a process of one thread: another one would take the signal, and Python has the main thread
    handle it all the same.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _RAISING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interface_of_address(address: str) -> str:
    """Return the network interface that has an address, "lo" where none is seen to."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return name
    return "lo"


def enable_keepalive(stream: socket.socket) -> None:
    """Have the kernel end a connection to a machine that is not there any more."""
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    )
    for level, name, value in options:
        with contextlib.suppress(OSError):  # a pair of unix sockets, in a test
            stream.setsockopt(level, name, value)


def close_in_children(stream: socket.socket) -> None:
    """Have a forked child close its copy of `stream`."""
    found = weakref.ref(stream)

    def close() -> None:
        mine = found()
        if mine is not None:
            mine.close()

    os.register_at_fork(after_in_child=close)


@dataclass(slots=True, eq=False)
class Peer:
    """Another process of the run, as the controller sees it.

    Attributes:
        rank: Its membership.
        stream: The connection to it.
        about: What it has told of itself.
        offset_s: What must be added to its times to make them ours.
        uncertainty_s: By how much that may be wrong.
        is_near: Whether it shares our kernel, process ids and files, so that we see its ranks.
    """

    rank: int
    stream: AuthenticatedStream
    about: Mapping[str, Any]
    offset_s: float = 0.0
    uncertainty_s: float = 0.0
    is_near: bool = False
    backlog: list[Frame] = field(default_factory=list)
    _asked: int = 0

    @property
    def name(self) -> str:
        """What it is called where something is said of it."""
        return f"rank {self.rank}'s process (pid {self.about.get('pid')} on {self.host})"

    @property
    def host(self) -> str:
        """The machine it is on."""
        return str(self.about.get("host"))

    @property
    def here(self) -> tuple[str, str, str]:
        """Our own machine as it reaches it: name, address, network interface."""
        address = str(self.stream.stream.getsockname()[0])
        return socket.gethostname(), address, interface_of_address(address)

    @property
    def there(self) -> tuple[str, str, str]:
        """Its machine: name, address, network interface."""
        address, interface = self.about["address"], self.about["interface"]
        return self.host, str(address), str(interface)

    def request(self, header: Mapping[str, Any]) -> int:
        """Ask for something; return the number under which the answer will come."""
        self._asked += 1
        self.stream.send({**header, "asked": self._asked})
        return self._asked

    def answer(self, number: int, *, within_s: float) -> Frame:
        """Return the answer to a request; what else comes meanwhile is kept.

        Raises:
            LaunchError: It is gone, or does not answer, or could not do it.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            for index, frame in enumerate(self.backlog):
                if frame.header.get("answers") == number:
                    del self.backlog[index]
                    return self._checked(frame)
            frames = self.stream.await_frames(deadline_s)
            if not frames:
                raise self.lost(f"it has not answered for {within_s:g} s")
            self.backlog += frames

    def ask(self, header: Mapping[str, Any], *, within_s: float) -> Frame:
        """Ask for something and wait for the answer.

        Raises:
            LaunchError: It is gone, or does not answer, or could not do it.
        """
        return self.answer(self.request(header), within_s=within_s)

    def measure_clock(self) -> None:
        """Measure by how much its clock differs from ours, by round trips; anew for each world.

        The shortest trip tells most: the answer was written somewhere within it.

        Raises:
            LaunchError: It is gone.
        """
        if self.about["kernel"][:2] == kernel_identity()[:2]:
            return
        found = []
        for _ in range(_PINGS):
            sent_s = time.monotonic()
            theirs_s = float(self.ask({"kind": "ping"}, within_s=PING_S).header["now_s"])
            back_s = time.monotonic()
            found.append(((back_s - sent_s) / 2, (sent_s + back_s) / 2 - theirs_s))
        self.uncertainty_s, self.offset_s = min(found)

    def lost(self, seen: str) -> LaunchError:
        """Have no more to do with it, and return the error that says so."""
        self.stream.give_up(seen)
        return LaunchError(
            f"{self.name} is gone",
            seen=self.stream.ended or seen,
            remedy="Its own last words, or its launcher's, may say why.",
        )

    def _checked(self, frame: Frame) -> Frame:
        if frame.header["kind"] == "failed":
            happened = f"the ranks of {self.name} could not be started"
            raise LaunchError(happened, seen=str(frame.header["error"]))
        return frame
