"""Whom ranks with roles wait for over sockets; a server with nothing to do waits for nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import PYTHON, kernel_snapshot, operation, stands

from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.role_waits import Link, RoleWait, role_waits, waits_in_circles
from pytest_multihost.testing import Activity, Descriptor, Endpoint, Process, Thread

CLIENT, SERVER, OTHER = (Endpoint("127.0.0.1", port) for port in (40_000, 5_000, 41_000))
LISTENING = Descriptor(fd=4, target="socket:[4]", kind="listen")


def end(fd: int, own: Endpoint, other: Endpoint, **changes: object) -> Descriptor:
    """Return one end of a connection between roles; the server's is accepted."""
    given = {
        "fd": fd,
        "target": f"socket:[{fd}]",
        "kind": "tcp",
        "endpoints": (own, other),
        "is_accepted": own == SERVER,
    }
    return Descriptor(**{**given, **changes})


def waits(number: int, fds: tuple[int, ...] = (), call: str = "") -> Thread:
    """Return a thread of Python that waits for descriptors, or for another thread."""
    called = call or ("recvfrom" if fds else "futex")
    return Thread(tid=number, call=called, fds=fds, code=PYTHON)


def role(rank: int, *held: Descriptor, main: Thread, beside: tuple[Thread, ...] = ()) -> Process:
    """Return a rank with a main thread and others."""
    main = replace(main, tid=100 + rank)
    found = {each.fd: each for each in held}
    return Process(pid=100 + rank, rank=rank, threads=(main, *beside), descriptors=found)


def found_in(*processes: Process, waiting: tuple[int, ...] = ()) -> dict[int, RoleWait]:
    """Return the waits of ranks, without the calls in which they wait."""
    found = role_waits(kernel_snapshot(*processes), waiting)
    return {rank: replace(each, call="", target="", medium="") for rank, each in found.items()}


ASKS = role(1, end(5, CLIENT, SERVER), main=waits(1, (5,)))
WORKS = role(0, end(6, SERVER, CLIENT), main=waits(0, call="clock_nanosleep"))
RESTS = role(0, end(6, SERVER, CLIENT), LISTENING, main=waits(0, (6, 4), "poll"))
SURE = RoleWait(frozenset({0}), is_sure=True, needs_message=True)


def test_a_client_waits_for_an_answer() -> None:
    """Of the rank that holds the other end, whatever that does."""
    assert found_in(WORKS, ASKS) == {0: RoleWait(), 1: SURE}


def test_a_server_waits_for_requests_and_for_nobody() -> None:
    """Though its client holds the other end; so no circle arises."""
    found = found_in(RESTS, ASKS)
    assert found[0] == RoleWait(is_idle=True, is_at_rest=True)
    assert found[1] == replace(SURE, is_doubtful=True)


def test_a_server_that_waits_in_an_operation_is_not_at_rest() -> None:
    """In another thread, as its records say."""
    assert found_in(RESTS, ASKS, waiting=(0,))[1] == SURE


def test_a_server_that_cannot_send_waits_for_its_client() -> None:
    """The client does not read."""
    sends = role(0, end(6, SERVER, CLIENT), main=waits(0, (6,), "sendto"))
    idle = role(1, end(5, CLIENT, SERVER), main=waits(1, call="clock_nanosleep"))
    assert found_in(sends, idle)[0] == RoleWait(frozenset({1}), is_sure=True, needs_message=True)


def test_a_request_that_is_not_accepted_waits_for_the_holder_of_the_listener() -> None:
    """Nobody holds the other end yet."""
    client = role(1, end(5, CLIENT, SERVER, holder=100), main=waits(1, (5,)))
    busy = role(0, LISTENING, main=waits(0, call="clock_nanosleep"))
    assert found_in(busy, client)[1] == SURE


def test_a_handler_in_a_thread_waits_for_its_rank() -> None:
    """The main thread waits for requests, and another thread for an answer."""
    handler = waits(9, (7,))
    server = role(
        0, end(7, OTHER, SERVER), LISTENING, main=waits(0, (4,), "poll"), beside=(handler,)
    )
    busy = role(2, end(8, SERVER, OTHER), main=waits(2, call="clock_nanosleep"))
    assert found_in(server, busy)[0] == RoleWait(frozenset({2}), is_idle=True)


