"""Runs whose ranks others start: torchrun, mpirun, Slurm.

`attach` connects the processes that a launcher has started, and starts ranks through all of them;
`pytest_plugin` does that for tests, `joined_script` for ``multihost run``. `peer_server` is what a
process does that is not rank 0's, `remote_ranks` shows ranks on other machines to the watchdog.
`meeting` connects processes for other commands, as ``multihost attach``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.command.joined_script import JoinedScript
    from pytest_multihost.core.launch.meeting import Meeting


@hookimpl
def pytest_multihost_run_joined(script: JoinedScript) -> int:
    """Run a script in ranks of the processes that a launcher has started."""
    from pytest_multihost.extensions.engines.joined_script import run_joined

    return run_joined(script)


@hookimpl
def pytest_multihost_meeting(folder: Path) -> Meeting:
    """Return the meeting of this process with the others of its launcher."""
    from pytest_multihost.extensions.engines.meeting import LauncherMeeting

    return LauncherMeeting.at(folder, os.environ)
