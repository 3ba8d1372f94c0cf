"""The logs of ranks that print without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.core.report import read_log
from pytest_multihost.core.slots import rank_log
from pytest_multihost.core.slots.rank_log import RankLogs

BLOCK = 4096


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound logs to a size that a unit test writes in no time."""
    monkeypatch.setattr(rank_log, "MAX_LOG_BYTES", 50 * BLOCK)
    monkeypatch.setattr(rank_log, "_KEPT", 20 * BLOCK)


def written(path: Path, blocks: int) -> None:
    """Append as a rank does, in lines of 64 bytes with their number."""
    with path.open("ab") as file:
        start = file.tell() // 64
        file.writelines(b"%63d\n" % (start + each) for each in range(blocks * BLOCK // 64))


def test_a_log_takes_little_room_while_its_rank_prints(tmp_path: Path) -> None:
    """However often it grows beyond the bound."""
    path, logs = tmp_path / "rank-0.log", RankLogs()
    logs.watch([path, tmp_path / "rank-1.log"])  # the second has no log yet
    for turn in range(10):
        written(path, 60)
        logs.act(float(turn))
        assert path.stat().st_blocks * 512 <= 50 * BLOCK
    assert path.stat().st_size == 600 * BLOCK


@pytest.mark.parametrize("is_long", [True, False])
@pytest.mark.parametrize("has_holes", [True, False])
def test_the_first_and_the_last_part_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_holes: bool, is_long: bool
) -> None:
    """And what was between them is said; also where the file system can free no blocks."""
    if not has_holes:
        monkeypatch.setattr(rank_log, "_fallocate", lambda *_: -1)
    path, logs = tmp_path / "rank-0.log", RankLogs()
    logs.watch([path])
    for turn in range(3):
        written(path, 70)
        logs.act(float(turn))
    if is_long:
        written(path, 60)
    last = path.read_bytes().splitlines(keepends=True)[-1]
    logs.close()
    lines = path.read_bytes().splitlines(keepends=True)
    assert path.stat().st_size <= 50 * BLOCK
    assert (lines[0], lines[-1]) == (b"%63d\n" % 0, last)
    assert any(b"bytes of this log were cut here" in line for line in lines)
    missing = read_log(path, head=64, tail=64).left_out - (
        (270 if is_long else 210) * BLOCK - 2 * 64
    )
    assert 0 <= missing <= 4 * 100  # the notes themselves


def test_a_log_below_the_bound_is_left_alone(tmp_path: Path) -> None:
    """Also at the end."""
    path, logs = tmp_path / "rank-0.log", RankLogs()
    written(path, 50)
    before = path.read_bytes()
    logs.watch([path])
    logs.act(0.0)
    logs.close()
    assert path.read_bytes() == before
    assert logs.wait_s(0.0) is None


def test_an_excerpt_says_what_was_cut(tmp_path: Path) -> None:
    """All of it is not in the file any more."""
    path, logs = tmp_path / "rank-0.log", RankLogs()
    written(path, 100)
    assert "all of it: here" in read_log(path, head=64, tail=64).describe_left_out("here")
    logs.watch([path])
    logs.close()
    excerpt = read_log(path, head=64, tail=64)
    assert excerpt.cut >= 60 * BLOCK
    assert f"{excerpt.cut} of them were cut from here" in excerpt.describe_left_out("here")


NOTICE = (
    b"W1122 11:42:59.040801   23615 preemption_notifier.cc:90] SIGTERM caught at"
    b" 2026-11-22T11:42:59.040801049+00:00\n"
)


def test_what_the_runtime_says_of_the_harness_own_sigterm_is_removed(tmp_path: Path) -> None:
    """The same of an earlier SIGTERM is the test's, and so is all else that a rank says then."""
    path, logs = tmp_path / "rank-0.log", RankLogs()
    logs.watch([path, tmp_path / "rank-1.log"])
    path.write_bytes(b"first\n" + NOTICE)
    logs.begin_end()
    with path.open("ab") as file:
        file.write(b"own handler\n" + NOTICE + b"last\n")
    logs.close()
    assert path.read_bytes() == b"first\n" + NOTICE + b"own handler\nlast\n"
