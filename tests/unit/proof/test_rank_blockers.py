"""What may end the wait of each rank, seen from outside its job, word for word."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest
from builders import GLOO, PYTHON, kernel_snapshot

from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.blockers import SIGALRM, blockers, rank_blockers
from pytest_multihost.testing import (
    Descriptor,
    Endpoint,
    Operations,
    Process,
    Thread,
)

DEADLINE_S = 160.0


def thread(tid: int, call: str = "futex", **changes: object) -> Thread:
    """Return a thread that waits for another one of its process, without a limit."""
    return builders.thread(call, tid=tid, name="pool", **changes)


def rank(number: int, *beside: Thread, main: Thread | None = None, **changes: object) -> Process:
    """Return a rank: its process has the number 100 for rank 0, 200 for rank 1."""
    pid = 100 * (number + 1)
    given: dict[str, object] = {"pid": pid, "rank": number}
    threads = (main or thread(pid), *beside)
    return Process(threads=threads, **{**given, **changes})  # type: ignore[arg-type]


def found_in(
    was: list[Process], now: list[Process], operations: tuple[Operations, ...] = ()
) -> dict[int, tuple[str, ...]]:
    """Return what may end a wait of each rank, one second apart."""
    first, second = (
        Snapshot(kernel_snapshot(*each, at_s=at_s), operations)
        for at_s, each in ((100.0, was), (101.0, now))
    )
    return dict(rank_blockers(first, second, deadline_s=DEADLINE_S))


def still(
    *processes: Process, operations: tuple[Operations, ...] = ()
) -> dict[int, tuple[str, ...]]:
    """Return what may end a wait in a world that does not move."""
    return found_in([*processes], [*processes], operations)


def test_each_living_rank_is_asked() -> None:
    """One that has ended and an orphan are left out; those after them are not."""
    dead = rank(0, main=thread(100, state="Z"))
    orphan = Process(pid=900, rank=None, is_rank=False, threads=(thread(900),))
    assert still(dead, orphan, rank(1), rank(2)) == {1: (), 2: ()}


def test_what_may_end_a_wait_of_a_child_is_its_ranks() -> None:
    """It says which child it is."""
    child = Process(
        pid=7, rank=1, is_rank=False, name="loader", threads=(thread(7, "pause", ends_s=120.0),)
    )
    found = still(rank(0), rank(1), child)
    assert found == {
        0: (),
        1: ("rank 1: child process `loader` 7 main thread waits in pause for another 19.0 s",),
    }


def test_a_rank_that_was_not_there_before_has_just_begun() -> None:
    """Nothing is known of its waits."""
    assert found_in([rank(0)], [rank(0), rank(1)]) == {0: (), 1: ("rank 1: has just begun",)}


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_rank_that_has_stood_stopped_waits_for_a_signal_alone(state: str) -> None:
    """Whatever its threads would do else."""
    stopped = rank(0, thread(101, "read", ends_s=110.0), main=thread(100, state=state))
    assert still(stopped) == {0: ()}
    moved = rank(0, main=thread(100, state=state, runs=4))
    assert found_in([moved], [stopped]) == {0: ("rank 0: has just been stopped",)}
    beside = rank(0, thread(101, state=state), main=thread(100, "read", fds=(3,), ends_s=110.0))
    assert still(beside) == {0: ()}


def test_signals_and_timers_are_named() -> None:
    """They may end any wait."""
    process = rank(
        0, caught=SIGALRM | 1, pending=2, timers=1, tracer=44, unread=("its timers", "its memory")
    )
    assert still(process) == {
        0: (
            "rank 0: its timers cannot be read",
            "rank 0: its memory cannot be read",
            "rank 0: is traced by process 44",
            "rank 0: is about to get a signal",
            "rank 0: has a handler for SIGALRM, which a timer may send",
            "rank 0: has made a timer",
        )
    }
    assert still(rank(0, timers=None)) == {0: ("rank 0: has timers that cannot be read",)}
    assert still(rank(0, caught=SIGALRM >> 1)) == {0: ()}


def test_a_runtimes_own_thread_counts_only_while_it_runs_or_gives_up() -> None:
    """It polls, and its limits mean nothing else."""
    polling = thread(101, "epoll_wait", fds=(3,), ends_s=101.5, code=GLOO)
    dead = thread(102, state="X", call="read", ends_s=101.0)
    assert still(rank(0, dead, polling)) == {0: ()}
    busy = replace(polling, cpu_ns=900_000_000)
    assert found_in([rank(0, polling)], [rank(0, busy)]) == {0: ("rank 0: thread pool runs",)}
    gives_up = thread(101, ends_s=131.0, code=GLOO)
    assert still(rank(0, dead, gives_up)) == {
        0: ("rank 0: thread pool gives up its work for a rank after another 30.0 s",)
    }
    assert still(rank(0, replace(gives_up, ends_s=161.0))) == {0: ()}


def test_the_same_thread_of_a_child_is_nobodys_own() -> None:
    """There is no runtime that would wake it."""
    own = thread(8, "epoll_wait", fds=(), ends_s=110.0, code=GLOO)
    child = Process(pid=7, rank=0, is_rank=False, name="loader", threads=(thread(7), own))
    assert still(rank(0), child) == {
        0: ("rank 0: child process `loader` 7 thread pool waits in epoll_wait for another 9.0 s",)
    }


def test_every_other_thread_is_named() -> None:
    """The main one as such."""
    other = thread(101, "wait4", child=55, code=PYTHON)
    process = rank(0, other, main=thread(100, "pause", ends_s=111.0))
    assert still(process) == {
        0: (
            "rank 0: main thread waits in pause for another 10.0 s",
            "rank 0: thread pool waits for process 55, of which nothing is known",
        )
    }


def test_any_child_may_be_waited_for() -> None:
    """Those that are known are judged themselves."""
    assert still(rank(0, main=thread(100, "wait4", child=0))) == {0: ()}
    assert still(rank(0, main=thread(100, "wait4", child=-1))) == {0: ()}


def socket(kind: str = "tcp", **changes: object) -> Descriptor:
    """Return descriptor 3."""
    given: dict[str, object] = {"target": "socket:[5]", "where": "outside", "peer": "10.0.0.9:80"}
    return Descriptor(fd=3, kind=kind, **{**given, **changes})  # type: ignore[arg-type]


def with_socket(found: Descriptor) -> Process:
    """Return rank 0 with a socket for which no thread waits."""
    return rank(0, descriptors={3: found})


@pytest.mark.parametrize("kind", ["tcp", "unix", "udp"])
def test_data_that_move_on_a_socket_of_a_rank_count(kind: str) -> None:
    """A connection that leads away, and carries nothing, does not."""
    before, peer = socket(kind), "10.0.0.9:80"
    assert still(with_socket(before)) == {0: ()}
    after = replace(before, bytes_moved=4097)
    why = f"rank 0: moves data on the {kind} socket to {peer}"
    assert found_in([with_socket(before)], [with_socket(after)]) == {0: (why,)}
    assert found_in([with_socket(before)], [with_socket(replace(after, bytes_moved=4096))]) == {
        0: ()
    }
    assert found_in([rank(0)], [with_socket(after)]) == {0: ()}  # it is new: nothing to compare


def test_a_peer_without_a_name_is_an_unknown_one() -> None:
    """The sentence needs one."""
    before = socket(peer="")
    after = replace(before, queues=(0, 9))
    assert found_in([with_socket(before)], [with_socket(after)]) == {
        0: ("rank 0: moves data on the tcp socket to an unknown peer",)
    }
    lost = replace(before, queues=(0, 9), is_resent=True)
    assert still(with_socket(lost)) == {
        0: ("rank 0: has sent data to an unknown peer that may still arrive",)
    }


def test_traffic_that_is_no_socket_does_not_count() -> None:
    """A pipe is judged by who waits for it."""
    before = socket("pipe")
    after = replace(before, bytes_moved=9999)
    assert found_in([with_socket(before)], [with_socket(after)]) == {0: ()}


@pytest.mark.parametrize(("moved", "is_said"), [(1 << 16, False), ((1 << 16) + 1, True)])
def test_the_polling_of_ones_own_store_has_a_limit(moved: int, *, is_said: bool) -> None:
    """More than that is work."""
    ends = (Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2))
    one, two = (
        socket(where="inside", endpoints=ends, bytes_moved=0),
        replace(socket(where="inside", endpoints=ends[::-1]), fd=4, target="socket:[6]"),
    )
    waits = builders.operation("barrier", group=(0, 1), thread=100)
    was = rank(0, descriptors={3: one, 4: two})
    now = rank(0, descriptors={3: replace(one, bytes_moved=moved), 4: two})
    found = found_in([was], [now], (Operations(0, (waits,)),))
    assert bool(found[0]) == is_said


def test_a_descriptor_that_cannot_be_read_may_end_a_wait() -> None:
    """Nothing is known of its other end."""
    waits = thread(100, "recvfrom", fds=(9,))
    assert still(rank(0, main=waits)) == {
        0: ("rank 0: main thread waits for a descriptor that cannot be read",)
    }


def test_ranks_that_would_give_up_are_found_behind_children_and_orphans() -> None:
    """Only ranks themselves are asked: a child waits in no operation."""
    waits = builders.operation("barrier", group=(0, 1), thread=100, fails_test=True)
    orphan = Process(pid=8, rank=None, threads=(thread(8, ends_s=110.0),))
    child = Process(pid=9, rank=0, is_rank=False, threads=(thread(100, ends_s=110.0),))
    endless = rank(1)
    limited = rank(0, thread(101, ends_s=105.0), main=thread(100, ends_s=130.4))
    pages = (Operations(0, (waits,), {waits.group_key: 1}), Operations(1))
    kernel = kernel_snapshot(orphan, child, endless, limited)
    [found] = Snapshot(kernel, pages).give_ups()
    assert found == (
        "barrier on rank 0 would have timed out after 30 s more,"
        " with an error that the test does not handle"
    )
    assert list(Snapshot(replace(kernel, is_deep=False), pages).give_ups()) == []
    handled = (Operations(0, (replace(waits, fails_test=False),), {waits.group_key: 1}), pages[1])
    assert list(Snapshot(kernel, handled).give_ups()) == []


SILENT = "rank 0: main thread waits for the kernel, which may give up the connection to rank 1"


def with_end(at_s: float, **changes: object) -> Process:
    """Return rank 0, which reads from rank 1; the kernel may end the connection from a time on."""
    found = socket(where="inside", peer="rank 1", ends_s=at_s, **changes)
    return rank(0, main=thread(100, "recvfrom", fds=(3,)), descriptors={3: found})


def blockers_in(process: Process, **changes: object) -> tuple[str, ...]:
    """Return the blockers of a world that does not move."""
    first, second = (
        Snapshot(kernel_snapshot(process, at_s=at_s), **changes)  # type: ignore[arg-type]
        for at_s in (100.0, 101.0)
    )
    return blockers(first, second, deadline_s=DEADLINE_S)


def test_the_kernel_may_give_up_a_connection_with_a_silent_peer() -> None:
    """It asks the peer for a sign of life, or ends a connection with unacknowledged data."""
    early, late = with_end(DEADLINE_S - 1), with_end(DEADLINE_S + 1)
    assert still(early) == {0: (SILENT,)}
    assert blockers_in(early) == (SILENT,)
    assert still(late) == {0: ()}
    assert blockers_in(late) == ()


def test_a_peer_that_has_answered_will_do_so_again() -> None:
    """Unless a fault of the test disturbs the network."""
    process = with_end(DEADLINE_S - 1, is_answered=True)
    assert blockers_in(process) == ()
    assert blockers_in(process, is_disturbed=True) == (SILENT,)


def test_a_connection_that_is_cut_off_may_be_given_up() -> None:
    """Else nothing that its peer sends arrives, so no data end a wait for it."""
    ends = (Endpoint("10.0.0.1", 1), Endpoint("10.0.0.2", 2))
    cut = frozenset({("10.0.0.2", "10.0.0.1"), ("10.0.0.1", "10.0.0.2")})
    for at_s, expected in ((DEADLINE_S - 1, (SILENT,)), (DEADLINE_S + 1, ())):
        process = with_end(at_s, endpoints=ends)
        assert blockers_in(process, severed=cut, is_disturbed=True) == expected


def test_the_end_of_a_connection_of_a_runtime_concerns_the_runtime() -> None:
    """GRPC has a limit of 20 s for each of its connections."""
    found = socket(where="inside", peer="rank 1", ends_s=0.0)
    own = thread(8, "epoll_wait", fds=(3,), ends_s=110.0, code=GLOO)
    assert blockers_in(rank(0, own, descriptors={3: found})) == ()


def test_data_that_stay_unacknowledged_are_lost_and_may_still_arrive() -> None:
    """The kernel sends them again, perhaps only after seconds."""
    given = {"where": "inside", "peer": "rank 1", "queues": (0, 9)}
    flying = with_socket(socket(is_in_flight=True, **given))
    rests = with_socket(socket(**given))
    assert found_in([flying], [flying]) == {
        0: ("rank 0: has sent data to rank 1 that may still arrive",)
    }
    assert found_in([rests], [flying]) == {0: ()}
    assert found_in([flying], [rests]) == {0: ()}
