"""All operations of a rank: in its slot page, and in the archive beside it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import ARCHIVED, RECORDS, SlotPage, parse_group, slots_path
from pytest_multihost.extensions.hazards.read_record import plain_calls, read_record

pytestmark = pytest.mark.unit


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder that keeps all its operations."""
    page = SlotPage.create(slots_path(tmp_path, 0))
    page.keep_all()
    return Recorder(page, 0, 2)


def call(recorder: Recorder, group: tuple[int, ...] = (0, 1)) -> int:
    """Make one call, which ends."""
    record = recorder.begin("all_reduce", "collective", group)
    recorder.end(record)
    return record


def test_what_a_new_record_overwrites_is_kept(recorder: Recorder) -> None:
    """In the order in which it was launched."""
    for _ in range(RECORDS + 100):
        call(recorder)
    found = read_record(recorder.page.path, rank=0)
    sequences = [each.operation.sequence for each in found.launches]
    assert (sequences, found.is_truncated) == (list(range(1, RECORDS + 101)), False)


def test_what_has_no_room_is_told(recorder: Recorder) -> None:
    """The last operations would follow upon a gap, so they are left out."""
    for _ in range(ARCHIVED + RECORDS + 1):
        call(recorder)
    found = read_record(recorder.page.path, rank=0)
    assert (len(found.launches), found.is_truncated) == (ARCHIVED, True)


def test_an_operation_that_stays_open_stays_in_the_page(recorder: Recorder) -> None:
    """It is launched first, and listed first."""
    first = recorder.begin("broadcast", "collective", (0, 1))
    recorder.page.leave(first)
    for _ in range(2 * RECORDS):
        call(recorder)
    found = read_record(recorder.page.path, rank=0).launches
    assert (len(found), found[0].operation.name) == (2 * RECORDS + 1, "broadcast")


def test_calls_of_one_thread_are_plain(recorder: Recorder) -> None:
    """Their groups, and which of each they are, in order, are all that there is to tell."""
    for group in ((0, 1), (0, 1, 2), (0, 1)):
        call(recorder, group)
    found = plain_calls(recorder.page.path, since_s=0)
    assert found is not None
    assert [(parse_group(text)[0], sequence) for text, sequence in found] == [
        ((0, 1), 1),
        ((0, 1, 2), 1),
        ((0, 1), 2),
    ]


def test_calls_that_a_rule_may_tell_are_not_plain(recorder: Recorder) -> None:
    """A work that nobody has waited for; a second thread."""
    call(recorder)
    recorder.page.leave(call(recorder))
    assert plain_calls(recorder.page.path, since_s=0) is None
    other = Recorder(SlotPage.create(slots_path(recorder.page.path.parent, 1)), 1, 3)
    call(other)
    assert plain_calls(other.page.path, since_s=0) is not None
    thread = threading.Thread(target=call, args=(other,))
    thread.start()
    thread.join()
    assert plain_calls(other.page.path, since_s=0) is None


def test_no_calls_are_plain(recorder: Recorder) -> None:
    """No rule can find anything in them."""
    assert plain_calls(recorder.page.path, since_s=0) == ()
