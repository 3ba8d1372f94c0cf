"""Render the sweep of a test; its page for a browser is in `report.html`.

`text` is what the terminal shows, `records` the file sweep.json, `github` what GitHub shows.
"""

from pytest_multihost.report.sweep.github import append_sweep_summary, sweep_commands
from pytest_multihost.report.sweep.records import SWEEP_NAME, read_sweep, sweeps_of, write_sweep
from pytest_multihost.report.sweep.text import sweep_progress, sweep_section

__all__ = [
    "SWEEP_NAME",
    "append_sweep_summary",
    "read_sweep",
    "sweep_commands",
    "sweep_progress",
    "sweep_section",
    "sweeps_of",
    "write_sweep",
]
