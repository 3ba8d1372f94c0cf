"""The page for the terminal of a world that is not an attempt of a test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.report.layout import Section
from pytest_multihost.core.report.text import page_sections


def has_colours() -> bool:
    """Return whether standard output is a terminal that is to show colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@dataclass(frozen=True, slots=True)
class Screen:
    """The output that shows a page.

    Attributes:
        columns: Its width; None if it has none, as a file.
    """

    columns: int | None = None
    has_colours: bool = False


def this_screen() -> Screen:
    """Return a description of standard output."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return Screen(columns, has_colours())


def page_of(
    judged: Judgement, files: str, *, more: Iterable[Section] = (), screen: Screen | None = None
) -> str:
    """Return the page for the terminal, in colour and in its width if the output is one.

    Args:
        files: The source of the judgement: a directory, or the title of a job.
        more: Sections that follow the world's.
        screen: The output for the page; None: standard output.
    """
    screen = screen or this_screen()
    lines = [f"{_word(judged)}  {printable(judged.finding.reason)}"]
    for title, text in _tracebacks(judged):
        lines += [f"--- {printable(title)}", printable(text, keeps_lines=True)]
    world, *failures = page_sections(judged, files=files, columns=screen.columns)
    for part in (world, *more, *failures):
        title = printable(part.title)
        lines += [f"--- {title}", part.painted if screen.has_colours else part.text]
    return "\n".join(lines)


def _word(judged: Judgement) -> str:
    """Return in a word how the world has ended, or whether it hangs."""
    found, outcome = judged.diagnosis, judged.finding.outcome
    if outcome in ("failed", "crashed", "error"):
        return judged.finding.word.upper()
    if found is None or outcome != "hung":
        return "NOT KNOWN TO HANG"
    # A single look cannot distinguish a slow rank from a hanging one, except by proof.
    is_sure = judged.result.origin.is_proof or judged.result.reason is not None
    return "HUNG" if is_sure else "HUNG?"


def _tracebacks(judged: Judgement) -> Iterator[tuple[str, str]]:
    """Yield title and text of the traceback of the rank that decided."""
    for each in judged.finding.ranks:
        if each.facts.rank == judged.finding.headline and each.error is not None:
            yield (
                f"{judged.result.spec.names.rank(each.facts.rank)}: {each.error.type}",
                each.error.text.rstrip(),
            )
