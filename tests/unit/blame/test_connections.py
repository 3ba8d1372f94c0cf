"""Whom ranks wait for at connections between them, told from who holds the other end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import kernel_snapshot

from pytest_multihost.core.blame.socket_waits import waits_at_sockets
from pytest_multihost.testing import (
    Descriptor,
    Endpoint,
    KernelSnapshot,
    Operation,
    Process,
    Thread,
)

HERE, THERE, ELSEWHERE = (Endpoint("127.0.0.1", port) for port in (5000, 6000, 7000))


def end(fd: int, own: Endpoint, other: Endpoint, **changes: object) -> Descriptor:
    """Return one end of a connection between ranks."""
    given = {"fd": fd, "target": f"socket:[{fd}]", "kind": "tcp", "endpoints": (own, other)}
    return Descriptor(**{**given, **changes})


def process(rank: int, *held: Descriptor, fds: tuple[int, ...] = (), **more: object) -> Process:
    """Return a rank that holds descriptors, and whose main thread waits for some of them."""
    main = Thread(tid=100 + rank, call="recvfrom" if fds else "futex", fds=fds)
    given = {"pid": 100 + rank, "rank": rank, "threads": (main,)}
    return Process(**{**given, "descriptors": {each.fd: each for each in held}, **more})


READER = process(1, end(5, HERE, THERE), fds=(5,))
SENDER = process(0, end(6, THERE, HERE))


def peers(*processes: Process) -> dict[int, tuple[int | None, tuple[int, ...]]]:
    """Return whom each rank waits for, and between whom that is."""
    found = waits_at_sockets(kernel_snapshot(*processes, at_s=1.0))
    assert all(each.kind == "transfer" for each in found.values())
    return {rank: (each.peer, each.group) for rank, each in found.items()}


def test_a_rank_that_reads_waits_for_who_holds_the_other_end() -> None:
    """Whatever that one does; it is no collective."""
    assert peers(SENDER, READER) == {1: (0, (0, 1))}


LISTENER = end(4, "", "", kind="listen", where="unknown")
CALLER = process(1, end(5, HERE, THERE, holder=100), fds=(5,))


def test_a_rank_whose_connection_is_not_accepted_waits_for_who_listens() -> None:
    """Its request is in the kernel's queue, and no end of the connection is open there."""
    assert peers(process(0, LISTENER), CALLER) == {1: (0, (0, 1))}


def test_who_accepts_is_unknown_if_others_may() -> None:
    """Innocents: a thread or a child of the rank that listens may accept at any time."""
    listens = process(0, LISTENER)
    beside = replace(listens, threads=(*listens.threads, Thread(tid=9, call="accept4", fds=(4,))))
    child = process(0, LISTENER, pid=300, is_rank=False)
    assert peers(beside, CALLER) == {}
    assert peers(listens, child, CALLER) == {}


def test_two_that_read_from_each_other_wait_for_each_other() -> None:
    """Each for the other."""
    both = process(0, end(6, THERE, HERE), fds=(6,)), READER
    assert peers(*both) == {0: (1, (0, 1)), 1: (0, (0, 1))}


def test_one_that_reads_from_several_waits_for_any_of_them() -> None:
    """Nobody in particular is named."""
    hub = process(0, end(6, THERE, HERE), end(7, THERE, ELSEWHERE), fds=(6, 7))
    assert peers(hub, process(1, end(5, HERE, THERE)), process(2, end(5, ELSEWHERE, THERE))) == {
        0: (None, (0, 1, 2))
    }


def test_one_that_waits_for_a_connection_waits_for_somebody() -> None:
    """Any of the others could connect; so could one that is connected already."""
    listening = end(4, "", "", kind="listen", where="unknown")
    for fds in [(4,), (4, 6)]:
        server = process(0, listening, end(6, THERE, HERE), fds=fds)
        look = KernelSnapshot(
            at_s=1.0, processes=(server, process(1, end(5, HERE, THERE))), is_deep=True
        )
        (found,) = waits_at_sockets(look).values()
        assert (found.kind, found.group, found.peer) == ("wait", (0, 1), None)


def test_an_end_of_its_own_is_for_waking_it_up() -> None:
    """As in an event loop, beside the connections."""
    own = end(8, "socket:[1]", "socket:[2]", kind="unix"), end(9, "socket:[2]", "socket:[1]")
    loop = process(1, end(5, HERE, THERE), *own, fds=(5, 8))
    assert peers(SENDER, loop) == {1: (0, (0, 1))}
    assert peers(SENDER, process(1, *own, fds=(8,))) == {}


def _with_server(sender: Process) -> Process:
    return replace(sender, threads=(*sender.threads, Thread(tid=9, call="epoll_wait", fds=(6,))))


@pytest.mark.parametrize(
    "processes",
    [
        (_with_server(SENDER), READER),
        (SENDER, READER, process(0, end(3, THERE, HERE), pid=300, is_rank=False)),
        (process(0, end(6, THERE, HERE, where="outside")), READER),
        (SENDER, process(1, end(5, HERE, THERE, is_exempt=True), fds=(5,))),
        (SENDER, process(1, end(5, HERE, THERE), end(4, "", "", kind="pipe"), fds=(4, 5))),
        (process(0), READER),
    ],
    ids=["a server thread", "a child as well", "outsiders", "ours", "a pipe as well", "nobody"],
)
def test_where_somebody_else_may_answer_nobody_is_named(processes: tuple[Process, ...]) -> None:
    """A wrong name is worse than none."""
    assert peers(*processes) == {}


def test_a_wait_at_a_socket_is_an_operation_of_the_main_thread() -> None:
    """Without a place in any sequence, since it was seen, and from the kernel's tables."""
    reader = replace(
        READER, threads=(replace(READER.threads[0], target="socket:[5]"), Thread(tid=9, fds=()))
    )
    look = kernel_snapshot(SENDER, reader, at_s=7.0)
    assert waits_at_sockets(look) == {
        1: Operation(
            name="recvfrom",
            kind="transfer",
            group=(0, 1),
            sequence=0,
            peer=0,
            detail="socket:[5]",
            since_s=7.0,
            waited_s=7.0,
            thread=101,
            source="proc",
        )
    }
