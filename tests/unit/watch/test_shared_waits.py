"""Which ranks may end what another one waits for, from hand-made facts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import builders
import pytest

from pytest_multihost.core.watch.kernel.shared_objects import SharedMemory, locks_in, span
from pytest_multihost.core.watch.shared_waits import SharedWait, shared_waits, with_shared_wait
from pytest_multihost.testing import (
    PLAIN,
    Child,
    Descriptor,
    KernelSnapshot,
    Process,
    RankSnapshot,
    Thread,
)

PIPE = "pipe:[7]"
ARGS = (0x1000, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Peek:
    """What processes share, as the kernel would show it."""

    modes: dict[tuple[int, int], int] = field(default_factory=dict)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    fifos: frozenset[str] = frozenset()
    shared: SharedMemory | None = None
    last: frozenset[int] = frozenset()
    locked: frozenset[int] = frozenset()

    def mode(self, pid: int, fd: int) -> int | None:
        return self.modes.get((pid, fd))

    def eventfd(self, pid: int, fd: int) -> int | None:
        return self.numbers.get((pid, fd))

    def is_fifo(self, path: str) -> bool:
        return path in self.fifos

    def memory(self, _pid: int, _address: int) -> SharedMemory | None:
        return self.shared

    def operators(self, _call: str, _number: int) -> frozenset[int]:
        return self.last

    def lockers(self, _path: str) -> frozenset[int]:
        return self.locked


def rank(number: int, call: str = "futex", *ends: Descriptor, **changes: object) -> Process:
    """Return a rank whose main thread is in a call; its process has 100 + its number."""
    pid = 100 + number
    main = builders.thread(call, **{"tid": pid, "args": ARGS, **changes})
    return Process(pid=pid, rank=number, threads=(main,), descriptors={e.fd: e for e in ends})


def end(fd: int, kind: str = "pipe", target: str = PIPE, **changes: object) -> Descriptor:
    """Return a descriptor of what ranks share."""
    return Descriptor(fd=fd, target=target, kind=kind, **changes)  # type: ignore[arg-type]


def found(peek: Peek, *processes: Process) -> SharedWait | None:
    """Return what rank 0 waits for."""
    kernel = KernelSnapshot(at_s=1.0, processes=processes, is_deep=True)
    return shared_waits(kernel, peek, asked=[0], names=PLAIN).get(0)


def test_the_holder_of_the_other_end_of_a_pipe_is_waited_for() -> None:
    """It alone can write, so the wait is sure; the reading end of another rank does not count."""
    peek = Peek({(100, 3): 0, (101, 4): 1, (102, 5): 0})
    wait = found(
        peek, rank(0, "read", end(3), fds=(3,)), rank(1, "read", end(4)), rank(2, "read", end(5))
    )
    assert wait is not None
    assert (wait.ranks, wait.is_sure) == ({1}, True)


def test_an_inherited_pipe_may_be_written_by_all() -> None:
    """The rank that reads could have written as well, so nothing is sure."""
    peek = Peek({(100, 3): 0, (100, 4): 1, (101, 4): 1, (102, 4): 1})
    readers = (rank(n, "read", end(3), end(4), fds=(3,)) for n in range(3))
    wait = found(peek, *readers)
    assert wait is not None
    assert (wait.ranks, wait.is_sure) == ({1, 2}, False)


def test_a_pipe_of_its_own_is_its_own_affair() -> None:
    """So is one of its child: no other rank can end the wait."""
    peek = Peek({(100, 3): 0, (100, 4): 1, (500, 4): 1})
    child = replace(rank(0, "read", end(4)), pid=500, is_rank=False)
    assert found(peek, rank(0, "read", end(3), end(4), fds=(3,)), rank(1), child) is None


def test_a_dead_holder_provides_nothing() -> None:
    """The wait is its own affair, too."""
    peek = Peek({(100, 3): 0, (101, 4): 1})
    dead = replace(rank(1, "read", end(4)), threads=(Thread(tid=101, state="Z"),))
    assert found(peek, rank(0, "read", end(3), fds=(3,)), dead) is None


def test_an_epoll_waits_for_what_it_watches() -> None:
    """A timer beside it may end the wait as well; then no rank is named."""
    peek = Peek({(100, 3): 0, (101, 4): 1})
    poll = end(9, "epoll", "anon_inode:[eventpoll]", watched=(3,))
    writer = rank(1, "read", end(4))
    wait = found(peek, rank(0, "epoll_wait", end(3), poll, fds=(9,)), writer)
    assert wait is not None
    assert wait.ranks == {1}
    timer = end(8, "timerfd", "anon_inode:[timerfd]")
    both = replace(poll, watched=(3, 8))
    wait = found(peek, rank(0, "epoll_wait", end(3), both, timer, fds=(9,)), writer)
    assert wait is not None
    assert (wait.ranks, bool(wait.note)) == (frozenset(), True)


def test_an_eventfd_is_known_by_its_number() -> None:
    """All have the same name."""
    eventfd = end(3, "eventfd", "anon_inode:[eventfd]")
    processes = [rank(n, "read", eventfd, fds=(3,)) for n in range(3)]
    wait = found(Peek(numbers={(100, 3): 5, (101, 3): 5, (102, 3): 6}), *processes)
    assert wait is not None
    assert wait.ranks == {1}


@pytest.mark.parametrize(
    ("memory", "ranks", "is_sure"),
    [
        (SharedMemory("semaphore", (101, 102)), {1, 2}, False),
        (SharedMemory("pthread_mutex_lock", (101, 102), owner=102), {2}, True),
        (SharedMemory("semaphore", can_be_opened=True), set(), False),
    ],
)
def test_shared_memory_is_released_by_those_that_have_it(
    memory: SharedMemory, ranks: set[int], *, is_sure: bool
) -> None:
    """A mutex names its owner; a semaphore with a name may be opened by any rank."""
    wait = found(Peek(shared=memory), rank(0), rank(1), rank(2))
    assert wait is not None
    assert (wait.ranks, wait.is_sure) == (ranks, is_sure)


@pytest.mark.parametrize(
    "memory",
    [
        None,
        SharedMemory("semaphore"),
        SharedMemory("pthread_mutex_lock", (101,), owner=100),
        SharedMemory("pthread_mutex_lock", (101,), owner=9999),
    ],
)
def test_memory_that_no_other_rank_releases(memory: SharedMemory | None) -> None:
    """It is private, or only this rank has it, or holds the mutex, or its owner is gone."""
    assert found(Peek(shared=memory), rank(0), rank(1)) is None


def test_a_private_futex_is_not_asked_for() -> None:
    """FUTEX_PRIVATE_FLAG: threads of one process only."""
    memory = SharedMemory("semaphore", (101,))
    private = (0x1000, 128, 0, 0, 0, 0)
    assert found(Peek(shared=memory), rank(0, args=private), rank(1)) is None


def test_who_has_used_a_semaphore_of_system_v_is_waited_for() -> None:
    """If nobody is known, any rank may use it."""
    wait = found(Peek(last=frozenset({101})), rank(0, "semop"), rank(1))
    assert wait is not None
    assert wait.ranks == {1}
    wait = found(Peek(), rank(0, "semop"), rank(1))
    assert wait is not None
    assert (wait.ranks, "any rank may use" in wait.note) == (frozenset(), True)


def test_sqlite_waits_for_the_holder_of_a_lock_of_its_database() -> None:
    """A rank that sleeps elsewhere with the same file open does not."""
    peek = Peek(locked=frozenset({101}))
    database = end(3, "file", "/data/db")
    wait = found(peek, rank(0, "clock_nanosleep", database, caller="/lib/libsqlite3.so.0"), rank(1))
    assert wait is not None
    assert (wait.ranks, wait.is_lock) == ({1}, True)
    assert found(peek, rank(0, "clock_nanosleep", database, caller="/bin/python3"), rank(1)) is None


def test_a_child_that_has_locked_a_database_is_told() -> None:
    """Its rank does not hold the lock."""
    database = end(3, "file", "/data/db")
    waits = rank(0, "clock_nanosleep", database, caller="/lib/libsqlite3.so.0")
    tool = Process(pid=201, rank=1, is_rank=False, name="tool", threads=(builders.thread(),))
    wait = found(Peek(locked=frozenset({201})), waits, rank(1), tool)
    assert wait is not None
    assert (wait.ranks, wait.children) == ({1}, ((1, Child(201, program="tool")),))
    seen = with_shared_wait(RankSnapshot(rank=0), wait, waits, 1.0)
    assert (seen.lock_holders, seen.lock_children) == ((1,), wait.children)


def test_signals_and_named_pipes_may_come_from_any_rank() -> None:
    """No rank is named for them."""
    for waits in (rank(0, "rt_sigtimedwait"), rank(0, "openat", target="/data/pipe")):
        wait = found(Peek(fifos=frozenset({"/data/pipe"})), waits, rank(1))
        assert wait is not None
        assert (wait.ranks, "any rank may" in wait.note) == (frozenset(), True)
    assert found(Peek(), rank(0, "openat", target="/data/file"), rank(1)) is None


def test_a_thread_for_which_the_main_one_waits_gives_a_note() -> None:
    """It is unknown whether the main thread waits for that one."""
    peek = Peek({(100, 3): 0, (101, 4): 1})
    waiting = rank(0, "futex", end(3), args=(0x1000, 128, 0, 0, 0, 0))
    beside = builders.thread("read", tid=500, fds=(3,), code=("/bin/python3",))
    wait = found(
        peek, replace(waiting, threads=(*waiting.threads, beside)), rank(1, "read", end(4))
    )
    assert wait is not None
    assert (wait.ranks, bool(wait.note)) == (frozenset(), True)


def test_a_wait_becomes_an_edge_or_a_note() -> None:
    """A lock of a file that is tried again and again is one of those that are known already."""
    seen, process = RankSnapshot(rank=0), rank(0)
    edge = with_shared_wait(
        seen, SharedWait("read", ranks=frozenset({2}), note="waits"), process, 1.0
    )
    assert [(e.group, e.peer, e.kind) for e in edge.operations] == [((0, 2), None, "transfer")]
    lock = SharedWait("", ranks=frozenset({2}), is_lock=True, note="tries")
    tried = with_shared_wait(seen, lock, process, 1.0)
    assert (tried.lock_holders, tried.tries_lock, tried.operations) == ((2,), True, ())
    noted = with_shared_wait(seen, SharedWait("pause", note="waits"), process, 1.0)
    assert (noted.owed, noted.operations) == ("waits", ())
    assert with_shared_wait(seen, None, process, 1.0) is seen


@pytest.mark.parametrize(
    ("info", "excludes"),
    [
        ("lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:12 0 EOF", True),
        ("lock: 1: OFDLCK ADVISORY READ -1 fe:00:12 0 EOF", False),
        ("lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:12 100 199", False),
        ("lock: 1: FLOCK ADVISORY WRITE 7 fe:00:12 0 EOF", False),
        ("pos: 0", False),
    ],
)
def test_a_lock_of_another_part_or_sort_is_no_obstacle(info: str, *, excludes: bool) -> None:
    """A lock for reading excludes none for reading."""
    wanted = span(is_alone=False, start=0, length=100)
    assert any(each.excludes(wanted) for each in locks_in(info, {"OFDLCK"})) == excludes
