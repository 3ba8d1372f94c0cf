"""The job of a new interpreter of the harness: a value that it reads from a memory file.

The command line and the environment are too small: a string there holds at most 128 KiB (execve(2),
MAX_ARG_STRLEN), and the paths of many test files together are longer.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.json_values import from_json, message, parse_json, to_json
from pytest_multihost.core.model.plugin_source import PluginSource
from pytest_multihost.core.model.spec import RankSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SPAWN_SERVER_CODE = "from pytest_multihost.core.launch.server.start_server import main; main()"
"""The program of a server whose ranks are new interpreters."""

JOB_VARIABLE = "PYTEST_MULTIHOST_JOB"
"""Environment variable that names the descriptor of the memory file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestRun:
    """How to run pytest as the controller was run.

    Attributes:
        files: The files to collect, instead of those on the command line.
        path: The interpreter's `sys.path`.
    """

    cwd: str
    args: tuple[str, ...]
    files: tuple[str, ...]
    path: tuple[str, ...]

    def files_of(self, nodeid: str) -> tuple[str, ...]:
        """Return the files that may hold a test; all files if its node id matches none."""
        end = f"/{nodeid.partition('::')[0]}"
        return tuple(each for each in self.files if each.endswith(end)) or self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScript:
    """The script of a role; see `ScriptRun`."""

    script: str
    is_module: bool
    script_args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """A script that ranks run.

    Attributes:
        script: Its file, or the name of a module.
        is_module: Whether it is a module, as for ``python -m``.
        plugins: Where to find the plugin that offers its backend or its kinds of faults; None if
            this package offers them all.
        of_roles: The scripts of the world's roles, by the roles' names, in place of this one.
    """

    script: str
    is_module: bool
    script_args: tuple[str, ...]
    plugins: PluginSource | None = None
    of_roles: Mapping[str, RoleScript] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """The command line, as the interpreter takes it."""
        return (*(["-m"] if self.is_module else []), self.script, *self.script_args)

    def of_role(self, role: str) -> ScriptRun:
        """Return the script of a role."""
        found = self.of_roles[role]
        return replace(
            self,
            script=found.script,
            is_module=found.is_module,
            script_args=found.script_args,
        )


@message
class ServerJob:
    """The job of a server.

    Attributes:
        run: The program of the ranks: pytest with one test, or a script.
        backends: For a server that forks ranks: the names of their backends.
        rank_code: For a server that starts an interpreter for each rank: the code to run in it.
        libraries: For a server whose forked ranks collect by themselves: modules to import.
        scratch: A directory of the controller, to be removed if the controller is killed; empty:
            none.
    """

    run: PytestRun | ScriptRun
    backends: tuple[str, ...] = ()
    rank_code: str = ""
    libraries: tuple[str, ...] = ()
    control: int = -1
    controller: int = -1
    scratch: str = ""


@message
class RankJob:
    """The job of one rank.

    Attributes:
        channel: Descriptor of the connection to the controller.
    """

    run: PytestRun | ScriptRun
    spec: RankSpec
    channel: int


Job = ServerJob | RankJob


def write_job(job: DataclassInstance) -> int:
    """Return an inheritable descriptor of a memory file that holds `job`."""
    return memory_file(to_json(job))


def memory_file(content: Mapping[str, object]) -> int:
    """Return an inheritable descriptor of a memory file; all users see a command line, not this."""
    descriptor = os.memfd_create("multihost-job", 0)
    with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
        json.dump(content, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def take_job(kinds: object = Job) -> Any:  # noqa: ANN401 - one of `kinds`
    """Return the job of this interpreter."""
    with open(int(os.environ.pop(JOB_VARIABLE)), encoding="utf-8") as file:  # noqa: PTH123
        job = from_json(kinds, parse_json(file.read()))
    # A server notices the end of the controller only once it serves, and collection may take long.
    if isinstance(job, ServerJob):
        die_with_parent(job.controller)
    return job


def open_channel(job: RankJob) -> Channel:
    """Return the rank's end of its connection to the controller."""
    stream = socket.socket(fileno=job.channel)
    stream.set_inheritable(False)
    return Channel(stream)


def open_control(job: ServerJob) -> socket.socket:
    """Return the server's end of the control connection."""
    control = socket.socket(fileno=job.control)
    control.set_inheritable(False)
    return control
