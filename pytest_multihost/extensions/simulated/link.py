"""A rank's connection to the exchange.

Each thread of a rank has a connection of its own, on which it sends a message and waits for the
answer. So no thread waits for another one to read, and the exchange knows how many threads of a
rank wait.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import math
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_multihost.extensions.simulated.launches import (
    Completion,
    SimulatedLaunch,
    Travelling,
    completion_from_tuple,
    launch_to_tuple,
)
from pytest_multihost.extensions.simulated.semantics import GLOO, Semantics

__tracebackhide__ = True  # pytest leaves the frames of this module out of tracebacks

OWN_THREADS = "multihost-"
"""How the names of the harness's own threads in a rank begin."""

ASK = ("ask",)
"""The controller's question for the state of the exchange; the answer is an `Idleness`."""

EXPIRED = ("expired",)
"""The message of a rank's thread when the timeout of its wait has struck."""

AWAY = ("away",)
"""The message of a rank that is about to wait elsewhere: at a gate of the harness."""

_LENGTH = struct.Struct("<Q")


def pack(message: Travelling) -> bytes:
    """Return a message as it travels: its length, then its values."""
    data = marshal.dumps(message)
    return _LENGTH.pack(len(data)) + data


def _values(data: bytearray | memoryview) -> Any:  # noqa: ANN401 - depends on the message
    """Return the values of a message; both ends are processes of this Python."""
    return marshal.loads(data)  # noqa: S302


@dataclass(slots=True)
class Unpacker:
    """Takes bytes as they arrive, and returns the messages that are complete."""

    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages that end in these bytes."""
        self._buffer += data
        found = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            found.append(_values(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return found


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads a rank has.

    Attributes:
        has_timer: Whether a signal may interrupt the rank: of a timer, of a child that ends, or a
            signal that a child may send.
    """

    alive: int
    own: int
    has_timer: bool


def count_threads() -> Travelling:
    """Return how many threads this process has: the fields of `Threads`."""
    alive, own = threading.active_count(), 0
    if alive > 1:
        names = [each.name for each in threading.enumerate()]
        own = sum(each.startswith(OWN_THREADS) for each in names)
        alive = len(names) - own
    has_timer = signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
    has_timer = has_timer or callable(signal.getsignal(signal.SIGCHLD))
    return alive, own, has_timer or (_has_child() and _has_handler())


_REAL_TIME = getattr(signal, "SIGRTMIN", math.inf)
"""The first of the real-time signals, which the harness uses. Other systems than Linux have none,
but pytest imports this module there as well."""

_SIGNALS = sorted(each for each in signal.valid_signals() if each < _REAL_TIME)
"""The signals that programs use."""


def _has_handler() -> bool:
    """Return whether the program handles a signal."""
    handlers = map(signal.getsignal, _SIGNALS)
    return any(callable(each) and each is not signal.default_int_handler for each in handlers)


def _has_child() -> bool:
    """Return whether this process has a child, which may send it a signal.

    Each wait of a rank asks, so the kernel is asked, not /proc.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def is_own_thread() -> bool:
    """Return whether this thread is the harness's: it never talks to the exchange."""
    return threading.current_thread().name.startswith(OWN_THREADS)


class Receiver(Protocol):
    """An operation of this rank that has been launched."""

    def take(self, completion: Completion) -> None:
        """Take its end."""


class ExchangeLostError(RuntimeError):
    """The process of the exchange has ended."""


class _Local(threading.local):
    connection: socket.socket | None = None


