"""The events that may end the wait of one thread, or that it does not wait.

There are three sorts of threads:

* in an operation that the recorder knows: how it waits - sleeping, polling, asking a store - does
  not matter, as long as the operation stays the same and does not time out
* a runtime's own (`runtime_threads`): it wakes up all the time to poll, so its timeouts do not
  matter either; it only counts whether it runs, sleeps, or serves a peer outside the world
* all others, of a rank or of a process that a rank has started: they must not move at all
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.process import IN_TURNS, NEVER, Process, Thread
from pytest_multihost.core.proof import system_calls as calls
from pytest_multihost.core.proof.descriptor_blockers import awaited_descriptors, waker_of
from pytest_multihost.core.proof.runtime_threads import (
    has_gloo_timeout,
    is_runtime_thread,
    moves_data_of_nccl,
)
from pytest_multihost.core.proof.snapshot import Interval
from pytest_multihost.core.proof.threads import is_file_access, is_sleep

_CONNECTS = "jax.distributed.initialize"
"""An operation in which gRPC waits ever longer, up to two minutes, before it connects again."""


def waits_for_harness(process: Process, thread: Thread) -> bool:
    """Return whether a thread is the harness's, or waits only for the harness."""
    awaited = [process.descriptors.get(fd) for fd in thread.fds or ()]
    is_awaiting = bool(awaited) and all(each and each.is_exempt for each in awaited)
    return thread is not process.main and (thread.is_exempt or is_awaiting)


def thread_blockers(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield the events that may end a thread's wait, or that the thread does not wait."""
    if waits_for_harness(interval.process, thread):
        return
    if thread.tid in interval.now.in_turns:
        yield from _look_in_turns(interval, thread)
    else:
        yield from _wait(interval, thread)


def _look_in_turns(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield when a thread stops to look for ended processes, if it does so by itself."""
    until_s = interval.now.in_turns[thread.tid]
    if until_s <= interval.latest_s:
        left_s = max(until_s - interval.now.kernel.at_s, 0.0)
        yield f"looks for ended processes for another {left_s:.1f} s"


def _wait(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield the events that may end the wait of a thread of the test, or of a runtime."""
    is_main = thread is interval.process.main
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
    elif is_runtimes and interval.is_recorded:
        yield from _runtime_thread(interval, thread)
    elif last and last.waits_for_gil and thread.waits_for_gil and not interval.is_busy(thread):
        return  # another thread of the process releases the GIL, and all threads are judged
    elif thread.state != "S" or thread.call == "running":
        yield "runs"
    elif not interval.has_not_moved(thread):
        yield f"wakes up and {_describe(interval, thread)}"
    elif thread.ends_s is None or thread.ends_s <= interval.latest_s:
        yield _describe(interval, thread)
    else:
        yield from _wait_without_timeout(interval, thread)


def _operation(
    interval: Interval, thread: Thread, operations: tuple[Operation, ...]
) -> Iterator[str]:
    """Yield the events that may end an operation: its timeout, or that of its thread's wait.

    A thread that wakes up repeatedly in a runtime's operation only checks whether that has ended;
    a loop in the user's code may do anything after its check. If giving up fails the test, only
    the failure would come later: the wait of the missing rank lasts longer than the test.
    """
    first = min(operations, key=lambda each: each.gives_up_s)
    must_fail = all(map(interval.now.must_fail, operations))
    # torch's store sleeps for up to 20 s before it tries again to connect to its host, rank 0.
    retries = is_sleep(thread) and first.timeout_s is not None and 0 in interval.now.lacking(first)
    if interval.times_out(thread) and not must_fail and not retries:
        yield f"times out in {operations[-1].name}{interval.activity(thread).after}"
    elif first.gives_up_s <= interval.deadline_s:
        left_s = max(first.gives_up_s - interval.now.kernel.at_s, 0.0)
        yield f"times out in {first.name} after another {left_s:.1f} s"
    # With a detail it waits for more processes than there are ranks, so it never ends.
    elif first.name == _CONNECTS and not (first.detail or interval.now.lacking(first)):
        yield f"may connect again in {first.name}"
    elif any(each.is_own for each in operations) and not interval.has_not_moved(thread):
        yield f"wakes up in {operations[-1].name}, and may then do something else"


def _runtime_thread(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield the activities of a runtime's own thread beyond waiting."""
    if interval.is_busy(thread) and not moves_data_of_nccl(thread):
        yield "runs"
    if is_sleep(thread):
        yield from [f"sleeps{interval.activity(thread).until}"] if thread.ends_s != NEVER else ()
    elif is_file_access(thread):
        yield from _file_access(interval, thread, is_runtimes=True)
    elif has_gloo_timeout(thread) and interval.times_out(thread):
        yield gives_up(interval, thread)
    elif thread.call in calls.FUTEXES:
        yield from _futex(thread)
    elif thread.call in calls.POLLS | calls.EPOLLS | calls.SOCKETS | calls.STREAMS:
        yield from _descriptors(interval, thread, is_runtimes=True)
    elif thread.state != "R" and thread.call != "running":
        yield _describe(interval, thread)


def gives_up(interval: Interval, thread: Thread) -> str:
    """Return the words for a runtime's own thread whose operation times out."""
    return f"gives up its work for a rank{interval.activity(thread).after}"


def _wait_without_timeout(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield the events that may end a wait that does not time out before the deadline."""
    call = thread.call
    if is_main_in_turns(interval.process, thread):
        yield from _dead_children(interval)
    if call in calls.FUTEXES:
        yield from _futex(thread)
    elif call in calls.SIGNALS:
        yield "waits for a signal, which any process may send"
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


def is_main_in_turns(process: Process, thread: Thread) -> bool:
    """Return whether a main thread waits in turns, between which it looks after its children."""
    return thread is process.main and thread.name == IN_TURNS


def _dead_children(interval: Interval) -> Iterator[str]:
    """Yield the children of a rank that have ended: a wait in turns ends when it sees that."""
    for each in interval.now.kernel.processes if interval.process.is_rank else ():
        if each.is_dead and each.rank == interval.process.rank:
            yield f"may see that its child process {each.pid} has ended"


def _futex(thread: Thread) -> Iterator[str]:
    """Only the world's threads can wake a futex that no foreign process maps."""
    if thread.futex_scope != "inside":
        yield "waits for a lock in memory that others may share"


def _file_lock(interval: Interval, thread: Thread) -> Iterator[str]:
    """The holder must be a living process of the world: it, or its end, releases the lock."""
    for pid in thread.holders or (0,):
        holder = interval.now.kernel.process(pid)
        if pid <= 0:
            yield f"waits for a lock of {thread.target}, whose holder is not known"
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
    fds = awaited_descriptors(interval, thread.fds)
    if fds is None:
        yield f"waits in {thread.call} for a descriptor that cannot be read"
    for fd in fds or ():
        descriptor = interval.process.descriptors.get(fd)
        if found := waker_of(interval, descriptor, is_runtimes=is_runtimes):
            yield f"waits for {found}"


def _describe(interval: Interval, thread: Thread) -> str:
    activity = interval.activity(thread)
    if is_sleep(thread):
        return f"sleeps{activity.until}"
    return f"waits {'for' if activity.is_lock else 'in'} {activity}"
