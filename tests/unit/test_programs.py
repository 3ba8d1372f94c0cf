"""Between whom a jitted function's collective is, told from what each rank has started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost.blame.inferred import with_members
from pytest_multihost.model.operation import Operation, program_scope
from pytest_multihost.model.result import RankSnapshot
from pytest_multihost.model.stack import Frame

ALL = (0, 1, 2)
TEST = "/home/me/test_it.py"
AT_7, AT_9 = Frame(TEST, 7, "test_it"), Frame(TEST, 9, "test_it")
STARTING = Frame("/x/site-packages/jax/_src/interpreters/pxla.py", 395, "__call__")
UNTOLD = Operation(
    name="all_reduce",
    kind="collective",
    group=ALL,
    has_members=False,
    sequence=0,
    since_s=1.0,
    waited_s=1.0,
    source="native-frames",
)

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


def test_without_a_note_nothing_is_known() -> None:
    """As with a jax that starts its programs in another way."""
    assert members(frames=(STARTING, AT_7)) == (ALL, False)


def test_what_is_no_program_is_left_as_it_is() -> None:
    """A barrier of the coordination service that another client of C++ waits in."""
    barrier = replace(UNTOLD, name="wait_at_barrier")
    assert members(((0, 1), 7, 1), operation=barrier) == (ALL, False)
