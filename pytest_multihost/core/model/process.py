"""Kernel state of a world's processes: threads, their waits, and the ways these waits can end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

NEVER = math.inf
"""The end of a wait without a timeout."""

IN_TURNS = "waits in turns"
"""The name of a main thread while it waits in turns for one pipe.

Each turn has a timeout, after which it checks only whether the processes at the other end are
alive, and waits again. A rank or its child sets it; see `recorder/torch_data.py`."""

SERVES_IN_TURNS = "serves in turns"
"""The name of a thread while it waits in turns for requests to a server of Python's.

After each turn it only checks whether another thread wants the server to shut down, and waits
again. A rank or its child sets it; see `recorder/servers.py`."""

TICKS = "only ticks "
"""How the name of a thread begins while its event loop does nothing but look, in turns, whether its
server is to end.

The rest counts the other work of the loop. So between two moments at which a thread has the
same such name, it has done nothing else. A rank or its child sets it; see `recorder/ticks.py`."""


def is_mark(name: str) -> bool:
    """Return whether a thread has this name only while it waits in turns."""
    return name in {IN_TURNS, SERVES_IN_TURNS} or name.startswith(TICKS)


Kind = Literal[
    "file",
    "pipe",
    "fifo",  # a pipe with a name, by which any process may open it
    "tty",
    "tcp",
    "unix",
    "listen",  # TCP or unix
    "udp",
    "netlink",
    "idle",  # a stream socket that is not connected
    "eventfd",
    "timerfd",
    "epoll",
    "pidfd",
    "uring",  # "inside" while no request is pending
    "device",  # an accelerator: the end of its work may wake a thread
    "other",  # signalfd, inotify and others that may become ready at any time
]
"""The kind of file that a descriptor refers to."""

Where = Literal[
    "inside",  # only processes of the world
    "harness",  # controllers
    "outside",  # another process, perhaps in addition to processes of the world
    "nobody",  # the other side is closed
    "unknown",
]
"""Which processes hold the other end of a descriptor, or share a page of memory."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a connection.

    Attributes:
        host: Its address; empty for a unix socket.
        port: Its port; for a unix socket, the inode.
        space: Where host and port identify this socket; empty for an address that others can reach.
    """

    host: str
    port: int
    space: str = ""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """One open descriptor of a process.

    Attributes:
        target: The target of its link in /proc.
        where: Which processes hold the other end, or share it; "inside" if it has no other end,
            and for an eventfd that no thread waits for.
        peer: The other end, for the reader: an address, a rank, a program.
        queues: Bytes in a socket's receive and send queues.
        is_resent: Whether TCP resends lost data of the connection, which may yet arrive.
        is_in_flight: Whether it has sent data that TCP has neither got acknowledged nor resent.
        bytes_moved: Bytes that it has sent and received so far, if the kernel reports that.
        ends_s: When a timer ends, on the monotonic clock; NEVER when it is not set. For a TCP
            connection, the earliest time at which the kernel may end it because the peer is silent.
        is_answered: Whether the peer has answered when the kernel last asked for a sign of life.
        watched: Descriptors that an epoll watches; None where they could not be read.
        is_exempt: Whether it belongs to the harness; threads that wait for it are ignored.
        endpoints: Both ends of a connection, its own first; empty if it has none.
        is_accepted: Whether it is the end of a connection that a listener has accepted.
        holder: A process of the world that holds the other end of a connection, or the listener
            that has not accepted it yet; 0: none that is known.
    """

    fd: int
    target: str
    kind: Kind
    where: Where = "inside"
    peer: str = ""
    queues: tuple[int, int] = (0, 0)
    is_resent: bool = False
    is_in_flight: bool = False
    bytes_moved: int = 0
    ends_s: float | None = NEVER
    is_answered: bool = False
    watched: tuple[int, ...] | None = ()
    pid: int = 0
    is_exempt: bool = False
    endpoints: tuple[Endpoint, ...] = ()
    is_accepted: bool = False
    holder: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses of both ends of a connection, its own first."""
        return tuple(each.host for each in self.endpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread at one instant.

    Attributes:
        name: Its name in the kernel, at most 15 characters; often inherited.
        state: A letter as in ``ps``; empty when it has ended.
        call: Name of its current system call; ``running`` on a processor; empty if unknown.
        args: The first six arguments of the call.
        is_restarted: Whether the kernel has restarted the call after the thread was stopped.
        cpu_ns: How long it has run so far.
        runs: How often it was scheduled on a processor; the end of every wait increments it.
        started_s: When it began, on the monotonic clock, rounded down.
        ends_s: The earliest time at which its wait ends by itself; NEVER without a timeout, None if
            unknown.
        fds: Descriptors that can end its wait; None where they could not be read.
        target: For the reader: path, pipe, socket or child that the call refers to.
        child: Process that it waits for: an id, -1 for any child, 0 for none.
        futex_scope: Which processes share the page of a lock: "inside" for private memory.
        waits_for_gil: Whether it waits for the GIL: a lock in the interpreter's own data.
        holders: Processes that hold the file lock it waits for; None if unknown.
        code: Files whose code its stack returns to; None if not read.
        function: The innermost function of such a file that does more than wait for a lock,
            mangled; empty if not looked up.
        caller: The file whose code has made the call, past the C library; empty if not read. It is
            read for threads whose call fails if it is interrupted.
        wchan: Kernel function in which it waits.
        is_exempt: Whether it is a thread of the harness.
    """

    tid: int
    name: str = ""
    state: str = "S"
    call: str = ""
    args: tuple[int, ...] = ()
    is_restarted: bool = False
    pointer: int = 0
    cpu_ns: int = 0
    runs: int = 0
    started_s: float = 0.0
    ends_s: float | None = None
    fds: tuple[int, ...] | None = ()
    target: str = ""
    child: int = 0
    futex_scope: Where = "inside"
    waits_for_gil: bool = False
    holders: tuple[int, ...] | None = None
    code: tuple[str, ...] | None = None
    function: str = ""
    caller: str = ""
    wchan: str = ""
    is_exempt: bool = False

    def ends_by(self, at_s: float) -> bool:
        """Whether its wait is known to end by itself by `at_s`."""
        return self.ends_s is not None and self.ends_s <= at_s

    @property
    def ticks(self) -> bool:
        """Whether it waits in turns, and does nothing after each; see `TICKS`."""
        return self.name.startswith(TICKS)

    @property
    def wait_key(self) -> tuple[object, ...]:
        """A key that stays equal as long as the thread remains in its wait, or in its turns."""
        if self.ticks:
            return self.tid, self.state, self.call, self.name
        return self.tid, self.state, self.call, self.args, self.pointer, self.cpu_ns, self.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a world at one instant: a rank, or a descendant of one.

    Attributes:
        rank: The rank it belongs to; None for an orphan for which that is unknown.
        is_rank: Whether it is the rank itself.
        is_parent: Whether it waits for ranks that it has started, or stands between them and such a
            process. Then a wait of it that ends at any time ends the world's.
        threads: Main thread first; only the main thread in a shallow snapshot; empty when the
            process has ended.
        descriptors: By number: all in a deep snapshot, none in a shallow one.
        caught: Bit mask of signals with a handler, bit 0 for signal 1.
        pending: Signals that are about to be delivered.
        timers: POSIX timers that it has made; None if unknown.
        tracer: Process that traces it, 0 for none.
        status: How it has ended, as wait(2) would tell, if it has and no process has waited for it.
    """

    pid: int
    rank: int | None
    is_rank: bool = True
    is_parent: bool = False
    name: str = ""
    threads: tuple[Thread, ...] = ()
    descriptors: Mapping[int, Descriptor] = field(default_factory=dict)
    caught: int = 0
    pending: int = 0
    timers: int | None = 0
    tracer: int = 0
    unread: tuple[str, ...] = ()
    status: int = 0

    @property
    def main(self) -> Thread | None:
        """Its main thread; None when the process has ended."""
        return self.threads[0] if self.threads else None

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, reaped or not."""
        return all(thread.state in {"", "X", "Z"} for thread in self.threads)


@dataclass(frozen=True, kw_only=True)  # no slots: a value is kept
class KernelSnapshot:
    """A world's processes at one instant.

    Attributes:
        at_s: When the reading began, on the monotonic clock.
        processes: Ranks in order, then, in a deep snapshot, their descendants.
        is_deep: Whether everything was read, not only the main threads of the ranks.
    """

    at_s: float
    processes: tuple[Process, ...]
    is_deep: bool = False

    @cached_property
    def ranks(self) -> Mapping[int, Process]:
        """The ranks themselves; made once, for a world of a thousand asks for it for each rank."""
        ranks = (each for each in self.processes if each.is_rank)
        return {each.rank: each for each in ranks if each.rank is not None}

    def process(self, pid: int) -> Process | None:
        """Return a process by its id."""
        return next((each for each in self.processes if each.pid == pid), None)