@pytest.mark.parametrize("state", ["S", "R"])
def test_a_thread_of_a_rank_that_works_asks_for_itself(state: str) -> None:
    """A main thread that sleeps or computes does not wait for what its other threads wait for."""
    main = replace(waits(0, call="clock_nanosleep"), state=state)
    beats = role(0, end(7, OTHER, SERVER), main=main, beside=(waits(9, (7,)),))
    busy = role(2, end(8, SERVER, OTHER), main=waits(2, call="clock_nanosleep"))
    assert found_in(beats, busy)[0] == RoleWait()


def test_a_thread_that_keeps_a_connection_to_an_idle_server_asks_nothing() -> None:
    """As a heartbeat does; the main thread waits for a lock."""
    beats = role(1, end(5, CLIENT, SERVER), main=waits(1), beside=(waits(9, (5,)),))
    assert found_in(RESTS, beats)[1] == RoleWait()


def test_an_epoll_stands_for_what_it_watches() -> None:
    """An event loop waits for its own wake-up as well."""
    own = Endpoint("", 1), Endpoint("", 2)
    pair = [
        Descriptor(fd=fd, target=f"socket:[{fd}]", kind="unix", endpoints=ends)
        for fd, ends in ((8, own), (9, own[::-1]))
    ]
    loop = Descriptor(fd=3, target="anon_inode:[eventpoll]", kind="epoll", watched=(8, 5))
    client = role(1, end(5, CLIENT, SERVER), loop, *pair, main=waits(1, (3,), "epoll_wait"))
    assert found_in(WORKS, client)[1] == SURE


PIPE = Descriptor(fd=7, target="pipe:[7]", kind="pipe")
BACK = Descriptor(fd=8, target="pipe:[8]", kind="pipe")


def child_of(rank: int, *held: Descriptor, main: Thread) -> Process:
    """Return a child of a rank."""
    threads = (replace(main, tid=300),)
    descriptors = {each.fd: each for each in held}
    return Process(pid=300, rank=rank, is_rank=False, threads=threads, descriptors=descriptors)


def test_a_rank_that_waits_for_its_child_waits_for_what_that_asks() -> None:
    """The child holds the other end of a pipe."""
    parent = role(1, PIPE, main=waits(1, (7,), "read"))
    child = child_of(1, PIPE, end(5, CLIENT, SERVER), main=waits(300, (5,)))
    assert found_in(WORKS, parent, child)[1] == replace(SURE, is_for_child=True, child=300)


def test_a_child_that_waits_for_its_rank_is_not_singled_out() -> None:
    """Each waits for the other, so either may have lost a message."""
    parent = role(1, PIPE, BACK, main=waits(1, (7,), "read"))
    child = child_of(1, PIPE, BACK, main=waits(300, (8,), "read"))
    assert found_in(WORKS, parent, child)[1] == RoleWait(is_for_child=True)


def test_a_pipe_whose_writers_are_dead_never_ends() -> None:
    """The reader holds the other end by itself; a living child may still write."""
    parent = role(1, PIPE, main=waits(1, (7,), "read"))
    dead = child_of(1, PIPE, main=Thread(tid=300, state="Z"))
    assert found_in(parent, dead)[1].is_endless
    alive = child_of(1, PIPE, main=waits(300, call="clock_nanosleep"))
    assert not found_in(parent, alive)[1].is_endless


def test_a_connection_on_which_x() -> None:
    """Its opening counts as one byte; so no answer can have been lost."""
    opened = role(1, end(5, CLIENT, SERVER, bytes_moved=1), main=waits(1, (5,)))
    used = role(1, end(5, CLIENT, SERVER, bytes_moved=90), main=waits(1, (5,)))
    assert found_in(WORKS, opened)[1].sent_nothing
    assert not found_in(WORKS, used)[1].sent_nothing


