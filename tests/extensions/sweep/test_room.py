"""How many worlds of a sweep run at a time."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.sweep.run.runner import has_room

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_a_few_small_worlds_run_at_a_time(ranks: int) -> None:
    """Most of them only wait."""
    assert has_room(2, ranks)


@pytest.mark.parametrize(("ranks", "most"), [(64, 4), (128, 2), (256, 1), (1024, 1)])
def test_large_worlds_leave_memory(ranks: int, most: int) -> None:
    """One always runs, and together they have no more than 256 ranks."""
    assert has_room(0, ranks)
    assert not has_room(most, ranks)
