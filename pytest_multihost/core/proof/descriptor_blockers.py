"""The events that may end a wait of a world by a descriptor.

`descriptor_blockers` judges descriptors themselves, whether or not a thread waits for them: data
that move, a connection that leaves the world. `waker_of` judges one wait: the events that may end
it by making a descriptor ready.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.model.process import Descriptor
from pytest_multihost.core.proof.runtime_threads import is_runtime_thread, may_wait_for_gpu
from pytest_multihost.core.proof.snapshot import Interval
from pytest_multihost.core.proof.threads import DEAD

_TRAFFIC_BYTES = 4096
"""Bytes on one connection between two snapshots that are more than heartbeats."""

_TO_ITSELF_BYTES = 1 << 16
"""The same on a connection of a rank to itself: every 10 ms the rank that hosts torch's store polls
it for the number of ranks that have arrived."""

_INPUT = 0
"""Standard input, a socket under sshd, node and inetd. Data there ends only a wait for it."""

SOCKETS = frozenset({"tcp", "unix", "udp"})
_SHARED = frozenset({"tcp", "unix", "pipe", "eventfd"})
"""Descriptors whose wait ends when another process that holds them, or a peer, acts."""

_OF_RUNTIMES = frozenset({"eventfd", "timerfd", "listen", "idle"})

_GPU = "/dev/nvidia"
"""How paths of devices begin for which threads wait by CUDA alone."""


def is_gpu(found: Descriptor) -> bool:
    """Return whether a descriptor is a GPU's."""
    return found.kind == "device" and found.target.startswith(_GPU)


def descriptor_blockers(
    interval: Interval, found: Descriptor, *, awaits_gpu: bool
) -> Iterator[str]:
    """Yield the activity that a descriptor shows, even if no thread waits for it.

    Data can be in flight on a socket whose reader is busy elsewhere, and an accelerator or io_uring
    may finish work that was submitted long ago.

    Args:
        awaits_gpu: Whether the process may wait for a GPU; see `may_await_gpu`.
    """
    if found.is_exempt or interval.is_severed(found):
        return
    if found.kind == "device":
        if awaits_gpu or not is_gpu(found):
            yield f"has opened {found.target}"
    elif found.kind == "uring" and found.where != "inside":
        yield "has asked io_uring for something"
    elif found.kind in SOCKETS:
        yield from _socket_blockers(interval, found)


def _may_be_given_up(interval: Interval, found: Descriptor) -> bool:
    """Whether the kernel may end a TCP connection before the deadline, since the peer is silent.

    A peer that has answered the kernel's question for a sign of life (SO_KEEPALIVE of socket(7))
    will do so again, unless a fault disturbs the network.
    """
    if found.kind != "tcp" or found.ends_s is None or found.ends_s > interval.deadline_s:
        return False
    return interval.now.is_disturbed or not found.is_answered


def may_await_gpu(interval: Interval) -> bool:
    """Return whether the end of a GPU's work may end a wait of a process that has opened one.

    It ends no operation that a member has not entered, and nothing after that in its stream. Of all
    other waits, only those for a lock in code of CUDA depend on it.
    """
    for thread in interval.process.threads:
        is_main = thread is interval.process.main
        if thread.state in DEAD or (not is_main and is_runtime_thread(thread)):
            continue
        operations = interval.awaited_operations(thread)
        of_groups = [each for each in operations if each.kind != "wait"]
        # The wait is for all of them, so it cannot end if one of them cannot.
        if of_groups and not any(map(interval.now.lacking, of_groups)):
            return True
        last = interval.earlier.get(thread.tid)
        code = last.code if last is not None and thread.code is None else thread.code
        if not operations and not thread.is_exempt and may_wait_for_gpu(thread, code):
            return True
    return False


