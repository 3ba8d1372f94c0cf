"""Renders the page of a sweep: its weaknesses, and a matrix of points and roles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.fault import Point
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.verdict import Place
from pytest_multihost.core.report.html import PAGE_NAME, render
from pytest_multihost.extensions.sweep import words as sweep_words
from pytest_multihost.extensions.sweep.file_names import SWEEP_PAGE_NAME
from pytest_multihost.extensions.sweep.references import report_of
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    RunOutcome,
    SweepResult,
)
from pytest_multihost.extensions.sweep.rows import state_text, weakness_rows

_FOLDER = Path(__file__).parent

OUTCOMES: tuple[RunOutcome, ...] = tuple(sweep_words.OUTCOMES)
"""All outcomes, the worst first."""

_Key = tuple[Place | None, Point]


@dataclass(frozen=True, slots=True)
class Cell:
    """The disturbances of one role at the points of one line.

    Attributes:
        name: Identifies the cell within the page.
        runs: The run with the worst outcome is first.
        not_run: The number of disturbances that were planned and not run.
    """

    name: str
    role: tuple[int, ...]
    runs: tuple[DisturbedRun, ...]
    not_run: int

    @property
    def worst(self) -> RunOutcome | None:
        """The worst outcome; None if there are no runs."""
        return self.runs[0].outcome if self.runs else None

    @property
    def count(self) -> int:
        """The number of runs that are shown with the worst outcome."""
        return sum(sweep_words.OUTCOMES[each.outcome] == self.shown for each in self.runs)

    @property
    def shown(self) -> sweep_words.ShownOutcome | None:
        """The worst outcome as the page shows it."""
        return sweep_words.OUTCOMES[self.worst] if self.worst is not None else None


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """Points of one line that differ only in their number.

    Attributes:
        where: The line; None if it is not in the user's code.
        cells: One for each role; None if the role does not pass these points.
    """

    where: Place | None
    text: str
    cells: tuple[Cell | None, ...]

    @property
    def worst(self) -> RunOutcome | None:
        """The worst outcome of all cells."""
        found = [each.worst for each in self.cells if each is not None and each.worst is not None]
        return min(found, key=OUTCOMES.index, default=None)

    @property
    def shown(self) -> sweep_words.ShownOutcome | None:
        """The worst outcome of all cells as the page shows it."""
        return sweep_words.OUTCOMES[self.worst] if self.worst is not None else None


def matrix(result: SweepResult) -> list[MatrixRow]:
    """Return the rows of points with the disturbances of each role, in the order of the run."""
    runs = group_by_value((_place_in(each.disturbance), each) for each in result.runs)
    planned = group_by_value((_place_in(each), each) for each in result.plan.disturbances)
    places = group_by_value(
        (key, (role, each))
        for (key, role), disturbances in planned.items()
        for each in disturbances
    )
    roles = list(dict.fromkeys((*result.plan.roles, *(role for _, role in planned))))
    rows = sorted(places.items(), key=lambda row: min(each.passed.span for _, each in row[1]))
    return [
        MatrixRow(
            where=key[0],
            text=_points_text(key[1], [each for _, each in found]),
            cells=tuple(
                _cell(f"c{number}-{column}", role, planned[key, role], runs.get((key, role), ()))
                if (key, role) in planned
                else None
                for column, role in enumerate(roles)
            ),
        )
        for number, (key, found) in enumerate(rows)
    ]


def _place_in(disturbance: Disturbance) -> tuple[_Key, tuple[int, ...]]:
    """Return the row and the column of a disturbance."""
    point = replace(disturbance.passed.point, nth=1, onwards=False, when="before")
    return (disturbance.passed.where, point), disturbance.role


def _points_text(point: Point, disturbances: Sequence[Disturbance]) -> str:
    count = len({each.passed.point.nth for each in disturbances})
    name = f"batches of {point.name}" if point.point == "batch" else sweep_words.point_text(point)
    return f"{name} (x{count})" if count > 1 else name


def _cell(
    name: str,
    role: tuple[int, ...],
    planned: Collection[Disturbance],
    runs: Sequence[DisturbedRun],
) -> Cell:
    ordered = sorted(runs, key=lambda each: OUTCOMES.index(each.outcome))
    return Cell(name, role, tuple(ordered), max(0, len(planned) - len(runs)))


def cell_names(rows: Sequence[MatrixRow]) -> Mapping[str, str]:
    """Return the name of each run's cell, by the run's token."""
    cells = (cell for row in rows for cell in row.cells if cell is not None)
    return {run.token: cell.name for cell in cells for run in cell.runs if run.token}


def sweep_page(
    result: SweepResult,
    pages: Collection[str] = (),
    *,
    has_index: bool = False,
    is_of_file: bool = False,
) -> str:
    """Return the page of a sweep.

    Args:
        pages: Directories of runs that have a page.
        has_index: Whether the run of pytest has a page.
        is_of_file: Whether the result was read from a file, which may be foreign.
    """
    rows = matrix(result)
    return render(
        "sweep.html.j2",
        ["sweep.js", "page.js"],
        folder=_FOLDER,
        result=result,
        rows=rows,
        names=PLAIN,
        roles=result.plan.roles,
        outcomes=sweep_words.outcome_counts(result.runs),
        weak=WEAK,
        report_of=report_of,
        cell_names=cell_names(rows),
        words=sweep_words,
        weakness_rows=weakness_rows,
        state_text=state_text,
        pages=pages,
        has_index=has_index,
        is_of_file=is_of_file,
    )


def write_sweep_page(directory: Path, result: SweepResult, *, is_of_file: bool = False) -> Path:
    """Write the page of a sweep, and return its path.

    Args:
        directory: The folder of the undisturbed attempt.
        is_of_file: Whether the result was read from a file, which may be foreign.

    Raises:
        OSError: The page cannot be written.
    """
    artifacts = directory.parent.parent
    directories = {each.directory for each in result.runs} | {
        each.witness.directory for each in result.weaknesses
    }
    pages = {each for each in directories if each and (artifacts / each / PAGE_NAME).exists()}
    # The run's own page is written when all tests are over.
    has_index = (directory.parent / "verdicts.jsonl").exists()
    text = sweep_page(result, pages, has_index=has_index, is_of_file=is_of_file)
    files.write(directory / SWEEP_PAGE_NAME, text)
    return directory / SWEEP_PAGE_NAME
