"""The blockers of a proof: everything that may end a wait of a world before its deadline.

Each rule yields the rest of a sentence about a process, thread or descriptor for everything that
may end a wait. It yields nothing if only threads that are judged themselves can end the wait. There
are three sorts of threads:

* in an operation that the recorder knows: how it waits - sleeping, polling, asking a store - does
  not matter, as long as the operation stays the same and does not time out
* a runtime's own (`threads`): it wakes up all the time to poll, so its timeouts do not matter
  either; what matters is whether it runs, sleeps, or serves a peer outside the world
* all others, of a rank or of a process that a rank has started: they must not move at all

`_descriptor_blockers` judges descriptors themselves, whether or not a thread waits for them: data
that move, a connection that leaves the world. `_waker` judges one wait: what may end it by making a
descriptor ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.process import NEVER, Descriptor, Process, Thread
from pytest_multihost.core.proof import threads as calls
from pytest_multihost.core.proof.snapshot import Interval, Snapshot
from pytest_multihost.core.proof.threads import (
    DEAD,
    has_gloo_timeout,
    is_file_access,
    is_runtime_thread,
    is_sleep,
)

SIGALRM = 1 << 13  # signal 14; bit 0 is signal 1

_TRAFFIC_BYTES = 4096
"""Bytes on one connection between two snapshots that are more than heartbeats."""

_TO_ITSELF_BYTES = 1 << 16
"""The same on a connection of a rank to itself: every 10 ms the rank that hosts torch's store polls
it for the number of ranks that have arrived."""

_SOCKETS = frozenset({"tcp", "unix", "udp"})
_SHARED = frozenset({"tcp", "unix", "pipe", "eventfd"})
"""Descriptors whose wait ends when another process that holds them, or a peer, acts."""

_CONNECTS = "jax.distributed.initialize"
"""An operation in which gRPC waits ever longer, up to two minutes, before it connects again."""

_OF_RUNTIMES = frozenset({"eventfd", "timerfd", "listen"})


def blockers(before: Snapshot, now: Snapshot, *, deadline_s: float) -> tuple[str, ...]:
    """Return everything that may end a wait of the world before the deadline, as sentences.

    Args:
        before: A deep snapshot.
        now: The next one.
        deadline_s: When the world is ended in any case, on the monotonic clock.
    """
    found = []
    if not (before.kernel.is_deep and now.kernel.is_deep):
        found.append("only main threads were looked at")
    living = [each for each in now.kernel.processes if not each.is_dead]
    if not any(each.is_rank for each in living):
        found.append("no rank is alive")
    for process in living:
        was = before.kernel.process(process.pid)
        if was is None:
            found.append(f"{process_name(process)} has just begun")
        else:
            earlier = {thread.tid: thread for thread in was.threads}
            interval = Interval(was, process, before, now, deadline_s, earlier)
            found += [f"{process_name(process)} {each}" for each in process_blockers(interval)]
    pids = {each.pid for each in living}
    ended = [e for e in before.kernel.processes if not e.is_dead and e.pid not in pids]
    found += [f"{process_name(each)} has just ended" for each in ended]
    return tuple(dict.fromkeys(found))


def rank_blockers(
    before: Snapshot, now: Snapshot, *, deadline_s: float
) -> Mapping[int, tuple[str, ...]]:
    """Return what may end a wait of each rank or of its children, as sentences.

    A connection that leads outside the world counts only if a thread waits for it. What the
    runtime's own threads wait for does not count, unless they give up: a rank is asked about, not
    the world.

    Args:
        before: A deep snapshot.
        now: The next one.
        deadline_s: How long its waits are to last, on the monotonic clock.
    """
    found: dict[int, list[str]] = {}
    for process in now.kernel.processes:
        if process.rank is None or process.is_dead:
            continue
        was = before.kernel.process(process.pid)
        if was is None:
            why = ["has just begun"]
        else:
            earlier = {thread.tid: thread for thread in was.threads}
            interval = Interval(was, process, before, now, deadline_s, earlier)
            why = list(_own_blockers(interval))
        found.setdefault(process.rank, []).extend(f"{process_name(process)} {each}" for each in why)
    return {rank: tuple(each) for rank, each in found.items()}


def _own_blockers(interval: Interval) -> Iterator[str]:
    if any(thread.state in {"T", "t"} for thread in interval.process.threads):
        main = interval.process.main
        if main is not None and not interval.has_not_moved(main):
            yield "has just been stopped"
        return  # only a signal from outside lets it go on
    yield from _signal_blockers(interval.process)
    for thread in interval.process.threads:
        is_main = thread is interval.process.main
        is_runtimes = interval.process.is_rank and not is_main and is_runtime_thread(thread)
        name = "main thread" if is_main else f"thread {thread.name}"
        if thread.state in DEAD:
            continue
        if is_runtimes and interval.is_busy(thread):
            yield f"{name} runs"
        elif is_runtimes and has_gloo_timeout(thread) and interval.times_out(thread):
            yield f"{name} {_gives_up(interval, thread)}"
        elif not is_runtimes:
            yield from (f"{name} {each}" for each in _thread_blockers(interval, thread))
    for found in interval.process.descriptors.values():
        if found.kind in _SOCKETS:
            yield from _own_traffic(interval, found)


def _own_traffic(interval: Interval, found: Descriptor) -> Iterator[str]:
    last = interval.was.descriptors.get(found.fd)
    peer = found.peer or "somebody"
    if last is not None and _moves(interval, last, found):
        yield f"moves data on the {found.kind} socket to {peer}"
    elif last is not None and _may_arrive(interval, found):
        yield f"has sent to {peer} what may still arrive"


def process_name(process: Process) -> str:
    """Return how sentences begin that are about a process."""
    whose = f"rank {process.rank}:" if process.rank is not None else "orphan:"
    return whose if process.is_rank else f"{whose} child process `{process.name}` {process.pid}"


def process_blockers(interval: Interval) -> Iterator[str]:
    """Yield what may end a wait of a process, as the rest of a sentence about it."""
    process = interval.process
    if any(thread.state in {"T", "t"} for thread in process.threads):
        yield "is stopped"
        return
    yield from _signal_blockers(process)
    for descriptor in process.descriptors.values():
        yield from _descriptor_blockers(interval, descriptor)
    for thread in process.threads:
        if thread.state not in DEAD:
            name = "main thread" if thread is process.main else f"thread {thread.name}"
            yield from (f"{name} {each}" for each in _thread_blockers(interval, thread))
    tids = {thread.tid for thread in process.threads}
    for tid, thread in interval.earlier.items():
        # Other threads may have waited for the end of one that is not a runtime's own.
        if tid not in tids and thread.state not in DEAD and not is_runtime_thread(thread):
            yield f"thread {thread.name} has just ended"


def _signal_blockers(process: Process) -> Iterator[str]:
    """Yield what may send the process a signal: its handler can interrupt any wait."""
    yield from (f"{each} cannot be read" for each in process.unread)
    if process.tracer:
        yield f"is traced by process {process.tracer}"
    if process.pending:
        yield "is about to get a signal"
    if process.caught & SIGALRM:  # no file in /proc shows alarm(2) and setitimer(2)
        yield "has a handler for SIGALRM, which a timer may send"
    if process.timers is None:
        yield "has timers that cannot be read"
    elif process.timers:
        yield "has made a timer"


# Threads


def waits_for_harness(process: Process, thread: Thread) -> bool:
    """Return whether a thread is the harness's, or waits only for what the harness does with it."""
    awaited = [process.descriptors.get(fd) for fd in thread.fds or ()]
    is_awaiting = bool(awaited) and all(each and each.is_exempt for each in awaited)
    return thread is not process.main and (thread.is_exempt or is_awaiting)


