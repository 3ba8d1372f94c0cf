"""The two kinds of pages: one for each attempt that hung or failed, one for each run."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.fault import Point
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.verdict import JsonVerdict, Place, Verdict
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    write_attempt,
    write_facts,
)
from pytest_multihost.core.report.html import sections
from pytest_multihost.core.report.html.sections import (
    PageModel,
    display_text,
    rank_groups,
    render,
    script_json,
)
from pytest_multihost.core.report.html.timeline import timeline_data
from pytest_multihost.core.report.layout import merge_stacks
from pytest_multihost.core.report.logs import read_log
from pytest_multihost.extensions.sweep import words as sweep_words
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    RunOutcome,
    SweepResult,
)
from pytest_multihost.extensions.trace.trace import write_trace

PAGE_NAME = "report.html"
_VERDICTS = "verdicts.jsonl"

_SCRIPTS = ("lanes.js", "drawing.js", "selection.js", "page.js")
_AROUND = 4
_HEAD_BYTES, _TAIL_BYTES = 4_000, 12_000
_ALL_LOGS_BYTES = 500_000
"""Maximum size of all logs together, so that a page opens without delay."""

_OUTCOMES = ("hung", "crashed", "failed", "error", "xfailed", "xpassed", "skipped", "passed")
"""Outcomes in the order in which a run's page lists them."""


