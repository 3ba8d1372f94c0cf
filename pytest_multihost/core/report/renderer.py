"""A renderer: what one extension writes and shows of attempts and of runs."""

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
        title: Its heading, and its link at the top.
        html: What follows the heading, as `report.html.render_part` returns it.
    """

    name: str
    title: str
    html: str


@dataclass(frozen=True, slots=True)
class RowPart:
    """What the page of a run shows in the row of one test.

    Attributes:
        links: Texts with files of the attempt's folder.
        html: What follows below the test's name, as `report.html.render_part` returns it.
    """

    links: tuple[tuple[str, str], ...] = ()
    html: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """What one extension writes and shows; None where it has nothing to say.

    Attributes:
        name: Named in messages about files that could not be written.
        write: Writes its files into the folder of an attempt that has a page; takes the folder and
            the judged world.
        files: What these files are, by name, for the list in report.html.
        section: Returns its section of report.html, given the verdict; None: none.
        row: Returns its part of a row in the page of a run, given the run's folder and the verdict.
        overview: Of an extension that runs further worlds of a test, the name and the file of its
            page about them: the pages of these worlds, in folders below, lead back to it.
        rebuild: Writes the pages that it has written for a run again, for `multihost report`; takes
            the run's folder, yields paths and what went wrong.
        annotations: Returns what is to be shown at lines of the code; takes the run's folder and
            its verdicts.
        markdown: Returns Markdown for the summary of the run; takes the run's folder, its
            verdicts, and the maximum size in bytes. Empty: nothing.
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
