"""What the stacks of ranks add to what was seen of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from pytest_multihost.core.blame.program_members import with_stacks
from pytest_multihost.testing import (
    Dump,
    Frame,
    Label,
    RankSnapshot,
    ThreadStack,
    WorldSnapshot,
    called_in_threads,
)


@pytest.mark.parametrize(
    ("label", "is_deaf", "holds"),
    [("RUNNING", True, True), ("RUNNING", False, False), ("SLEEPING", False, True)],
)
def test_a_rank_that_computes_is_in_native_code_if_it_is_deaf(
    label: Label, *, is_deaf: bool, holds: bool
) -> None:
    """It holds the interpreter in Python, too; one that sleeps with it is in native code."""
    seen = RankSnapshot(rank=0, label=label, holds_gil=True)
    dumps = [Dump(0, "faulthandler", (), is_deaf=is_deaf)]
    (told,) = with_stacks([WorldSnapshot(at_s=1.0, reason="end", ranks=(seen,))], dumps)
    assert told.ranks[0].holds_gil == holds


def test_a_rank_that_computes_and_gave_no_stack_is_not_said_to_be_in_native_code() -> None:
    """Nobody knows."""
    seen = RankSnapshot(rank=0, label="RUNNING", holds_gil=True)
    (told,) = with_stacks([WorldSnapshot(at_s=1.0, reason="end", ranks=(seen,))], [])
    assert not told.ranks[0].holds_gil


STDLIB = threading.__file__
QUEUE = Frame(STDLIB, 331, "wait")
RUN = Frame(STDLIB, 982, "run")
POOL = Frame("/venv/site-packages/grain/prefetch.py", 40, "fill")
READ = Frame("/home/me/data.py", 33, "read")
LOOP = Frame("/home/me/train.py", 8, "test_it")


def dump_of(main: Sequence[Frame], *others: Sequence[Frame]) -> Dump:
    """Return the stacks of a rank; faulthandler prints the main thread last."""
    return Dump(0, "faulthandler", tuple(ThreadStack("t", tuple(each)) for each in (*others, main)))


def test_a_main_thread_that_waits_in_a_library_is_where_the_library_has_called() -> None:
    """A loader reads ahead in a thread, and reads for ever."""
    assert called_in_threads(dump_of([QUEUE, POOL, LOOP], [READ, POOL, RUN])) == (READ,)
    two = [[READ, POOL, RUN], [READ, POOL, RUN], [POOL, RUN]]
    assert called_in_threads(dump_of([QUEUE, POOL, LOOP], *two)) == (READ,)


@pytest.mark.parametrize(
    ("main", "other"),
    [
        ([LOOP], [READ, POOL, RUN]),  # its own line: no library waits
        ([QUEUE, LOOP], [READ, RUN]),  # a thread that the user has started
        ([QUEUE, LOOP], [QUEUE, POOL, RUN]),  # a library's alone
        ([], [READ, POOL, RUN]),  # not known
    ],
)
def test_another_thread_is_no_place_of_the_main_one(
    main: Sequence[Frame], other: Sequence[Frame]
) -> None:
    """What it does need not be what the main thread waits for."""
    assert called_in_threads(dump_of(main, other)) == ()
