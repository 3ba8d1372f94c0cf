"""What the terminal shows of a sweep, compared letter by letter with tests/golden/sweep*.txt.

`PYTHONPATH=tests/shared python tests/extensions/sweep/test_sweep_text.py` writes them anew. Then
read them as a stranger would.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import (
    DIFFERS,
    FAILS,
    LATE,
    NOT_SWEPT,
    OTHERS,
    RENAMES,
    SOUND,
    SWEEP,
    UNSURE,
    WRONG,
    disturbance,
    hold,
)

from pytest_multihost import at, faults
from pytest_multihost.extensions.sweep import mendings
from pytest_multihost.extensions.sweep.report import sweep_section
from pytest_multihost.extensions.sweep.result import DisturbedRun, LeftOut
from pytest_multihost.extensions.sweep.run.live_line import sweep_progress
from pytest_multihost.extensions.sweep.words import (
    alike_texts,
    budget_text,
    disturbance_text,
    left_out_texts,
    mending,
    survives_text,
    unmet_texts,
    waits_text,
    why_passed_text,
)
from pytest_multihost.testing import Fault, Place, nth

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = ".pytest_multihost/2026-11-23T00-00-00Z-4711/test_ckpt.py-test_save-4-gloo-1f3a/sweep.html"
STORIES = {
    "sweep": (SWEEP, 120),
    "sweep-narrow": (SWEEP, 80),
    "sweep-unsure": (UNSURE, 120),
    "sweep-sound": (SOUND, 120),
    "sweep-not": (NOT_SWEPT, 120),
    "sweep-wrong": (WRONG, 120),
}


def story(name: str) -> str:
    """Return what is shown of a sweep."""
    result, columns = STORIES[name]
    shown = sweep_section(result, files=FILES, columns=columns)
    return f"--- {shown.title} ---\n{shown.text}\n"


@pytest.mark.parametrize("name", STORIES)
def test_a_sweep_is_told_as_agreed(name: str) -> None:
    """Weaknesses first, then what the sweep covers."""
    assert story(name) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


NAMED = at.call("train:stop", nth=3)
BATCH = at.batch("data:loader", nth=4)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (hold(1, at.collective("all_reduce")), "was held before its all_reduce until all others"),
        (hold(1, at.collective(onwards=True)), "was held before each collective until all others"),
        (hold(1, at.sync_point("a")), "was held before its sync point 'a' until all others waited"),
        (faults.hold(rank=1, min_s=3.0), "at the start until all others waited, for 3 s at least"),
        (faults.delay(rank=1, seconds=1.5), "rank 1 was delayed by 1.5 s at the start"),
        (faults.fails(rank=1, at=at.io("*/x", call="mkdir")), "'s mkdir of */x failed with ENOSPC"),
        (faults.fails(rank=1, at=at.io("x", onwards=True), error="EIO"), "and so did each later"),
        (faults.raise_at(rank=1, at=NAMED), "rank 1's 3rd call of train:stop raised RuntimeError"),
        (faults.kill(rank=1, at=NAMED), "rank 1 was killed before its 3rd call of train:stop"),
        (faults.short_data(rank=1, at=BATCH), "rank 1's data ended before batch 4 of data:loader"),
        (faults.empty_data(rank=1, at=BATCH), "rank 1 got no data from data:loader"),
        (faults.stale_files(rank=1, seconds=2.0), "did not see other ranks' new files (*) for 2 s"),
        (faults.clock_skew(rank=1, seconds=-300), "rank 1's clock was 300 s behind, from the st"),
        (faults.hash_seed(rank=1), "rank 1 hashed strings differently"),
        (faults.returns(rank=1, value=False, at=NAMED), "3rd call of train:stop returned False"),
        (faults.other("flood", rank=1), "rank 1 had the fault faults.other('flood', rank=1)"),
    ],
)
def test_a_disturbance_is_told_in_plain_words(fault: Fault, told: str) -> None:
    """A reader need not know our names of faults."""
    assert told in disturbance_text(disturbance("late", fault, OTHERS, None))


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (FAILS, "ranks 1-3 wait in barrier #4 for rank 0, which has failed"),
        (DIFFERS, "ranks 0,2,3 wait in all_gather_object #2 for rank 1"),
        (LATE, "ranks 1-3 waited in all_reduce #3 for rank 0 until a timeout ended it"),
        (
            replace(FAILS, waiting_ranks=(2,), culprits=(0, 1)),
            "rank 2 waits in barrier #4 for",
        ),
        (replace(DIFFERS, culprits=(0, 2)), "ranks 0,2,3 wait for each other in all_gather_object"),
        (replace(DIFFERS, operation=None), "ranks 0,2,3 wait for rank 1"),
        (replace(DIFFERS, waiting_ranks=(), summary="nobody moves"), "nobody moves"),
    ],
)
def test_who_waits_for_whom_is_one_sentence(run: DisturbedRun, told: str) -> None:
    """It is the headline of a weakness."""
    assert waits_text(run).startswith(told)


ASKS = replace(FAILS.disturbance, fault=faults.fails(rank=0, at=at.io("*/x", call="stat")))
OF_BEFORE = replace(FAILS.disturbance, family="errors")
LATE_FILE = replace(DIFFERS.disturbance, family="late", fault=hold(0, at.io("*/x", call="rename")))


@pytest.mark.parametrize(
    ("run", "anchor"),
    [
        (FAILS, "agree-on-errors"),
        (DIFFERS, "sort-listings"),
        (LATE, "broadcast-decisions"),
        (replace(DIFFERS, disturbance=LATE_FILE), "wait-by-an-operation"),
        (replace(FAILS, disturbance=ASKS, error=None), "broadcast-decisions"),
        (replace(FAILS, disturbance=ASKS), "agree-on-errors"),
        (replace(FAILS, disturbance=OF_BEFORE), "agree-on-errors"),
    ],
)
def test_what_would_mend_it_follows_from_what_was_done(run: DisturbedRun, anchor: str) -> None:
    """An error that a program takes for an answer is no error to be agreed on."""
    assert mending(run).anchor == anchor


def test_every_mending_is_described() -> None:
    """The link leads to a section."""
    page = (GOLDEN.parent.parent / "docs" / "patterns.md").read_text(encoding="utf-8")
    found = [each for each in vars(mendings).values() if isinstance(each, mendings.Mending)]
    assert found
    assert [each.anchor for each in found if f'<a id="{each.anchor}"></a>' not in page] == []


def test_the_other_lines_of_a_weakness_are_told_but_for_those_that_were_tried() -> None:
    """Where one of them was run, its own outcome says what is there."""
    lines = [Place("ckpt.py", number, "commit", f"step {number}") for number in range(33, 43)]
    mine = replace(FAILS.disturbance, alike=(*lines, RENAMES))
    tried = replace(
        FAILS,
        disturbance=disturbance("fails", faults.fails(rank=0, at=at.io("*/x")), OTHERS, lines[0]),
        outcome="told",
    )
    weakness = replace(SWEEP.weaknesses[0], witness=replace(FAILS, disturbance=mine))
    result = replace(SWEEP, runs=(*SWEEP.runs, tried), weaknesses=(weakness,))
    assert alike_texts(result, weakness) == [
        *(f"ckpt.py:{number} step {number}" for number in range(34, 40)),
        "and 3 more lines",
    ]
    assert "alike     ckpt.py:34 step 34" in sweep_section(result, columns=120).text


def test_without_a_terminal_nothing_is_cut() -> None:
    """The reader of a log cannot widen it."""
    long = replace(FAILS, culprit=replace(FAILS.culprit, source="x" * 300))  # type: ignore[type-var]
    moved = replace(long.disturbance.passed, where=long.culprit)
    long = replace(long, disturbance=replace(long.disturbance, passed=moved))
    weak = replace(SWEEP, weaknesses=(replace(SWEEP.weaknesses[0], witness=long),))
    assert "x" * 300 in sweep_section(weak).text
    assert "x" * 300 not in sweep_section(weak, columns=120).text


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_only_lines_to_be_copied_are_longer_than_the_terminal(columns: int) -> None:
    """The command that repeats a run, and paths."""
    lines = sweep_section(SWEEP, files=FILES, columns=columns).text.splitlines()
    long = [each.split()[0] for each in lines if len(each) > columns]
    assert set(long) <= {"replay", "files"}


def test_many_weaknesses_are_counted_not_all_shown() -> None:
    """The first ones are enough to read; the rest are in the files."""
    many = replace(SWEEP, weaknesses=SWEEP.weaknesses[:1] * 23)
    shown = sweep_section(many, columns=120).text
    assert shown.count("HANGS") == 10
    assert "and 13 more weaknesses in sweep.html and sweep.json" in shown


def test_the_line_of_what_a_test_survives_counts_everything_once() -> None:
    """Survived, weak and not reached make up all runs."""
    assert survives_text(SWEEP) == (
        "survives 7 of 12 injections (3 weaknesses, 1 accepted; 1 point not reached)"
    )
    assert survives_text(SOUND) == "survives 5 of 5 injections (0 weaknesses)"


def test_a_sweep_that_took_longer_names_its_budget() -> None:
    """The test's own time comes on top of the budget."""
    assert budget_text(SWEEP) == "58.2 s of 60 s"
    assert budget_text(replace(SWEEP, duration_s=66.0)) == "66.0 s with a budget of 60 s"


