"""Records of works, the handles of asynchronous operations."""

from __future__ import annotations

from pathlib import Path

from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_process_groups import OpenWorks
from pytest_multihost.core.slots import SlotPage, read_slots, slots_path

ROOM = 1024
"""So many operations of a rank at least, and an older one's room is another's."""


class Work:
    """A work that ends at once."""

    def wait(self) -> bool:
        """Return."""
        return True

    def is_completed(self) -> bool:
        """Return whether it is known to have ended."""
        return False


def test_a_work_that_is_freed_late_ends_no_other_operation(tmp_path: Path) -> None:
    """Its own has ended long ago, and its room is that of one in which the rank waits."""
    recorder = Recorder(SlotPage.create(slots_path(tmp_path, 0)), 0, 2)
    works, work = OpenWorks(recorder), Work()
    works.wrap(Work)
    record = recorder.begin("all_reduce", "collective", (0, 1))
    works.launched(work, record, None, None)
    held = works.wait_for_all()
    work.wait()
    for _ in range(ROOM):
        if (last := recorder.begin("barrier", "collective", (0, 1))) == record:
            break
        recorder.end(last)
    assert last == record, "a rank has room for more operations"
    del work
    assert [each() for each in held] == [None]
    assert [each.name for each in read_slots(recorder.page.path, rank=0).open] == ["barrier"]
