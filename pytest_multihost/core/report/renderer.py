"""A renderer: the files, sections and summaries that one extension adds to attempts and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.verdict import JsonVerdict
from pytest_multihost.core.report.annotation import Annotation


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of report.html.

    Attributes:
        title: The heading, and the text of the link at the top of the page.
        html: The content below the heading, from `report.html.render_part`.
    """

    name: str
    title: str
    html: str


@dataclass(frozen=True, slots=True)
class RowPart:
    """An extension's part of the row of one test in the page of a run.

    Attributes:
        links: Pairs of a text and a file in the attempt's folder.
        html: The content below the test's name, from `report.html.render_part`.
    """

    links: tuple[tuple[str, str], ...] = ()
    html: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """The functions that add one extension's results to reports; None for each it does not have.

    Attributes:
        name: Used in messages about files that could not be written.
        write: Writes the extension's files into the folder of an attempt that has a page; takes the
            folder and the judged world.
        files: Descriptions of these files by name, for the list in report.html.
        section: Returns a section of report.html, or None; takes the verdict.
        row: Returns a part of a row in the page of a run; takes the run's folder and the verdict.
        overview: For an extension that runs further worlds of a test: the name and the file of its
            page about them. The pages of these worlds, in folders below, link back to it.
        rebuild: Writes the extension's pages of a run again, for `multihost report`; takes the
            run's folder, yields paths and errors.
        annotations: Returns annotations for lines of the code; takes the run's folder and its
            verdicts.
        markdown: Returns Markdown for the summary of the run, or an empty string; takes the run's
            folder, its verdicts, and the maximum size in bytes.
    """

    name: str
    write: Callable[[Path, Judgement], object] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    section: Callable[[JsonVerdict], PageSection | None] | None = None
    row: Callable[[Path, JsonVerdict], RowPart] | None = None
    overview: tuple[str, str] | None = None
    rebuild: Callable[[Path], Iterator[Path | MultihostError]] | None = None
    annotations: Callable[[Path, Sequence[JsonVerdict]], Sequence[Annotation]] | None = None
    markdown: Callable[[Path, Sequence[JsonVerdict], int], str] | None = None
