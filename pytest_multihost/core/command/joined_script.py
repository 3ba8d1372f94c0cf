"""A script that processes run together which a launcher such as torchrun has started.

The other processes are no concern of the command: a plugin lets them join, over the hook
`pytest_multihost_run_joined`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.launch import Launcher
from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.model.spec import WorldSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcesses:
    """The other processes that start ranks of a world, for the one that runs it.

    Attributes:
        launcher: Returns what starts the ranks in all processes; takes what starts them in this
            one.
        pids: Those of them that are on this machine.
        check: Called now and then while the world runs; raises KeyboardInterrupt if one of them
            has received a signal that ends the run.
    """

    launcher: Callable[[ServerLauncher], Launcher] = lambda own: own
    pids: frozenset[int] = frozenset()
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedScript:
    """A script, and what one of the processes can do to run it.

    Attributes:
        folder: Where its runs are kept.
        scratch: A private directory of this process.
        plan: Returns the world of so many ranks; raises SettingError if there cannot be such.
        launcher: Returns what starts ranks of a world in this process.
        run: Runs a world from this process, shows how it ends, and returns the exit code.
    """

    folder: Path
    scratch: Path
    plan: Callable[[int], WorldSpec]
    launcher: Callable[[WorldSpec], ServerLauncher]
    run: Callable[[WorldSpec, OtherProcesses], int]