def write_page(directory: Path, page: PageModel) -> Path:
    """Write the page of an attempt into its folder, and return its path.

    Args:
        directory: The attempt's folder, with all other files already in it.
        page: Its data; logs, source lines and names of files are read here.
    """
    size = page.judged.result.spec.size
    share = max(1_000, min(_HEAD_BYTES + _TAIL_BYTES, _ALL_LOGS_BYTES // size))
    logs = (
        read_log(directory / f"rank-{rank}.log", head=share // 4, tail=share - share // 4)
        for rank in range(size)
    )
    read = replace(
        page,
        logs=[replace(log, head=as_shown(log.head), tail=as_shown(log.tail)) for log in logs],
        source_lines=tuple(_source_lines(page)),
        files=sorted(path.name for path in directory.iterdir() if path.is_file()),
    )
    files.write(directory / PAGE_NAME, attempt_page(read, _page_above(directory)))
    return directory / PAGE_NAME


def _page_above(directory: Path) -> str:
    """Return the page that an attempt's page leads back to: its run's, or that of a sweep."""
    folder = directory.parent
    is_swept = not (folder / _VERDICTS).exists() and (folder.parent / _VERDICTS).exists()
    return SWEEP_PAGE_NAME if is_swept else PAGE_NAME


def write_index(run: Path) -> Path:
    """Write the page of a run into its folder, and return its path.

    Args:
        run: The run's folder, with its verdicts.jsonl.
    """
    verdicts, _ = RunFolder(run.parent, run.name).verdicts()
    pages = frozenset(path.parent.name for path in run.glob(f"*/{PAGE_NAME}"))
    sweeps = frozenset(path.parent.name for path in run.glob(f"*/{SWEEP_PAGE_NAME}"))
    files.write(run / PAGE_NAME, run_page(run.name, verdicts, pages, sweeps))
    return run / PAGE_NAME


def as_shown(text: str) -> str:
    """Return what a terminal would show in the end: only the last state of a progress bar."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return display_text("\n".join(lines))


def _source_lines(page: PageModel) -> Sequence[tuple[int, str]]:
    """Return the lines around the culprit's place, unless the file has changed since."""
    where = page.judged.diagnosis.where if page.judged.diagnosis else None
    if where is None:
        return ()
    lines = linecache.getlines(str(Path(page.judged.context.root, where.file)))
    at = where.line
    if not 0 < at <= len(lines) or lines[at - 1].strip() != where.source:
        return ()
    # Those around it, but none of the function or class before or after.
    numbers = range(max(1, at - _AROUND), min(len(lines), at + _AROUND) + 1)
    is_inside = lines[at - 1][:1].isspace()
    heads = [n for n in numbers if is_inside and lines[n - 1].strip() and lines[n - 1][0].strip()]
    first = max((n for n in heads if n <= at), default=numbers[0])
    last = min((n for n in heads if n > at), default=numbers[-1] + 1) - 1
    block = [(number, lines[number - 1].rstrip()) for number in range(first, last + 1)]
    while not block[-1][1] and len(block) > 1:
        block.pop()
    return block


def attempt_page(page: PageModel, above: str = PAGE_NAME) -> str:
    """Return the page of one attempt of one test.

    Args:
        page: Its data.
        above: The page in the folder above.
    """
    timeline = timeline_data(page)
    return render(
        "attempt.html.j2",
        _SCRIPTS,
        page=page,
        above=above,
        groups=rank_groups(page),
        merge_stacks=merge_stacks,
        sections=sections,
        left_out=timeline["left_out"],
        timeline_json=script_json(timeline),
    )


def run_page(
    run_id: str,
    verdicts: Sequence[JsonVerdict],
    pages: Collection[str],
    sweeps: Collection[str] = (),
) -> str:
    """Return the page of a run: every test that ran as a world, those that did not pass first.

    Args:
        run_id: The run's name.
        verdicts: The lines of its verdicts.jsonl.
        pages: Folders of attempts that have a page.
        sweeps: Folders of attempts that have the page of a sweep.
    """
    rows = sorted(
        ((_outcome(each), each) for each in verdicts), key=lambda row: _OUTCOMES.index(row[0])
    )
    counts = Counter(outcome for outcome, _ in rows)
    return render(
        "run.html.j2",
        ["index.js"],
        run_id=run_id,
        rows=rows,
        counts=[(outcome, counts[outcome]) for outcome in _OUTCOMES if counts[outcome]],
        pages=pages,
        sweeps=sweeps,
    )


def _outcome(verdict: JsonVerdict) -> str:
    """Return a test's status, or its world's outcome if that made it fail."""
    if verdict["status"] in ("failed", "error") and verdict["outcome"] in ("hung", "crashed"):
        return str(verdict["outcome"])
    return str(verdict["status"])


# The page of a sweep: its weaknesses, and a matrix of points and roles.


SWEEP_PAGE_NAME = "sweep.html"
_REPORT = "report.html"

OUTCOMES: tuple[RunOutcome, ...] = tuple(sweep_words.OUTCOMES)
"""The worst first."""

_Key = tuple[Place | None, Point]


@dataclass(frozen=True, slots=True)
class Cell:
    """What was done to one role at the points of one line.

    Attributes:
        name: Identifies it within the page.
        role: The ranks.
        runs: Runs, the worst outcome first.
        not_run: How many disturbances were planned and not run.
    """

    name: str
    role: tuple[int, ...]
    runs: tuple[DisturbedRun, ...]
    not_run: int

    @property
    def worst(self) -> RunOutcome | None:
        """The worst outcome; None if nothing was run."""
        return self.runs[0].outcome if self.runs else None

    @property
    def count(self) -> int:
        """How many runs have the worst outcome."""
        return sum(each.outcome == self.worst for each in self.runs)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """Points that are passed in one line in the same way.

    Attributes:
        where: The line; None if it is not in the user's code.
        text: The points.
        cells: One for each role; None where that does not pass these points.
    """

    where: Place | None
    text: str
    cells: tuple[Cell | None, ...]

    @property
    def worst(self) -> RunOutcome | None:
        """The worst outcome of all cells."""
        found = [each.worst for each in self.cells if each is not None and each.worst is not None]
        return min(found, key=OUTCOMES.index, default=None)


def matrix(result: SweepResult) -> list[MatrixRow]:
    """Return what was done to whom at which points, in the order in which they are passed."""
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
    """Return by a run's token the name of the cell that it is in."""
    cells = (cell for row in rows for cell in row.cells if cell is not None)
    return {run.token: cell.name for cell in cells for run in cell.runs if run.token}


def sweep_page(result: SweepResult, pages: Collection[str] = (), *, has_index: bool = False) -> str:
    """Return the page of a sweep.

    Args:
        result: The sweep.
        pages: Directories of runs that have a page.
        has_index: Whether there is a page of the run of pytest beside.
    """
    rows = matrix(result)
    return render(
        "sweep.html.j2",
        ["sweep.js"],
        result=result,
        rows=rows,
        roles=result.plan.roles,
        outcomes=[(name, result.count(name)) for name in OUTCOMES if result.count(name)],
        weak=WEAK,
        cell_names=cell_names(rows),
        words=sweep_words,
        pages=pages,
        has_index=has_index,
    )


def write_sweep_page(directory: Path, result: SweepResult) -> Path:
    """Write the page of a sweep, and return its path.

    Args:
        directory: The folder of the undisturbed attempt.
        result: The sweep.

    Raises:
        OSError: It cannot be written.
    """
    artifacts = directory.parent.parent
    directories = {each.directory for each in result.runs} | {
        each.witness.directory for each in result.weaknesses
    }
    pages = {each for each in directories if each and (artifacts / each / _REPORT).exists()}
    # The run's own page is written when all tests are over.
    text = sweep_page(result, pages, has_index=(directory.parent / "verdicts.jsonl").exists())
    files.write(directory / SWEEP_PAGE_NAME, text)
    return directory / SWEEP_PAGE_NAME


# Everything that is written of a world that went wrong.


def write_judged(
    directory: Path, judged: Judgement, about: Attempt
) -> tuple[Verdict, list[OSError]]:
    """Write facts, verdict, history, trace and page of a world.

    Args:
        directory: The attempt's folder, with the logs.
        judged: The world.
        about: The attempt.

    Returns:
        The verdict, and why some files could not be written: a full disk, say.
    """
    result, root = judged.result, judged.context.root
    verdict = build_verdict(judged, about)
    write: tuple[Callable[[], object], ...] = (  # the page last: it lists the others
        lambda: write_facts(directory, result, judged.finding.symptoms, about, root=root),
        lambda: write_attempt(
            directory, to_json(verdict), result.history, origin_s=result.started_s
        ),
        lambda: write_trace(directory, result, judged.diagnosis, root=root),
        lambda: write_page(directory, PageModel(judged=judged, verdict=verdict)),
    )
    problems = []
    for each in write:
        try:
            each()
        except OSError as error:
            problems.append(error)
    return verdict, problems
