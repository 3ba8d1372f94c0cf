"""The page of a sweep, as text: what stands where, and that nothing of a test's gets loose."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from elements import HOSTILE, Elements
from sweeps import DIFFERS, FAILS, NOT_SWEPT, PLAN, RUNS, SOUND, SWEEP, UNSURE

from pytest_multihost.core.command import rebuild
from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.report.html import write_index
from pytest_multihost.extensions.sweep.html import (
    matrix,
    sweep_page,
    write_sweep_page,
)
from pytest_multihost.extensions.sweep.record import write_sweep
from pytest_multihost.extensions.sweep.renderer import RENDERER
from pytest_multihost.extensions.sweep.result import Disturbance, SweepResult
from pytest_multihost.extensions.sweep.words import MEANINGS
from pytest_multihost.testing import Fault, MultihostError, Place, Point

pytestmark = pytest.mark.unit

RENDERERS = offered_renderers(new_plugin_manager().hook)


def test_weaknesses_come_first_each_with_all_that_is_known() -> None:
    """Before the matrix; what is accepted is at the end."""
    words = Elements(sweep_page(SWEEP)).words
    parts = (
        "which has failed",
        "Weaknesses",
        "Points and classes of ranks",
        "Left out",
        "Accepted weakness",
    )
    assert [words.index(part) for part in parts] == sorted(words.index(part) for part in parts)
    for part in (
        "rank 0's rename of */ckpt/step_5.tmp failed with ESTALE (once)",
        "ckpt.py:36",
        "dist.barrier()",
        "OSError: [Errno 116]",
        "multihost pattern agree-on-errors",
        "--multihost-replay 7f3a",
        "rank 1 stands for ranks 1-3",
        "the job ends after 30 min",
        "9 injections (7 late, 2 differs) for lack of time",
    ):
        assert part in words


def test_what_no_repeat_showed_again_is_told_apart() -> None:
    """With the runs that were repeated."""
    words = Elements(sweep_page(UNSURE)).words
    assert "Seen, and not repeated" in words
    assert "seen in 2 runs, not repeated" in words
    assert "until all others waited: 0 of 3 repeats" in words
    assert "Weaknesses" not in words


def test_a_page_that_passed_says_why_its_weaknesses_do_not_fail_the_test() -> None:
    """A stranger sees red cells below the word."""
    why = "The test passes although"
    assert why in Elements(sweep_page(replace(SWEEP, status="passed"))).words
    assert why not in Elements(sweep_page(SWEEP)).words
    assert why not in Elements(sweep_page(SOUND)).words


def test_a_row_is_a_line_and_a_cell_has_the_worst_of_its_runs() -> None:
    """Repeated passages of one line are one row; every run is in one cell."""
    rows = matrix(SWEEP)
    found = {row.where.line: row for row in rows if row.where}
    assert found.keys() == {31, 52, 14}
    rename, reduce = found[31], found[14]
    assert [cell and cell.worst for cell in rename.cells] == ["left waiting", None]
    assert reduce.text == "all_reduce (x6)"
    [cell, _] = reduce.cells
    assert cell is not None
    assert (cell.worst, cell.count, len(cell.runs)) == ("timed out", 1, 9)
    assert sum(len(cell.runs) for row in rows for cell in row.cells if cell) == len(RUNS)


def test_what_was_planned_and_not_run_is_in_the_matrix() -> None:
    """Nothing shows that it would be harmless."""
    unrun = replace(SWEEP, runs=(), weaknesses=())
    assert [row.worst for row in matrix(unrun)] == [None] * 3
    assert "not run" in Elements(sweep_page(unrun)).words
    partly = replace(SWEEP, runs=RUNS[3:4], weaknesses=())
    assert "(8 planned and not run)" in Elements(sweep_page(partly)).words


def test_every_button_has_runs_and_every_link_a_target() -> None:
    """By keyboard one gets everywhere."""
    page = Elements(sweep_page(SWEEP))
    ids = {value for name, value in page.values if name == "id"}
    controls = [value for name, value in page.values if name == "aria-controls"]
    links = [value[1:] for name, value in page.values if name == "href" and value[0] == "#"]
    assert len(controls) == len(set(controls)) == 3
    assert links
    assert {*controls, *links} <= ids


@pytest.mark.parametrize("result", [SOUND, NOT_SWEPT], ids=["sound", "not swept"])
def test_a_sweep_without_a_weakness_has_a_page(result: SweepResult) -> None:
    """It shows what was tried, or why nothing was."""
    words = Elements(sweep_page(result)).words
    assert "Weaknesses" not in words
    assert ("survives 5 of 5" in words) == (result is SOUND)
    assert ("does not pass undisturbed" in words) == (result is NOT_SWEPT)


def test_every_outcome_has_a_colour_or_is_plain() -> None:
    """The style sheet knows the classes that the page uses."""
    style = Elements(sweep_page(SWEEP)).style
    plain = {"not-reached"}
    names = {each.replace(" ", "-") for each in MEANINGS}
    assert {each for each in names if f".cell.{each}" not in style} == plain


@pytest.mark.parametrize("word", HOSTILE)
def test_no_word_of_a_test_becomes_an_element(word: str) -> None:
    """Its names, paths, lines, errors and reasons leave the page's structure alone."""

    def page(word: str) -> Elements:
        place = Place(f"{word}.py", 1, word, word)
        fault = Fault("fails", (0,), Point("io", f"*/{word}", call="rename"), {"error": word})
        passed = replace(FAILS.disturbance.passed, where=place, point=fault.at)
        made = Disturbance("fails", fault, (0,), passed, 1)
        run = replace(FAILS, disturbance=made, waiting=place, error=word, token=word, summary=word)
        weakness = replace(SWEEP.weaknesses[0], witness=run, shown_by=(0,))
        return Elements(
            sweep_page(
                replace(
                    SWEEP,
                    nodeid=f"test_it.py::test[{word}]",
                    reason=word,
                    plan=replace(PLAN, disturbances=(made,)),
                    runs=(run,),
                    weaknesses=(weakness, replace(weakness, accepted=word)),
                    unmet_acceptances=(word,),
                )
            )
        )

    assert page(word).elements == page("harmless").elements


def test_the_page_loads_nothing_and_runs_its_own_script_alone() -> None:
    """It works from disk, without a network, and says so to the browser."""
    page = Elements(sweep_page(SWEEP))
    [policy] = [text for name, text in page.values if name == "content" and "default-src" in text]
    for text in (page.scripts["script"], page.style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    links = [value for name, value in page.values if name in ("href", "src")]
    assert [link for link in links if re.match(r"\w+:|//", link)] == ["data:,"]


def test_the_pages_of_a_run_lead_to_each_other(tmp_path: Path) -> None:
    """From the run to the sweep, and from a weakness to the world that showed it."""
    folder = tmp_path / "run" / "test"
    kept = tmp_path / FAILS.directory if FAILS.directory else tmp_path
    for path in (folder, kept):
        path.mkdir(parents=True)
    (kept / "report.html").touch()
    (folder.parent / "verdicts.jsonl").touch()
    page = write_sweep_page(folder, SWEEP).read_text(encoding="utf-8")
    assert f'href="../../{FAILS.directory}/report.html"' in page
    assert 'href="../report.html"' in page
    assert DIFFERS.directory is None
    assert write_index(folder.parent, [RENDERER]).exists()
    assert RENDERER.row is not None
    assert RENDERER.row(folder.parent, {"dir": "test"}).links == (("sweep", "sweep.html"),)
    assert RENDERER.row(folder.parent, {"dir": "other"}).links == ()


def test_the_page_is_written_again_from_its_record(tmp_path: Path) -> None:
    """As `multihost report` does for every page."""
    folder = tmp_path / "run" / "test"
    folder.mkdir(parents=True)
    (folder.parent / "verdicts.jsonl").touch()
    write_sweep(folder, SWEEP)
    assert folder / "sweep.html" in list(rebuild(tmp_path, RENDERERS))
    (folder / "sweep.json").write_text("{}")
    assert any(isinstance(each, MultihostError) for each in rebuild(tmp_path, RENDERERS))
