"""What each rank is doing, from two snapshots made by hand."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest
from builders import MAIN, kernel_snapshot, process, thread

from pytest_multihost.core.proof import Snapshot
from pytest_multihost.core.watch.comparison import rank_snapshots
from pytest_multihost.testing import Operations


@pytest.mark.parametrize(("entered", "awaited"), [(1, [2]), (0, [1, 2]), (2, [1, 2])])
def test_a_thread_that_waits_for_several_waits_for_those_that_lack_a_member(
    entered: int, awaited: list[int]
) -> None:
    """The first ones may have ended on the GPU since; if nobody is missing, nothing is known."""
    one = builders.operation(group=(0, 1), thread=MAIN, sequence=1)
    both = (one, replace(one, sequence=2))
    pages = (Operations(0, both, {one.group_key: 2}), Operations(1, (), {one.group_key: entered}))
    now = Snapshot(kernel_snapshot(process(thread("running", state="R"))), pages)
    told = rank_snapshots(None, now)[0].operations
    assert [each.sequence for each in told if each.waited_s is not None] == awaited
    assert [each.sequence for each in told] == [1, 2]


class CountedDict(dict[object, int]):
    """A mapping that counts how often it is asked.

    Attributes:
        asked: How often all of them were.
    """

    asked = 0

    def get(self, key: object, default: int = 0) -> int:  # type: ignore[override]
        """Return a value, and count."""
        CountedDict.asked += 1
        return super().get(key, default)


@pytest.mark.parametrize("size", [8, 64])
def test_each_rank_is_asked_once_for_a_collective_of_all(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each of a thousand ranks asked the thousand others, a snapshot would take seconds."""
    monkeypatch.setattr(CountedDict, "asked", 0)
    one = builders.operation(group=tuple(range(size)), thread=MAIN, sequence=1)
    both = (one, replace(one, sequence=2))
    pages = [Operations(rank, both, CountedDict({one.group_key: 1})) for rank in range(size)]
    now = Snapshot(kernel_snapshot(process(thread("running", state="R"))), tuple(pages))
    assert all(len(each.operations) == len(both) for each in rank_snapshots(None, now))
    assert CountedDict.asked == len(both) * size
