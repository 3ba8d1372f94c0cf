"""What may end a wait of one process, seen in a window between two looks.

A runtime's own threads (see `owners`) wake up all the time and do nothing by themselves. Every
other thread, of a rank or of what a rank has started, must not move at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pytest_multihost.model.operation import Operation
from pytest_multihost.model.process import Descriptor, Process, Thread
from pytest_multihost.proof import system_calls as calls
from pytest_multihost.proof.labels import activity_of, is_file_access, is_sleep
from pytest_multihost.proof.snapshot import Snapshot
from pytest_multihost.proof.socket_peers import describe_peer, is_severed, is_under_way
from pytest_multihost.proof.thread_owners import has_gloo_timeout, is_own

_BUSY = 0.02
"""Share of a processor from which on a runtime's own thread does more than wait."""

_TRAFFIC = 4096
"""Bytes on one connection in one window that are more than heartbeats."""

_TO_ITSELF = 1 << 16
"""Bytes on a connection of a rank to itself that are more than asking again and again: each 10 ms
the rank that hosts torch's store asks it how many have come."""

_SIGALRM = 1 << 13
_DEAD = frozenset({"", "X", "Z"})
_SHARED = frozenset({"tcp", "unix", "pipe", "eventfd"})
"""Descriptors that end a wait when whoever else holds them, or their other end, does something."""


