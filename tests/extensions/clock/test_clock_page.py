"""The page of a clock that jumps."""

from __future__ import annotations

import ctypes
import json
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_multihost.extensions.clock.page import (
    _HEADER_SIZE,
    _KINDS,
    _SLOT,
    LIBRARY,
    MAX_SLOTS,
    SIGNAL,
    ClockPage,
    _Header,
)

pytestmark = pytest.mark.unit

LAYOUT = r"""
#include "clock.c"
#include <stddef.h>
#include <stdio.h>
#define AT(type, name) printf(", [\"" #name "\", %zu]", offsetof(struct type, name));
int main(void) {
  printf("[[\"slots\", %zu]", offsetof(struct page, slots));
  AT(page, offset) AT(page, jumps) AT(page, is_jumping) AT(page, signal) AT(page, used)
  AT(page, doubts) AT(page, has_socket_timeouts)
  AT(slot, tid) AT(slot, pid) AT(slot, due) AT(slot, timeout) AT(slot, kind) AT(slot, serial)
  AT(slot, rounds) AT(slot, flags) AT(slot, lock) AT(slot, object)
  printf(", [\"size\", %zu], [\"count\", %d], [\"timer\", %d], [\"helper\", %d]]",
         sizeof(struct slot), SLOTS, TIMER, HELPER);
}
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ClockPage]:
    """Return the page of a clock that nobody else has."""
    page = ClockPage.create(tmp_path / "clock")
    yield page
    page.close()


def write_slot(page: ClockPage, number: int, *values: int) -> None:
    """Write a slot: thread, process, due, timeout, kind, serial, rounds, flags."""
    page._header.used = max(page._header.used, number + 1)
    _SLOT.pack_into(page._map, _HEADER_SIZE + number * _SLOT.size, *values, 0, 0, 0, 0)


@pytest.mark.skipif(LIBRARY.find() is None, reason=LIBRARY.why_missing())
def test_the_layout_is_that_of_the_library(tmp_path: Path) -> None:
    """Sizes and offsets of all that both sides use."""
    program = tmp_path / "layout.c"
    program.write_text(LAYOUT)
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-std=gnu11", "-U_FORTIFY_SOURCE", "-pthread", "-w"]
    command += [f"-I{LIBRARY.source.parent}", "-o", str(tmp_path / "layout"), str(program), "-ldl"]
    subprocess.run(command, check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, check=True).stdout
    found = dict(json.loads(printed))
    slot = "tid pid due timeout kind serial rounds flags lock reserved object".split()  # noqa: SIM905
    sizes = [struct.calcsize(each) for each in ("I", "I", "q", "q", *"IIIIII", "Q")]
    for number, name in enumerate(slot):
        if name != "reserved":
            assert found[name] == sum(sizes[:number])
    for name, here in (("offset", "offset_ns"), ("signal", "signal"), ("used", "used")):
        assert found[name] == getattr(_Header, here).offset
    for name in ("jumps", "is_jumping", "doubts", "has_socket_timeouts"):
        assert found[name] == getattr(_Header, name).offset
    assert found["slots"] == _HEADER_SIZE
    assert (found["size"], found["count"]) == (_SLOT.size, MAX_SLOTS)
    assert (found["timer"], found["helper"]) == (_KINDS.index("timer") + 1, len(_KINDS) + 1)


def test_a_new_page_has_the_machines_clock(page: ClockPage) -> None:
    """It may jump, and has not."""
    before_s = time.monotonic()
    assert before_s <= page.now() <= time.monotonic()
    assert (page.offset_s, page.jumps, page.is_jumping, page.waits()) == (0, 0, True, ())
    assert page._header.signal == SIGNAL


def test_a_jump_is_seen_by_everybody_who_has_the_page(page: ClockPage, tmp_path: Path) -> None:
    """In the same moment, whoever opens it and when."""
    other = ClockPage.open(tmp_path / "clock")
    page.jump(page.now() + 1000)
    assert other.now() >= time.monotonic() + 999
    assert other.jumps == 1
    other.close()


def test_the_clock_never_goes_back(page: ClockPage) -> None:
    """A jump to a time that is over leaves it as it is."""
    page.jump(page.now() + 1000)
    offset_s = page.offset_s
    page.jump(page.now() - 500)
    assert page.offset_s == offset_s


def test_only_threads_that_wait_are_waits(page: ClockPage) -> None:
    """Not free slots, threads in no timed wait, and the library's own; timers have numbers."""
    write_slot(page, 0, 11, 10, 5_000_000_000, 2_000_000_000, 1, 7, 3, 0)
    write_slot(page, 1, 12, 10, 0, 0, 1, 1, 0, 0)
    write_slot(page, 2, 0, 10, 6_000_000_000, 0, 1, 1, 0, 0)
    write_slot(page, 3, 13, 10, 0, 0, 11, 0, 0, 0)
    write_slot(page, 4, 10, 10, 9_000_000_000, 1, 10, 1, 0, 0)
    write_slot(page, 5, 14, 10, 9_000_000_000, 1, 3, 1, 0, 3)
    sleep, timer, loop = page.waits()
    assert (sleep.tid, sleep.pid, sleep.due_s, sleep.timeout_s) == (11, 10, 5.0, 2.0)
    assert (sleep.kind, sleep.serial, sleep.rounds) == ("sleep", 7, 3)
    assert (timer.tid, timer.pid, timer.kind) == (-5, 10, "timer")
    assert (loop.kind, loop.is_loop, loop.is_idle) == ("epoll", True, True)
    assert (sleep.is_loop, sleep.is_idle) == (False, False)
    assert page.helpers() == {13}


