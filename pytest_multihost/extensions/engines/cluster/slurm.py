"""Slurm: an allocation, and one step of one task on each of its nodes.

Inside an allocation its nodes are used; otherwise salloc asks for one, and holds it as long as its
command runs. The command copies its standard input, which ends with this process. A second process
waits for the same end, and cancels the job by its name, because a salloc that is still asking may
leave its job in the queue. So nothing stays allocated or queued when this process is killed.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.core.model.errors import LaunchError, SettingError, shown
from pytest_multihost.extensions.engines.cluster.command_node import (
    CommandFleet,
    CommandNode,
    describe_code,
    end_commands,
    last_lines,
    without_secrets,
)
from pytest_multihost.extensions.engines.engine import Engine, StartRequest, split_words

_HOLD = 'echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat >&2'
"""The command of salloc: it prints the allocation, and ends when its input ends."""

_CANCEL = 'cat > /dev/null; scancel --name="$0"; sleep 2; scancel --name="$0"'
"""The command that cancels a job, whose name follows, at the end of the input."""

_SURVIVE = "--no-kill"
"""Otherwise a node that fails ends the whole job, and it is not clear which node it was."""

_JOB = re.compile(r"job allocation (\d+)")
_TIME = re.compile(r"\d+:\d+")
_ASK_S = 10.0
"""How long squeue and scontrol may take."""

_AGAIN_S = 2.0
"""Time between two questions for a job's reason to wait: every question loads the controller."""

_STEP = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none"),
    *("--kill-on-bad-exit=0", "--export=ALL", "--unbuffered", "--quiet"),
)
"""Options of a step. Without --unbuffered, output is held back until it has a line's end; with
--quiet, srun still reports errors."""


@dataclass(slots=True)
class SlurmFleet:
    """The nodes of an allocation.

    Attributes:
        options: srun's options for the steps, if this process is inside an allocation.
        allocation: salloc; None inside an allocation.
        guard: Cancels the job when this process is killed; None inside an allocation.
        name: The job's name, which no other job has.
        job: The job's id; empty while it is unknown.
    """

    request: StartRequest
    options: Sequence[str] = ()
    allocation: subprocess.Popen[bytes] | None = None
    guard: subprocess.Popen[bytes] | None = None
    name: str = ""
    job: str = ""
    _steps: CommandFleet | None = None
    _reason: tuple[str, float] = field(default=("", 0.0))

    def nodes(self) -> Sequence[CommandNode] | None:
        """Return the nodes; None while the job waits.

        Raises:
            LaunchError: salloc has ended, or a step cannot be started.
        """
        if self._steps is None and (granted := self._granted()):
            self.job, hosts = granted
            self._steps = self._start(hosts[: self.request.count])
        return self._steps.nodes() if self._steps is not None else None

    def _granted(self) -> tuple[str, Sequence[str]] | None:
        """Return the job's id and its hosts once it runs.

        Raises:
            LaunchError: salloc has ended.
        """
        if self.allocation is None:
            return self.job, _hosts(os.environ.get("SLURM_JOB_NODELIST", ""))
        text = _read(self.log("out"))
        if text.endswith("\n"):
            job, _, hosts = text.strip().partition(" ")
            return job, _hosts(hosts)
        if found := _JOB.search(_read(self.log("err"))):
            self.job = found[1]
        if ended := describe_code(self.allocation.poll()):
            raise LaunchError(
                f"salloc has ended without an allocation: {ended}",
                seen=last_lines(self.log("err")),
                remedy="The text after slurm: is for salloc: see salloc --help, and sinfo.",
            )
        return None

    def log(self, kind: str) -> Path:
        """Return the file with salloc's output: "out" or "err"."""
        return self.request.folder / f"salloc.{kind}"

    def _start(self, hosts: Sequence[str]) -> CommandFleet:
        step = ["srun", f"--jobid={self.job}", *_STEP, *self.options]
        commands = ((each, [*step, f"--nodelist={each}", *self.request.command]) for each in hosts)
        return CommandFleet.start(commands, self.request.folder)

    def waiting(self) -> str:
        """Return the job, and Slurm's reason why it waits."""
        reason, asked_s = self._reason
        if self.job and time.monotonic() > asked_s + _AGAIN_S:
            reason = _ask("squeue", "--noheader", f"--jobs={self.job}", "--format=%r")
            self._reason = reason, time.monotonic()
        return f"job {self.job} waits: {reason or 'no reason given'}" if self.job else ""

    def why_lost(self, index: int) -> str:
        """Return Slurm's facts about the job and a node, and srun's last lines."""
        if self._steps is None:
            return ""
        node = self._steps.started[index]
        about = ("--states=all", f"--jobs={self.job}", "--Format=State,PreemptTime")
        state, _, preempted = _ask("squeue", "--noheader", *about).partition(" ")
        found = [f"Slurm: job {self.job} is {state or 'gone'}"]
        found += ["preempted"] if _TIME.search(preempted) else []
        of_node = _ask("sinfo", "--noheader", f"--nodes={node.name}", "--format=%T")
        found += [f"node {node.name} is {of_node.splitlines()[0]}"] if of_node else []
        return "\n".join(filter(None, (", ".join(found), self._steps.why_lost(index))))

    def failed(self) -> Sequence[str]:
        """Return the nodes whose step has failed."""
        return self._steps.failed() if self._steps is not None else ()

    def stop(self) -> None:
        """End the steps, and give the allocation back."""
        if self._steps is not None:
            self._steps.stop()
        if self.allocation is not None and self.allocation.poll() is None:
            assert self.allocation.stdin is not None  # noqa: S101 - it is a pipe
            self.allocation.stdin.close()
            if self._steps is None:  # it waits, and does not read its input
                self.allocation.send_signal(signal.SIGTERM)
            end_commands([self.allocation])
        guard, self.guard = self.guard, None
        if guard is not None:
            if self._steps is None:  # salloc may have left its job in the queue
                _ask("scancel", f"--name={self.name}")
            os.killpg(guard.pid, signal.SIGKILL)
            guard.communicate()


