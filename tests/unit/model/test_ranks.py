"""How a set of ranks is written."""

from __future__ import annotations

import pytest

from pytest_multihost.core.model.rank_names import PLAIN


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0,1"),
        ([0, 1, 2], "ranks 0-2"),
        ([5, 2, 0, 1], "ranks 0-2,5"),
        ([0, 2, 4], "ranks 0,2,4"),
        ([1, 1, 1], "rank 1"),
        (range(64), "ranks 0-63"),
    ],
)
def test_ranks_are_written_as_one_reads_them(ranks: list[int], text: str) -> None:
    """Sorted, once each, three and more in a row as a span."""
    assert PLAIN.of(ranks) == text
