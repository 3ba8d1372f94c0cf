"""Hooks that other plugins and conftest files implement: the extension guide.

The built-in backends and faults are registered through the same hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pytest

    from pytest_multihost.core.backends import Backend
    from pytest_multihost.core.command.explainer import Explainer
    from pytest_multihost.core.command.joined_script import JoinedScript
    from pytest_multihost.core.launch.meeting import Meeting
    from pytest_multihost.core.model.errors import MultihostError
    from pytest_multihost.core.nemesis import FaultKind

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - has no other name
    """What ``argparse.ArgumentParser.add_subparsers`` returns."""

hookspec = pluggy.HookspecMarker("pytest")
"""Marks a function as the specification of a hook. pytest's own marker, without pytest."""

hookimpl = pluggy.HookimplMarker("pytest")
"""Marks a function as an implementation of a hook: `pytest.hookimpl`, without pytest."""


@hookspec
def pytest_multihost_backends() -> Sequence[Backend]:  # type: ignore[empty-body]
    """Return backends to offer under ``@pytest.mark.multihost(backend=...)``.

    Called when the first multihost test is known, in pytest's own process and in every interpreter
    that it starts. If two have the same name, the plugin registered last wins, so a project can
    replace a built-in backend.
    """


@hookspec
def pytest_multihost_faults() -> Sequence[FaultKind]:  # type: ignore[empty-body]
    """Return kinds of faults to offer as ``faults.other("name", rank=..., ...)``.

    Called in pytest's own process when the first multihost test is known, and in each rank of a
    world that has faults. If two have the same name, the plugin registered last wins. A fault
    registers with ``strike.healing`` how to undo its changes when the test's body is over.
    """


@hookspec
def pytest_multihost_server_start(config: pytest.Config) -> None:
    """Load large modules and data once; every rank inherits them, copy-on-write.

    Runs in the server, after collection and before the first rank is forked; it does not run if
    every rank collects by itself (launch `spawn`, `hash_seed`). The server must stay
    single-threaded: import modules and read data, but start no threads, no runtime and no parallel
    computation.
    """


# The console script `multihost`


@hookspec
def pytest_multihost_commands(commands: Commands) -> None:
    """Add subcommands to ``multihost``.

    Called before the command line is read, also for ``--help``: import what a command needs in the
    function that runs it. ``commands.add_parser("name", help=...).set_defaults(act=function)`` says
    which one that is. It is called with the options and with the hooks of all plugins, a
    `pluggy.HookRelay`, and returns the exit code; a `MultihostError` that it raises is shown.

    Plugins of others are found as pytest finds them: conftest.py in the working directory and
    installed plugins. They are loaded only for a command that this package does not have, so
    ``multihost --help`` does not list theirs.
    """


@hookspec
def pytest_multihost_explainers() -> Sequence[Explainer]:  # type: ignore[empty-body]
    """Return what explains folders of other kinds for ``multihost explain``.

    They are asked in turn, those of the plugin registered last first. A folder that none of them
    knows is explained as that of an attempt. Extensions of this package alone are asked: a plugin
    of others has a subcommand of its own.
    """


@hookspec
def pytest_multihost_rebuild(run: Path) -> Iterable[Path | MultihostError]:  # type: ignore[empty-body]
    """Write own pages of a run again from its artifacts, for ``multihost report``.

    Extensions of this package alone are asked.

    Args:
        run: The folder of the run.

    Returns:
        The path of each page, or why it cannot be written.
    """


@hookspec(firstresult=True)
def pytest_multihost_run_joined(script: JoinedScript) -> int | None:
    """Run a script in ranks of the processes that a launcher has started, this one among them.

    Called for ``multihost run`` without ``--ranks``, in each of these processes. The one that runs
    the world calls ``script.run``; the others start ranks for it until it ends.

    Returns:
        The exit code of the run, in every process.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """


@hookspec(firstresult=True)
def pytest_multihost_meeting(folder: Path) -> Meeting | None:
    """Return how this process meets the others that its launcher has started with it.

    For commands that run on several machines at once, as ``multihost attach``.

    Args:
        folder: A folder that the processes may share.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """
