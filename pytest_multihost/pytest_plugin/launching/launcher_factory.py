"""Make launchers of local processes: which servers to try, and how each is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.backends import Backend
from pytest_multihost.launch.job_spec import PytestRun, ServerJob, SpawnServerJob
from pytest_multihost.launch.server import (
    FallbackLauncher,
    ServerConnection,
    ServerLauncher,
    ServerProgram,
    exec_server,
    fork_server,
)
from pytest_multihost.launch.server.spawn_server import SPAWN_SERVER_CODE
from pytest_multihost.pytest_plugin.launching import fresh_interpreter
from pytest_multihost.pytest_plugin.launching.server_process import find_item_in, prepare_server
from pytest_multihost.rank import foreign_variables, thread_variables
from pytest_multihost.rank.agent import run_rank

SERVER_MODES = ("server", "spawn")
"""Ways of launching that begin with a new interpreter, the cheapest first."""


@dataclass(frozen=True, slots=True)
class LauncherFactory:
    """Makes launchers for the tests of one run.

    Attributes:
        config: pytest's configuration.
        items: The multihost items.
        backends: The backends they use, by name.
        logs: Folder for the output of servers.
    """

    config: pytest.Config
    items: Sequence[pytest.Item]
    backends: Mapping[str, Backend]
    logs: Path

    def fallback_launcher(self, mode: str, env: Mapping[str, str]) -> FallbackLauncher:
        """Return a launcher that tries the ways of launching, the cheapest first.

        Args:
            mode: "auto", or the one way to use.
            env: Variables that must be set before the ranks' interpreter starts; a server
                forked from this process cannot have them.
        """
        starts: dict[str, Callable[[], ServerConnection]] = {
            "fork": self._fork,
            "server": partial(self._exec, env),
            "spawn": partial(self._spawn, env),
        }
        names = [mode] if mode != "auto" else list(starts)
        if env and "fork" in names:
            names.remove("fork")
        return FallbackLauncher([ServerLauncher(name, starts[name]) for name in names])

    def _fork(self) -> ServerConnection:
        run = partial(run_rank, find_item=find_item_in(self.items), backends=self.backends)
        backends = list(self.backends.values())
        prepare = partial(prepare_server, self.config, self.items, backends)
        return fork_server(run, prepare)

    def _exec(self, env: Mapping[str, str]) -> ServerConnection:
        return exec_server(self.program("server", _environment(env), "server.log", sys.path))

    def _spawn(self, env: Mapping[str, str]) -> ServerConnection:
        return exec_server(self.program("spawn", _environment(env), "spawner.log", sys.path))

    def program(
        self, mode: str, environment: Mapping[str, str], log: str, path: list[str] | None
    ) -> ServerProgram:
        """Return what a new interpreter is to run.

        Args:
            mode: Of `SERVER_MODES`: whether it forks the ranks, or starts interpreters for them.
            environment: Its whole environment, or what an image's is to have besides.
            log: Name of the file in `logs` to which it prints.
            path: Its sys.path; None: the one that it starts with.
        """
        run = PytestRun(
            cwd=str(self.config.invocation_params.dir),
            args=_arguments(self.config),
            files=_files(self.items),
            path=None if path is None else tuple(path),
        )
        code = fresh_interpreter.CODE
        if mode == "server":
            job = ServerJob(run=run, backends=tuple(self.backends))
            return ServerProgram(code, job, environment, self.logs / log)
        spawn = SpawnServerJob(code=code, run=run)
        return ServerProgram(SPAWN_SERVER_CODE, spawn, environment, self.logs / log)


def _arguments(config: pytest.Config) -> tuple[str, ...]:
    """Return the command line; an xdist worker has the controller's in its input.

    The plugin is named as its entry point is, not by its module's path: pytest would take that for
    a second plugin where it loads entry points too, and two declare the same options twice. A name
    works with PYTEST_DISABLE_PLUGIN_AUTOLOAD as well.
    """
    workerinput: Mapping[str, object] = getattr(config, "workerinput", {})
    args = workerinput.get("multihost_args", config.invocation_params.args)
    extra = ["-p", "multihost_hangs"]
    if config.pluginmanager.has_plugin("_cov"):
        extra.append("--cov-append")  # else it erases what the controller has measured
    return (*(str(arg) for arg in args), *extra)  # type: ignore[attr-defined]


def _files(items: Iterable[pytest.Item]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(item.path) for item in items))


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server.

    It limits libraries to one thread, and has no variable of an outer world or launcher (`RANK`,
    `MASTER_ADDR`, ...), which would make ranks join that one.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in set(foreign_variables(os.environ))
    }
    return {
        **inherited,
        **thread_variables(inherited),
        "PYTEST_MULTIHOST_SERVER": "1",
        **env,
    }
