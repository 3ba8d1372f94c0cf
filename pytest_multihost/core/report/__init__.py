"""Render results: pages for a browser, text for the terminal, GitHub, traces, artifacts.

`html` is a sub-package with exports of its own. `artifacts` is what a run leaves on disk: folders
of runs and attempts, and the records in them.

`text` is what the terminal shows of a world, `github` what GitHub does, `trace` what Perfetto
opens; `layout` is what text for the terminal is made of, with words that several of them share.

`sweep` renders sweeps for the terminal, GitHub and as sweep.json, in the words of `sweep_words`.

`hazards` shows what passing runs tell of hangs elsewhere.

`logs` reads logs: their beginnings and ends, and what is added to them.
"""

from pytest_multihost.core.report.logs import LiveOutput, read_log
from pytest_multihost.extensions.github.report import Checkout, append_summary, error_commands
from pytest_multihost.extensions.trace.trace import write_trace

__all__ = ["Checkout", "LiveOutput", "append_summary", "error_commands", "read_log", "write_trace"]
