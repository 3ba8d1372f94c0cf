"""Who may write to the eventfds that a process waits for (eventfd(2)).

All eventfds have the same link in /proc/PID/fd; only the number in fdinfo tells them apart.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_multihost.model.process import Descriptor, Process, Thread, Where
from pytest_multihost.proof.threads import is_runtime_thread
from pytest_multihost.watch.kernel.descriptors import Tables
from pytest_multihost.watch.kernel.foreign_handles import eventfd_id


def with_eventfd_holders(process: Process, tables: Tables) -> Process:
    """Return a process with who else has the eventfds that its threads wait for.

    What its runtime's own threads wait for does not matter, and to find out is not for nothing:
    all processes there are may have it.
    """
    found = dict(process.descriptors)
    waited = [found[fd] for fd in _waited(process) if fd in found]
    for each in waited:
        if each.kind == "eventfd":
            found[each.fd] = _with_holder(process.pid, each, tables)
    return replace(process, descriptors=found)


def _waited(process: Process) -> Collection[int]:
    """Return the descriptors that threads wait for, with what is watched by an epoll of them."""
    todo = [fd for each in process.threads if _matters(process, each) for fd in each.fds or ()]
    found: set[int] = set()
    while todo:
        fd = todo.pop()
        watched = process.descriptors[fd].watched if fd in process.descriptors else ()
        todo += [each for each in watched or () if each not in found]
        found.add(fd)
    return found


def _matters(process: Process, thread: Thread) -> bool:
    return thread is process.main or not (process.is_rank and is_runtime_thread(thread))


def _with_holder(pid: int, found: Descriptor, tables: Tables) -> Descriptor:
    where, holder = _holder(pid, found.fd, tables)
    peer = f"{tables.names.get(holder, '')} {holder}" if holder else ""
    return replace(found, where=where, peer=peer)


def _holder(pid: int, fd: int, tables: Tables) -> tuple[Where, int]:
    """Return whether a foreign process has an eventfd, and which; 0 for none that is known."""
    theirs = tables.foreign.eventfds
    number = eventfd_id(pid, fd) if theirs else None
    if not theirs or number is None:
        return ("unknown" if theirs else "inside"), 0
    return ("outside", theirs[number]) if number in theirs else ("inside", 0)
