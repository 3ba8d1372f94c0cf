"""Pages of sweeps, written again from their artifacts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.report.html import write_sweep_page
from pytest_multihost.extensions.sweep.report import SWEEP_NAME, read_sweep


def rebuild_pages(run: Path) -> Iterator[Path | MultihostError]:
    """Write the pages of a run's sweeps again; yield the path of each, or why it is not written.

    Raises:
        OSError: One cannot be written.
    """
    for path in sorted(run.glob(f"*/{SWEEP_NAME}")):
        try:
            yield write_sweep_page(path.parent, read_sweep(path))
        except MultihostError as error:
            yield error