def test_threads_of_zmq_keep_connections_and_ask_nothing() -> None:
    """Who owes a message, the records of its sockets tell."""
    io = replace(waits(9, (7,), "epoll_wait"), name="ZMQbg/IO/0")
    beats = role(0, end(7, OTHER, SERVER), LISTENING, main=waits(0, (4,), "poll"), beside=(io,))
    server = role(2, end(8, SERVER, OTHER), main=waits(2, call="clock_nanosleep"))
    assert found_in(beats, server)[0].asked == frozenset()


def test_a_connection_that_leads_outside_asks_no_rank() -> None:
    """Somebody else answers."""
    client = role(1, end(5, CLIENT, SERVER, where="outside"), main=waits(1, (5,)))
    assert found_in(WORKS, client)[1].asked == frozenset()


def test_a_server_that_reads_from_one_client_awaits_its_request() -> None:
    """It may be that the client was to send something by itself."""
    server = role(0, end(6, SERVER, CLIENT), main=waits(0, (6,)))
    busy = role(1, end(5, CLIENT, SERVER), main=waits(1, call="clock_nanosleep"))
    expected = RoleWait(is_idle=True, awaited=frozenset({1}), needs_message=True, is_at_rest=True)
    assert found_in(server, busy)[0] == expected


ANSWER = operation("recvfrom", kind="transfer", group=(0, 1), peer=0, sequence=0, waited_s=1.0)


def test_an_idle_rank_is_no_cause() -> None:
    """One that sleeps is, though nobody is known to wait for it."""
    idle = stands(0, is_idle=True, label="IO")
    [found] = find_causes([idle, stands(1, label="SLEEPING")])
    assert (found.kind, found.culprits) == ("stuck", (1,))
    assert find_causes([idle]) == ()


def test_an_idle_rank_that_owes_an_answer_is_the_cause() -> None:
    """If nothing else explains the hang."""
    server = stands(0, is_idle=True, label="IO")
    client = stands(1, asks=ANSWER, label="IO")
    [found] = find_causes([server, client])
    assert (found.kind, found.culprits, found.confidence) == ("straggler", (0,), "likely")


def test_an_idle_rank_is_not_accused_while_another_may_be_the_cause() -> None:
    """Its client may wait for work, and the one that sleeps may be who gives it."""
    server, client = stands(0, is_idle=True, label="IO"), stands(1, asks=ANSWER, label="IO")
    [found] = find_causes([server, client, stands(2, label="SLEEPING")])
    assert (found.kind, found.culprits) == ("unknown", ())


def test_an_idle_rank_is_not_accused_beside_a_collective_that_lacks_a_member() -> None:
    """That explains the hang by itself."""
    server, client = stands(0, is_idle=True, label="IO"), stands(1, asks=ANSWER, label="IO")
    reduces = operation(group=(2, 3), waited_s=1.0)
    found = find_causes([server, client, stands(2, reduces), stands(3, label="SLEEPING")])
    assert [(each.kind, each.culprits) for each in found] == [("straggler", (3,))]


REQUEST = operation("recvfrom", kind="transfer", group=(0, 2), peer=2, sequence=0, waited_s=1.0)


def test_who_was_to_send_a_request_is_the_cause() -> None:
    """A client waits for the server, and the server for one that sleeps."""
    server = stands(0, is_idle=True, asks=REQUEST, label="IO")
    client = stands(1, asks=ANSWER, label="IO")
    [found] = find_causes([server, client, stands(2, label="SLEEPING")])
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (2,), (0, 1))


def test_a_server_does_not_wait_for_a_client_that_waits_for_it() -> None:
    """That would be a circle."""
    own = operation("recvfrom", kind="transfer", group=(0, 1), peer=1, sequence=0, waited_s=1.0)
    server = stands(0, is_idle=True, asks=own, label="IO")
    [found] = find_causes([server, stands(1, asks=ANSWER, label="IO")])
    assert (found.kind, found.culprits) == ("straggler", (0,))


