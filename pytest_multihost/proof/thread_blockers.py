"""What may end the wait of a thread before the deadline: the rules by what the wait is for.

Each rule yields the rest of a sentence about the thread for everything that may end its wait, and
nothing where only threads can that are judged themselves. There are three sorts of threads:

* in an operation that the recorder knows: what it does to wait - sleeping, polling, asking a
  store - does not matter, as long as it is one and the same operation and nobody gives it up
* a runtime's own (`threads.owners`): it wakes up all the time to look again, so that its timeouts
  do not matter either; what matters is whether it runs, sleeps, or serves somebody from outside
* all others, of a rank or of what a rank has started: they must not move at all
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.model.operation import Operation
from pytest_multihost.model.process import Thread
from pytest_multihost.proof.descriptor_blockers import awaited_descriptors, waker
from pytest_multihost.proof.snapshot import Interval
from pytest_multihost.proof.threads import system_calls as calls
from pytest_multihost.proof.threads.labels import is_file_access, is_sleep
from pytest_multihost.proof.threads.owners import has_gloo_timeout, is_runtime_thread


def thread_blockers(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield what may end a thread's wait, or that it does not wait."""
    if not interval.is_main(thread) and (thread.is_exempt or _waits_for_harness(interval, thread)):
        return
    operations = interval.awaited_operations(thread)
    if thread.state == "D":  # for a device or a page: the kernel ends it, at any time
        yield f"is in uninterruptible sleep ({thread.call or thread.wchan})"
    elif operations:
        yield from _operation(interval, thread, operations)
    elif interval.process.is_rank and _is_runtimes(interval, thread):
        yield from _runtime_thread(interval, thread)
    elif _waits_for_gil(interval, thread):
        return  # until another thread of the process releases it, and each of them is judged
    else:
        yield from _other_thread(interval, thread)


def _waits_for_harness(interval: Interval, thread: Thread) -> bool:
    found = [interval.process.descriptors.get(fd) for fd in thread.fds or ()]
    return bool(found) and all(each is not None and each.is_exempt for each in found)


def _is_runtimes(interval: Interval, thread: Thread) -> bool:
    """Whether a thread is a runtime's own; one on a processor has no stack to read and still is."""
    last = interval.earlier.get(thread.tid)
    was = last is not None and not thread.code and is_runtime_thread(last)
    return not interval.is_main(thread) and (is_runtime_thread(thread) or was)


def _waits_for_gil(interval: Interval, thread: Thread) -> bool:
    """Whether a thread has done nothing but wait for its turn to run Python."""
    last = interval.earlier.get(thread.tid)
    if last is None or not (last.waits_for_gil and thread.waits_for_gil):
        return False
    return not interval.is_busy(thread)


# The three sorts of threads


def _operation(
    interval: Interval, thread: Thread, operations: tuple[Operation, ...]
) -> Iterator[str]:
    """Yield what may end an operation: its timeout, or that of the one wait it is in.

    One that wakes up again and again only looks whether its operation has ended, if that is a
    runtime's; a loop of the user's own may do anything after it has looked.
    """
    first = min(operations, key=lambda each: each.gives_up_s)
    if interval.times_out(thread):
        yield f"gives up {operations[-1].name}{interval.activity(thread).until}"
    elif first.gives_up_s <= interval.deadline_s:
        left_s = first.gives_up_s - interval.at_s
        yield f"gives up {first.name} until +{max(left_s, 0.0):.1f} s"
    elif any(each.is_own for each in operations) and not interval.has_not_moved(thread):
        yield f"wakes up in {operations[-1].name}, and may go another way"


