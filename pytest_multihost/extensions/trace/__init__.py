"""A trace of a world for Perfetto: `trace` writes ``trace.json``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.blame import Judgement
    from pytest_multihost.core.report.renderer import Renderer


@hookimpl
def pytest_multihost_renderers() -> Sequence[Renderer]:
    """Offer the trace."""
    from pytest_multihost.core.report.renderer import Renderer

    about = "all operations as tracks, to be opened in ui.perfetto.dev"
    return [Renderer(name="trace.json", write=_write, files={"trace.json": about})]


def _write(directory: Path, judged: Judgement) -> None:
    from pytest_multihost.extensions.trace.trace import write_trace

    write_trace(directory, judged.result, judged.diagnosis, root=judged.context.root)
