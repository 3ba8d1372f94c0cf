"""Hooks of neighbours: pytest-timeout and pytest-xdist. Optional: none need be installed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_multihost.pytest_plugin.run import DEADLINE, RUN
from pytest_multihost.reporting.artifacts import new_run_id


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:  # noqa: ANN401
    """Make pytest-timeout's limit the world's: its own would end pytest, not the ranks."""
    if item.nodeid not in item.config.stash[RUN].plans:
        return None
    item.stash[DEADLINE] = float(settings.timeout)
    return True


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """There is no timer to cancel for our items."""
    return True if DEADLINE in item.stash else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - xdist's WorkerController
    """Tell an xdist worker which run it belongs to and how pytest was called."""
    run = node.config.stash[RUN]
    run.run_id = run.run_id or new_run_id()
    node.workerinput["multihost_run_id"] = run.run_id
    node.workerinput["multihost_args"] = [str(arg) for arg in node.config.invocation_params.args]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ANN401, ARG001
    """Add up what the workers have selected and run."""
    told = getattr(node, "workeroutput", {}).get("multihost")
    if told is not None:
        run = node.config.stash[RUN]
        run.selected += told["selected"]
        run.ran += told["ran"]
