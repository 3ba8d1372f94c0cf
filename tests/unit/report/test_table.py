"""The table of ranks on terminals of different widths."""

from __future__ import annotations

from pytest_multihost.core.report.layout import Row, table
from pytest_multihost.testing import PLAIN

ROWS = [
    Row((0,), "culprit", "failed +0.18 s", "FileNotFoundError: no weights.pt", "test_mine.py:45"),
    Row((1, 2, 3), "waiting", "waiting", "in all_reduce #1", "test_mine.py:39", "test_loaders"),
]


def lines(width: int) -> list[str]:
    """Return the table's lines as text."""
    return ["".join(each.text for each in line) for line in table(ROWS, width, PLAIN)]


def test_a_wide_terminal_has_the_functions() -> None:
    """Behind their lines."""
    assert lines(120)[1].endswith("test_mine.py:39 test_loaders")


def test_a_narrow_one_keeps_the_details_instead() -> None:
    """The stacks have the functions, and the details are nowhere else."""
    first, second = lines(80)
    assert "FileNotFoundError: no weights.pt" in first
    assert second.endswith("test_mine.py:39")


def test_details_are_cut_only_where_their_lines_leave_no_room() -> None:
    """The line is what an editor opens."""
    first, _ = lines(64)
    assert "…" in first
    assert first.endswith("test_mine.py:45")
    assert len(first) <= 64
