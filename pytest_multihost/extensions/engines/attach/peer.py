"""Another process of an attached run from the controller's view: requests and answers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import psutil

from pytest_multihost.core.launch.frames import WireFrame
from pytest_multihost.core.launch.kernel_identity import kernel_identity
from pytest_multihost.core.launch.own_descriptors import keep_until_exit
from pytest_multihost.core.launch.wire import FrameStream
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.model.messages import (
    Failed,
    FromPeer,
    PeerHello,
    Ping,
    Pong,
    ProbeRead,
    Quit,
    ReadProbe,
    Signalled,
    ToPeer,
    Welcome,
    WorldForked,
)
from pytest_multihost.core.model.printable import printable

_FAREWELL_S = 5.0
"""How long the last message to a process may take to be sent."""

A = TypeVar("A")
Answer = tuple[A, bytes]
"""A message and its payload."""


def interface_of_address(address: str) -> str:
    """Return the network interface with an address; "lo" if there is none."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return name
    return "lo"


_PINGS = 8
PING_S = 30.0
"""How long an idle peer may take to answer."""

_MAX_CLOCK_S = 1e9
"""No machine has run for so long: thirty years."""

_HELLO_S = 60.0
"""How long a peer may take to send its hello; it may still be collecting."""


@dataclass(slots=True, eq=False)
class Peer:
    """Another process of the run.

    Attributes:
        offset_s: Offset from the peer's clock to the controller's.
        uncertainty_s: Error bound of `offset_s`.
        is_local: Whether the peer shares the controller's kernel, process ids and files, so that
            the controller sees its ranks.
        label: Its name in messages, without its process id.
        why_lost: Returns other facts about the loss of the peer; empty if there are none.
        is_loss_reported: Whether an error says why the peer is lost.
        backlog: Frames that arrived during a wait for an answer.
    """

    rank: int
    stream: FrameStream[FromPeer]
    hello: PeerHello
    offset_s: float = 0.0
    uncertainty_s: float = 0.0
    is_local: bool = False
    backlog: list[WireFrame[FromPeer]] = field(default_factory=list)
    label: str = ""
    why_lost: Callable[[], str] = str
    is_loss_reported: bool = False
    _requests: int = 0
    _await_hello: Callable[[], Answer[PeerHello]] | None = None

    def __post_init__(self) -> None:
        self.label = self.label or f"rank {self.rank}"

    @property
    def name(self) -> str:
        """The name in messages: one printable line, whatever the peer calls its host."""
        return printable(f"{self.label}'s process (pid {self.hello.pid} on {self.hello.host})")

    @property
    def our_address(self) -> tuple[str, str, str]:
        """The controller's machine from the peer's view: name, address, network interface."""
        address = str(self.stream.socket.getsockname()[0])
        return socket.gethostname(), address, interface_of_address(address)

    @property
    def its_address(self) -> tuple[str, str, str]:
        """The peer's machine: name, address, network interface."""
        return self.hello.host, self.hello.address, self.hello.interface

    @property
    def interruption(self) -> str:
        """The received signal that must end the run, with the peer's name; empty if none."""
        found = [each.message for each in self.backlog if isinstance(each.message, Signalled)]
        return f"{found[0].signal} to {self.name}" if found else ""

    def send(self, message: ToPeer, payload: bytes = b"") -> None:
        """Send a message that has no answer."""
        self.stream.send(WireFrame(message, payload))

    def part(self, code: int) -> None:
        """Send the exit code of the run; the peer ends once this process has ended."""
        self.send(Quit(code))
        self.stream.drain(time.monotonic() + _FAREWELL_S)
        if (descriptor := self.stream.detach()) >= 0:  # else it is closed
            keep_until_exit(descriptor)

    def dismiss(self) -> None:
        """Let the peer end at once, in a run whose exit code does not concern it."""
        self.send(Quit(0))
        self.stream.drain(time.monotonic() + _FAREWELL_S)
        self.stream.close()

    def request(
        self, message: ToPeer, wanted: type[A], *, within_s: float
    ) -> Callable[[], Answer[A]]:
        """Send a request; return a function that waits for the answer and returns it.

        Other frames that arrive during the wait go into `backlog`. The function raises LaunchError
        if the peer is gone, does not answer within `within_s`, or could not fulfil the request.
        """
        self._requests += 1
        self.stream.send(WireFrame(message, number=self._requests))
        return partial(self._answer, self._requests, wanted, within_s)

    def _answer(self, number: int, wanted: type[A], within_s: float) -> Answer[A]:
        deadline_s = time.monotonic() + within_s
        while True:
            for index, frame in enumerate(self.backlog):
                if frame.number == number:
                    del self.backlog[index]
                    if isinstance(frame.message, wanted):
                        return frame.message, frame.payload
                    if isinstance(frame.message, Failed):
                        became = "could not be started" if wanted is WorldForked else "are lost"
                        happened = f"the ranks of {self.name} {became}"
                        raise LaunchError(happened, seen=frame.message.error)
                    raise self.lost(f"it answered with {type(frame.message).__name__}")
            frames = self.stream.await_frames(deadline_s)
            if not frames:
                raise self.lost(f"it has not answered for {within_s:g} s")
            self.backlog += frames

    def welcome(self) -> None:
        """Admit the peer: send the first request, which it answers after its collection."""
        self._await_hello = self.request(Welcome(), PeerHello, within_s=_HELLO_S)

    def await_hello(self) -> None:
        """Wait for the peer's hello.

        Raises:
            LaunchError: The peer is gone, or does not answer.
        """
        if self._await_hello is not None:
            self.hello, _ = self._await_hello()

    def detect_locality(self, path: str, content: str) -> None:
        """Find out whether the peer sees the same processes and files as the controller.

        Args:
            path: A file on the controller's machine.
            content: The file's content, which only a process that can read it knows.

        Raises:
            LaunchError: The peer is gone, or does not answer.
        """
        answer, _ = self.request(ReadProbe(path), ProbeRead, within_s=PING_S)()
        self.is_local = self.hello.kernel == kernel_identity() and answer.text == content

    def measure_clock(self) -> None:
        """Measure the offset of the peer's clock to the controller's; called for each world.

        The answer is written within the round trip, so the shortest one gives the tightest bound.

        Raises:
            LaunchError: The peer is gone.
        """
        if self.hello.kernel[:2] == kernel_identity()[:2]:
            return
        found = []
        for _ in range(_PINGS):
            sent_s = time.monotonic()
            pong, _ = self.request(Ping(), Pong, within_s=PING_S)()
            back_s = time.monotonic()
            if not abs(pong.now_s) < _MAX_CLOCK_S:
                raise self.garbled(f"{pong.now_s} is not a time on a machine's clock")
            found.append(((back_s - sent_s) / 2, (sent_s + back_s) / 2 - pong.now_s))
        self.uncertainty_s, self.offset_s = min(found)

    def take_arrived(self) -> list[WireFrame[FromPeer]]:
        """Return the arrived frames that answer no request; signals stay for `interruption`."""
        self.stream.flush()
        frames = [*self.backlog, *self.stream.receive()]
        self.backlog = [each for each in frames if isinstance(each.message, Signalled)]
        return frames

    def note_arrived(self) -> None:
        """Read arrived frames into the backlog, which also detects the connection's end."""
        self.backlog += self.stream.receive()

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Drop the connection if the block cannot read the peer's data.

        Raises:
            LaunchError: The peer sent unreadable data.
        """
        try:
            with parsing(what):
                yield
        except UnreadableError as error:
            raise self.garbled(str(error)) from error

    def garbled(self, why: str) -> LaunchError:
        """Drop the connection, and return the error for a peer that sent unreadable data."""
        self.stream.give_up(why)
        self.is_loss_reported = True
        return LaunchError(f"{self.name} sent what cannot be read", seen=why)

    def lost(self, seen: str) -> LaunchError:
        """Drop the connection, and return the error for that."""
        if self.stream.is_garbled:
            return self.garbled(self.stream.ended or seen)
        self.stream.give_up(seen)
        self.is_loss_reported = True
        why = self.why_lost()
        return LaunchError(
            f"{self.name} is gone",
            seen="\n".join(filter(None, (self.stream.ended or seen, why))),
            remedy="" if why else "Its output, or that of its launcher, may say why.",
        )
