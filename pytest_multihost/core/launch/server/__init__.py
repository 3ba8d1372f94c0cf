"""The server: the process that holds the collected tests and forks ranks; and how to start one.

`serve` is its loop, `rank_processes` are the ranks in it and `parts` are those of services;
`start_server` starts it, and `fork_safety` says whether the controller may be forked; `launcher`
and `world` are the controller's side.
"""

from pytest_multihost.core.launch.server.launcher import ServerLauncher
from pytest_multihost.core.launch.server.start_server import (
    ServerProgram,
    exec_server,
    fork_server,
    prepare_and_serve,
    serve_with_libraries,
)
from pytest_multihost.core.launch.server.world import ServerConnection, ServerWorld

__all__ = [
    "ServerConnection",
    "ServerLauncher",
    "ServerProgram",
    "ServerWorld",
    "exec_server",
    "fork_server",
    "prepare_and_serve",
    "serve_with_libraries",
]
