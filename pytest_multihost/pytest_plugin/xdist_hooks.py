"""Hooks of pytest-xdist. Optional: it need not be installed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_multihost.pytest_plugin.results.tally import TALLY


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - xdist's WorkerController
    """Tell an xdist worker which run it belongs to and how pytest was called."""
    from pytest_multihost.report.artifacts import new_run_id

    tally = node.config.stash[TALLY]
    tally.run_id = tally.run_id or new_run_id()
    node.workerinput["multihost_run_id"] = tally.run_id
    node.workerinput["multihost_args"] = [str(arg) for arg in node.config.invocation_params.args]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ANN401, ARG001
    """Add up what the workers have selected and run."""
    told = getattr(node, "workeroutput", {}).get("multihost")
    if told is not None:
        tally = node.config.stash[TALLY]
        tally.selected += told["selected"]
        tally.ran += told["ran"]
