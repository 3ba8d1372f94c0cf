"""The live line: where the ranks are, beside whatever pytest prints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import operation, page

from pytest_multihost.core.blame import BlockingRanks, find_blocking_ranks
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.report.live_line import ERASE, blocking_text, overlay, progress_text
from pytest_multihost.testing import PLAIN, Activity, Exited, Frame, Operations

SLEEPS = Activity("sleep", ends_in_s=600.0)
GONE = Exited(code=0, signal=None, cpu_s=0.1, peak_rss_bytes=1)


def test_ranks_in_one_place_are_told_together() -> None:
    """One glance tells who is where."""
    facts = [RankFacts(rank, phase="call", parked_s=1.0) for rank in range(4)]
    facts[0] = RankFacts(0, phase="call")
    facts[2] = RankFacts(2, exit=GONE)
    assert (
        progress_text(12.4, facts, PLAIN) == "12 s: rank 0 in the test, ranks 1,3 done, rank 2 gone"
    )


@pytest.mark.parametrize("phase", ["startup", "setup", "call", "teardown", "shutdown"])
def test_a_rank_is_told_by_its_phase(phase: str) -> None:
    """Until its test body is over."""
    facts = replace(RankFacts(0), phase=phase)
    place = "the test" if phase == "call" else phase
    assert progress_text(1.0, [facts], PLAIN) == f"1 s: rank 0 in {place}"


def test_who_is_waited_for_is_told_with_what_it_does() -> None:
    """Enough to look it up: the rank, its wait, the line and for how long."""
    blocking = BlockingRanks((0,), Activity("read", "/data/ckpt", ends_in_s=2.0))
    where = Frame("/home/me/storage.py", 17, "read_shard")
    text = blocking_text(14.2, blocking, PLAIN, for_s=12.1, where=where)
    assert text == "14 s: waiting for rank 0: read(/data/ckpt) at storage.py:17 for 12 s"


def test_what_is_not_known_of_it_is_left_out() -> None:
    """The ranks alone are news enough."""
    text = blocking_text(5.0, BlockingRanks((0, 3)), PLAIN, for_s=2.0, where=None)
    assert text == "5 s: waiting for ranks 0,3 for 2 s"


def entered(rank: int, *, size: int = 3) -> Operations:
    """Return what a rank tells that waits in a collective of all."""
    return page(rank, operation(group=tuple(range(size)), thread=rank))


def test_those_who_are_waited_for_are_found() -> None:
    """They are in nothing themselves."""
    found = find_blocking_ranks([Operations(0), entered(1), entered(2)], {0: SLEEPS}, {0: 47})
    assert found == BlockingRanks((0,), SLEEPS, 47)


@pytest.mark.parametrize("ranks", [[], [0, 1, 2]], ids=["nobody", "everybody"])
def test_where_nobody_is_waited_for_nobody_is_told(ranks: list[int]) -> None:
    """Not while all are at work, nor when all are in the same operation, which is then at work."""
    operations = [entered(each) if each in ranks else Operations(each) for each in range(3)]
    assert find_blocking_ranks(operations, {}, {}) is None


def test_the_line_leaves_the_cursor_where_it_was() -> None:
    """What pytest prints next goes on where it had stopped, over our text."""
    text = "3 s: rank 0 in the test"
    shown = overlay(text, 80)
    assert shown == f" {text}\x1b[K\x1b[{len(text) + 1}D"


def test_the_line_is_cut_to_what_is_left_of_the_terminal() -> None:
    """A line that wraps could not be taken away again, and neither could one in the last column."""
    shown = overlay("x" * 100, 20)
    assert shown.startswith(" " + "x" * 18 + "\x1b")
    assert shown.endswith("\x1b[19D")


@pytest.mark.parametrize("width", [-5, 0, 11])
def test_where_there_is_no_room_nothing_is_shown(width: int) -> None:
    """A few letters tell nothing."""
    assert overlay("3 s: rank 0 in the test", width) == ""


def test_erasing_leaves_what_pytest_has_printed() -> None:
    """Only what is right of the cursor goes."""
    assert ERASE == "\x1b[K"
