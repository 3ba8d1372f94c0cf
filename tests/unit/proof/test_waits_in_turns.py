"""Waits that their loops begin again after each timeout, such as those of torch's data loaders."""

from __future__ import annotations

import pytest
from builders import kernel_snapshot

from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.proof.blockers import blockers
from pytest_multihost.core.proof.proof_state import has_rested
from pytest_multihost.testing import IN_TURNS, NEVER, TICKS, Descriptor, Process, Thread

RANK, CHILD = 100, 200
PIPE = Descriptor(fd=3, target="pipe:[5]", kind="pipe")


def waiting(pid: int, name: str = IN_TURNS, where: str = "inside") -> Process:
    """Return a process whose main thread waits for a pipe, without an end that counts."""
    main = Thread(tid=pid, name=name, call="poll", fds=(3,), ends_s=NEVER, runs=5)
    found = Descriptor(fd=3, target=PIPE.target, kind="pipe", where=where)  # type: ignore[arg-type]
    return Process(pid=pid, rank=0, is_rank=pid == RANK, threads=(main,), descriptors={3: found})


def dead(pid: int, rank: int | None) -> Process:
    """Return a child that has ended and that its parent has not asked for its end."""
    return Process(pid=pid, rank=rank, is_rank=False, threads=(Thread(tid=pid, state="Z"),))


def found_in(*processes: Process) -> str:
    """Return what may end a wait in a world that does not move."""
    first = Snapshot(kernel_snapshot(*processes))
    second = Snapshot(kernel_snapshot(*processes, at_s=101.0))
    return "\n".join(blockers(first, second, deadline_s=160.0))


def test_a_rank_and_its_child_that_wait_for_each_other_in_turns_hang() -> None:
    """Nothing is in their pipes, and both live."""
    assert found_in(waiting(RANK), waiting(CHILD)) == ""


def test_a_pipe_that_leads_outside_may_end_a_wait_in_turns() -> None:
    """Its turns do not matter; the writer does."""
    assert "not part of this world" in found_in(waiting(RANK, where="outside"))


@pytest.mark.parametrize(
    ("name", "rank", "is_blocker"),
    [(IN_TURNS, 0, True), ("python", 0, False), (IN_TURNS, 1, False)],
    ids=["its child", "no turns", "another rank's child"],
)
def test_a_wait_in_turns_may_end_when_a_child_has_ended(
    name: str, rank: int, *, is_blocker: bool
) -> None:
    """Between two turns a data loader looks whether its processes live."""
    found = found_in(waiting(RANK, name), dead(CHILD, rank))
    assert (found == f"rank 0: main thread may see that its child process {CHILD} has ended") is (
        is_blocker
    )


def ticking(name: str, runs: int, *, milliseconds: int = 100) -> Process:
    """Return a rank whose event loop waits, with a timeout."""
    arguments = (3, 0, 8, milliseconds, 0, 0)
    main = Thread(
        tid=RANK, name=name, call="epoll_wait", args=arguments, fds=(3,), ends_s=NEVER, runs=runs
    )
    found = Descriptor(fd=3, target=PIPE.target, kind="pipe", where="inside")
    return Process(pid=RANK, rank=0, threads=(main,), descriptors={3: found})


@pytest.mark.parametrize(
    ("name", "is_blocker"), [(f"{TICKS}0001", False), (f"{TICKS}0002", True), ("python", True)]
)
def test_a_loop_that_has_only_ticked_has_not_left_its_wait(name: str, *, is_blocker: bool) -> None:
    """The end of its name counts what else it has done."""
    before = Snapshot(kernel_snapshot(ticking(f"{TICKS}0001", 5)))
    now = Snapshot(kernel_snapshot(ticking(name, 8, milliseconds=99), at_s=101.0))
    found = blockers(before, now, deadline_s=160.0)
    assert bool(found) is is_blocker, found


@pytest.mark.parametrize(("turns", "has"), [(0, False), (1, False), (2, True)])
def test_a_loop_that_ticks_rests_only_after_two_turns(turns: int, *, has: bool) -> None:
    """Another thread may have told its server to end; the next turn sees that."""
    name = f"{TICKS}0001"
    before = Snapshot(kernel_snapshot(ticking(name, 5)))
    now = Snapshot(kernel_snapshot(ticking(name, 5 + turns), at_s=100.3))
    rested = has_rested(before, now, lambda _: {RANK: 5 + turns}, deadline_s=160.0)
    assert rested is has
