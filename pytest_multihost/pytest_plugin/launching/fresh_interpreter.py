"""Other interpreters that run pytest for the controller: a server, or a rank of its own.

Such an interpreter gets the controller's own command line, so it sees the same configuration, and
collects the files of the selected items. What would disturb the controller's run - its report
files, its base directory, more processes - is switched off here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_multihost.backends.registry import find
from pytest_multihost.launch.interface import RunRank
from pytest_multihost.launch.server.spawn_server import spec_of
from pytest_multihost.launch.server.start_server import control_of, prepare_and_serve, take_job_spec
from pytest_multihost.launch.wire.framing import Channel
from pytest_multihost.model.errors import CollectedDifferentlyError
from pytest_multihost.pytest_plugin.launching.server_process import (
    find_item_in,
    offered_backends,
    prepare_server,
)
from pytest_multihost.pytest_plugin.process_role import Errand, take_on
from pytest_multihost.rank.agent import arrive, live, run_rank, start_backend, tell_interrupted

CODE = "from pytest_multihost.pytest_plugin.launching.fresh_interpreter import main; main()"

_OFF: Mapping[str, Any] = {
    "basetemp": None,
    "cacheclear": False,
    "collectonly": False,
    "dist": "no",  # xdist
    "distload": False,
    "failedfirst": False,
    "lf": False,
    "log_file": os.devnull,
    "looponfail": False,
    "newfirst": False,
    "numprocesses": None,
    "pastebin": None,
    "report_log": None,  # pytest-reportlog
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}
"""Options of pytest and its neighbours that must not act twice, with what switches them off."""

_REPLACED = {"rerunfailures": "flaky(...): see pytest-rerunfailures"}
"""Plugins that start threads, with the marker that must stay known without them."""


def main() -> NoReturn:
    """Run pytest as the controller was run, for an errand."""
    order = take_job_spec()
    os.chdir(order["cwd"])
    if order["path"] is not None:
        sys.path[:] = order["path"]
    sys.argv[:] = ["pytest", *order["args"]]
    task = Errand(order["files"], order)
    take_on(task)
    if "spec" in order:
        _arrive(task)
    sys.exit(pytest.main(order["args"]))


def _arrive(task: Errand) -> None:
    """Become a rank as far as that goes without pytest."""
    import socket

    stream = socket.socket(fileno=task.order["channel"])
    stream.set_inheritable(False)
    task.place = spec_of(task.order), Channel(stream)
    arrive(*task.place)


def start_early(task: Errand, early_config: pytest.Config) -> None:
    """Start a rank's backend before anything of the user's is imported.

    jax must be initialised before the first array, and a module-level `jnp.ones(3)` makes one
    while the tests are collected. A backend that only a conftest offers is started afterwards.
    """
    if task.place is None:
        return
    spec, channel = task.place
    offered = {each.name: each for each in offered_backends(early_config)}
    if spec.world.backend in offered:
        task.backend = offered[spec.world.backend]
        start_backend(spec, channel, task.backend)


def calm_down(task: Errand, config: pytest.Config) -> None:
    """Switch off what must not act twice, and collect only what is needed."""
    for name, value in _OFF.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    for name, marker in _REPLACED.items():
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)
            config.addinivalue_line("markers", marker)
    config.args = list(task.files)


def serve_or_live(task: Errand, session: pytest.Session) -> NoReturn:
    """Do what this interpreter was started for, now that it has collected."""
    if task.place is None:
        _serve(task, session)
    spec, channel = task.place
    is_started = task.backend is not None
    backend = task.backend or find(spec.world.backend, offered_backends(session.config))
    live(
        spec,
        channel,
        find_item=find_item_in(session.items, task.problems),
        backend=backend,
        is_started=is_started,
    )


def _serve(task: Errand, session: pytest.Session) -> NoReturn:
    names = task.order["backends"]
    offered = offered_backends(session.config)
    backends = {name: find(name, offered) for name in names}
    run: RunRank = partial(
        run_rank, find_item=find_item_in(session.items, task.problems), backends=backends
    )
    prepare = partial(
        prepare_server,
        session.config,
        session.items,
        list(backends.values()),
    )
    prepare_and_serve(control_of(task.order), run, prepare, controller=task.order["controller"])


def give_up(task: Errand) -> None:
    """Tell the controller that pytest ended before a rank could run its test."""
    if task.place is None:
        return
    _, channel = task.place
    error = CollectedDifferentlyError(
        "the rank could not collect the test",
        seen="pytest ended before it; the rank's log says why.",
    )
    tell_interrupted(channel, error, root=str(Path.cwd()))
