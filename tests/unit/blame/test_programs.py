"""Between whom a jitted function's collective is, told from what each rank has started."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest

from pytest_multihost import faults
from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.other_programs import as_other_program
from pytest_multihost.core.blame.program_members import with_members, with_unread_wait
from pytest_multihost.core.blame.wait_graph import Wait
from pytest_multihost.testing import Frame, NativeThread, Operation, RankSnapshot, program_scope

ALL = (0, 1, 2)
TEST = "/home/me/test_it.py"
AT_7, AT_9 = Frame(TEST, 7, "test_it"), Frame(TEST, 9, "test_it")
STARTING = Frame("/x/site-packages/jax/_src/interpreters/pxla.py", 395, "__call__")
UNTOLD = builders.operation(group=ALL, has_members=False, sequence=0, source="native-frames")

Started = tuple[tuple[int, ...], int, int]
"""On which processes, from which line, as which."""


def members(
    *started: Started, frames: tuple[Frame, ...] = (), operation: Operation = UNTOLD
) -> tuple[tuple[int, ...], bool]:
    """Return the group of a rank's operation that has started these programs, and if it is sure."""
    entered = tuple(
        ((group, 0, program_scope(TEST, line)), place) for group, line, place in started
    )
    seen = RankSnapshot(rank=0, operations=(operation,), entered=entered)
    (found,) = with_members(seen, frames).operations
    return found.group, found.has_members


def test_all_programs_of_a_rank_run_on_the_same_processes() -> None:
    """Then it does not matter which of them it is in."""
    assert members(((0, 1), 7, 1), ((0, 1), 9, 2)) == ((0, 1), True)


def test_a_program_that_is_being_started_is_the_last_one() -> None:
    """The stack shows that one is, and each has its number."""
    started = ((0, 1), 7, 3), (ALL, 7, 2)
    assert members(*started, frames=(STARTING, AT_7)) == ((0, 1), True)


def test_a_program_is_known_by_the_line_that_has_started_it() -> None:
    """Later calls of it leave no trace but come from the same line."""
    started = ((0, 1), 7, 1), ((0, 2), 9, 2)
    assert members(*started, frames=(AT_7,)) == ((0, 1), True)
    assert members(*started, frames=(AT_9,)) == ((0, 2), True)


@pytest.mark.parametrize("line", [7, 8], ids=["from here", "from elsewhere"])
def test_of_several_that_it_may_be_none_is_taken(line: int) -> None:
    """A line that has started programs on different processes, or none of them, tells nothing."""
    started = ((0, 1), 7, 1), ((0, 2), 7, 2)
    assert members(*started, frames=(Frame(TEST, line, "test_it"),)) == (ALL, False)


def test_a_collective_of_a_program_has_the_users_line() -> None:
    """That of the main thread, which waits for the program."""
    seen = RankSnapshot(rank=0, operations=(UNTOLD,))
    (found,) = with_members(seen, (STARTING, AT_7)).operations
    assert found.frame == AT_7


def stuck_at(*frames: Frame | None) -> Cause:
    """Return the cause of a world whose ranks are all in a program's sum, in these lines."""
    return stuck_in(*(replace(UNTOLD, frame=frame) for frame in frames))


def stuck_in(*operations: Operation) -> Cause:
    """Return the cause of a world whose ranks have all entered these, which do not end."""
    waits = (Wait(rank, each, frozenset()) for rank, each in enumerate(operations))
    return Cause(
        kind="transport",
        confidence="likely",
        waiting=tuple(range(len(operations))),
        operation=operations[0],
        waits=tuple(waits),
    )


def test_a_rank_in_another_program_than_most_is_likely_the_culprit() -> None:
    """Nothing numbers these collectives, but a program is known by its line."""
    found = as_other_program(stuck_at(AT_7, AT_9, AT_7))
    assert (found.kind, found.confidence) == ("mismatch", "likely")
    assert (found.culprits, found.waiting) == ((1,), (0, 2))


def test_a_function_of_another_name_is_another_program() -> None:
    """But not the same function at another line: what is recorded has a name."""
    step = builders.collective(7, group=ALL, name="jit_step", frame=AT_7)
    evaluate = replace(step, name="jit_evaluate")
    cause = stuck_in(step, evaluate, step)
    assert as_other_program(cause).culprits == (1,)
    same = stuck_in(step, replace(step, frame=AT_9), step)
    assert as_other_program(same) is same


@pytest.mark.parametrize(
    "cause",
    [
        stuck_at(AT_7, AT_9),
        stuck_at(AT_7, AT_7, AT_7),
        stuck_at(AT_7, AT_9, None, AT_7),
        replace(stuck_at(AT_7, AT_9, AT_7), cut=faults.partition(groups=[[0], [1, 2]])),
        replace(stuck_at(AT_7, AT_9, AT_7), culprits=(2,)),
    ],
    ids=["a tie", "all in one", "one unknown", "cut off", "one has left"],
)
def test_without_a_majority_that_waits_nobody_is_named_for_his_program(cause: Cause) -> None:
    """Nor where the cause is known."""
    assert as_other_program(cause) is cause


def test_without_a_note_nothing_is_known() -> None:
    """As with a jax that starts its programs in another way."""
    assert members(frames=(STARTING, AT_7)) == (ALL, False)


def test_what_is_no_program_is_left_as_it_is() -> None:
    """A barrier of the coordination service that another client of C++ waits in."""
    barrier = replace(UNTOLD, name="wait_at_barrier")
    assert members(((0, 1), 7, 1), operation=barrier) == (ALL, False)


IN_JAX = Frame("/x/site-packages/jax/_src/array.py", 631, "_value")
IN_LOADER = Frame("/x/site-packages/torch/utils/data/dataloader.py", 9, "get")
IN_QUEUE = Frame("/usr/lib/python3.11/queue.py", 171, "get")
BLOCKED = RankSnapshot(rank=0, label="BLOCKED")


def test_a_rank_inside_of_a_runtime_waits_although_its_native_stack_was_not_read() -> None:
    """Without the extra `stacks` it is no rank that comes to no operation."""
    (found,) = with_unread_wait(BLOCKED, (IN_JAX, AT_7), size=3, at_s=2.0).operations
    assert (found.name, found.group, found.has_members) == ("an operation of jax", ALL, False)
    assert (found.frame, found.waited_s) == (AT_7, 2.0)


@pytest.mark.parametrize(
    ("seen", "frames"),
    [
        (BLOCKED, (AT_7, IN_JAX)),
        (BLOCKED, (IN_QUEUE, IN_JAX, AT_7)),
        (BLOCKED, (IN_LOADER, AT_7)),
        (BLOCKED, ()),
        (replace(BLOCKED, label="RUNNING"), (IN_JAX, AT_7)),
        (replace(BLOCKED, holds_gil=True), (IN_JAX, AT_7)),
        (replace(BLOCKED, native=(NativeThread(7, ()),)), (IN_JAX, AT_7)),
        (replace(BLOCKED, operations=(builders.collective(1, group=ALL),)), (IN_JAX, AT_7)),
    ],
    ids=["own line", "queue", "loader", "unknown", "computes", "gil", "read", "recorded"],
)
def test_what_is_known_otherwise_or_waits_for_itself_gets_no_operation(
    seen: RankSnapshot, frames: tuple[Frame, ...]
) -> None:
    """A rank's own queue or lock is its own wait."""
    assert with_unread_wait(seen, frames, size=3, at_s=2.0) == seen