def test_two_timers_of_a_process_are_two_waits(page: ClockPage) -> None:
    """Neither hides the other, nor the main thread's wait."""
    for number in range(3):
        write_slot(page, number, 10, 10, 9_000_000_000, 1, 1 if number == 2 else 10, 1, 0, 0)
    assert len({each.tid for each in page.waits()}) == 3


def test_timers_that_are_descriptors_are_known_by_their_numbers(page: ClockPage) -> None:
    """Only while they are set; others have none."""
    for number, (due, descriptor) in enumerate([(9, 5), (0, 6), (9, -1)]):
        write_slot(page, number, 10, 10, due, 1, 10, 1, 0, 0)
        at = _HEADER_SIZE + number * _SLOT.size
        slot = [*_SLOT.unpack_from(page._map, at)]
        _SLOT.pack_into(page._map, at, *slot[:10], descriptor + 1, 0)
    assert page.timerfds() == {(10, 5)}


def test_a_wake_counts_who_is_due(page: ClockPage) -> None:
    """Those that wait for a later time are left alone. Here all threads are gone."""
    gone = MAX_SLOTS * 1000
    write_slot(page, 0, gone, gone, 1, 1, 1, 1, 0, 0)
    write_slot(page, 1, gone, gone, round(page.now() * 1e9) + 10**12, 1, 1, 1, 0, 0)
    assert page.wake() == 1
    page.jump(page.now() + 1001)
    assert page.wake() == 2


def test_what_cannot_be_followed_is_told(page: ClockPage) -> None:
    """One sentence for each bit that a process has set."""
    assert page.doubts() == ()
    page._header.doubts = 0b110
    assert [each.split()[-1] for each in page.doubts()] == ["kernel", "buffers"]


def test_other_files_are_no_pages(tmp_path: Path) -> None:
    """Neither shorter ones, nor of another version."""
    path = tmp_path / "clock"
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="not a page of a clock"):
        ClockPage.open(path)
    path.write_bytes(bytes(_HEADER_SIZE + MAX_SLOTS * _SLOT.size))
    with pytest.raises(ValueError, match="not a page of a clock"):
        ClockPage.open(path)
    with pytest.raises(FileExistsError):
        ClockPage.create(path)


def test_a_page_is_a_sparse_file(tmp_path: Path) -> None:
    """A world of few threads uses few blocks of it."""
    ClockPage.create(tmp_path / "clock").close()
    status = (tmp_path / "clock").stat()
    assert status.st_blocks * 512 < status.st_size / 4
    assert ctypes.sizeof(_Header) <= _HEADER_SIZE
