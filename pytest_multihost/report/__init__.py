"""Render results: pages for a browser, text for the terminal, GitHub, traces, artifacts.

`html`, `text` and `sweep` are sub-packages with exports of their own. `artifacts` is
what a run leaves on disk: folders of runs and attempts, and the records in them; `attempt_files`
writes all that there is of a world that went wrong.

`activity` prepares the activity of ranks for the pages, for `trace` and for `github`.

`clock_words` says what all reports say of a clock that jumps.

`layout` is what pages for the terminal are made of. `sweep_words` says what all reports of a sweep
say.

`hazards` shows what passing runs tell of hangs elsewhere.

`logs` reads logs: their beginnings and ends, and what is added to them.
"""

from pytest_multihost.report.github import Checkout, append_summary, error_commands
from pytest_multihost.report.logs import LiveOutput, read_log
from pytest_multihost.report.trace import write_trace

__all__ = ["Checkout", "LiveOutput", "append_summary", "error_commands", "read_log", "write_trace"]