def _thread_blockers(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield what may end a thread's wait, or that the thread does not wait."""
    is_main = thread is interval.process.main
    if waits_for_harness(interval.process, thread):
        return
    last = interval.earlier.get(thread.tid)
    # A thread that runs has no stack to read: its last one counts.
    was_runtimes = last is not None and not thread.code and is_runtime_thread(last)
    is_runtimes = not is_main and (is_runtime_thread(thread) or was_runtimes)
    operations = interval.awaited_operations(thread)
    if thread.state == "D":  # waits for a device or a page: may end at any time
        yield f"is in uninterruptible sleep ({thread.call or thread.wchan})"
    elif operations:
        yield from _operation(interval, thread, operations)
    elif interval.times_out(thread) and interval.now.failing_starts(
        interval.process.rank, thread.tid
    ):
        return  # the timeout fails the test, and nothing else ends before the deadline
    elif interval.process.is_rank and is_runtimes:
        yield from _runtime_thread(interval, thread)
    elif last and last.waits_for_gil and thread.waits_for_gil and not interval.is_busy(thread):
        return  # another thread of the process releases the GIL, and all threads are judged
    elif thread.state != "S" or thread.call == "running":
        yield "runs"
    elif not interval.has_not_moved(thread):
        yield f"wakes up and {_describe(interval, thread)}"
    elif thread.ends_s is None or thread.ends_s <= interval.deadline_s:
        yield _describe(interval, thread)
    else:
        yield from _wait_without_timeout(interval, thread)


def _operation(
    interval: Interval, thread: Thread, operations: tuple[Operation, ...]
) -> Iterator[str]:
    """Yield what may end an operation: its timeout, or that of the wait its thread is in.

    A thread that wakes up repeatedly in a runtime's operation only checks whether that has ended;
    a loop in the user's code may do anything after its check. If giving up fails the test, only
    the failure would come later: what the missing rank waits for lasts longer than the test.
    """
    first = min(operations, key=lambda each: each.gives_up_s)
    must_fail = all(map(interval.now.must_fail, operations))
    # torch's store sleeps for up to 20 s before it tries again to connect to its host, rank 0.
    retries = is_sleep(thread) and first.timeout_s is not None and 0 in interval.now.lacking(first)
    if interval.times_out(thread) and not must_fail and not retries:
        yield f"gives up {operations[-1].name}{interval.activity(thread).until}"
    elif first.gives_up_s <= interval.deadline_s:
        left_s = max(first.gives_up_s - interval.now.kernel.at_s, 0.0)
        yield f"gives up {first.name} until +{left_s:.1f} s"
    elif first.name == _CONNECTS and not interval.now.lacking(first):
        yield f"may connect again in {first.name}"
    elif any(each.is_own for each in operations) and not interval.has_not_moved(thread):
        yield f"wakes up in {operations[-1].name}, and may go another way"


def _runtime_thread(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield what a runtime's own thread does beyond waiting."""
    if interval.is_busy(thread):
        yield "runs"
    if is_sleep(thread):
        yield from [f"sleeps{interval.activity(thread).until}"] if thread.ends_s != NEVER else ()
    elif is_file_access(thread):
        yield from _file_access(interval, thread, is_runtimes=True)
    elif has_gloo_timeout(thread) and interval.times_out(thread):
        yield _gives_up(interval, thread)
    elif thread.call in calls.FUTEXES:
        yield from _futex(thread)
    elif thread.call in calls.POLLS | calls.EPOLLS | calls.SOCKETS | calls.STREAMS:
        yield from _descriptors(interval, thread, is_runtimes=True)
    elif thread.state != "R" and thread.call != "running":
        yield _describe(interval, thread)


# What may end a wait


def _gives_up(interval: Interval, thread: Thread) -> str:
    return f"gives up what it does for a rank{interval.activity(thread).until}"


def _wait_without_timeout(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield what may end a wait that does not time out before the deadline."""
    call = thread.call
    if call in calls.FUTEXES:
        yield from _futex(thread)
    elif call in calls.SIGNALS:
        yield "waits for a signal, which anybody may send"
    elif call in calls.CHILDREN:
        # A known child is a process of the world and is judged itself.
        if thread.child > 0 and interval.now.kernel.process(thread.child) is None:
            yield f"waits for process {thread.child}, of which nothing is known"
    elif calls.SystemCall(call, thread.args).is_file_lock:
        yield from _file_lock(interval, thread)
    elif call in calls.SLEEPS:
        return  # only the timer ends it, and it expires after the deadline
    elif call in calls.POLLS | calls.EPOLLS | calls.SOCKETS:
        yield from _descriptors(interval, thread)
    elif call in calls.STREAMS:
        yield from _file_access(interval, thread)
    else:
        yield _describe(interval, thread)


def _futex(thread: Thread) -> Iterator[str]:
    """Only the world's threads can wake a futex that no foreign process maps."""
    if thread.futex_scope != "inside":
        yield "waits for a lock in memory that others may share"


def _file_lock(interval: Interval, thread: Thread) -> Iterator[str]:
    """The holder must be a living process of the world: it, or its end, releases the lock."""
    for pid in thread.holders or (0,):
        holder = interval.now.kernel.process(pid)
        if pid <= 0:
            yield f"waits for a lock of {thread.target}; who holds it is not known"
        elif holder is None or holder.is_dead:
            yield f"waits for a lock of {thread.target}, held by process {pid}"


def _file_access(interval: Interval, thread: Thread, *, is_runtimes: bool = False) -> Iterator[str]:
    """A read of a regular file ends when its disk or server answers; a pipe depends on writers."""
    found = [interval.process.descriptors.get(fd) for fd in thread.fds or ()]
    if any(each is None or each.kind == "file" for each in found) or not found:
        yield _describe(interval, thread)
    else:
        yield from _descriptors(interval, thread, is_runtimes=is_runtimes)


def _descriptors(interval: Interval, thread: Thread, *, is_runtimes: bool = False) -> Iterator[str]:
    fds = _awaited_descriptors(interval, thread.fds)
    if fds is None:
        yield f"waits in {thread.call}; for what cannot be read"
    for fd in fds or ():
        descriptor = interval.process.descriptors.get(fd)
        if found := _waker(interval, descriptor, is_runtimes=is_runtimes):
            yield f"waits for {found}"


def _describe(interval: Interval, thread: Thread) -> str:
    activity = interval.activity(thread)
    return f"sleeps{activity.until}" if is_sleep(thread) else f"waits in {activity}"


# Descriptors


def _descriptor_blockers(interval: Interval, found: Descriptor) -> Iterator[str]:
    """Yield the activity that a descriptor shows, even if no thread waits for it.

    Data can be in flight on a socket whose reader is busy elsewhere, and an accelerator or io_uring
    may finish work that was submitted long ago.
    """
    if found.is_exempt or interval.is_severed(found):
        return
    if found.kind == "device":
        yield f"has opened {found.target}"
    elif found.kind == "uring" and found.where != "inside":
        yield "has asked io_uring for something"
    elif found.kind in _SOCKETS:
        yield from _socket_blockers(interval, found)


def _socket_blockers(interval: Interval, found: Descriptor) -> Iterator[str]:
    peer = found.peer or "somebody"
    if found.where == "outside" or (found.kind != "udp" and found.where == "unknown"):
        yield f"{found.kind} socket to {peer} leads outside the world"
    last = interval.was.descriptors.get(found.fd)
    if last is None or last.target != found.target:
        yield f"{found.kind} socket to {peer} is new"
    elif _moves(interval, last, found):
        yield f"data moves on the {found.kind} socket to {peer}"
    elif _may_arrive(interval, found):
        yield f"what it has sent to {peer} may still arrive"


def _may_arrive(interval: Interval, found: Descriptor) -> bool:
    """Whether data that a socket has sent, and that its peer has not got, may still reach it.

    TCP retransmits lost data after any time up to two minutes (tcp(7), RTO), so unchanged queues
    prove nothing while frames can reach the peer.
    """
    is_unacknowledged = found.kind == "tcp" and found.queues[1] > 0
    may_arrive = found.is_resent or (interval.now.is_disturbed and is_unacknowledged)
    return may_arrive and found.hosts not in interval.now.severed


def _moves(interval: Interval, last: Descriptor, found: Descriptor) -> bool:
    """Whether data move on a socket, beyond the polling of a waiting rank's own store."""
    process = interval.process
    moved = found.bytes_moved - last.bytes_moved
    if last.queues == found.queues and moved <= _TRAFFIC_BYTES:
        return False
    if process.main and interval.awaited_operations(process.main):
        own = {each.endpoints for each in process.descriptors.values() if each.kind == "tcp"}
        if found.endpoints and found.endpoints[::-1] in own:
            return moved > _TO_ITSELF_BYTES
    return last.queues != found.queues or moved > _TRAFFIC_BYTES


def _awaited_descriptors(
    interval: Interval, fds: tuple[int, ...] | None, seen: frozenset[int] = frozenset()
) -> set[int] | None:
    """Return the descriptors that a wait for `fds` can end by, each epoll replaced by its members.

    None if they could not be read. An epoll may watch another that watches it, so descriptors
    already `seen` are left out.
    """
    if fds is None:
        return None
    found: set[int] = set()
    for fd in set(fds) - seen:
        descriptor = interval.process.descriptors.get(fd)
        if descriptor is None or descriptor.kind != "epoll":
            found.add(fd)
            continue
        inner = _awaited_descriptors(interval, descriptor.watched, seen | {fd})
        if inner is None:
            return None
        found |= inner
    return found


def _waker(interval: Interval, found: Descriptor | None, *, is_runtimes: bool) -> str:
    """Return what may make a descriptor ready before the deadline; empty if nothing can.

    For a runtime's own thread, a connection, timer or eventfd is no blocker: what the thread does
    then concerns only its runtime.
    """
    if found is None:
        return "a descriptor that cannot be read"
    is_inside = found.where == "inside" and found.kind in _SHARED | {"listen", "uring"}
    if is_inside or found.kind == "epoll" or found.where == "nobody":
        return ""  # only the world's own threads can, which are judged themselves
    if is_runtimes and (found.kind in _OF_RUNTIMES or interval.is_severed(found)):
        return ""
    if found.kind in _SHARED:
        if found.where == "harness":
            return "the harness"
        leads = "may lead" if found.where == "unknown" else "leads"
        return f"{found.kind} {found.peer or found.target}, which {leads} outside the world"
    if found.kind == "pidfd":
        is_known = interval.now.kernel.process(found.pid) is not None
        return "" if is_known else f"process {found.pid}, of which nothing is known"
    if found.kind == "timerfd":
        is_late = found.ends_s is not None and found.ends_s > interval.deadline_s
        return "" if is_late else "a timer"
    if found.kind == "listen":
        return f"somebody to connect to {found.peer or 'its socket'}"
    return f"{found.kind} {found.target}"
