"""The points that ranks have passed, from what they have sent of them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest

from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import SlotPage
from pytest_multihost.extensions.faults.point_record import MAX_POINTS, PointRecord
from pytest_multihost.intercept.recorded import recorded_points, unrecorded_points
from pytest_multihost.testing import (
    ErrorPath,
    Event,
    Frame,
    Place,
    Point,
    PointSite,
    PointsRecorded,
    RecordedPoint,
)

pytestmark = pytest.mark.unit


def io(path: str, call: str = "open", nth: int = 1) -> Point:
    """Return the point of a call on a file."""
    return Point("io", path, nth, call=call)


def op(name: str, nth: int = 1) -> Point:
    """Return the point of an operation."""
    return Point("collective", name, nth)


def recorded(*sites: PointSite, passed: tuple[int, ...]) -> tuple[RecordedPoint, ...]:
    """Return the points of one rank that has passed sites in an order."""
    return recorded_points([Event(1.0, 0, PointsRecorded(sites, passed))])[0]


def names(points: tuple[RecordedPoint, ...]) -> list[tuple[str, int]]:
    """Return the names of points, each with its count."""
    return [(each.point.name, each.point.nth) for each in points]


def test_points_are_counted_in_the_order_in_which_they_were_passed() -> None:
    """Each name for itself; another call on the same file is another point."""
    sites = [PointSite(op("barrier")), PointSite(io("/x")), PointSite(io("/x", "read"))]
    found = recorded(*sites, passed=(1, 0, 1, 2, 0))
    assert [each.point for each in found] == [
        io("/x"),
        op("barrier"),
        io("/x", nth=2),
        io("/x", "read"),
        op("barrier", 2),
    ]


def test_a_point_passed_from_two_lines_is_counted_once_for_both() -> None:
    """A fault's `nth` does not ask who calls."""
    sites = [PointSite(op("barrier"), Frame("t.py", line, "f")) for line in (3, 4)]
    found = recorded(*sites, passed=(0, 1, 0))
    assert [(each.where, each.point.nth) for each in found] == [
        (Place("t.py", 3, "f"), 1),
        (Place("t.py", 4, "f"), 2),
        (Place("t.py", 3, "f"), 3),
    ]


def test_a_span_is_how_many_operations_were_begun_before() -> None:
    """Whatever is passed between two of them has the same."""
    sites = [PointSite(io("/x")), PointSite(op("all_reduce")), PointSite(op("store.set"))]
    found = recorded(*sites, passed=(0, 1, 0, 0, 2, 0))
    assert [each.span for each in found] == [0, 0, 1, 1, 1, 2]


def test_what_another_operation_is_made_of_counts_and_is_not_listed() -> None:
    """Whoever names the third all_gather means the third that the fault will count."""
    inner = PointSite(op("all_gather"), is_inner=True)
    sites = [PointSite(op("all_gather_object")), inner, PointSite(op("all_gather"))]
    found = recorded(*sites, passed=(0, 1, 1, 2))
    assert names(found) == [("all_gather_object", 1), ("all_gather", 3)]
    assert [each.span for each in found] == [0, 1]


def test_a_glob_counts_what_it_matches() -> None:
    """A file whose name holds a star is found by it again, and so are others that match."""
    sites = [PointSite(io(path)) for path in ("*/a/x.tmp", "*/a/*.tmp", "*/b/*.tmp")]
    found = recorded(*sites, passed=(0, 1, 2, 0, 1))
    assert names(found) == [
        ("*/a/x.tmp", 1),
        ("*/a/*.tmp", 2),
        ("*/b/*.tmp", 1),
        ("*/a/x.tmp", 2),
        ("*/a/*.tmp", 4),
    ]


def test_a_rename_counts_for_both_names() -> None:
    """What is moved away was named as well: the second rename of the file is that onto it."""
    away = PointSite(io("/d/old", "rename"), other="/d/new")
    there = PointSite(io("/d/new", "rename"), other="/d/tmp")
    found = recorded(away, there, passed=(0, 1, 0, 1))
    assert names(found) == [("/d/old", 1), ("/d/new", 2), ("/d/old", 2), ("/d/new", 4)]


def test_a_name_with_brackets_is_no_glob() -> None:
    """It was escaped, and matches itself alone."""
    sites = [PointSite(io(path)) for path in ("/d/what[[]1]", "/d/what1", "/d/[*]", "/d/x")]
    assert {nth for _, nth in names(recorded(*sites, passed=(0, 1, 2, 3)))} == {1}


def test_ranks_are_counted_apart_and_batches_together() -> None:
    """Sites are numbered on from one batch to the next."""
    first = PointsRecorded((PointSite(op("a")),), (0,))
    second = PointsRecorded((PointSite(op("b")),), (1, 0))
    other = PointsRecorded((PointSite(op("c"), is_main=False),), (0,), beyond=7)
    history = [Event(1.0, 1, first), Event(2.0, 0, other), Event(3.0, 1, second)]
    found = recorded_points(history)
    assert names(found[1]) == [("a", 1), ("b", 1), ("a", 2)]
    assert found[0] == (RecordedPoint(0, op("c"), 0, is_main=False),)
    assert unrecorded_points(history) == {0: 7}


def test_numbers_that_no_site_has_are_left_out() -> None:
    """A test may write anything into its rank's connection."""
    assert recorded(PointSite(op("a")), passed=(-1, 0, 7)) == (RecordedPoint(0, op("a"), 0),)


