"""Run a script in a rank, as ``python train.py`` or ``python -m package.module`` would.

Only the end differs: a rank whose script is over keeps its connections open until the scripts of
all ranks are over. Otherwise ranks that wait for it would see a lost connection instead of a hang.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from os import _exit  # by name: a script may replace it in its module
from pathlib import Path
from typing import Any, NoReturn

import pluggy

from pytest_multihost.core.backends import find_backend, offered_backends
from pytest_multihost.core.cpython_private import (
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
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.body import run_body
from pytest_multihost.core.rank.program_child import run_in_child
from pytest_multihost.core.rank.recorder import prepare_recording
from pytest_multihost.core.rank.role_program import exit_code, filled_in
from pytest_multihost.core.rank.stages import (
    ControllerLink,
    sending_errors,
    start_backend,
    start_rank,
)
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
        plugins = _plugins(run)
        backend = find_backend(spec.backend, offered_backends(plugins.hook))
    start_backend(spec, channel, backend)

    def body() -> object:
        if spec.role is not None and spec.role.has_children:
            run_in_child(run.words, spec.role, link)
            return None
        kept = _run_script(run)
        wait_for_threads()
        return kept

    run_body(spec, channel, backend, plugins, body)


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
