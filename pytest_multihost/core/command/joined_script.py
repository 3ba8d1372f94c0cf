"""A script that the processes of a launcher such as torchrun run together.

The command does not know the other processes. A plugin lets them join, with the hook
`pytest_multihost_run_joined`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch import Launcher
from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.world_plan import WorldPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcesses:
    """The other processes that start ranks of a world, for the process that runs it.

    Attributes:
        launcher: Takes the launcher of this process, and returns one for the ranks in all
            processes.
        pids: The ids of those processes that are on this machine.
        check: Called periodically while the world runs; raises KeyboardInterrupt if one of the
            processes has received a signal that ends the run.
    """

    launcher: Callable[[ServerLauncher], Launcher] = lambda own: own
    pids: frozenset[int] = frozenset()
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedScript:
    """A script, and the functions with which one of the processes can run it.

    Attributes:
        scratch: A private directory of this process.
        plan: Takes a number of ranks and returns the plan of the world; raises SettingError if an
            option or this machine does not allow it.
        launcher: Returns the launcher of this process for a world.
        run: Runs a world from this process, shows how it ends, and returns the exit code.
    """

    folder: Path
    scratch: Path
    plan: Callable[[int], WorldPlan]
    launcher: Callable[[WorldPlan], ServerLauncher]
    run: Callable[[WorldPlan, OtherProcesses], int]
