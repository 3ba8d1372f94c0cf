"""Record waits for messages of zmq.

A REQ socket that waits is owed an answer. A DEALER or PAIR that has sent more messages than it has
received may be owed one, or its first message was a greeting. All others wait for the next message
of any sender. A call that may not block records nothing.

A message that a coroutine awaits is recorded until it comes, as work in the background: the thread
of an event loop waits for other things as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from pytest_multihost.core.model.message_sockets import (
    Owed,
    Side,
    endpoint_key,
    message_scope,
)
from pytest_multihost.core.rank.recorder import Recorder, after_import
from pytest_multihost.core.slots import NO_RECORD

Socket = Any  # of pyzmq
Function = Callable[..., Any]

_BY_TYPE: tuple[tuple[str, Owed], ...] = (
    ("REQ", "answer"),
    ("DEALER", "perhaps"),
    ("PAIR", "perhaps"),
)
"""The message that is owed to a socket that has asked, by its type; no other type is owed any."""

_MAX_DETAIL = 100


def record_zmq(recorder: Recorder) -> None:
    """Record such waits from now on, or once pyzmq is imported."""
    sockets = _Sockets(recorder)
    after_import("zmq.sugar.socket", sockets.wrap_sockets)
    after_import("zmq.sugar.poll", sockets.wrap_poller)
    after_import("zmq.asyncio", sockets.wrap_awaitables)


@dataclass(slots=True)
class _KnownSocket:
    """A socket's ends, and how many messages it has sent and received."""

    ends: list[tuple[Side, str]] = field(default_factory=list)
    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class _Sockets:
    """The sockets of this process, by their address in libzmq.

    A socket of `zmq.asyncio` is two objects of Python for one of libzmq.
    """

    recorder: Recorder
    known: dict[object, _KnownSocket] = field(default_factory=dict)
    constants: Any = None

    def wrap_sockets(self, module: ModuleType) -> None:
        """Wrap the methods of pyzmq's socket."""
        socket, self.constants = module.Socket, module.zmq
        for name, wrap in {
            "bind": self._declared("bound"),
            "connect": self._declared("connected"),
            "send": self._sent,
            "recv": self._received,
            "close": self._closed,
        }.items():
            setattr(socket, name, wrap(getattr(socket, name)))

    def wrap_poller(self, module: ModuleType) -> None:
        """Wrap the wait for several sockets."""
        module.Poller.poll = self._polled(module.Poller.poll)

    def wrap_awaitables(self, module: ModuleType) -> None:
        """Wrap the methods that return a message to await."""
        for name in ("recv", "recv_multipart"):
            setattr(module.Socket, name, self._awaited(getattr(module.Socket, name)))

    def _of(self, socket: Socket) -> _KnownSocket:
        return self.known.setdefault(socket.underlying, _KnownSocket())

    def _closed(self, original: Function) -> Function:
        def close(socket: Socket, *args: Any, **more: Any) -> object:  # noqa: ANN401
            with contextlib.suppress(Exception):  # it is closed already
                self.known.pop(socket.underlying, None)
            return original(socket, *args, **more)

        return close

    def _awaited(self, original: Function) -> Function:
        def recv(socket: Socket, *args: Any, **more: Any) -> object:  # noqa: ANN401
            __tracebackhide__ = True
            message: Any = original(socket, *args, **more)
            if not message.done():
                with contextlib.suppress(Exception):
                    record = self._begin("zmq.recv", [socket], self._owed(socket))
                    self.recorder.page.leave(record)
                    message.add_done_callback(lambda _: self.recorder.end(record))
            return message

        return recv

    def _declared(self, side: Side) -> Callable[[Function], Function]:
        def wrap(original: Function) -> Function:
            def called(socket: Socket, address: str) -> object:
                __tracebackhide__ = True
                result = original(socket, address)
                with contextlib.suppress(Exception):  # another version of pyzmq
                    bound = socket.getsockopt_string(self.constants.LAST_ENDPOINT)
                    self._declare(socket, side, bound if side == "bound" else str(address))
                return result

            return called

        return wrap

    def _declare(self, socket: Socket, side: Side, address: str) -> None:
        if end := _endpoint(address):
            self.recorder.claim()
            self._of(socket).ends.append((side, end))
            self.recorder.page.group(*endpoint_key(self.recorder.rank, side, end))

    def _sent(self, original: Function) -> Function:
        def send(socket: Socket, data: object, flags: int = 0, *args: Any, **more: Any) -> object:  # noqa: ANN401
            __tracebackhide__ = True
            with self._recorded("zmq.send", [socket], flags, "answer"):
                result = original(socket, data, flags, *args, **more)
            if not flags & self.constants.SNDMORE:
                self._of(socket).sent += 1
            return result

        return send

    def _received(self, original: Function) -> Function:
        def recv(socket: Socket, flags: int = 0, *args: Any, **more: Any) -> object:  # noqa: ANN401
            __tracebackhide__ = True
            with self._recorded("zmq.recv", [socket], flags, self._owed(socket)):
                result = original(socket, flags, *args, **more)
            with contextlib.suppress(Exception):  # it has been closed meanwhile
                if not socket.getsockopt(self.constants.RCVMORE):
                    self._of(socket).received += 1
            return result

        return recv

    def _polled(self, original: Function) -> Function:
        def poll(poller: Any, timeout: Any = None) -> object:  # noqa: ANN401 - of pyzmq
            __tracebackhide__ = True
            if timeout == 0:
                return original(poller, timeout)
            sockets = [each for each, _ in poller.sockets if hasattr(each, "getsockopt_string")]
            asking = [each for each in sockets if self._owed(each) != "nothing"]
            # It may want the next message of another one.
            owed: Owed = "perhaps" if asking else "nothing"
            if len(sockets) == 1:
                owed = self._owed(sockets[0])
            with self._recorded("zmq.poll", asking or sockets, 0, owed):
                return original(poller, timeout)

        return poll

    def _owed(self, socket: Socket) -> Owed:
        with contextlib.suppress(Exception):  # it has been closed meanwhile
            known = self._of(socket)
            if known.sent > known.received:
                kind = socket.getsockopt(self.constants.TYPE)
                return next(
                    (owed for name, owed in _BY_TYPE if getattr(self.constants, name) == kind),
                    "nothing",
                )
        return "nothing"

    @contextlib.contextmanager
    def _recorded(
        self, name: str, sockets: Iterable[Socket], flags: int, owed: Owed
    ) -> Iterator[None]:
        """Record a wait for messages, unless it may not block."""
        record = NO_RECORD
        if not flags & self.constants.NOBLOCK:
            with contextlib.suppress(Exception):
                record = self._begin(name, sockets, owed)
        with self.recorder.during(record):
            yield

    def _begin(self, name: str, sockets: Iterable[Socket], owed: Owed) -> int:
        recorder = self.recorder
        ends = [end for each in sockets for end in self._of(each).ends]
        detail = ", ".join(end for _, end in ends)[:_MAX_DETAIL]
        scope = message_scope(ends, owed)
        return recorder.begin(name, "wait", (recorder.rank,), scope=scope, detail=detail)


def _endpoint(address: str) -> str:
    """Return the name of an endpoint that both sides agree on; empty for one within a process.

    The sides may call the host by different names, so only the port counts.
    """
    transport, _, place = address.partition("://")
    if transport == "tcp":
        return f"tcp:{place.rpartition(':')[2]}"
    return f"ipc:{place}".replace(" ", "_") if transport == "ipc" else ""
