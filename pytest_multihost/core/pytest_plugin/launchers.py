"""The launchers of a run: derives which launcher each test requires, and makes each one once.

`core.launch` starts ranks and does not depend on pytest; this module configures it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.host_kind import Hosts
from pytest_multihost.core.launch.job_spec import SPAWN_SERVER_CODE, PytestRun, ServerJob
from pytest_multihost.core.launch.server import (
    ServerConnection,
    ServerLauncher,
    ServerProgram,
    exec_server,
    fork_server,
)
from pytest_multihost.core.model.fault import Fault, FaultFacts
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.option import LAUNCH, Settings
from pytest_multihost.core.preload import preload_variables
from pytest_multihost.core.pytest_plugin.server_process import CODE, find_item_in, prepare_server
from pytest_multihost.core.pytest_private import base_temp
from pytest_multihost.core.rank import own_variables, thread_variables
from pytest_multihost.core.rank.agent import run_rank
from pytest_multihost.core.services import Preload


@dataclass(frozen=True, slots=True)
class LaunchRequirements:
    """A test's requirements for its launcher; tests with equal requirements share one.

    Attributes:
        env: Variables that must be set before the ranks' interpreter starts.
        has_fresh_interpreters: Whether each rank must be an interpreter of its own.
        demanding: The kinds of faults that require an interpreter, for messages.
        preloads: Libraries of services that must be preloaded, which also needs an exec.
    """

    env: tuple[tuple[str, str], ...] = ()
    has_fresh_interpreters: bool = False
    demanding: tuple[str, ...] = field(default=(), compare=False, repr=False)
    preloads: tuple[Preload, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables to set, including the ones to preload libraries."""
        own = dict(self.env)
        libraries = [each.library.find() for each in self.preloads]
        return {**own, **preload_variables({**os.environ, **own}, libraries)}

    @property
    def reasons(self) -> list[str]:
        """Why the cheapest way of launching is not enough, for messages."""
        words = [f"env={dict(self.env)}"] if self.env else []
        words += self.demanding
        return words + [each.setting.replace("'", "") for each in self.preloads]


def launch_requirements(
    env: Mapping[str, str],
    facts: Mapping[str, FaultFacts],
    launch: str,
    *,
    preloads: Sequence[Preload] = (),
) -> LaunchRequirements:
    """Return a test's requirements.

    Args:
        facts: The facts of the test's faults, by kind.
        launch: The `launch` setting. With "fork" nothing can be preloaded, and users of an
            optional library do with less.
    """
    fresh = [kind for kind, each in facts.items() if each.needs_fresh_interpreters]
    usable = [
        each
        for each in preloads
        if not each.is_optional or (launch != "fork" and each.library.find() is not None)
    ]
    return LaunchRequirements(
        env=tuple(sorted(env.items())),
        has_fresh_interpreters=bool(fresh),
        demanding=tuple(fresh),
        preloads=tuple(usable),
    )


def launch_problems(
    env: Mapping[str, str], faults: Sequence[Fault], facts: Mapping[str, FaultFacts], launch: str
) -> list[str]:
    """Return why the ranks of a test cannot be launched in the requested way."""
    if env and launch == "fork":
        why = "must be set before the interpreters of its ranks start, and forked ranks start none"
        return [f"env={dict(env)} {why}: leave out --multihost-launch=fork."]
    demanding = [each for each in faults if facts[each.kind].needs_fresh_interpreters]
    if not demanding or launch in ("auto", "spawn"):
        return []
    why = f"it needs fresh interpreters, and --multihost-launch={launch} forks the ranks"
    remedy = "Use --multihost-launch=spawn, or leave the option out."
    return [f"faults: {demanding[0]!r}: {why}. {remedy}"]


