"""Ranks that try again and again for the lock of a file: their record, and what it shows."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import builders
import pytest

from pytest_multihost.core.rank.recorder import Recorder, record_file_locks
from pytest_multihost.core.slots import SlotPage, read_slots
from pytest_multihost.core.watch.kernel import holders_of_lock
from pytest_multihost.core.watch.polled_locks import polled_lock, with_polled_locks
from pytest_multihost.testing import (
    PLAIN,
    Child,
    KernelSnapshot,
    Label,
    Operation,
    Operations,
    Process,
    RankSnapshot,
    Scope,
    Thread,
    WorldSnapshot,
)

LOCK = Scope("flock", "fe:00:7")


def tries(
    number: int, *, first_s: float = 10.0, last_s: float = 12.0, thread: int = 1
) -> Operation:
    """Return the record of failed tries for a lock."""
    return Operation(
        name="flock",
        kind="wait",
        group=(0, 1),
        scope=LOCK,
        sequence=number,
        detail="/data/prep.lock",
        since_s=first_s,
        ended_s=last_s,
        thread=thread,
    )


def barrier(since_s: float, *, thread: int = 1) -> Operation:
    """Return a barrier that a thread waits in."""
    return builders.operation("barrier", group=(0, 1), since_s=since_s, thread=thread)


@pytest.mark.parametrize(
    ("recent", "is_polled"),
    [
        ((tries(40),), True),
        ((barrier(5.0), tries(40)), True),
        ((tries(40), barrier(13.0, thread=2)), True),
        ((tries(3, first_s=2.0),), True),  # its next try is due at 17 s
        ((), False),
        ((tries(1, first_s=12.0),), False),  # it went on without the lock
        ((tries(0),), False),  # it has got the lock in time
        ((tries(40, last_s=11.0),), False),  # it has given up, and computes
        ((tries(40), barrier(12.1)), False),  # it has given up, and waits elsewhere
    ],
)
def test_a_rank_that_goes_on_does_not_poll(
    recent: tuple[Operation, ...], *, is_polled: bool
) -> None:
    """Only a rank that comes back for its next try waits for the lock."""
    assert (polled_lock(Operations(0, recent), at_s=12.5) is not None) == is_polled


def judged(label: Label = "SLEEPING", *, holder: int = 101) -> WorldSnapshot:
    """Return the last snapshot of a world whose rank 0 polls for a lock.

    Rank 1 is process 101, and has the child 201.
    """
    ranks = (RankSnapshot(rank=0, label=label), RankSnapshot(rank=1, label="BLOCKED"))
    processes = tuple(
        Process(pid=100 + rank, rank=rank, threads=(Thread(tid=100 + rank, name="", state="S"),))
        for rank in (0, 1)
    )
    tool = Process(pid=201, rank=1, is_rank=False, name="tool", threads=(builders.thread(),))
    return with_polled_locks(
        WorldSnapshot(at_s=12.5, reason="end", ranks=ranks),
        KernelSnapshot(at_s=12.5, processes=(*processes, tool)),
        [Operations(0, (tries(40),)), Operations(1)],
        local={0, 1},
        holders={LOCK: (holder,)}.__getitem__,
        names=PLAIN,
    )


def test_a_rank_that_polls_waits_for_the_holder() -> None:
    """Until the lock is given back, nothing else lets it go on."""
    first, second = judged().ranks
    assert (first.lock_holders, first.tries_lock) == ((1,), True)
    assert (second.lock_holders, second.tries_lock) == ((), False)


def test_a_rank_that_polls_for_the_lock_of_a_child_does_not_wait_for_its_rank() -> None:
    """The lock is free when the child ends."""
    found = judged(holder=201).ranks[0]
    assert (found.lock_holders, found.tries_lock) == ((1,), True)
    assert found.lock_children == ((1, Child(201, program="tool")),)
    assert "a child of rank 1 holds: tool 201" in found.owed


def test_a_rank_that_works_between_two_tries_waits_for_nobody() -> None:
    """It looks for the lock, but does not need it to go on."""
    assert judged("RUNNING").ranks[0].lock_holders == ()


def test_a_holder_outside_the_world_is_noted() -> None:
    """No rank is to blame for it."""
    found = judged(holder=999)
    assert found.ranks[0].lock_holders == ()
    assert "lock of /data/prep.lock, held by process 999" in found.notes[0]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotPage]:
    """A slot page in which the tries of this process are recorded."""
    page = SlotPage.create(tmp_path / "rank-0.slots")
    monkeypatch.setattr(fcntl, "flock", fcntl.flock)  # given back in the end
    monkeypatch.setattr(fcntl, "lockf", fcntl.lockf)
    record_file_locks(Recorder(page, 0, 2))
    yield page
    page.forget()


def test_failing_tries_are_one_record(page: SlotPage, tmp_path: Path) -> None:
    """Hours of polling leave room for other operations; the file may be closed in between."""
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(3):
            with path.open("w") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (found,) = read_slots(page.path, rank=0).recent
        assert (found.name, found.sequence, found.detail) == ("flock", 3, str(path))
        assert (found.is_open, found.ended_s is not None) == (False, True)
        assert found.frame is not None
        assert found.frame.function == "test_failing_tries_are_one_record"
        assert holders_of_lock(found.scope) == (os.getpid(),)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [each.sequence for each in read_slots(page.path, rank=0).recent] == [0]


def test_a_lock_that_is_free_leaves_no_record(page: SlotPage, tmp_path: Path) -> None:
    """Nobody has waited for it."""
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert read_slots(page.path, rank=0).recent == ()
