"""The outputs that the guide shows come from runs of the code that it shows: `make samples`."""

from __future__ import annotations

import re
from pathlib import Path

import pictures
import pytest
from samples import SAMPLE, Sample

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
BLOCK = re.compile(r"(?ms)^(<!-- sample: [^\n]* -->\n)?```(?:\w*)\n(.*?)^```$")
VERDICT = re.compile(r"^(HUNG|HANGS|WEAK)\b|survives \d|MultihostHazardWarning:", re.MULTILINE)
PLACE = re.compile(r"(\w+\.py):(\d+) .*?»  ?(.+)$", re.MULTILINE)

NOT_MADE = {
    "explain.md": "it needs the log of a job of seven ranks, and dumps of one of sixteen",
    "gpus.md": "it needs a GPU, and descriptors that run out",
    "live.md": "it needs a running job",
    "reading.md": "it is one example of each part of the output",
    "results.md": "it is a whole sweep.json, which only programs read",
    "run.md": "the page shows no whole script",
    "sweep.md": "it explains the parts; first-hidden-hang.md has a whole output",
    "api.md": "it needs hosts made from namespaces",
}
"""Why the outputs of a page are not made by `make samples`."""

SAMPLES = [
    pytest.param(page, found, id=f"{page.name}-{number}")
    for page in PAGES
    for number, found in enumerate(SAMPLE.finditer(page.read_text(encoding="utf-8")), 1)
]


def test_each_output_with_a_verdict_is_made_by_a_run_or_a_reason_says_why_not() -> None:
    """A reason whose page shows no such output is not needed any more."""
    by_hand = {
        page.name
        for page in PAGES
        for comment, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if VERDICT.search(text) and not comment
    }
    assert by_hand == NOT_MADE.keys()


@pytest.mark.parametrize(("page", "found"), SAMPLES)
def test_a_sample_shows_the_lines_of_the_files_on_its_page(page: Path, found: re.Match) -> None:
    """A page whose code has changed needs new samples."""
    text, sample = page.read_text(encoding="utf-8"), Sample.parse(found["parts"])
    files = sample.files(text, text[: found.start()])
    assert files
    for name, number, source in PLACE.findall(found["text"]):
        if name in files:
            assert source.rstrip("…") in files[name].splitlines()[int(number) - 1]


@pytest.mark.parametrize(("page", "found"), SAMPLES)
def test_the_command_of_a_sample_stands_above_it(page: Path, found: re.Match) -> None:
    """Unless it is made from the files of another section or page."""
    sample = Sample.parse(found["parts"])
    above = page.read_text(encoding="utf-8")[: found.start()]
    assert sample.section or sample.page or f"$ {sample.command}\n" in above


GALLERY = pictures.GALLERY.read_text(encoding="utf-8")


@pytest.mark.parametrize("program", [*pictures.programs(GALLERY)], ids=lambda program: program.name)
def test_a_picture_of_a_hang_is_of_the_program_above_it(program: pictures.Program) -> None:
    """A program that has changed needs a new picture: `make docs` makes it."""
    assert program.is_made
    alternative = re.findall(rf"!\[(.*?)\]\(images/hangs/{program.name}\.svg\)", GALLERY)
    assert len(alternative) == 1
    assert re.sub(r"\s", "", alternative[0]) in pictures.words_of(program.picture)


def test_the_gallery_has_a_picture_for_each_hang() -> None:
    """And each hang has one line in the table of what people see."""
    shown = re.findall(r"(?m)^## (.+)$", GALLERY)
    assert len(shown) == len(list(pictures.programs(GALLERY))) == 12
    linked = re.findall(r"\(#([\w-]+)\)", GALLERY.partition("\n## ")[0])
    assert sorted(linked) == sorted(re.sub(r"[^a-z0-9]+", "-", each.lower()) for each in shown)
