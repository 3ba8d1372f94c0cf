"""Adds the sweeps of a run to pages, annotations and summaries.

Every run with worlds imports this module. The modules that read and show sweeps are imported only
when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.verdict import JsonVerdict
from pytest_multihost.core.report.annotation import Annotation
from pytest_multihost.core.report.renderer import Renderer, RowPart
from pytest_multihost.extensions.sweep.file_names import SWEEP_NAME, SWEEP_PAGE_NAME


def _row(run: Path, verdict: JsonVerdict) -> RowPart:
    """Return a link to the page of a test's sweep, if it was swept."""
    if not (run / str(verdict["dir"]) / SWEEP_PAGE_NAME).is_file():
        return RowPart()
    return RowPart(links=(("sweep", SWEEP_PAGE_NAME),))


def _rebuild(run: Path) -> Iterator[Path | MultihostError]:
    """Write the pages of a run's sweeps again."""
    from pytest_multihost.extensions.sweep.html import write_sweep_page
    from pytest_multihost.extensions.sweep.record import read_sweep

    for path in sorted(run.glob(f"*/{SWEEP_NAME}")):
        try:
            yield write_sweep_page(path.parent, read_sweep(path), is_of_file=True)
        except MultihostError as error:
            yield error


def _annotations(run: Path, _verdicts: Sequence[JsonVerdict]) -> Sequence[Annotation]:
    from pytest_multihost.extensions.sweep.annotations import sweep_annotations
    from pytest_multihost.extensions.sweep.record import sweeps_of

    return sweep_annotations(sweeps_of(run))


def _markdown(run: Path, _verdicts: Sequence[JsonVerdict], max_bytes: int) -> str:
    from pytest_multihost.extensions.sweep.record import sweeps_of
    from pytest_multihost.extensions.sweep.summary import sweep_summary

    return sweep_summary(sweeps_of(run), max_bytes=max_bytes)


RENDERER = Renderer(
    name="sweep",
    row=_row,
    overview=("The sweep", SWEEP_PAGE_NAME),
    rebuild=_rebuild,
    annotations=_annotations,
    markdown=_markdown,
)