@dataclass(slots=True)
class Launchers:
    """The launchers of one run, one per set of requirements, each kept until the run ends.

    Attributes:
        logs: Folder for the output of servers.
    """

    config: pytest.Config
    settings: Settings
    items: Sequence[pytest.Item]
    backends: Mapping[str, Backend]
    logs: Path
    _open: dict[LaunchRequirements, ServerLauncher] = field(default_factory=dict)
    _starting: dict[LaunchRequirements, ServerLauncher] = field(default_factory=dict)
    _host_problems: dict[str, str] = field(default_factory=dict)

    def get(self, requirements: LaunchRequirements) -> ServerLauncher:
        """Return an open launcher that meets `requirements`.

        Raises:
            UnsoundForkError: The requested way of launching is not sound.
            LaunchError: A server cannot start.
        """
        launcher = self._open.get(requirements)
        if launcher is None:
            launcher = self._starting.pop(requirements, None) or self._launcher(requirements)
            launcher.open()
            self._open[requirements] = launcher
        return launcher

    def is_ready(self, requirements: LaunchRequirements) -> bool:
        """Return whether `get` would not wait, unless this launcher was not prepared."""
        starting = self._starting.get(requirements)
        return starting is None or starting.is_ready

    def prepare(self, requirements: LaunchRequirements) -> None:
        """Start a launcher that is going to be needed; returns before it is ready.

        Raises:
            LaunchError: A server cannot start.
        """
        if requirements not in self._open and requirements not in self._starting:
            launcher = self._launcher(requirements)
            launcher.begin_open()
            self._starting[requirements] = launcher

    def _launcher(self, requirements: LaunchRequirements) -> ServerLauncher:
        for each in requirements.preloads:
            each.require()
        env = requirements.variables

        def fork() -> ServerConnection:
            run = partial(run_rank, find_item=find_item_in(self.items), backends=self.backends)
            prepare = partial(prepare_server, self.config, self.items, self.backends.values())
            return fork_server(run, prepare)

        def execute(mode: str, log: str) -> ServerConnection:
            own = own_variables()
            variables = {**own, **thread_variables(own), "PYTEST_MULTIHOST_SERVER": "1", **env}
            program = self._program(mode, variables, log)
            if mode == "spawn" and not requirements.has_fresh_interpreters:
                job = replace(program.job, libraries=_imported_libraries())
                program = replace(program, code=CODE, job=job)
            return exec_server(program)

        ways: dict[str, Callable[[], ServerConnection]] = {
            "fork": fork,
            "server": partial(execute, "server", "server.log"),
            "spawn": partial(execute, "spawn", "spawner.log"),
        }
        mode = self._mode(requirements)
        names = [mode] if mode != "auto" else list(ways)
        if env and "fork" in names:  # a fork of this process cannot have the variables at its start
            names.remove("fork")
        return ServerLauncher({name: ways[name] for name in names})

    def _mode(self, requirements: LaunchRequirements) -> str:
        """Return "auto", or the one way of launching to use."""
        return "spawn" if requirements.has_fresh_interpreters else self.settings.get(LAUNCH)

    def _program(self, mode: str, environment: Mapping[str, str], log: str) -> ServerProgram:
        """Return the program of a new interpreter.

        Args:
            mode: "server" forks the ranks; "spawn" starts an interpreter for each.
            log: Name of the file in `logs` for its output.
        """
        config = self.config
        workerinput: Mapping[str, Iterable[object]] = getattr(config, "workerinput", {})  # xdist
        args = workerinput.get("multihost_args", config.invocation_params.args)
        # The plugin is named by its entry point, not by its module's path. If pytest also loads
        # entry points, it would take the path for a second plugin, which declares the same options
        # again. The entry point's name also works with PYTEST_DISABLE_PLUGIN_AUTOLOAD.
        # The folder of artifacts may exist by now: pytest takes it for a test's, as it does not yet
        # know the option, and would look from there for its rootdir.
        extra = ["-p", "multihost_hangs", f"--rootdir={config.rootpath}"]
        if config.inipath is not None:
            extra += ["-c", str(config.inipath)]
        if config.pluginmanager.has_plugin("_cov"):
            extra.append("--cov-append")  # else coverage erases the controller's data
        run = PytestRun(
            cwd=str(config.invocation_params.dir),
            args=(*map(str, args), *extra),
            files=tuple(dict.fromkeys(str(item.path) for item in self.items)),
            path=tuple(sys.path),
        )
        if mode == "server":
            job = ServerJob(run=run, backends=tuple(self.backends))
            return ServerProgram(CODE, job, environment, self.logs / log)
        spawn = ServerJob(run=run, rank_code=CODE)
        return ServerProgram(SPAWN_SERVER_CODE, spawn, environment, self.logs / log)

    def host_problem(self, hosts: Hosts, requirements: LaunchRequirements) -> str:
        """Return why this machine cannot make hosts of a kind, and the remedy; empty if it can.

        A run tries each kind of host once.
        """
        if (kind := hosts.kind) is None or not kind.probe:
            return ""
        if kind.name not in self._host_problems:
            with TemporaryDirectory(prefix="hosts-", dir=base_temp(self.config)) as base:
                error = self.get(requirements).why_no_hosts(kind.probe, Path(base, "trial"))
            parts = error.parts if error else ()
            ended = (each if each.endswith((".", ":")) else f"{each}." for each in parts)
            self._host_problems[kind.name] = " ".join(ended)
        return self._host_problems[kind.name]

    def describe(self) -> str:
        """Return the ways of launching in use, with reasons if they are not the cheapest."""
        parts = []
        for requirements, launcher in self._open.items():
            why = dict.fromkeys([*requirements.reasons, *launcher.reasons])
            parts.append(f"{launcher.name} ({'; '.join(why)})" if why else launcher.name)
        return ", ".join(dict.fromkeys(parts))

    def close(self) -> None:
        """End the servers and all remaining ranks."""
        for launcher in (*self._open.values(), *self._starting.values()):
            launcher.close()


def _imported_libraries() -> tuple[str, ...]:
    """Return the library modules that this process has imported, in order of import.

    Skips modules in which pytest has rewritten assertions, because pytest must import them itself.
    """
    specs = [(name, getattr(each, "__spec__", None)) for name, each in [*sys.modules.items()]]
    return tuple(
        name
        for name, spec in specs
        if spec is not None
        and spec.name == name
        and is_library(spec.origin or "")
        and not type(spec.loader).__module__.startswith("_pytest.")
    )
