"""What a world leaves behind, and what of it is new: from files and events written by hand."""

from __future__ import annotations

from pathlib import Path

import builders
import pytest

from pytest_multihost.extensions.sweep.order import Clash, ClashSide
from pytest_multihost.extensions.sweep.remains import (
    Remains,
    compare,
    read_remains,
    read_usual,
    write_usual,
)
from pytest_multihost.extensions.sweep.saved import SavedFile, SavedFiles
from pytest_multihost.extensions.sweep.sayings import MOST_LINES, is_said, lines_said
from pytest_multihost.testing import Event, Frame, make_event, report

pytestmark = pytest.mark.unit

SIDES = (
    ClashSide((0,), "barrier", "barrier", 1.0, Frame("/t/a.py", 1, "f")),
    ClashSide((1,), "all_reduce", "all_reduce f32[4]", 1.0),
)
CLASH = Clash((0, 1), 0, 3, 1.0, SIDES)
FILES = SavedFiles({"a/w.pt": SavedFile(10, "zip"), "l\udcff": SavedFile(1, "text", "", ("a",))})
WHOLE = Remains((CLASH,), ("a", "b #"), FILES)


def printed(*texts: str) -> list[Event]:
    """Return the events of a rank that has printed texts."""
    sections = [["Captured stdout call", text] for text in texts]
    return [make_event(1.0, 0, "report", report("call", report={"sections": sections}))]


def said(folder: Path, *texts: str, log: str = "") -> tuple[str, ...] | None:
    """Return the lines of a world whose rank 0 has printed texts, and whose rank 1 has a log."""
    (folder / "rank-1.log").write_text(log)
    return lines_said(builders.world(2, printed(*texts)), folder)


def test_what_the_undisturbed_run_has_left_is_written_for_the_lanes(tmp_path: Path) -> None:
    """Also names that are no Unicode."""
    write_usual(tmp_path, WHOLE)
    assert read_usual(tmp_path) == WHOLE


def test_a_clash_in_a_group_that_clashes_undisturbed_is_not_new() -> None:
    """Nor does it become one with another number."""
    assert compare(WHOLE, WHOLE).clashes == ()
    assert compare(Remains(), WHOLE).clashes == (CLASH,)


def test_lines_that_differ_in_numbers_and_folders_are_the_same(tmp_path: Path) -> None:
    """Times, ports and addresses differ in each run."""
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    usual = said(tmp_path / "1", f"took 0.12 s\nsaved {tmp_path / '1'}/shared", log="port 4711")
    now = said(tmp_path / "2", f"took 13 s\nsaved {tmp_path / '2'}/shared\n", log="port 4712")
    assert usual == now == ("port #", "saved #", "took # s")
    assert not is_said(now, usual)
    assert not is_said(said(tmp_path / "2", "took 1.5 s"), usual)
    assert is_said(said(tmp_path / "1", "not saved: no space"), usual)


def test_too_many_lines_may_say_anything(tmp_path: Path) -> None:
    """They are not compared, and no rank is accused of silence."""
    many = ("x" * (number % 150) + "y" * (number // 150) for number in range(MOST_LINES + 50))
    assert said(tmp_path, *many) is None
    assert is_said(None, ("a",))


def test_files_of_ranks_that_were_ended_are_not_read(tmp_path: Path) -> None:
    """They may have been ended while they wrote."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "w.json").write_text("{}")
    ended = read_remains(builders.world(2, ending="self"), tmp_path, tmp_path)
    assert [*ended.files.by_path] == ["w.json"]
    cut = read_remains(builders.world(2, ending="settled"), tmp_path, tmp_path)
    assert (cut.files.by_path, cut.files.is_all) == ({}, False)
