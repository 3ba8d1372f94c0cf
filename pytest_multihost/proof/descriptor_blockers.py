"""What may happen at the descriptors of a process: the rules by kind of descriptor.

`descriptor_blockers` is about descriptors themselves, whether or not a thread is seen to wait for
them: data that move, a connection that leaves the world. `waker` is about one wait: who may end it
by making a descriptor ready.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.model.process import Descriptor
from pytest_multihost.proof.snapshot import Interval, addresses

_TRAFFIC_BYTES = 4096
"""Bytes on one connection between two snapshots that are more than heartbeats."""

_TO_ITSELF_BYTES = 1 << 16
"""The same on a connection of a rank to itself: each 10 ms the rank that hosts torch's store asks
it how many have come."""

_SOCKETS = frozenset({"tcp", "unix", "udp"})
_SHARED = frozenset({"tcp", "unix", "pipe", "eventfd"})
"""Descriptors that end a wait when whoever else holds them, or their peer, does something."""


def descriptor_blockers(interval: Interval, found: Descriptor) -> Iterator[str]:
    """Yield what a descriptor shows that is going on, even where no thread waits for it.

    Data can be on their way through a socket whose reader is busy elsewhere, and an accelerator or
    io_uring finishes work that was asked for long ago.
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
    elif interval.now.is_disturbed and _may_still_arrive(interval, found):
        yield f"what it has sent to {peer} may still arrive"


def _moves(interval: Interval, last: Descriptor, found: Descriptor) -> bool:
    """Whether data move on a socket, and not only from a waiting rank to itself."""
    moved = found.bytes_moved - last.bytes_moved
    main = interval.process.main
    if main and _leads_to_itself(interval, found) and interval.awaited_operations(main):
        return moved > _TO_ITSELF_BYTES
    return last.queues != found.queues or moved > _TRAFFIC_BYTES


def _leads_to_itself(interval: Interval, found: Descriptor) -> bool:
    here, there = found.endpoints
    descriptors = interval.process.descriptors.values()
    return bool(here) and (there, here) in {
        each.endpoints for each in descriptors if each.kind == "tcp"
    }


def _may_still_arrive(interval: Interval, found: Descriptor) -> bool:
    """Whether a connection has sent what is not acknowledged, and its frames can get there.

    After faults of the network TCP repeats what was lost after any time up to two minutes
    (tcp(7), RTO): queues that do not change show nothing then.
    """
    is_unacknowledged = found.kind == "tcp" and found.queues[1] > 0
    return is_unacknowledged and addresses(found) not in interval.now.severed


def awaited_descriptors(interval: Interval, fds: tuple[int, ...] | None) -> set[int] | None:
    """Return the descriptors that a wait for `fds` is about, with those of an epoll in its place.

    Returns:
        None where they could not be read.
    """
    return _flat(interval, fds, frozenset())


def _flat(interval: Interval, fds: tuple[int, ...] | None, seen: frozenset[int]) -> set[int] | None:
    if fds is None:
        return None
    found: set[int] = set()
    for fd in fds:
        descriptor = interval.process.descriptors.get(fd)
        if fd in seen:  # an epoll may watch another that watches it
            continue
        if descriptor is None or descriptor.kind != "epoll":
            found.add(fd)
            continue
        inner = _flat(interval, descriptor.watched, seen | {fd})
        if inner is None:
            return None
        found |= inner
    return found


def waker(interval: Interval, found: Descriptor | None, *, is_runtimes: bool) -> str:
    """Return who or what may make a descriptor ready before the deadline; empty if nobody.

    Args:
        interval: The process that waits for it.
        found: The descriptor; None where it could not be read.
        is_runtimes: Whether a runtime's own thread waits. It may wait for connections, timers and
            eventfds: what it does then, it does by itself and for itself.
    """
    if found is None:
        return "a descriptor that cannot be read"
    if _stays_as_it_is(found) or (is_runtimes and _is_runtimes_business(interval, found)):
        return ""
    if found.kind in _SHARED:
        return _describe_peer(found)
    if found.kind == "pidfd":
        is_known = interval.now.kernel.process(found.pid) is not None
        return "" if is_known else f"process {found.pid}, of which nothing is known"
    if found.kind == "timerfd":
        is_late = found.ends_s is not None and found.ends_s > interval.deadline_s
        return "" if is_late else "a timer"
    if found.kind == "listen":
        return f"somebody to connect to {found.peer or 'its socket'}"
    return f"{found.kind} {found.target}"


def _stays_as_it_is(found: Descriptor) -> bool:
    """Whether only the world's own threads, each of which is judged itself, can make it ready."""
    is_inside = found.where == "inside" and found.kind in _SHARED | {"uring"}
    return is_inside or found.kind == "epoll" or found.where == "nobody"


def _is_runtimes_business(interval: Interval, found: Descriptor) -> bool:
    return found.kind in {"eventfd", "timerfd", "listen"} or interval.is_severed(found)


def _describe_peer(found: Descriptor) -> str:
    """Name the peer of a descriptor for the reader."""
    if found.where == "harness":
        return "the harness"
    leads = "may lead" if found.where == "unknown" else "leads"
    return f"{found.kind} {found.peer or found.target}, which {leads} outside the world"
