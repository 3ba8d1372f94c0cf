"""Reports a run to GitHub Actions: errors at lines, and a page in the summary of the step.

`annotations` makes the errors and `summary` the page, both from `facts` of the verdicts; the
findings of other extensions come from their renderers. `workflow` writes both at the end of a run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pytest


@hookimpl(trylast=True)  # below the core's output
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Annotate the workflow, and add the run to the summary of the step."""
    is_worker = hasattr(
        terminalreporter.config, "workerinput"
    )  # xdist's controller does it for all
    if os.environ.get("GITHUB_ACTIONS") == "true" and not is_worker:
        from pytest_multihost.extensions.github.workflow import annotate_workflow

        annotate_workflow(terminalreporter)
