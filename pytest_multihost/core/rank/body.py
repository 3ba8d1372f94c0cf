"""Runs a script or a function in a rank in place of a test, and ends the rank as after a test."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pluggy

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.cpython_private import (
    clear_exit_handlers,
    note_exit_handlers,
)
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.event import Done, Parked, PhaseEntered, Ready, now
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.rank.raised_errors import trimmed_traceback
from pytest_multihost.core.rank.recorder import current_recorder
from pytest_multihost.core.rank.role_order import start_in_order
from pytest_multihost.core.rank.services import (
    RankTest,
    begin_test,
    end_test,
    leave_body,
    park_services,
)
from pytest_multihost.core.rank.stages import (
    ControllerLink,
    leave,
    leave_now,
    send_interrupted,
    sending_errors,
)
from pytest_multihost.core.rank.world import World, set_world


def run_body(
    spec: RankSpec,
    channel: Channel,
    backend: Backend,
    plugins: pluggy.PluginManager,
    body: Callable[[], object],
    *,
    leaves: bool = False,
) -> None:
    """Run a function in a rank that has started; returns only in a process that it has forked.

    Args:
        body: The function; its result is kept until the rank leaves.
        leaves: Whether the rank's process ends with the function, as one of `multiprocessing` does;
            else it waits until the functions of all ranks are over.
    """
    link, root = ControllerLink(channel), str(Path.cwd())
    # Exit handlers that a backend has registered, such as jax's shutdown barrier, must not run.
    clear_exit_handlers()
    own_handlers = note_exit_handlers(lambda file: not is_library(file))
    with sending_errors(channel, root=root):
        _begin(spec, link, backend, plugins, root)
    try:
        kept = body()
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        _tell(error, channel, root)
    else:
        if channel.is_ours:
            end_test()
            _end(link, runs_more=bool(own_handlers), leaves=leaves)
        del kept


def _begin(
    spec: RankSpec,
    link: ControllerLink,
    backend: Backend,
    plugins: pluggy.PluginManager,
    root: str,
) -> None:
    """Wait until all ranks are ready, and start the services' parts in this rank."""
    set_world(World(spec, backend, link.channel, current_recorder()))
    ready_s = now()
    link.send(Ready())
    link.await_gate("go")
    test = RankTest(
        send=link.send,
        await_performed=link.await_performed,
        ask=link.ask,
        plugins=plugins,
        root=root,
        ready_s=ready_s,
    )
    link.send(PhaseEntered("call"))
    start_in_order(spec, link)
    begin_test(test)


def _tell(error: BaseException, channel: Channel, root: str) -> NoReturn:
    """Print an exception as Python does, send it, and leave; in a forked process only raise it."""
    if not channel.is_ours:
        raise error
    if not isinstance(error, SystemExit):
        with contextlib.suppress(Exception):  # the script may have set its own
            error.__traceback__ = trimmed_traceback(error)  # as it is printed
            sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")
    send_interrupted(channel, error, root=root)


def _end(link: ControllerLink, *, runs_more: bool, leaves: bool) -> NoReturn:
    """Wait until the scripts of all ranks are over, and leave.

    Args:
        runs_more: Whether the script has registered functions of its own with `atexit`.
    """
    leave_body()
    link.send(Parked(runs_more=runs_more, leaves=leaves))
    park_services()
    if leaves:
        link.send(Done())
        leave_now()
    link.await_gate("teardown")
    link.send(Done())
    leave(link)
