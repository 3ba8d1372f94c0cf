"""What a forge shows of sweeps: errors at lines, and a summary that nothing can break."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from elements import HOSTILE
from markdown_it import MarkdownIt
from sweeps import FAILS, NOT_SWEPT, SOUND, SWEEP

from pytest_multihost.core.report import Annotation
from pytest_multihost.extensions.sweep.annotations import sweep_annotations
from pytest_multihost.extensions.sweep.html import sweep_page
from pytest_multihost.extensions.sweep.renderer import RENDERER
from pytest_multihost.extensions.sweep.result import SweepResult
from pytest_multihost.extensions.sweep.rows import state_text, weakness_rows
from pytest_multihost.extensions.sweep.summary import sweep_summary
from pytest_multihost.testing import Place

pytestmark = pytest.mark.unit

ROOM = 1_000_000
ALLOWED = {
    *("h3", "p", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "ul", "li"),
}


def test_each_weakness_is_an_error_at_the_culprits_line() -> None:
    """With the fault, who waits where, what would mend it, and how to repeat it."""
    first, second = sweep_annotations([SWEEP, SOUND])
    assert (first.places[0].file, first.places[0].line) == ("ckpt.py", 31)
    assert first.title.startswith("HANGS in a sweep of")
    for part in (
        "ranks 1-3 wait in barrier #4 for rank 0, which has failed",
        "\nrank 0's rename of */ckpt/step_5.tmp failed with ESTALE (once) at ckpt.py:31",
        "\nranks 1-3 waiting in barrier #4 at ckpt.py:36",
        "For code, run: multihost pattern agree-on-errors",
        "--multihost-replay 7f3a",
    ):
        assert part in first.text
    assert (second.places[0].file, second.places[0].line) == ("ckpt.py", 60)


def test_an_error_and_the_page_have_the_lines_of_the_terminal() -> None:
    """Each of them with its ranks and what they did there."""
    told = html.unescape(sweep_page(SWEEP)) + html.unescape(sweep_summary([SWEEP], max_bytes=ROOM))
    told = re.sub(r"<[^>]+>", "", told)
    for weakness, error in zip(SWEEP.weaknesses, sweep_annotations([SWEEP]), strict=False):
        for row in weakness_rows(weakness.witness)[1:]:
            assert f"{state_text(row)} at {row.place}: {row.source}" in error.text
            assert told.count(f"{state_text(row)} at {row.place}: {row.source}") == 1
            assert told.count(f"{state_text(row)} {row.place} {row.function} {row.source}") >= 1


def test_a_weakness_that_was_not_repeated_has_no_number_of_repeats() -> None:
    """There was no time for one, and it is proven."""
    proven = replace(FAILS, is_proven=True)
    weakness = replace(SWEEP.weaknesses[0], witness=proven, repeated=(0, 0))
    text = html.unescape(sweep_summary([replace(SWEEP, weaknesses=(weakness,))], max_bytes=ROOM))
    assert "* shown by 2 of 12 injections (1 fails, 1 late)\n" in text


def test_what_is_accepted_is_no_error() -> None:
    """The project has said why."""
    accepted = replace(SWEEP.weaknesses[0], accepted="known")
    assert sweep_annotations([replace(SWEEP, weaknesses=(accepted,))]) == []


def test_an_error_has_other_lines_if_the_culprits_is_not_in_the_repository() -> None:
    """The line where others wait comes last."""
    outside = Place("/opt/venv/lib/x.py", 3, "f")
    passed = replace(FAILS.disturbance.passed, where=outside)
    run = replace(FAILS, culprit=outside, disturbance=replace(FAILS.disturbance, passed=passed))

    weakness = replace(
        SWEEP.weaknesses[0], witness=replace(run, waiting=Place("ckpt.py", 36, "save"))
    )
    [found] = sweep_annotations([replace(SWEEP, weaknesses=(weakness,))])
    assert [each.file for each in found.places] == [outside.file, outside.file, "ckpt.py"]


def test_the_summary_has_a_row_for_each_test_and_details_for_each_weakness() -> None:
    """What was left out is in the row."""
    text = html.unescape(sweep_summary([SWEEP, SOUND, NOT_SWEPT], max_bytes=ROOM))
    assert "3 tests swept: 2 weaknesses" in text
    assert "survives 7 of 12 injections" in text
    assert "left out 9 injections (7 late, 2 differs)" in text
    assert "not swept: the test does not pass undisturbed" in text
    assert text.count("<details>") == 2


@pytest.mark.parametrize("word", [*HOSTILE, "a|b [c](http://d) @e\n# f\n::error::g"])
def test_no_word_of_a_test_gets_out_of_its_place(word: str) -> None:
    """The text of an annotation is escaped by what prints it."""
    place = Place(f"{word}.py", 1, word, word)
    run = replace(FAILS, culprit=place, waiting=place, error=word, token="t")  # noqa: S106
    nasty = replace(SWEEP, nodeid=word, weaknesses=(replace(SWEEP.weaknesses[0], witness=run),))
    text = sweep_summary([nasty], max_bytes=ROOM)
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert set(re.findall(r"<(\w+)", rendered)) <= ALLOWED
    assert rendered.count("<tr>") == 2
    [found] = sweep_annotations([nasty])
    assert isinstance(found, Annotation)


def test_without_a_sweep_there_is_no_summary(tmp_path: Path) -> None:
    """Other steps write to the same file."""
    assert RENDERER.markdown is not None
    assert RENDERER.markdown(tmp_path, [], ROOM) == ""


def test_a_summary_that_does_not_fit_says_so() -> None:
    """GitHub would drop it as a whole."""
    many: list[SweepResult] = [SWEEP] * 40
    text = sweep_summary(many, max_bytes=5000)
    assert len(text.encode()) <= 5000
    assert "There is more in sweep" in text