def test_a_rank_that_others_need_waits_for_what_it_may_be_owed() -> None:
    """Else a rank that only passes a request on would be accused."""
    certain = operation("recvfrom", kind="transfer", group=(0, 1), peer=0, sequence=0, waited_s=1.0)
    client, between = stands(1, certain), stands(0, asks=REQUEST, label="IO")
    [found] = find_causes([between, client, stands(2, label="SLEEPING")])
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (2,), (0, 1))


SLEEPS = stands(2, label="SLEEPING")


def idle_server(**changes: object) -> RankState:
    """Return a rank that waits for somebody to connect."""
    return stands(0, is_idle=True, label="BLOCKED", activity=Activity("accept4"), **changes)


def test_a_server_that_was_never_asked_waits_for_the_last_rank() -> None:
    """A client waits for what the server is to say by itself, and only one rank can still come."""
    client = stands(1, asks=ANSWER, sent_nothing=True, label="IO")
    [found] = find_causes([idle_server(), client, SLEEPS])
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (2,), (0, 1))
    assert found.confidence == "likely"


@pytest.mark.parametrize(
    "others",
    [
        (stands(1, asks=ANSWER, label="IO"), SLEEPS),
        (
            stands(1, asks=ANSWER, sent_nothing=True, label="IO"),
            SLEEPS,
            stands(3, label="SLEEPING"),
        ),
        (
            stands(1, asks=ANSWER, sent_nothing=True, label="IO"),
            stands(2, serves=True, label="SLEEPING"),
        ),
    ],
    ids=["asked", "two may come", "serves in a thread"],
)
def test_else_nobody_is_named(others: tuple[RankState, ...]) -> None:
    """An answer may be lost, or it is unknown which rank is to come."""
    found = find_causes([idle_server(), *others])
    assert found[0].culprits not in ((2,), (3,))


def test_a_server_whose_client_waits_for_it_needs_no_request() -> None:
    """Both wait at one connection, so an answer or a request was lost."""
    server = role(0, end(6, SERVER, CLIENT), main=waits(0, (6,)))
    found = found_in(server, ASKS)
    assert (found[0].awaited, found[0].needs_message) == (frozenset({1}), False)


@pytest.mark.parametrize("call", ["futex", "clock_nanosleep"])
def test_a_server_with_a_thread_that_works_needs_no_request(call: str) -> None:
    """That may do what others wait for."""
    beside = waits(9, call=call)
    server = role(0, end(6, SERVER, CLIENT), main=waits(0, (6,)), beside=(beside,))
    busy = role(1, end(5, CLIENT, SERVER), main=waits(1, call="clock_nanosleep"))
    assert found_in(server, busy)[0].needs_message == (call == "futex")


def needs(rank: int, other: int, **changes: object) -> RankState:
    """Return a rank that waits for the next request of another one."""
    pair = (min(rank, other), max(rank, other))
    own = operation("recvfrom", kind="transfer", group=pair, peer=other, sequence=0, waited_s=1.0)
    given: dict[str, object] = {"is_idle": True, "asks": own, "needs_message": True}
    return stands(rank, label="IO", **{**given, **changes})


def test_servers_that_need_each_others_requests_are_a_deadlock() -> None:
    """Nobody of them is singled out."""
    [found] = find_causes([needs(0, 1), needs(1, 2), needs(2, 0)])
    assert (found.kind, found.culprits, found.confidence) == ("deadlock", (), "certain")


def test_who_asks_and_who_is_asked_may_close_a_circle() -> None:
    """One waits for an answer, the others for requests."""
    answer = operation("recvfrom", kind="transfer", group=(0, 1), peer=1, sequence=0, waited_s=1.0)
    [found] = find_causes([stands(0, answer), needs(1, 2), needs(2, 0)])
    assert (found.kind, found.culprits, found.waiting) == ("deadlock", (), (0, 1, 2))


def test_a_circle_that_one_may_leave_is_none() -> None:
    """It has another thread that may work, so it is asked as before."""
    answer = operation("recvfrom", kind="transfer", group=(0, 1), peer=1, sequence=0, waited_s=1.0)
    found = find_causes([stands(0, answer), needs(1, 2), needs(2, 0, needs_message=False)])
    assert [each.kind for each in found] != ["deadlock"]


