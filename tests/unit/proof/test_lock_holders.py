"""Which processes hold the file lock that a rank waits for, from hand-made facts."""

from __future__ import annotations

import pytest
from builders import thread

from pytest_multihost.core.proof.lock_holders import (
    FileLockHolders,
    lock_holders,
    with_lock_holders,
)
from pytest_multihost.testing import (
    PLAIN,
    Child,
    KernelSnapshot,
    Process,
    RankSnapshot,
    Thread,
)

TOOL = Process(pid=9, rank=1, is_rank=False, name="sleep", threads=(thread("read"),))
BY_TOOL = FileLockHolders((1,), ((1, Child(9, program="sleep")),))


def holders(
    *pids: int, main: Thread | None = None, others: tuple[Process, ...] = (TOOL,)
) -> FileLockHolders:
    """Return who holds the lock that rank 0 waits for, beside rank 1, process 2, and its child."""
    waiting = Process(pid=1, rank=0, threads=(thread("flock", holders=pids),))
    other = Process(pid=2, rank=1, threads=(main or thread(),))
    found = lock_holders(KernelSnapshot(at_s=0, processes=(waiting, other, *others)))
    assert found[1] == FileLockHolders()
    return found[0]


def test_a_rank_holds_a_lock_and_a_stranger_is_nobody_of_the_world() -> None:
    """No rank can release what the stranger holds."""
    assert holders(2, 77) == FileLockHolders((1,))
    assert holders(77) == FileLockHolders()


def test_the_lock_of_a_child_is_not_that_of_its_rank() -> None:
    """It is free when the child ends."""
    assert holders(9) == BY_TOOL


def test_a_lock_that_a_rank_and_its_child_hold_is_the_ranks() -> None:
    """It is not free when the child ends."""
    assert holders(2, 9) == FileLockHolders((1,))


@pytest.mark.parametrize(
    ("call", "child", "is_told"),
    [("wait4", 9, False), ("wait4", -1, False), ("wait4", 8, True), ("futex", 0, True)],
)
def test_a_rank_that_waits_for_its_child_waits_until_the_lock_is_free(
    call: str, child: int, *, is_told: bool
) -> None:
    """A rank that waits for another child goes on though this one has the lock."""
    found = holders(9, main=thread(call, child=child))
    assert found.ranks == (1,)
    assert bool(found.children) == is_told


def test_a_process_that_has_ended_holds_no_lock() -> None:
    """Its parent may not have waited for it."""
    ended = Process(pid=9, rank=1, is_rank=False, threads=(thread(state="Z"),))
    assert holders(9, others=(ended,)) == FileLockHolders()


def test_a_rank_is_told_which_child_has_the_lock() -> None:
    """The rank that waits may not be to blame for that."""
    seen = with_lock_holders(RankSnapshot(rank=0), BY_TOOL, PLAIN)
    assert (seen.lock_holders, seen.lock_children) == ((1,), BY_TOOL.children)
    assert seen.owed == "waits for the lock of a file, which a child of rank 1 holds: sleep 9"
    assert with_lock_holders(RankSnapshot(rank=0), FileLockHolders((1,)), PLAIN).owed == ""