def _socket_blockers(interval: Interval, found: Descriptor) -> Iterator[str]:
    peer = found.peer or "an unknown peer"
    leaves = found.where == "outside" or (found.kind != "udp" and found.where == "unknown")
    if leaves and found.fd != _INPUT:
        yield f"{found.kind} socket to {peer} {_strange_end(found)}"
    last = interval.was.descriptors.get(found.fd)
    if last is None or last.target != found.target:
        yield f"{found.kind} socket to {peer} is new"
    elif moves_data(interval, last, found):
        yield f"data moves on the {found.kind} socket to {peer}"
    elif may_arrive(interval, found):
        yield f"data that it has sent to {peer} may still arrive"


def _strange_end(found: Descriptor) -> str:
    """Return which process has the other end of a descriptor that is not a rank's."""
    may_be, may_have = ("is", "has") if found.where == "outside" else ("may be", "may have")
    if found.kind in SOCKETS:
        return f"{may_be} connected to a process that is not part of this world"
    return f"a process that is not part of this world {may_have} open"


def may_arrive(interval: Interval, found: Descriptor) -> bool:
    """Whether data that a socket has sent, and that its peer has not got, may still reach it.

    TCP retransmits lost data after any time up to two minutes (tcp(7), RTO), so unchanged queues
    prove nothing while frames can reach the peer. Data that are not lost are acknowledged at once.
    """
    last = interval.was.descriptors.get(found.fd)
    is_lost = found.is_in_flight and last is not None and last.is_in_flight
    is_unacknowledged = found.kind == "tcp" and found.queues[1] > 0
    may_arrive = found.is_resent or is_lost or (interval.now.is_disturbed and is_unacknowledged)
    return may_arrive and found.hosts not in interval.now.severed


def moves_data(interval: Interval, last: Descriptor, found: Descriptor) -> bool:
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


def awaited_descriptors(
    interval: Interval, fds: tuple[int, ...] | None, seen: frozenset[int] = frozenset()
) -> set[int] | None:
    """Return the descriptors that a wait for `fds` can end by, each epoll replaced by its members.

    None if they could not be read. An epoll may watch another that watches it, so descriptors
    already `seen` are skipped.
    """
    if fds is None:
        return None
    found: set[int] = set()
    for fd in set(fds) - seen:
        descriptor = interval.process.descriptors.get(fd)
        if descriptor is None or descriptor.kind != "epoll":
            found.add(fd)
            continue
        inner = awaited_descriptors(interval, descriptor.watched, seen | {fd})
        if inner is None:
            return None
        found |= inner
    return found


def waker_of(interval: Interval, found: Descriptor | None, *, is_runtimes: bool) -> str:
    """Return the event that may make a descriptor ready before the deadline; empty if none.

    For a runtime's own thread, a connection, timer or eventfd is not a blocker: the activity of the
    thread then concerns only its runtime.
    """
    if found is None:
        return "a descriptor that cannot be read"
    if not is_runtimes and _may_be_given_up(interval, found):
        return f"the kernel, which may give up the connection to {found.peer or 'an unknown peer'}"
    is_inside = found.where == "inside" and found.kind in _SHARED | {"listen", "udp", "uring"}
    if is_inside or found.kind == "epoll" or found.where == "nobody":
        return ""  # only the world's own threads can, which are judged themselves
    is_own = found.kind in _OF_RUNTIMES or is_gpu(found)  # for a GPU see `may_await_gpu`
    if is_runtimes and (is_own or interval.is_severed(found)):
        return ""
    if found.kind in _SHARED:
        if found.where == "harness":
            whose = found.peer[1:-1] if found.peer.startswith("(") else found.peer
            return f"{found.kind} {found.target}, which leads to {whose}"
        return f"{found.kind} {found.peer or found.target}, which {_strange_end(found)}"
    if found.kind == "pidfd":
        is_known = interval.now.kernel.process(found.pid) is not None
        return "" if is_known else f"process {found.pid}, of which nothing is known"
    if found.kind == "timerfd":
        is_late = found.ends_s is not None and found.ends_s > interval.deadline_s
        return "" if is_late else "a timer"
    if found.kind == "listen":
        return f"a connection to {found.peer or 'its socket'}"
    return f"{found.kind} {found.target}"
