"""Kernel state of a world's processes: threads, what they wait for, and who can end these waits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NEVER = math.inf
"""When a wait ends by itself that has no limit."""

Kind = Literal[
    "file",
    "pipe",
    "fifo",  # a pipe with a name: whoever knows it may open it
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
    "uring",  # "inside" while nothing is asked of it
    "device",  # an accelerator: the end of its work may wake a thread
    "other",  # signalfd, inotify and whatever else may become ready out of the blue
]
"""What a descriptor leads to."""

Where = Literal[
    "inside",  # only processes of the world
    "harness",  # the controller or a server of ours
    "outside",  # somebody else, perhaps beside processes of the world
    "nobody",  # the other side is closed
    "unknown",
]
"""Who is at the other end of a descriptor, or of a page of shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """One open descriptor of a process.

    Attributes:
        target: Where its link in /proc leads.
        where: Who is at the other end, or holds it as well; "inside" for what has no other end,
            and for an eventfd that no thread waits for.
        peer: The other end for the reader: an address, a rank, a program.
        queues: Bytes that wait to be read and to be sent, of a socket.
        bytes_moved: Bytes that it has sent and received so far, where the kernel tells.
        ends_s: When a timer ends, on the monotonic clock; NEVER when it is not set.
        watched: Descriptors that an epoll watches; None where they could not be read.
        pid: Process of a pidfd.
        is_exempt: Whether it is the harness's own; a thread that waits for it does not matter.
        endpoints: Both addresses of a TCP connection, or sockets of a unix one, its own first; an
            address that means something on one machine alone says on which.
    """

    fd: int
    target: str
    kind: Kind
    where: Where = "inside"
    peer: str = ""
    queues: tuple[int, int] = (0, 0)
    bytes_moved: int = 0
    ends_s: float | None = NEVER
    watched: tuple[int, ...] | None = ()
    pid: int = 0
    is_exempt: bool = False
    endpoints: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread at one instant.

    Attributes:
        tid: Its native id.
        name: Its name as the kernel knows it, at most 15 characters; often inherited.
        state: A letter as in ``ps``; empty when it is gone.
        call: Name of the system call that it is in; ``running`` on a processor; empty if unknown.
        args: The first six arguments of the call.
        pointer: Its stack pointer.
        cpu_ns: How long it has run so far.
        runs: How often it was put on a processor. Every wait that ends raises it.
        started_s: When it began, on the monotonic clock, rounded down.
        ends_s: The earliest time at which its wait ends by itself; NEVER without a limit, None if
            unknown.
        fds: Descriptors that can end its wait; None where they could not be read.
        target: For the reader: path, pipe, socket or child that the call is about.
        child: Process that it waits for: an id, -1 for any child, 0 for none.
        futex_scope: Who shares the page of a futex: "inside" for memory of its own.
        waits_for_gil: Whether it waits for its turn to run Python: for a word in the
            interpreter's own data.
        holders: Processes that hold the file lock which it waits for; None if unknown.
        code: Files whose code its stack returns to; None where that was not looked at.
        function: The innermost function of such a file that is more than waiting for a lock,
            mangled; empty where that was not looked up.
        wchan: Function of the kernel in which it waits.
        is_exempt: Whether it is a thread of the harness.
    """

    tid: int
    name: str = ""
    state: str = "S"
    call: str = ""
    args: tuple[int, ...] = ()
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
    wchan: str = ""
    is_exempt: bool = False

    def ends_by(self, at_s: float) -> bool:
        """Whether its wait is known to end by itself until then."""
        return self.ends_s is not None and self.ends_s <= at_s

    @property
    def wait_key(self) -> tuple[object, ...]:
        """What stays the same as long as the thread has not left its wait."""
        return self.tid, self.state, self.call, self.args, self.pointer, self.cpu_ns, self.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a world at one instant: a rank, or a descendant of one.

    Attributes:
        rank: Whose it is; None for an orphan of which that is not known.
        is_rank: Whether it is the rank itself.
        threads: Main thread first; only that one in a shallow snapshot; none when it has ended.
        descriptors: By number: all of them in a deep snapshot, those of the main thread's system
            call in a shallow one.
        caught: Signals with a handler, a bit each, bit 0 for signal 1.
        pending: Signals that are about to be delivered.
        timers: POSIX timers that it has made; None if unknown.
        tracer: Process that traces it, 0 for none.
        unread: What could not be read.
    """

    pid: int
    rank: int | None
    is_rank: bool = True
    name: str = ""
    threads: tuple[Thread, ...] = ()
    descriptors: Mapping[int, Descriptor] = field(default_factory=dict)
    caught: int = 0
    pending: int = 0
    timers: int | None = 0
    tracer: int = 0
    unread: tuple[str, ...] = ()

    @property
    def main(self) -> Thread | None:
        """Its main thread; None when the process has ended."""
        return self.threads[0] if self.threads else None

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, reaped or not."""
        return all(thread.state in {"", "X", "Z"} for thread in self.threads)


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def ranks(self) -> Mapping[int, Process]:
        """The ranks themselves."""
        ranks = (each for each in self.processes if each.is_rank)
        return {each.rank: each for each in ranks if each.rank is not None}

    def process(self, pid: int) -> Process | None:
        """Return a process by its id."""
        return next((each for each in self.processes if each.pid == pid), None)
