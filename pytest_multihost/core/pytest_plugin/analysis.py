"""An analysis: what follows from a passed attempt, and whether it fails the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.report.layout import Section

Sections = Callable[[str, int | None], Sequence[Section]]
"""Returns sections for the terminal. Takes where the attempt's files are, and the columns of the
terminal, None if there is none."""


@dataclass(frozen=True, slots=True)
class PlacedWarning:
    """A warning at a line of the program.

    Attributes:
        text: What it says.
        place: The line; None: that of the test.
    """

    category: type[Warning]
    text: str
    place: Place | None = None


def no_sections(_files: str, _columns: int | None) -> Sequence[Section]:
    """Return no sections."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What one extension says about an attempt that has passed.

    Attributes:
        name: The key of `record` in verdict.json.
        record: JSON for verdict.json, where it is written after the analysis; None: null.
        headline: One line: what is wrong, if the analysis fails the test.
        fails_test: Whether it does. It also does if one of `warnings` is an error (-W error).
        sections: What the terminal shows below the headline.
        summary: A line for the end of pytest's output; empty: none.
        has_findings: Whether the attempt gets a page and facts.json although it has passed.
        page: The name of a page in the attempt's folder that shows more; empty: there is none.
    """

    name: str
    record: JsonObject | None = None
    headline: str = ""
    fails_test: bool = False
    sections: Sections = no_sections
    summary: str = ""
    warnings: tuple[PlacedWarning, ...] = ()
    has_findings: bool = False
    page: str = ""
