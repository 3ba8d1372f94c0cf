"""Run a script in a rank, as ``python train.py`` or ``python -m package.module`` would.

Only the end differs: a rank whose script is over keeps its connections open until the scripts of
all ranks are over. Otherwise ranks that wait for it would see a lost connection instead of a hang.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import _exit  # by name: a script may replace it in its module
from pathlib import Path
from typing import Any, NoReturn

import pluggy

from pytest_multihost.core.backends import Backend, find_backend, offered_backends
from pytest_multihost.core.cpython_private import (
    clear_exit_handlers,
    note_exit_handlers,
    wait_for_threads,
)
from pytest_multihost.core.launch.job_spec import (
    RankJob,
    ScriptRun,
    ServerJob,
    open_channel,
    open_control,
    take_job,
)
from pytest_multihost.core.launch.server.serve import serve
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.event import Done, Parked, PhaseEntered, Ready, now
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.nemesis import FaultKind, kinds_by_name
from pytest_multihost.core.rank.points import Points, bind_faults, start_faults
from pytest_multihost.core.rank.program_child import run_in_child
from pytest_multihost.core.rank.raised_errors import trimmed_traceback
from pytest_multihost.core.rank.recorder import current_recorder, prepare_recording
from pytest_multihost.core.rank.role_order import start_in_order
from pytest_multihost.core.rank.role_program import exit_code, filled_in
from pytest_multihost.core.rank.services import begin_test, end_test, park_services
from pytest_multihost.core.rank.stages import (
    ControllerLink,
    leave,
    send_interrupted,
    sending_errors,
    start_backend,
    start_rank,
)
from pytest_multihost.core.rank.world import World, set_world
from pytest_multihost.core.registry import new_plugin_manager


def main() -> None:
    """Run this process as a rank; returns only in a process that the script has forked."""
    job: RankJob = take_job(RankJob)
    assert isinstance(job.run, ScriptRun)  # noqa: S101 - for the type checker
    _run_rank(job.spec, open_channel(job), run=job.run)


def serve_script() -> NoReturn:
    """Serve until the controller ends; the ranks are forked from this process."""
    job: ServerJob = take_job(ServerJob)
    run = job.run
    assert isinstance(run, ScriptRun)  # noqa: S101 - for the type checker
    hook = _plugins(run).hook
    for each in job.backends:
        find_backend(each, offered_backends(hook)).preload()
    prepare_recording()

    def run_rank(spec: RankSpec, channel: Channel) -> NoReturn:
        _run_rank(spec, channel, run=run)
        _exit(0)  # of a process that the script has forked

    serve(open_control(job), run_rank, controller=job.controller, scratch=job.scratch)


def _run_rank(spec: RankSpec, channel: Channel, *, run: ScriptRun) -> None:
    """Run this process as a rank; returns only in a process that the script has forked."""
    run = run if spec.role is None else _script_of(spec, spec.role, run)
    start_rank(spec, channel, keeps_input=spec.rank == 0)  # the server's own if there is none
    link, root = ControllerLink(channel), str(Path.cwd())
    with sending_errors(channel, root=root):
        _set_arguments(run)
        hook = _plugins(run).hook
        backend = find_backend(spec.backend, offered_backends(hook))
    start_backend(spec, channel, backend)

    def body() -> object:
        if spec.role is not None and spec.role.has_children:
            run_in_child(run.words, spec.role, link)
            return None
        kept = _run_script(run)
        wait_for_threads()
        return kept

    run_body(spec, channel, backend, hook, body)


def run_body(
    spec: RankSpec,
    channel: Channel,
    backend: Backend,
    hook: pluggy.HookRelay,
    body: Callable[[], object],
) -> None:
    """Run a function in a rank that has started; returns only in a process that it has forked.

    Args:
        body: What it returns is kept until the rank leaves.
    """
    link, root = ControllerLink(channel), str(Path.cwd())
    # Exit handlers that a backend has registered, such as jax's shutdown barrier, must not run.
    clear_exit_handlers()
    own_handlers = note_exit_handlers(lambda file: not is_library(file))
    with sending_errors(channel, root=root):
        points = _begin(spec, link, backend, kinds_by_name(hook.pytest_multihost_faults()), root)
    try:
        kept = body()
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        _tell(error, channel, root)
    else:
        if channel.is_ours:
            end_test()
            _end(link, points, runs_more=bool(own_handlers))
        del kept


def _script_of(spec: RankSpec, role: RoleSpec, run: ScriptRun) -> ScriptRun:
    """Return the script of a rank's role, with the rank's port and numbers in its arguments."""
    found = run.of_role(role.name)
    return replace(found, script_args=tuple(filled_in(e, spec) for e in found.script_args))


def _plugins(run: ScriptRun) -> pluggy.PluginManager:
    """Return the plugins that offer the backend and the faults of the script's world."""
    if run.plugins is None:
        return new_plugin_manager()
    from pytest_multihost.core.project_plugins import project_plugins

    return project_plugins(run.plugins)


def _begin(
    spec: RankSpec,
    link: ControllerLink,
    backend: Backend,
    kinds: Mapping[str, FaultKind],
    root: str,
) -> Points:
    """Wait until all ranks are ready, start this rank's faults, and return its points."""
    set_world(World(spec, backend, link.channel, current_recorder()))
    ready_s = now()
    link.send(Ready())
    link.await_gate("go")
    points = bind_faults(
        spec,
        kinds,
        current_recorder(),
        link.send,
        link.await_performed,
        root=root,
        ready_s=ready_s,
    )
    begin_test()
    link.send(PhaseEntered("call"))
    start_in_order(spec, link)
    start_faults(points)
    return points


def _set_arguments(run: ScriptRun) -> None:
    """Set the script's arguments, and the folder of its modules."""
    sys.argv[:] = [run.script, *run.script_args]
    # The interpreter was started with -P, so `python -c` has put no entry there.
    folder = Path.cwd() if run.is_module else Path(run.script).resolve().parent
    sys.path.insert(0, str(folder))


def _run_script(run: ScriptRun) -> dict[str, Any]:
    """Run the script; return its module's names, which the caller keeps until the rank leaves.

    Raises:
        BaseException: Any exception of the script, except an exit without an error.
    """
    try:
        if run.is_module:
            return runpy.run_module(run.script, run_name="__main__", alter_sys=True)
        return runpy.run_path(str(Path(run.script).absolute()), run_name="__main__")
    except SystemExit as error:
        if not exit_code(error):
            return {"": error}  # its traceback keeps the module alive
        raise


def _tell(error: BaseException, channel: Channel, root: str) -> NoReturn:
    """Print an exception as Python does, send it, and leave; in a forked process only raise it."""
    if not channel.is_ours:
        raise error
    if not isinstance(error, SystemExit):
        with contextlib.suppress(Exception):  # the script may have set its own
            error.__traceback__ = trimmed_traceback(error)  # the one that is printed
            sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(error.code, int):
        sys.stderr.write(f"{error.code}\n")
    send_interrupted(channel, error, root=root)


def _end(link: ControllerLink, points: Points, *, runs_more: bool) -> NoReturn:
    """Wait until the scripts of all ranks are over, and leave.

    Args:
        runs_more: Whether the script has registered functions of its own with `atexit`.
    """
    points.heal()
    link.send(Parked(runs_more=runs_more))
    park_services()
    link.await_gate("teardown")
    link.send(Done())
    leave(link)