@dataclass(frozen=True, slots=True)
class Window:
    """One living process in one window."""

    was: Process
    process: Process
    before: Snapshot
    now: Snapshot
    deadline_s: float
    _earlier: dict[int, Thread] = field(init=False)

    def __post_init__(self) -> None:
        earlier = {thread.tid: thread for thread in self.was.threads}
        object.__setattr__(self, "_earlier", earlier)

    def blockers(self) -> Iterator[str]:
        """Yield what may end a wait, as the rest of a sentence about the process."""
        if any(thread.state in {"T", "t"} for thread in self.process.threads):
            yield "is stopped"
            return
        yield from self._signals()
        for descriptor in self.process.descriptors.values():
            yield from self._descriptor(descriptor)
        for thread in self.process.threads:
            if thread.state not in _DEAD:
                about = "main thread" if thread is self.process.main else f"thread {thread.name}"
                yield from (f"{about} {each}" for each in self._thread(thread))
        yield from self._ended()

    def _signals(self) -> Iterator[str]:
        process = self.process
        yield from (f"{each} cannot be read" for each in process.unread)
        if process.tracer:
            yield f"is traced by process {process.tracer}"
        if process.pending:
            yield "is about to get a signal"
        if process.caught & _SIGALRM:
            yield "has a handler for SIGALRM, which a timer may send"
        if process.timers is None:
            yield "has timers that cannot be read"
        elif process.timers:
            yield "has made a timer"

    def _ended(self) -> Iterator[str]:
        tids = {thread.tid for thread in self.process.threads}
        for tid, thread in self._earlier.items():
            if tid not in tids and thread.state not in _DEAD and not is_own(thread):
                yield f"thread {thread.name} has just ended"

    def _descriptor(self, found: Descriptor) -> Iterator[str]:
        """Yield what is wrong with a descriptor even where nobody is seen to wait for it."""
        if found.is_exempt or self._is_severed(found):
            return
        if found.kind == "device":
            yield f"has opened {found.target}"
        if found.kind == "uring" and found.where != "inside":
            yield "has asked io_uring for something"
        if found.kind not in {"tcp", "unix", "udp"}:
            return
        if found.where == "outside" or (found.kind != "udp" and found.where == "unknown"):
            yield f"{found.kind} socket to {found.peer or 'somebody'} leads outside the world"
        last = self.was.descriptors.get(found.fd)
        if last is None or last.target != found.target:
            yield f"{found.kind} socket to {found.peer or 'somebody'} is new"
        elif self._moves(last, found):
            yield f"data moves on the {found.kind} socket to {found.peer or 'somebody'}"
        elif self.now.is_disturbed and is_under_way(found, self.now.severed):
            yield f"what it has sent to {found.peer or 'somebody'} may still arrive"

    def _moves(self, last: Descriptor, found: Descriptor) -> bool:
        """Tell whether data move on a socket, and not only from a waiting rank to itself."""
        moved = found.bytes_moved - last.bytes_moved
        if self._leads_to_itself(found) and self._waits():
            return moved > _TO_ITSELF
        return last.queues != found.queues or moved > _TRAFFIC

    def _leads_to_itself(self, found: Descriptor) -> bool:
        here, there = found.ends
        mine = {each.ends for each in self.process.descriptors.values() if each.kind == "tcp"}
        return bool(here) and (there, here) in mine

    def _waits(self) -> bool:
        main = self.process.main
        return self.process.is_rank and main is not None and self._is_in_operation(main)

    def _thread(self, thread: Thread) -> Iterator[str]:
        is_main = thread is self.process.main
        if not is_main and (thread.is_exempt or self._is_for_us(thread)):
            return
        if thread.state == "D":
            yield f"is in uninterruptible sleep ({thread.call or thread.wchan})"
        elif self.process.is_rank and self._is_in_operation(thread):
            yield from self._operation(thread)
        elif self.process.is_rank and self._is_own(thread):
            yield from self._own(thread)
        elif self._waits_for_interpreter(thread):
            return  # until another thread of it lets go, and each of them is looked at
        else:
            yield from self._tracked(thread)

    def _waits_for_interpreter(self, thread: Thread) -> bool:
        """Tell whether a thread has done nothing but wait for its turn to run Python."""
        last = self._earlier.get(thread.tid)
        if last is None or not (last.is_for_interpreter and thread.is_for_interpreter):
            return False
        return not self._is_busy(thread, last)

    def _is_busy(self, thread: Thread, last: Thread | None) -> bool:
        elapsed_ns = (self.now.kernel.at_s - self.before.kernel.at_s) * 1e9
        return thread.cpu_ns - (last.cpu_ns if last else 0) > _BUSY * elapsed_ns

    def _is_for_us(self, thread: Thread) -> bool:
        found = [self.process.descriptors.get(fd) for fd in thread.fds or ()]
        return bool(found) and all(each is not None and each.is_exempt for each in found)

    def _is_in_operation(self, thread: Thread) -> bool:
        return _same_operations(self.process.rank, thread.tid, self.before, self.now)

    def _is_own(self, thread: Thread) -> bool:
        """Tell whose a thread is; one on a processor has no stack to read and is what it was."""
        last = self._earlier.get(thread.tid)
        is_still = last is not None and not thread.code and is_own(last)
        return thread is not self.process.main and (is_own(thread) or is_still)

    def _operation(self, thread: Thread) -> Iterator[str]:
        """Yield what may end an operation: one wait that has not moved, and has a limit.

        One that wakes up again and again only looks whether its operation has ended, if that is a
        runtime's; of the user's own nobody knows how long it looks.
        """
        waited = self.now.waited(self.process.rank, thread.tid)
        first = min(waited, key=lambda each: each.gives_up_s)
        if self._is_limited(thread):
            yield f"gives up {waited[-1].name}{self._until(thread)}"
        elif first.gives_up_s <= self.deadline_s:
            left_s = first.gives_up_s - self.now.kernel.at_s
            yield f"gives up {first.name} until +{max(left_s, 0.0):.1f} s"
        elif any(each.is_own for each in waited) and not self._is_same(thread):
            yield f"wakes up in {waited[-1].name}, and may go another way"

    def _own(self, thread: Thread) -> Iterator[str]:
        """Yield what a runtime's own thread does beyond waiting; its short limits are its own."""
        if self._is_busy(thread, self._earlier.get(thread.tid)):
            yield "runs"
        if is_sleep(thread):
            yield f"sleeps{self._until(thread)}"
        elif is_file_access(thread):
            yield from self._file_access(thread, is_runtimes=True)
        elif has_gloo_timeout(thread) and self._is_limited(thread):
            yield f"gives up what it does for a rank{self._until(thread)}"
        elif thread.call in calls.FUTEXES:
            yield from self._futex(thread)
        elif thread.call in calls.POLLS | calls.EPOLLS | calls.SOCKETS | calls.STREAMS:
            yield from self._descriptors(thread, is_runtimes=True)
        elif thread.state != "R" and thread.call != "running":
            yield self._describe(thread)

    def _is_limited(self, thread: Thread) -> bool:
        """Tell whether a thread is in one wait, which ends by itself before the deadline."""
        return self._is_same(thread) and thread.ends_by(self.deadline_s)

    def _tracked(self, thread: Thread) -> Iterator[str]:
        """Yield why a thread that must not move is not seen to stand still until the deadline."""
        if thread.state != "S" or thread.call == "running":
            yield "runs"
        elif not self._is_same(thread):
            yield f"wakes up and {self._describe(thread)}"
        elif thread.ends_s is None or thread.ends_s <= self.deadline_s:
            yield self._describe(thread)
        else:
            yield from self._untimed(thread)

    def _untimed(self, thread: Thread) -> Iterator[str]:
        call = thread.call
        if call in calls.FUTEXES:
            yield from self._futex(thread)
        elif call in calls.SIGNALS:
            yield "waits for a signal, which anybody may send"
        elif call in calls.CHILDREN:
            yield from self._child(thread)
        elif calls.is_lock_wait(call, thread.args):
            yield from self._lock(thread)
        elif call in calls.SLEEPS:
            return
        elif call in calls.POLLS | calls.EPOLLS | calls.SOCKETS:
            yield from self._descriptors(thread)
        elif call in calls.STREAMS:
            yield from self._file_access(thread)
        else:
            yield self._describe(thread)

    def _futex(self, thread: Thread) -> Iterator[str]:
        if thread.word != "inside":
            yield "waits for a lock in memory that others may share"

    def _child(self, thread: Thread) -> Iterator[str]:
        if thread.child > 0 and self.now.kernel.process(thread.child) is None:
            yield f"waits for process {thread.child}, of which nothing is known"

    def _lock(self, thread: Thread) -> Iterator[str]:
        for pid in thread.holders or (0,):
            holder = self.now.kernel.process(pid)
            if pid <= 0:
                yield f"waits for a lock of {thread.target}; who holds it is not known"
            elif holder is None or holder.is_dead:
                yield f"waits for a lock of {thread.target}, held by process {pid}"

    def _file_access(self, thread: Thread, *, is_runtimes: bool = False) -> Iterator[str]:
        found = [self.process.descriptors.get(fd) for fd in thread.fds or ()]
        if any(each is None or each.kind == "file" for each in found) or not found:
            yield self._describe(thread)
        else:
            yield from self._descriptors(thread, is_runtimes=is_runtimes)

    def _descriptors(self, thread: Thread, *, is_runtimes: bool = False) -> Iterator[str]:
        fds = self._flat(thread.fds, frozenset())
        if fds is None:
            yield f"waits in {thread.call}; for what cannot be read"
        for fd in fds or ():
            if found := self._may_wake(self.process.descriptors.get(fd), is_runtimes=is_runtimes):
                yield f"waits for {found}"

    def _flat(self, fds: tuple[int, ...] | None, seen: frozenset[int]) -> set[int] | None:
        """Return what is waited for, with what an epoll watches in its place."""
        found: set[int] = set()
        for fd in fds if fds is not None else (-1,):
            descriptor = self.process.descriptors.get(fd)
            if fd in seen:
                continue
            if descriptor is None or descriptor.kind != "epoll":
                found.add(fd)
                continue
            inner = self._flat(descriptor.watched, seen | {fd})
            if inner is None:
                return None
            found |= inner
        return None if -1 in found else found

    def _may_wake(self, found: Descriptor | None, *, is_runtimes: bool) -> str:
        """Return by what a descriptor may wake its thread before the deadline, empty if it cannot.

        A runtime's own thread may wait for connections, timers and eventfds: what it does then is
        its own.
        """
        if found is None:
            return "a descriptor that cannot be read"
        stays = found.where == "inside" and found.kind in _SHARED | {"uring"}
        if stays or found.kind == "epoll" or found.where == "nobody":
            return ""
        if is_runtimes and (found.kind == "eventfd" or self._is_severed(found)):
            return ""
        if found.kind in _SHARED:
            return describe_peer(found)
        if found.kind == "pidfd":
            is_known = self.now.kernel.process(found.pid) is not None
            return "" if is_known else f"process {found.pid}, of which nothing is known"
        if found.kind == "timerfd":
            is_late = found.ends_s is not None and found.ends_s > self.deadline_s
            return "" if is_late or is_runtimes else "a timer"
        if found.kind == "listen":
            return "" if is_runtimes else f"somebody to connect to {found.peer or 'its socket'}"
        return f"{found.kind} {found.target}"

    def _is_severed(self, found: Descriptor) -> bool:
        return is_severed(found, self.before.severed & self.now.severed)

    def _is_same(self, thread: Thread) -> bool:
        last = self._earlier.get(thread.tid)
        return last is not None and last.wait_key == thread.wait_key

    def _describe(self, thread: Thread) -> str:
        activity = activity_of(thread, self.now.kernel.at_s)
        return f"sleeps{activity.until}" if is_sleep(thread) else f"waits in {activity}"

    def _until(self, thread: Thread) -> str:
        return activity_of(thread, self.now.kernel.at_s).until


def _same_operations(rank: int | None, tid: int, before: Snapshot, now: Snapshot) -> bool:
    """Tell whether a thread has waited for the same operations at both moments."""
    found = [_identity(each) for each in now.waited(rank, tid)]
    return bool(found) and found == [_identity(each) for each in before.waited(rank, tid)]


def _identity(operation: Operation) -> Operation:
    """Return an operation without what is told a little differently each time it is asked for."""
    is_asked_for = operation.source == "flight-recorder"  # its times come from another clock
    return replace(operation, since_s=0.0, waited_s=0.0) if is_asked_for else operation
