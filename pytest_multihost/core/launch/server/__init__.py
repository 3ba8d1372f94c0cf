"""The server, which holds the collected tests and forks ranks, and the controller's side of it.

In the server, `serve` is the loop, `rank_processes` manages the ranks, and `parts` is the interface
to the code of services; `huge_pages` and `heap_gaps` make forks of a large process cheap.
`start_server` starts a server, and `fork_safety` checks whether a process may be forked. In the
controller, `launcher` starts worlds, and `world` is the ranks of one server.
"""

from pytest_multihost.core.launch.server.fork_safety import call_fork_problems, fork_problems
from pytest_multihost.core.launch.server.launcher import ServerLauncher
from pytest_multihost.core.launch.server.rank_processes import PauseSchedule
from pytest_multihost.core.launch.server.start_server import (
    ServerProgram,
    exec_server,
    fork_server,
    prepare_and_serve,
    serve_with_libraries,
)
from pytest_multihost.core.launch.server.world import ServerConnection, ServerWorld

__all__ = [
    "PauseSchedule",
    "ServerConnection",
    "ServerLauncher",
    "ServerProgram",
    "ServerWorld",
    "call_fork_problems",
    "exec_server",
    "fork_problems",
    "fork_server",
    "prepare_and_serve",
    "serve_with_libraries",
]