@dataclass(slots=True, eq=False)
class ExchangeLink:
    """The connections of this rank's threads.

    Attributes:
        address: The path of the exchange's socket.
        pid: The rank's process: a child that it forks has no connection.
        launched: The operations that have not ended, by their numbers.
        taken: Notified when ends of operations have been taken.
        times_itself: Whether the rank itself ends its waits when their timeouts strike: on a clock
            that jumps, which the exchange does not have.
        semantics: The rules that groups of NCCL follow.
        is_bound: Whether the program has named the device of its groups of NCCL.
    """

    address: str
    rank: int
    pid: int = field(default_factory=os.getpid)
    launched: dict[int, Receiver] = field(default_factory=dict)
    taken: threading.Condition = field(default_factory=threading.Condition)
    times_itself: bool = False
    semantics: Semantics = GLOO
    is_bound: bool = False
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _local: _Local = field(default_factory=_Local)

    def next_number(self) -> int:
        """Return the number of the next launch."""
        return int(next(self._numbers))

    def launch(
        self,
        receivers: Mapping[int, Receiver],
        launches: Sequence[SimulatedLaunch],
        timeout_s: float,
    ) -> None:
        """Send launches that start together, and return at once.

        Args:
            receivers: The function that takes the end of each of them, by its number.
            timeout_s: When gloo ends them, whether a thread waits for them or not.
        """
        self.launched.update(receivers)
        limit_s = math.inf if self.times_itself or launches[0].stream else timeout_s
        self._send(("launch", tuple(map(launch_to_tuple, launches)), limit_s))

    def lose(self, group: str, member: int, why: str) -> None:
        """Say that this rank, a member of a group, has closed its connections there."""
        with contextlib.suppress(ExchangeLostError):
            self._send(("lose", group, member, why))

    def launch_and_wait(self, launch: SimulatedLaunch, receiver: Receiver, timeout_s: float) -> str:
        """Send a launch with the wait for its end; return an error, empty if there is none."""
        self.launched[launch.number] = receiver
        return self._wait((launch.number,), timeout_s, launch=launch)

    def wait(self, numbers: Iterable[int], timeout_s: float, *, may_return: bool = False) -> str:
        """Wait until launches have ended; return why they have not, empty if they have.

        Args:
            may_return: Whether to return as soon as no other rank can go on.
        """
        return self._wait(tuple(numbers), timeout_s, may_return=may_return)

    def _wait(
        self,
        numbers: Sequence[int],
        timeout_s: float,
        *,
        may_return: bool = False,
        launch: SimulatedLaunch | None = None,
    ) -> str:
        sent = launch_to_tuple(launch) if launch is not None else None
        message = ("wait", sent, numbers, timeout_s, may_return, count_threads())
        return self._take_ends(self._ask(message, timeout_s), numbers)

    def _take_ends(
        self, answer: tuple[str, bool, Sequence[Travelling]], numbers: Sequence[int]
    ) -> str:
        """Take the ends that came with an answer; return why a wait has failed, if it has.

        Every answer except a store's brings the ends that the rank does not know yet, whichever
        thread has asked.
        """
        error, have_ended, completions = answer
        with self.taken:
            for each in map(completion_from_tuple, completions):
                receiver = self.launched.pop(each.number, None)
                if receiver is not None:
                    receiver.take(each)
            if completions:
                self.taken.notify_all()
            if have_ended:  # another thread may be about to take the ends
                self.taken.wait_for(lambda: self.launched.keys().isdisjoint(numbers))
        return error

    def ask_store(self, method: str, args: Sequence[Any], timeout_s: float) -> tuple[str, Any]:
        """Return why a request to a store failed, empty if it did not, and its result."""
        error, found = self._ask(("store", method, args, timeout_s, count_threads()), timeout_s)
        return str(error), found

    def rest(self) -> None:
        """Wait until a place is free: all ranks come through a gate of the harness at once."""
        if os.getpid() == self.pid and self._local.connection is not None:
            self._take_ends(self._ask(("rest", count_threads())), ())

    def lend_place(self) -> None:
        """Say that this rank is about to wait elsewhere, so that another one may run."""
        self._send(AWAY)

    def finish(self) -> None:
        """Say that this rank has returned from the test's body: it will launch nothing more."""
        if os.getpid() == self.pid and self._local.connection is not None:
            self._send(("finished", count_threads()))

    def connect(self) -> None:
        """Connect this thread, and wait until the rank may run."""
        if self._local.connection is None:
            self._connect()

    def _connect(self) -> socket.socket:
        if os.getpid() != self.pid:
            raise ExchangeLostError(
                "a child process of a simulated rank is not a member of its groups"
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self.address) as address:
                connection.connect(address)
        except OSError as error:
            connection.close()
            raise ExchangeLostError(_LOST) from error
        self._local.connection = connection
        hello = ("hello", self.rank, self.pid, threading.get_native_id(), count_threads())
        self._take_ends(self._ask(hello), ())
        return connection

    def _send(self, message: Travelling) -> socket.socket:
        connection = self._local.connection
        if connection is None or os.getpid() != self.pid:
            connection = self._connect()
        try:
            connection.sendall(pack(message))
        except OSError as error:
            raise ExchangeLostError(_LOST) from error
        except BaseException:
            self._leave(connection)
            raise
        return connection

    def _ask(self, message: Travelling, timeout_s: float = math.inf) -> Any:  # noqa: ANN401 - depends on the message
        connection = self._send(message)
        try:
            if self.times_itself and not _comes(connection, timeout_s):
                connection.sendall(pack(EXPIRED))
            return _answer(connection)
        except BaseException:
            self._leave(connection)
            raise

    def _leave(self, connection: socket.socket) -> None:
        """Close a connection on which a signal's handler has cut a message or an answer short."""
        self._local.connection = None
        connection.close()


@dataclass(frozen=True, slots=True)
class Idleness:
    """The state of an exchange, once it has read all messages of ranks.

    Attributes:
        is_idle: Whether it does nothing until a rank sends something, or a timeout strikes.
        last_s: When a rank has last sent something, or was last sent something, on the monotonic
            clock. A timeout that strikes lets a rank go on long after its last message.
        until_s: When the first timeout of a wait strikes.
    """

    is_idle: bool
    last_s: float
    until_s: float


_MAX_PATH = 107
"""Bytes of the path of a socket: see unix(7)."""


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """Yield a path to a socket that is short enough, also if its folder has a long one."""
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield path
        return
    folder, _, name = path.rpartition("/")
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def ask_exchange(address: str, within_s: float) -> Idleness | None:
    """Return the state of an exchange; None if it does not answer in time."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(within_s)
            with short_path(address) as path:
                connection.connect(path)
            connection.sendall(pack(ASK))
            return Idleness(*_answer(connection))
    except (OSError, ExchangeLostError):
        return None


links: list[ExchangeLink] = []
"""The link of this process, which is a rank for its whole life."""


def own_link(address: str, rank: int) -> ExchangeLink:
    """Return the link of this process, a rank; made on the first call."""
    if not links or links[0].pid != os.getpid():
        links[:] = [ExchangeLink(address, rank)]
    return links[0]


_LONGEST_MS = 2**31 - 1
"""The longest time for which `poll` can wait: 24.8 days."""

_LOST = "the process that exchanges the ranks' messages has ended"


def _comes(connection: socket.socket, timeout_s: float) -> bool:
    """Return whether an answer comes before a timeout strikes."""
    if timeout_s == math.inf:
        return True
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(min(timeout_s * 1000, _LONGEST_MS)))


def _answer(connection: socket.socket) -> Any:  # noqa: ANN401 - depends on the message
    header = _read(connection, _LENGTH.size)
    return _values(_read(connection, _LENGTH.unpack(header)[0]))


def _read(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except OSError as error:
            raise ExchangeLostError(_LOST) from error
        if count == 0:
            raise ExchangeLostError(_LOST)
        view = view[count:]
    return data
