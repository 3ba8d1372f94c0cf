"""The live line: where the ranks are, beside whatever pytest prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost.analysis.facts import RankFacts
from pytest_multihost.model.event import ExitStatus
from pytest_multihost.reporting.progress import erase, overlay, progress_text

GONE = ExitStatus(code=0, signal=None, cpu_s=0.1, peak_rss_bytes=1)


def test_ranks_in_one_place_are_told_together() -> None:
    """One glance tells who is where."""
    facts = [RankFacts(rank, phase="call", parked_s=1.0) for rank in range(4)]
    facts[0] = RankFacts(0, phase="call")
    facts[2] = RankFacts(2, exit=GONE)
    assert progress_text(12.4, facts) == "12 s: rank 0 in call, ranks 1,3 done, rank 2 gone"


@pytest.mark.parametrize("phase", ["startup", "setup", "call", "teardown", "shutdown"])
def test_a_rank_is_told_by_its_phase(phase: str) -> None:
    """Until its test body is over."""
    facts = replace(RankFacts(0), phase=phase)
    assert progress_text(1.0, [facts]) == f"1 s: rank 0 in {phase}"


def test_the_line_leaves_the_cursor_where_it_was() -> None:
    """What pytest prints next goes on where it had stopped, over our text."""
    text = "3 s: rank 0 in call"
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
    assert overlay("3 s: rank 0 in call", width) == ""


def test_erasing_leaves_what_pytest_has_printed() -> None:
    """Only what is right of the cursor goes."""
    assert erase() == "\x1b[K"
