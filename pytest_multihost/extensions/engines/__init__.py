"""Runs whose ranks others start: torchrun, mpirun, Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.command.joined_script import JoinedScript


@hookimpl
def pytest_multihost_run_joined(script: JoinedScript) -> int:
    """Run a script in ranks of the processes that a launcher has started."""
    from pytest_multihost.extensions.engines.joined_script import run_joined

    return run_joined(script)
