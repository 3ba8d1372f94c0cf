"""What ranks have passed to a collective that they have left, from their slot pages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pytest_multihost.core.slots import SlotPage, slots_path
from pytest_multihost.core.watch import WorldObserver
from pytest_multihost.testing import RankFacts

SOURCE = (0, 0, 0)


def write_page(folder: Path, rank: int, detail: str, *, has_left: bool = False) -> None:
    """Write the page of a rank that has entered the first all_reduce of both with one tensor."""
    page = SlotPage.create(slots_path(str(folder), rank))
    call = page.call("all_reduce", "collective", page.group((0, 1)))
    record = page.begin(call, time.monotonic_ns(), 1, SOURCE, detail=page.text(detail))
    if has_left:
        page.end(record, time.monotonic_ns())


@pytest.mark.parametrize(("left_with", "should_end"), [("f32[2]", False), ("f32[3]", True)])
def test_sizes_that_a_rank_has_passed_count_after_it_has_left(
    tmp_path: Path, left_with: str, *, should_end: bool
) -> None:
    """The open operations alone do not say that the others wait for data that never come."""
    write_page(tmp_path, 0, "f32[3]")
    write_page(tmp_path, 1, left_with, has_left=True)
    facts = [RankFacts(0), RankFacts(1)]
    observer = WorldObserver(tmp_path, 2)
    snapshot, _ = observer.shallow(time.monotonic(), facts)
    assert any(snapshot.complete_operations())
    assert any(observer.with_past(snapshot, facts).complete_operations()) is should_end
