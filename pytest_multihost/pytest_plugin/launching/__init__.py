"""Choose and start the launchers of a run, with what they need to know of pytest.

`pytest_multihost.launch` starts ranks and knows no pytest; this package says what it is to start.
`requirements`: which launcher a test needs. `launchers`: one launcher for each set of requirements,
made by `launcher_factory` or `container_launcher`. `server_process`: what a server does with
pytest's items. `fresh_interpreter`: the main program of a server that is not forked from the
controller, or of one rank.
"""

from pytest_multihost.pytest_plugin.launching.launcher_factory import LauncherFactory
from pytest_multihost.pytest_plugin.launching.launchers import Launchers
from pytest_multihost.pytest_plugin.launching.requirements import (
    LaunchRequirements,
    launch_problems,
    launch_requirements,
)
from pytest_multihost.pytest_plugin.launching.server_process import (
    ORIGINAL,
    offered_backends,
    plain_nodeid,
)

__all__ = [
    "ORIGINAL",
    "LaunchRequirements",
    "LauncherFactory",
    "Launchers",
    "launch_problems",
    "launch_requirements",
    "offered_backends",
    "plain_nodeid",
]
