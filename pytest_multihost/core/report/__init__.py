"""Renders results as pages for a browser, text for the terminal, and files on disk.

* `html` is a sub-package with exports of its own.
* `artifacts` writes and reads the folders of runs and attempts, and the records in them.
* `text` renders a world for the terminal; `layout` has its columns, colours and shared words.
* `ground` says why a world counts as hung, and how soon that was known.
* `hints` is advice for classic mistakes, and `leftovers` names processes that ranks left behind;
  `lock_lines` are about threads that wait for locks, `child_lines` about child processes.
* `live_line` is the line on the terminal while a world runs.
* `markdown` escapes and fits text for summaries.
* `renderer` is the interface of extensions that add to reports; `annotation` is a text at a line of
  the code.
* `logs` reads the ranks' logs: excerpts for pages, and new lines as they come.
"""

from pytest_multihost.core.report.annotation import Annotation
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    last_attempts,
    new_run_id,
    write_attempt,
    write_facts,
)
from pytest_multihost.core.report.logs import LiveOutput, read_log, without_lines
from pytest_multihost.core.report.renderer import Renderer

__all__ = [
    "Annotation",
    "Attempt",
    "LiveOutput",
    "Renderer",
    "RunFolder",
    "build_verdict",
    "last_attempts",
    "new_run_id",
    "read_log",
    "without_lines",
    "write_attempt",
    "write_facts",
]
