"""From the result of a world to what pytest shows and what is written.

Imported when the first world starts: importing the plugin must stay cheap.
"""

from pytest_multihost.pytest_plugin.results.artifacts import (
    CompletedAttempt,
    write_artifacts,
    write_run_page,
)
from pytest_multihost.pytest_plugin.results.live_display import live_display, write_through
from pytest_multihost.pytest_plugin.results.pytest_report import add_results, longrepr
from pytest_multihost.pytest_plugin.results.workflow import annotate_workflow

__all__ = [
    "CompletedAttempt",
    "add_results",
    "annotate_workflow",
    "live_display",
    "longrepr",
    "write_artifacts",
    "write_run_page",
    "write_through",
]