def test_what_time_was_lacking_for_is_told_with_the_budget_that_is_enough() -> None:
    """By what the disturbances so far have taken."""
    [text] = left_out_texts(SWEEP)
    assert text == (
        "9 injections (7 late, 2 differs) for lack of time, which would take about 44 s;"
        " --multihost-sweep-budget=110 has room for all"
    )


def test_an_accepted_weakness_that_time_was_lacking_for_may_still_occur() -> None:
    """Only a whole sweep says to remove the entry."""
    [cut] = unmet_texts(SWEEP)
    assert cut.endswith("was not found; the sweep has left out injections")
    [gone] = unmet_texts(replace(SWEEP, left_out=()))
    assert gone.endswith("no longer occurs: remove it from the acceptance file")


def test_a_test_that_passes_with_weak_runs_says_why() -> None:
    """In one sentence; a test that fails, or whose runs are all sound, needs none."""
    assert (why_passed_text(SWEEP), why_passed_text(SOUND)) == ("", "")
    first, second, third = SWEEP.weaknesses
    found = (replace(first, is_hidden=True), replace(second, repeated=(5, 0)), third)
    assert why_passed_text(replace(SWEEP, status="passed", weaknesses=found)) == (
        "The test passes although 4 injections showed 3 weaknesses: 1 is accepted, 1 is short,"
        " 1 was not seen again."
    )


def test_an_entry_may_stay_if_a_run_was_dropped_as_doubtful() -> None:
    """The weakness may be the one that a repeat did not show."""
    [text] = unmet_texts(replace(SWEEP, left_out=(LeftOut("doubtful", "late", 1),)))
    assert "no longer occurs" not in text


def test_the_live_line_says_how_far_and_how_long() -> None:
    """And what is being done, in a few words."""
    assert sweep_progress(0, 430) == "swept 0 of 430"
    found = sweep_progress(12, 430, weaknesses=1, left_s=31.4, doing=FAILS.disturbance)
    assert found == (
        "swept 12 of 430, 1 weakness, 31 s left; now fails: rank 0, rename of */ckpt/step_5.tmp"
    )


def test_numbers_have_their_endings() -> None:
    """Also those between ten and twenty."""
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)
    assert " ".join(map(nth, numbers)) == "1st 2nd 3rd 4th 11th 12th 13th 21st 102nd 111th"


if __name__ == "__main__":
    for each in STORIES:
        (GOLDEN / f"{each}.txt").write_text(story(each), encoding="utf-8")