def test_a_rank_records_so_many_points_and_counts_the_rest() -> None:
    """A loop of a million reads must not fill the controller's memory."""
    sent = list[PointsRecorded]()
    record = PointRecord(Recorder(SlotPage(), rank=0, size=1), "/", sent.append)
    for _ in range(MAX_POINTS + 3):
        record.add("sync_point", "x", "")
    assert 1 < len(sent) < MAX_POINTS / 100
    record.flush(is_all=True)
    history = [Event(1.0, 0, each) for each in sent]
    assert [len(each.sites) for each in sent].count(0) == len(sent) - 1
    assert recorded_points(history)[0][-1].point == Point("sync_point", "x", MAX_POINTS)
    assert unrecorded_points(history) == {0: 3}
    assert [each.is_all for each in sent] == [False] * (len(sent) - 1) + [True]


def test_what_a_rank_passes_is_sent_before_it_may_wait() -> None:
    """A rank that waits until it is ended sends nothing more."""
    sent = list[PointsRecorded]()
    record = PointRecord(Recorder(SlotPage(), rank=0, size=1), "/", sent.append, has_faults=True)
    for point, name in (("sync_point", "x"), ("sync_point", "y"), ("collective", "all_reduce")):
        record.add(point, name)  # type: ignore[arg-type]
    history = [Event(1.0, 0, each) for each in sent]
    assert [each.point.name for each in recorded_points(history)[0]] == ["x", "y", "all_reduce"]


def test_without_faults_nothing_is_sent_at_each_operation() -> None:
    """Sending takes ten times as long as recording, and a world that passes loses nothing."""
    sent: list[PointsRecorded] = []
    record = PointRecord(Recorder(SlotPage(), rank=0, size=1), "/", sent.append)
    for _ in range(100):
        record.add("collective", "all_reduce")
    assert len(sent) < 10


def test_an_operation_at_a_known_line_is_a_point_of_that_line() -> None:
    """The short way, for loops of collectives, records what the long one does."""
    sent = list[PointsRecorded]()
    recorder = Recorder(SlotPage(), rank=0, size=1)
    record = PointRecord(recorder, "/", sent.append)
    source = recorder.user_source(1)
    for _ in range(2):
        record.add_operation("all_reduce", source)
    with recorder.inside():
        record.add_operation("all_reduce", source)
    record.add_operation("block_until_ready", source)
    record.flush(is_all=True)
    [whole, inner] = [site for each in sent for site in each.sites]
    assert (whole.point, whole.is_main, whole.is_inner) == (op("all_reduce"), True, False)
    assert whole.frame is not None
    assert whole.frame.line == source[1]
    assert inner == replace(whole, is_inner=True)
    assert [number for each in sent for number in each.passed] == [0, 0, 1]


def test_threads_that_pass_points_at_a_time_lose_none() -> None:
    """Neither points nor the sites that they are at, whoever sends them."""
    sent = list[PointsRecorded]()
    recorder = Recorder(SlotPage(), rank=0, size=1)
    record = PointRecord(recorder, "/", sent.append)

    def pass_points(number: int) -> None:
        source = recorder.user_source(1)
        for each in range(1000):
            record.add_operation(f"operation {number} {each % 50}", source)

    threads = [threading.Thread(target=pass_points, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    record.flush(is_all=True)
    points = recorded_points([Event(1.0, 0, each) for each in sent])[0]
    assert Counter(point.point.name for point in points) == {
        f"operation {number} {each}": 20 for number in range(4) for each in range(50)
    }


def test_a_point_is_recorded_with_the_line_that_passes_it() -> None:
    """Relative to the rootdir; this file's here."""
    sent = list[PointsRecorded]()
    root, _, own = __file__.rpartition("/")
    record = PointRecord(Recorder(SlotPage(), rank=0, size=1), root, sent.append)
    record.add("sync_point", "x", "")
    record.flush()
    frame = sent[0].sites[0].frame
    assert frame is not None
    assert (frame.file, frame.function) == (
        own,
        "test_a_point_is_recorded_with_the_line_that_passes_it",
    )


def test_what_a_call_is_known_for_is_kept_with_its_point() -> None:
    """A plan needs it: what it makes, the other name, and the way of an error."""
    site = PointSite(
        io("/x"), other="/y", makes=True, error_path=ErrorPath(handler="save", at="10 7f")
    )
    [found] = recorded(site, passed=(0,))
    assert (found.other, found.makes, found.error_path) == (
        "/y",
        True,
        ErrorPath(handler="save", at="10 7f"),
    )


def test_an_operation_meets_all_if_one_that_it_is_made_of_does() -> None:
    """The gathering of objects is two of tensors; the broadcast before it is another's."""
    inner = PointSite(op("all_gather"), is_inner=True, meets_all=True)
    sites = [PointSite(op("broadcast")), PointSite(op("all_gather_object")), inner]
    found = recorded(*sites, passed=(0, 1, 2))
    assert [each.meets_all for each in found] == [False, True]


def test_what_another_thread_is_in_does_not_make_an_operation_meet_all() -> None:
    """It belongs to that thread's own."""
    inner = PointSite(op("all_gather"), is_main=False, is_inner=True, meets_all=True)
    found = recorded(PointSite(op("broadcast_object_list")), inner, passed=(0, 1))
    assert [each.meets_all for each in found] == [False]


def test_a_call_on_a_file_is_recorded_with_the_way_of_an_error() -> None:
    """Two calls in reach of one handler have the same, and a file that is made says so."""
    sent = list[PointsRecorded]()
    record = PointRecord(Recorder(SlotPage(), rank=0, size=1), "/", sent.append)

    def touch(name: str, *, makes: bool) -> None:
        record.add("io", name, "open", makes=makes)

    try:
        touch("/a", makes=True)
        touch("/b", makes=False)
    except OSError:
        return
    touch("/c", makes=False)
    record.flush(is_all=True)
    first, second, third = [site for each in sent for site in each.sites]
    assert first.error_path == second.error_path != third.error_path
    assert [each.makes for each in (first, second, third)] == [True, False, False]
