"""Hazards in the pages of an attempt and of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from elements import Elements

from pytest_multihost.extensions.hazards.model import Hazard, Hazards, HazardSide, HazardStep
from pytest_multihost.extensions.hazards.report import hazard_annotations, page_section, row_part
from pytest_multihost.testing import Place, to_json

pytestmark = pytest.mark.unit

STEP = HazardStep("all_reduce #1", None, Place("a.py", 7, "step", "work = dist.all_reduce(x)"))
UNWAITED = Hazard(
    rule="unwaited",
    summary="rank 1 never waited",
    when="It hangs.",
    sides=(HazardSide(1, (STEP, STEP)),),
    count=3,
)
ACCEPTED = Hazard(rule="order", summary="known", when="", sides=(), accepted="gloo only")
FOUND = Hazards(("unwaited", "order"), (UNWAITED, ACCEPTED))
VERDICT = {"nodeid": "t", "attempt": 1, "hazards": to_json(FOUND)}


def words(html: str) -> str:
    """Return the text of a part of a page, on one line."""
    return " ".join(Elements(html).words.split())


def test_a_page_has_a_section_of_hazards() -> None:
    """With the line of each step; what the project accepts is not on the page."""
    section = page_section(VERDICT)
    assert section is not None
    assert (section.name, section.title) == ("hazards", "Hazards")
    text = words(section.html)
    assert "unwaited : rank 1 never waited" in text.replace("unwaited:", "unwaited :")
    assert "then all_reduce #1 a.py:7 step work = dist.all_reduce(x)" in text
    assert "Seen 3 times in this run." in text
    assert "order" not in text


def test_the_row_of_a_test_has_its_hazards() -> None:
    """In the page of the run, with the lines."""
    part = row_part(Path("unread"), VERDICT)
    assert "rank 1: all_reduce #1 at a.py:7, then all_reduce #1 at a.py:7. It hangs." in words(
        part.html
    )
    assert "known" not in part.html


def test_without_hazards_pages_have_no_part_of_them() -> None:
    """Nor where they were not looked for, or the verdict is damaged."""
    for found in (None, {}, {"found": [3]}, to_json(Hazards(("order",), (ACCEPTED,)))):
        verdict = {**VERDICT, "hazards": found}
        assert page_section(verdict) is None
        assert row_part(Path("unread"), verdict).html == ""


def test_each_hazard_is_a_warning_at_its_first_line() -> None:
    """With all that is known of it."""
    [found] = hazard_annotations(Path("unread"), [VERDICT])
    assert (found.level, found.title) == ("warning", "HAZARD unwaited t")
    assert found.places == (STEP.where,)
    assert "It hangs." in found.text
