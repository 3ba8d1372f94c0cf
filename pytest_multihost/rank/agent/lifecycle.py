"""A rank's life: reset what the fork copied, start the backend, run the one test, report, leave.

A rank passes three gates, which the controller opens for all ranks together: `go` when all are
ready; `teardown` when all test bodies are over, because a rank that has finished closes its
sockets, and those that wait for it would see a lost connection instead of a hang; `exit` when all
fixtures are torn down.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_multihost.backends import Backend
from pytest_multihost.launch.wire import Channel
from pytest_multihost.model.event import Done, Ready, now
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.nemesis import kinds_by_name
from pytest_multihost.pytest_private import (
    redirect_log_file,
    redirect_terminal,
    reset_setup_state,
    set_base_temp,
    stop_capturing,
)
from pytest_multihost.rank.adapt_tools import share_hypothesis_examples
from pytest_multihost.rank.agent.hooks import RankPlugin, is_expected
from pytest_multihost.rank.points import bind_faults
from pytest_multihost.rank.recorder import current_recorder
from pytest_multihost.rank.stages import (
    ControllerLink,
    leave,
    send_interrupted,
    sending_errors,
    start_backend,
    start_rank,
)
from pytest_multihost.rank.world import World, set_world
from pytest_multihost.rank.world_clock import clock_of

FindItem = Callable[[str], pytest.Item]

_PLUGIN = "multihost_rank"
"""The name by which the hooks inside a rank are registered."""

_NOT_IN_A_RANK = (
    "timeout",  # pytest-timeout: its SIGALRM would fire in a rank; the world has its own deadline
    "faulthandler",  # its one global timer and its descriptor belong to the controller
    "pdbinvoke",
    "pdbtrace",
    "reportlog_plugin",  # writes the controller's file
)
"""Plugins of the controller that must not act in a rank, by the names they register."""


def run_rank(
    spec: RankSpec, channel: Channel, *, find_item: FindItem, backends: Mapping[str, Backend]
) -> NoReturn:
    """Be a rank that was forked from a process that has collected. Never returns.

    Args:
        spec: This rank, and the world that it is part of.
        channel: Its connection to the controller.
        find_item: Returns the collected item with a given node id.
        backends: All backends by name.
    """
    start_rank(spec, channel)
    backend = backends[spec.world.backend]
    start_backend(spec, channel, backend)
    run_test_and_exit(spec, channel, find_item=find_item, backend=backend)


def run_test_and_exit(
    spec: RankSpec, channel: Channel, *, find_item: FindItem, backend: Backend
) -> NoReturn:
    """Run the one test and leave.

    Args:
        spec: This rank, and the world that it is part of.
        channel: Its connection to the controller.
        find_item: Returns the collected item with a given node id.
        backend: The world's backend, which has been started.
    """
    link = ControllerLink(channel)
    with sending_errors(channel, root=str(Path.cwd())):
        item = find_item(spec.world.nodeid)
    root = str(item.config.rootpath)

    def fail(error: BaseException) -> NoReturn:
        send_interrupted(channel, error, root=root, is_expected=is_expected(item, error))

    with sending_errors(channel, root=root):
        # jax registers its shutdown barrier here; a rank leaves without it, see `leave`.
        atexit._clear()  # noqa: SLF001 - as in after_fork
        set_world(World(spec, backend, channel, current_recorder(), clock_of(spec)))
        plugin = _prepare_item(item, spec)
        share_hypothesis_examples(getattr(item, "obj", None), spec.world.seed, fail)
        gc.freeze()  # the last check of the rank is about what the test leaves
        ready_s = now()
        link.send(Ready())
        link.await_gate("go")
        found = item.config.hook.pytest_multihost_faults() if spec.world.faults else ()
        kinds, recorder = kinds_by_name(found), current_recorder()
        performed = link.await_performed
        points = bind_faults(
            spec, kinds, recorder, link.send, performed, root=root, ready_s=ready_s
        )
        plugin.enter(link, points)
        # pytest's own protocol, and not just the function: assertion messages, warning filters and
        # other plugins are all done by hooks inside it.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        link.send(Done())
    leave(link)


def prepare_pytest(config: pytest.Config) -> None:
    """Detach this copy of pytest from the controller, and register the hooks of a rank.

    Done in the server, once for all ranks that it will fork: in each of them it would make a copy
    of hundreds of pages of memory.

    Without pytest's global capture a rank prints into its log. The capture keeps output in an
    unnamed temporary file, which is lost when the rank is killed: just when it is wanted. The log
    is read back into the report.
    """
    manager = config.pluginmanager
    if manager.has_plugin(_PLUGIN):
        return
    for name in filter(manager.has_plugin, _NOT_IN_A_RANK):
        manager.unregister(name=name)
    stop_capturing(config)
    sys.breakpointhook = _refuse_breakpoint
    manager.register(RankPlugin(config), _PLUGIN)


def _refuse_breakpoint(*_: object, **__: object) -> NoReturn:
    message = (
        "breakpoint() in a rank: a rank has no terminal."
        " Attach with `py-spy dump --pid`, or run the test with ranks=1 outside the marker."
    )
    raise RuntimeError(message)


def _prepare_item(item: pytest.Item, spec: RankSpec) -> RankPlugin:
    """Point this copy of pytest at the streams and files of this rank; return the rank's hooks."""
    config = item.config
    prepare_pytest(config)
    redirect_terminal(config, sys.stdout)
    redirect_log_file(config, sys.stderr)
    base = Path(spec.scratch, f"rank-{spec.rank}")
    base.mkdir(mode=0o700)
    set_base_temp(config, base)
    # A server that replaces a dead one is forked in the middle of a run, while the controller has
    # an item on its stack.
    reset_setup_state(item.session)
    plugin: RankPlugin = config.pluginmanager.get_plugin(_PLUGIN)  # type: ignore[assignment]
    return plugin