def begin_slurm(text: str, request: StartRequest) -> SlurmFleet:
    """Use the allocation in which this process runs, or ask for one.

    Args:
        text: Options of salloc, or of srun inside an allocation.

    Raises:
        SettingError: The options cannot be read.
        LaunchError: Slurm is not installed.
    """
    options = split_options(text)
    if job := os.environ.get("SLURM_JOB_ID"):
        return SlurmFleet(request, options, job=job)
    count = [f"--nodes={request.count}"] if request.count is not None else []
    name = f"pytest-{secrets.token_hex(4)}"
    command = ["salloc", f"--job-name={name}", _SURVIVE, *count, *options, "sh", "-c", _HOLD]
    before: Callable[[], None] = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    fleet = SlurmFleet(request, name=name)
    cancel = ["sh", "-c", _CANCEL, name]
    nowhere, own = subprocess.DEVNULL, without_secrets(os.environ)
    with files.appending(fleet.log("out")) as out, files.appending(fleet.log("err")) as err:
        try:
            fleet.allocation = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=before,  # noqa: PLW1509 - this process has one thread
                env=own,
            )
            fleet.guard = subprocess.Popen(
                cancel,
                stdin=subprocess.PIPE,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
                env=own,
            )
        except OSError as error:
            happened = "salloc cannot be started"
            remedy = "Run pytest where Slurm's commands are, such as a login node."
            raise LaunchError(happened, seen=str(error), remedy=remedy) from error
    return fleet


def split_options(text: str) -> list[str]:
    """Return the words of options.

    Raises:
        SettingError: A quotation mark is missing, or a word is neither an option nor its value.
    """
    words = split_words("slurm", text)
    if words and not words[0].startswith("-"):
        raise SettingError(
            f"slurm: {shown(text)} does not begin with an option",
            remedy='Write options of salloc: slurm:"-p gpu --time=10"',
        )
    return words


def _hosts(nodes: str) -> Sequence[str]:
    """Return the names in a node list such as "gpu[07-09,12]".

    Raises:
        LaunchError: Slurm does not answer.
    """
    names = _ask("scontrol", "show", "hostnames", nodes).split()
    if not names:
        raise LaunchError("Slurm does not name the nodes of the allocation", seen=shown(nodes))
    return names


def _ask(*command: str) -> str:
    """Return the output of one of Slurm's commands; empty if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
            timeout=_ASK_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(file: Path) -> str:
    return file.read_text("utf-8", "backslashreplace")


SLURM = Engine(name="slurm", begin=begin_slurm, signals_ranks=True)
