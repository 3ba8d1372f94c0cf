"""An analysis: an extension's findings on a passed attempt, and whether they fail the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.report.layout import Section

Sections = Callable[[str, int | None], Sequence[Section]]
"""Returns sections for the terminal. Takes the location of the attempt's files, and the width of
the terminal, or None if there is no terminal."""


@dataclass(frozen=True, slots=True)
class PlacedWarning:
    """A warning at a line of the program.

    Attributes:
        place: The line; None stands for the test's line.
    """

    category: type[Warning]
    text: str
    place: Place | None = None


def no_sections(_files: str, _columns: int | None) -> Sequence[Section]:
    """Return no sections."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One extension's findings on an attempt that has passed.

    Attributes:
        name: The key of `record` in verdict.json.
        record: JSON for verdict.json; None becomes null.
        headline: One line on the fault found, if the analysis fails the test.
        fails_test: Whether the analysis fails the test. A warning that is an error (-W error) fails
            it as well.
        lines: Lines for the page of a world that hung or failed, by their titles.
        sections: The sections that the terminal shows below the headline.
        summary: A line for the end of pytest's output; may be empty.
        has_findings: Whether the attempt gets a page and facts.json although it has passed.
        page: The name of a page in the attempt's folder that shows more; may be empty.
    """

    name: str
    record: JsonObject | None = None
    headline: str = ""
    fails_test: bool = False
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sections: Sections = no_sections
    summary: str = ""
    warnings: tuple[PlacedWarning, ...] = ()
    has_findings: bool = False
    page: str = ""