def _runtime_thread(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield what a runtime's own thread does beyond waiting."""
    if interval.is_busy(thread):
        yield "runs"
    if is_sleep(thread):
        yield f"sleeps{interval.activity(thread).until}"
    elif is_file_access(thread):
        yield from _file_access(interval, thread, is_runtimes=True)
    elif has_gloo_timeout(thread) and interval.times_out(thread):
        yield f"gives up what it does for a rank{interval.activity(thread).until}"
    elif thread.call in calls.FUTEXES:
        yield from _futex(thread)
    elif thread.call in calls.POLLS | calls.EPOLLS | calls.SOCKETS | calls.STREAMS:
        yield from _descriptors(interval, thread, is_runtimes=True)
    elif thread.state != "R" and thread.call != "running":
        yield _describe(interval, thread)


def _other_thread(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield why a thread that must not move is not seen to stand still until the deadline."""
    if thread.state != "S" or thread.call == "running":
        yield "runs"
    elif not interval.has_not_moved(thread):
        yield f"wakes up and {_describe(interval, thread)}"
    elif thread.ends_s is None or thread.ends_s <= interval.deadline_s:
        yield _describe(interval, thread)
    else:
        yield from _wait_without_timeout(interval, thread)


# What a wait is for


def _wait_without_timeout(interval: Interval, thread: Thread) -> Iterator[str]:
    """Yield what may end a wait that does not end by itself before the deadline."""
    call = thread.call
    if call in calls.FUTEXES:
        yield from _futex(thread)
    elif call in calls.SIGNALS:
        yield "waits for a signal, which anybody may send"
    elif call in calls.CHILDREN:
        yield from _child(interval, thread)
    elif calls.is_lock_wait(call, thread.args):
        yield from _file_lock(interval, thread)
    elif call in calls.SLEEPS:
        return  # the timer is the only thing that ends it, and strikes after the deadline
    elif call in calls.POLLS | calls.EPOLLS | calls.SOCKETS:
        yield from _descriptors(interval, thread)
    elif call in calls.STREAMS:
        yield from _file_access(interval, thread)
    else:
        yield _describe(interval, thread)


def _futex(thread: Thread) -> Iterator[str]:
    """A word in memory that no foreign process maps can only be woken by the world's threads."""
    if thread.futex_scope != "inside":
        yield "waits for a lock in memory that others may share"


def _child(interval: Interval, thread: Thread) -> Iterator[str]:
    """A child of the world is a process of the world, and judged as one."""
    if thread.child > 0 and interval.now.kernel.process(thread.child) is None:
        yield f"waits for process {thread.child}, of which nothing is known"


def _file_lock(interval: Interval, thread: Thread) -> Iterator[str]:
    """A lock is released by its holder, or when that ends: a living process of the world, then."""
    for pid in thread.holders or (0,):
        holder = interval.now.kernel.process(pid)
        if pid <= 0:
            yield f"waits for a lock of {thread.target}; who holds it is not known"
        elif holder is None or holder.is_dead:
            yield f"waits for a lock of {thread.target}, held by process {pid}"


def _file_access(interval: Interval, thread: Thread, *, is_runtimes: bool = False) -> Iterator[str]:
    """A read of a regular file ends whenever its disk or server answers; pipes have writers."""
    found = [interval.process.descriptors.get(fd) for fd in thread.fds or ()]
    if any(each is None or each.kind == "file" for each in found) or not found:
        yield _describe(interval, thread)
    else:
        yield from _descriptors(interval, thread, is_runtimes=is_runtimes)


def _descriptors(interval: Interval, thread: Thread, *, is_runtimes: bool = False) -> Iterator[str]:
    fds = awaited_descriptors(interval, thread.fds)
    if fds is None:
        yield f"waits in {thread.call}; for what cannot be read"
    for fd in fds or ():
        descriptor = interval.process.descriptors.get(fd)
        if found := waker(interval, descriptor, is_runtimes=is_runtimes):
            yield f"waits for {found}"


def _describe(interval: Interval, thread: Thread) -> str:
    activity = interval.activity(thread)
    return f"sleeps{activity.until}" if is_sleep(thread) else f"waits in {activity}"