LOOP = Descriptor(fd=3, target="anon_inode:[eventpoll]", kind="epoll", watched=(10, 11, 12))


def in_loop(rank: int, *links: Link, beside: tuple[Thread, ...] = ()) -> Process:
    """Return a rank whose event loop waits at connections, each of a rank that opened it."""
    ends = [
        Descriptor(
            fd=10 + number,
            target=f"socket:[{rank}{number}]",
            kind="tcp",
            endpoints=pair if rank == link[0] else pair[::-1],
            is_accepted=rank == link[1],
        )
        for number, link in enumerate(links)
        for pair in [(Endpoint("a", 1 + link[0]), Endpoint("a", 100 * (1 + link[1]) + link[0]))]
    ]
    return role(rank, LOOP, *ends, main=waits(rank, (3,), "epoll_wait"), beside=beside)


AROUND: list[tuple[Link, Link, Link]] = [
    ((0, 1), (1, 2), (2, 0)),
    ((0, 1), (2, 1), (2, 0)),
    ((1, 0), (2, 1), (2, 0)),
]


def circles_in(*processes: Process, sure: tuple[int, ...] = ()) -> dict[int, frozenset[int]]:
    """Return for whom ranks in circles wait."""
    found = waits_in_circles(kernel_snapshot(*processes), {}, sure)
    return {rank: each.asked for rank, each in found.items()}


def all_of(links: tuple[Link, ...], **beside: tuple[Thread, ...]) -> list[Process]:
    """Return ranks that wait at all of their links; `beside` are threads of rank 0."""
    return [
        in_loop(rank, *(e for e in links if rank in e), **({} if rank else beside))
        for rank in sorted({rank for link in links for rank in link})
    ]


@pytest.mark.parametrize("links", AROUND)
def test_loops_in_a_circle_wait_for_each_other(links: tuple[Link, ...]) -> None:
    """Whoever has opened the connections."""
    others = {rank: frozenset({0, 1, 2} - {rank}) for rank in range(3)}
    assert circles_in(*all_of(links)) == others


def test_loops_of_a_star_are_no_circle() -> None:
    """A server may have lost a request, and a second connection to it changes nothing."""
    assert circles_in(*all_of(((1, 0), (2, 0)))) == {}
    assert circles_in(*all_of(((1, 0), (1, 0)))) == {}


@pytest.mark.parametrize(
    "found",
    [
        circles_in(*all_of(AROUND[0], beside=(waits(9, call="clock_nanosleep"),))),
        circles_in(*all_of(AROUND[0]), child_of(0, main=waits(300))),
        circles_in(*all_of(AROUND[0]), sure=(1,)),
        circles_in(*all_of(AROUND[0])[1:], WORKS),
        circles_in(*all_of((*AROUND[0], (0, 3)))[:3]),
        circles_in(*all_of((*AROUND[0], (0, 3)))[:3], replace(WORKS, rank=3)),
    ],
    ids=["thread", "child", "asks one", "works", "unknown", "outsider"],
)
def test_a_circle_that_something_may_end_is_none(found: dict[int, frozenset[int]]) -> None:
    """A thread or child of a member may send something, or a rank that is no member."""
    assert found == {}


def test_message_sockets_close_a_circle() -> None:
    """Their links come from records, as the kernel does not know who may send."""
    ranks = [role(rank, main=waits(rank, (8,), "poll")) for rank in range(3)]
    wakes = Descriptor(fd=8, target="anon_inode:[eventfd]", kind="eventfd")
    ranks = [replace(each, descriptors={8: wakes}) for each in ranks]
    around = {0: frozenset({(0, 1)}), 1: frozenset({(1, 2)}), 2: frozenset({(2, 0)})}
    found = waits_in_circles(kernel_snapshot(*ranks), around, ())
    assert {rank: each.asked for rank, each in found.items()} == {
        rank: frozenset({(rank + 1) % 3}) for rank in range(3)
    }
    chain = {**around, 2: frozenset({(1, 2)})}
    assert waits_in_circles(kernel_snapshot(*ranks), chain, ()) == {}
