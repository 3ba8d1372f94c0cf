"""The slot page: what a rank writes, others read, whatever becomes of the rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import (
    Call,
    SlotPage,
    read_open_operations,
    read_slots,
    slots_path,
)
from pytest_multihost.core.slots.history import read_histories
from pytest_multihost.core.slots.page import ENTRIES, RECORDS
from pytest_multihost.core.slots.waiting import read_waiting
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    CallSite,
    Frame,
    Operations,
    Scope,
    Start,
    from_json,
    to_json,
)


@pytest.fixture
def page(tmp_path: Path) -> SlotPage:
    """The page of rank 0."""
    return SlotPage.create(slots_path(tmp_path, 0))


@pytest.fixture
def recorder(page: SlotPage) -> Recorder:
    """What writes to it."""
    return Recorder(page, 0, 4)


def begin_prepared(recorder: Recorder, call: Call, detail: str = "") -> int:
    """Begin an operation as a wrapper does, which is called by the user."""
    return recorder.begin_call(call, detail=recorder.page.detail(detail))


def test_what_is_noted_is_read(page: SlotPage, recorder: Recorder) -> None:
    """All of it, in the order in which it began."""
    group = page.group((0, 2), 1)
    all_reduce = page.call("all_reduce", "collective", group)
    broadcast = page.call("broadcast", "collective", group, root=2)
    recorder.end(begin_prepared(recorder, all_reduce, "f32[3]"))
    page.leave(recorder.begin("send", "transfer", (0, 1), sequence=7, peer=1))
    recorder.fail(begin_prepared(recorder, broadcast))
    first, second, third = read_slots(page.path, rank=0).recent
    assert (first.name, first.kind, first.group, first.ordinal) == (
        "all_reduce",
        "collective",
        (0, 2),
        1,
    )
    assert (first.sequence, first.detail, first.root, first.peer) == (1, "f32[3]", None, None)
    assert (first.is_open, first.failed, first.waited_s) == (False, False, first.since_s)
    assert first.thread == threading.get_native_id()
    assert first.frame is not None
    assert first.frame.function == "test_what_is_noted_is_read"
    assert (second.sequence, second.peer, second.is_open, second.waited_s) == (7, 1, True, None)
    assert (third.sequence, third.root, third.is_open, third.failed) == (2, 2, False, True)
    assert read_slots(page.path, rank=0).entered == {
        ((0, 2), 1, RUNTIME_SCOPE): 2,
        ((0, 1), 0, RUNTIME_SCOPE): 0,
    }


def test_an_exception_is_noted_in_one_line(page: SlotPage, recorder: Recorder) -> None:
    """Also one that cannot say what it is."""

    class WordlessError(Exception):
        def __str__(self) -> str:
            raise ValueError

    for error in (OSError("no more\nfiles"), WordlessError(), None):
        recorder.fail(recorder.begin("barrier", "collective", (0, 1)), error)
    found = read_slots(page.path, rank=0).recent
    assert [each.error for each in found] == ["OSError: no more", "", ""]
    assert all(each.failed and each.timeout_s is None for each in found)


def test_a_limit_of_the_callers_is_noted(page: SlotPage, recorder: Recorder) -> None:
    """It does not look like a failure."""
    for seconds in (2.5, 0.0, -1.0, 1e12):
        page.set_timeout(recorder.begin("store.wait", "wait", (0, 1), detail="a text"), seconds)
    found = read_slots(page.path, rank=0).open
    assert [each.timeout_s for each in found[:3]] == [2.5, 0.0, 0.0]
    assert found[3].timeout_s is not None
    assert found[3].timeout_s > 1e6
    assert {(each.failed, each.error) for each in found} == {(False, "")}
    assert found[0].gives_up_s == found[0].since_s + 2.5


def test_a_wait_is_noted_and_left(page: SlotPage, recorder: Recorder) -> None:
    """The operation stays open; its line becomes that of the wait."""
    at = recorder.begin("all_reduce", "collective", (0, 1))
    page.leave(at)
    (begun,) = read_slots(page.path, rank=0).open
    recorder.wait(at)
    (waited,) = read_slots(page.path, rank=0).open
    assert begun.frame is not None
    assert waited.frame is not None
    assert waited.frame.line == begun.frame.line + 3
    assert waited.waited_s is not None
    assert waited.start is None  # the thread that waits began it, too
    page.wait(at, 9, 7, (0, 0, 0))
    (by_another,) = read_slots(page.path, rank=0).open
    assert by_another.thread == 7
    assert by_another.began == Start(begun.thread, begun.frame)
    page.leave(at)
    (left,) = read_slots(page.path, rank=0).open
    assert left.waited_s is None


def test_which_threads_wait_is_read_alone(page: SlotPage, recorder: Recorder) -> None:
    """And the page is the same as before until the rank writes to it again."""
    all_reduce = page.call("all_reduce", "collective", page.group((0, 1)))
    for _ in range(RECORDS + 3):
        recorder.end(begin_prepared(recorder, all_reduce))
    assert read_waiting(page.path)[1] == frozenset()
    left, open_ = (begin_prepared(recorder, all_reduce) for _ in range(2))
    page.leave(left)
    data, threads = read_waiting(page.path)
    assert threads == {threading.get_native_id()}
    assert read_waiting(page.path) == (data, threads)
    recorder.end(open_)
    recorder.end(left)
    assert read_waiting(page.path)[0] != data
    assert read_waiting(page.path)[1] == frozenset()
    assert read_waiting(page.path.with_name("none")) == (b"", frozenset())


def test_a_full_page_goes_on_counting(page: SlotPage, recorder: Recorder) -> None:
    """There is no room for more open operations, and ending one makes room."""
    places = [recorder.begin("barrier", "collective", (0, 1)) for _ in range(RECORDS + 5)]
    found = read_slots(page.path, rank=0)
    assert len(found.open) == RECORDS
    assert found.entered == {((0, 1), 0, RUNTIME_SCOPE): RECORDS + 5}
    recorder.end(places[-1])  # noted nowhere
    assert len(read_slots(page.path, rank=0).open) == RECORDS
    recorder.end(places[10])
    recorder.begin("all_reduce", "collective", (0, 1))
    assert read_slots(page.path, rank=0).open[-1].name == "all_reduce"


def test_ever_new_details_leave_room_for_names(page: SlotPage, recorder: Recorder) -> None:
    """Keys and shapes can be without number; files and groups must still be told."""
    for number in range(40_000):
        recorder.end(recorder.begin("store.get", "wait", (0, 1), sequence=1, detail=f"k{number}"))
    recorder.end(recorder.begin("of a new name", "collective", (3,), detail="of a new detail"))
    last = read_slots(page.path, rank=0).recent[-1]
    assert (last.name, last.group, last.detail) == ("of a new name", (3,), "")
    assert last.frame is not None
    assert last.frame.file == __file__


def test_what_is_prepared_before_there_is_a_rank_is_noted_on_its_page(tmp_path: Path) -> None:
    """Runtimes are wrapped in the server, once; each rank that it forks then opens its own page."""
    page = SlotPage()
    recorder = Recorder(page, rank=-1, size=0)
    call = page.call("all_reduce", "collective", page.group((0, 1)))
    recorder.end(recorder.begin_call(call))
    recorder.open(slots_path(tmp_path, 1), rank=1, size=2)
    recorder.begin_call(call)
    operations = read_slots(slots_path(tmp_path, 1), rank=1)
    assert [(each.name, each.group) for each in operations.recent] == [("all_reduce", (0, 1))]
    assert [each.thread for each in operations.open] == [threading.get_native_id()]
    assert recorder.all_ranks == (0, 1)


def test_a_text_that_is_not_there_yet_is_empty(page: SlotPage, recorder: Recorder) -> None:
    """A page is read while its rank writes: a record may speak of what came after the texts."""
    recorder.begin("all_reduce", "collective", (0, 1), detail="f32[3]")
    data = page.path.read_bytes()
    texts = data[8:16]
    for count in range(int.from_bytes(texts, "little")):
        page.path.write_bytes(data[:8] + count.to_bytes(8, "little") + data[16:])
        (seen,) = read_slots(page.path, rank=0).recent
        (glimpsed,) = read_open_operations(page.path, rank=0)[1].recent
        assert seen == glimpsed
        assert seen.sequence == 1
        assert seen.detail in {"", "f32[3]"}
    page.path.write_bytes(data)
    assert read_slots(page.path, rank=0).recent[0].detail == "f32[3]"


def test_a_forked_child_writes_to_nowhere(page: SlotPage, recorder: Recorder) -> None:
    """It has all that its parent has, and is not the rank."""
    at = recorder.begin("barrier", "collective", (0, 1))
    child = os.fork()
    if child == 0:
        recorder.end(at)
        recorder.begin("all_reduce", "collective", (0, 1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    (alone,) = read_slots(page.path, rank=0).recent
    assert alone.is_open


def test_a_page_that_nobody_writes_can_be_dropped(tmp_path: Path) -> None:
    """What the forks of a process do does not keep it alive."""
    for number in range(300):
        SlotPage.create(slots_path(tmp_path, number))
    maps = Path("/proc/self/maps").read_text()
    assert maps.count(".slots") < 20


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(1 << 19)),
    ],
    ids=["missing", "empty", "zeros"],
)
def test_what_is_no_page_holds_nothing(page: SlotPage, spoil: Callable[[Path], object]) -> None:
    """A rank that died early has left none."""
    spoil(page.path)
    assert read_slots(page.path, rank=3).recent == ()


@pytest.mark.parametrize("name", ["", "ring", "two words ", " ", "program a.py:3"])
def test_the_name_in_a_scope_is_read_as_it_was_written(page: SlotPage, name: str) -> None:
    """Whatever a user calls an operation: its kind stays "operation"."""
    page.group((0, 1), 0, scope := Scope("operation", name))
    assert read_slots(page.path, rank=0).entered == {((0, 1), 0, scope): 0}
    whole = Operations(0, entered={((0,), 0, scope): 1})
    assert from_json(Operations, to_json(whole)) == whole


def test_the_history_keeps_the_last_thousand_collectives_of_each_group(page: SlotPage) -> None:
    """A busy group does not push out what another has entered."""
    source = page.text("/t/x.py"), 7, page.text("step")
    quiet = page.call("barrier", "collective", page.group((0, 2)))
    busy = page.call("broadcast", "collective", page.group((0, 1)), root=1)
    page.end(page.begin(quiet, 5, 1, source), 6)
    for number in range(3 * ENTRIES):
        page.end(page.begin(busy, number, 1, source, detail=page.detail("f32[3]")), number)
    one, two = sorted(read_histories(page.path, rank=0), key=lambda each: each.last)
    assert (one.group, one.first, one.last) == (((0, 2), 0, RUNTIME_SCOPE), 1, 1)
    assert (two.first, two.last) == (2 * ENTRIES + 1, 3 * ENTRIES)
    assert two.site(two.last) == CallSite("broadcast", 1, "f32[3]", (Frame("/t/x.py", 7, "step"),))


def test_a_group_that_was_made_and_not_used_has_an_empty_history(page: SlotPage) -> None:
    """Where others have entered something, that is a difference."""
    page.group((0, 1))
    [history] = read_histories(page.path, rank=0)
    assert (history.last, history.site(1)) == (0, None)
