"""A script run as a world of ranks: recorded, watched and judged as a test is, without pytest."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_multihost.backends import BUILT_IN_BACKENDS, Backend, find_backend
from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.command.judged_page import page_of
from pytest_multihost.command.screen import Screen
from pytest_multihost.launch.job_spec import (
    SCRIPT_RANK_CODE,
    SPAWN_SERVER_CODE,
    ScriptRun,
    ServerJob,
)
from pytest_multihost.launch.server import ServerLauncher, ServerProgram, exec_server
from pytest_multihost.launch.signals import interrupt_on_signals
from pytest_multihost.model.errors import LaunchError, SettingError
from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.spec import MAX_RANKS, NO_TIMEOUT_S, Hosts, WorldSpec, checksum
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.nemesis import kinds_by_name, parse_fault, resolve_faults
from pytest_multihost.nemesis.io_shim import preload_variables
from pytest_multihost.outcome import Symptoms
from pytest_multihost.outcome.faults import require_fired
from pytest_multihost.rank import own_variables, thread_variables
from pytest_multihost.report import LiveOutput
from pytest_multihost.report.artifacts import (
    Attempt,
    RunFolder,
    new_run_id,
    package_versions,
)
from pytest_multihost.report.attempt_files import write_judged
from pytest_multihost.report.html import PAGE_NAME
from pytest_multihost.report.text import stacks_text
from pytest_multihost.watched_world import WatchedWorld, WorldProgress

ENDED_WELL, FAILED, NOT_RUN, HUNG, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes."""

HORIZON_S = 300.0
"""The horizon that a world has if none is given."""

_STARTUP_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command line of ``multihost run``.

    Attributes:
        script: The script's file, or the name of a module.
        script_args: Its arguments.
        is_module: Whether it is a module, as for ``python -m``.
        ranks: How many ranks run it.
        backend: The backend that is initialised for them.
        hosts: What their hosts are made from.
        faults: What is done to them, as text.
        timeout_s: Ends the world so many seconds after it has begun; None: it may take any time.
        horizon_s: The world hangs if nothing in it can move within so many seconds.
        log_folder: Where runs, with the ranks' output, are kept in place of showing it; None: it
            is shown.
        artifacts: Where runs are kept that went wrong.
        is_kept: Whether a run that ended well is kept, too.
    """

    script: str
    script_args: Sequence[str]
    is_module: bool
    ranks: int
    backend: str
    hosts: str
    faults: Sequence[str]
    timeout_s: float | None
    horizon_s: float
    log_folder: Path | None
    artifacts: Path
    is_kept: bool

    @property
    def command(self) -> list[str]:
        """The command line that runs the world again."""
        args = ["multihost", "run", "--ranks", str(self.ranks)]
        args += ["--backend", self.backend] if self.backend != "none" else []
        args += ["--hosts", self.hosts] if self.hosts != "one" else []
        args += [part for each in self.faults for part in ("--fault", each)]
        args += [] if self.timeout_s is None else ["--timeout", f"{self.timeout_s:g}"]
        args += ["--horizon", f"{self.horizon_s:g}"] if self.horizon_s != HORIZON_S else []
        args += ["-m"] if self.is_module else []
        return [*args, self.script, *self.script_args]


def run_script(options: RunOptions) -> int:
    """Run a script in ranks, show what they print and how they end; return the exit code."""
    interrupt_on_signals()
    scratch = Path(tempfile.mkdtemp(prefix="multihost-run-"))
    try:
        return _run_in(scratch, options)
    except (SettingError, LaunchError) as error:
        sys.stderr.write(f"multihost run: {error}\n")
        return NOT_RUN
    except KeyboardInterrupt:  # before the ranks were started, or after they were ended
        return INTERRUPTED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_in(scratch: Path, options: RunOptions) -> int:
    backend = _backend(options)
    spec = _spec(options)
    base = (options.log_folder or options.artifacts).absolute()
    files = _Files(RunFolder(base, new_run_id()), scratch / "artifacts", spec)
    if options.is_kept or options.log_folder is not None:
        files = files.kept()
    else:
        files.directory.mkdir()
    judged = _run_world(spec, backend, options, scratch, files.directory)
    if judged.finding.outcome == "passed":
        if options.is_kept:
            sys.stdout.write(f"files {files.save(judged)}\n")
        return ENDED_WELL
    if judged.result.ending == "interrupted":
        stacks = stacks_text(judged.result, judged.context)
        sys.stdout.write(f"\n{judged.result.reason}; where the ranks were:\n{stacks}\n")
        sys.stdout.flush()  # writing the files takes a while
        sys.stdout.write(f"files {files.save(judged)}\n")
    else:
        sys.stdout.write(f"\n{page_of(judged, files.save(judged))}\n")
    return _exit_code(judged)


def _exit_code(judged: Judgement) -> int:
    match judged.result.ending, judged.finding.outcome:
        case "interrupted", _:
            return INTERRUPTED
        case "lost", _:
            return NOT_RUN
        case _, "hung":
            return HUNG
    return FAILED


def _backend(options: RunOptions) -> Backend:
    """Return the backend.

    Raises:
        SettingError: There is none of that name, or this machine lacks what it needs.
    """
    backend = find_backend(options.backend, BUILT_IN_BACKENDS)
    if lacking := backend.lacking(options.ranks):
        raise SettingError(f"--backend {options.backend}: {lacking}")
    return backend


def _spec(options: RunOptions) -> WorldSpec:
    """Return the world.

    Raises:
        SettingError: An option cannot be used, or this machine lacks what a fault needs.
    """
    if not 1 <= options.ranks <= MAX_RANKS:
        raise SettingError(f"--ranks must be 1 to {MAX_RANKS}, not {options.ranks}")
    if not options.is_module and not Path(options.script).is_file():
        raise SettingError(f"there is no script {options.script}")
    hosts = Hosts.parse(options.hosts)
    if hosts.kind == "docker":
        raise SettingError("--hosts docker is for tests: a script's hosts are made by netns")
    name = f"-m {options.script}" if options.is_module else options.script
    seed, kinds = checksum(name) % 1_000_000, kinds_by_name(())
    asked = [parse_fault(each) for each in options.faults]
    faults, problems = resolve_faults(
        asked, size=options.ranks, seed=seed, hosts=hosts, kinds=kinds
    )
    problems += [why for each in faults if (why := kinds[each.kind].lacking(each))]
    if problems:
        raise SettingError("; ".join(f"--fault: {each}" for each in problems))
    return WorldSpec(
        nodeid=name,
        attempt=1,
        size=options.ranks,
        backend=options.backend,
        local_devices=1,
        timeout_s=options.timeout_s or NO_TIMEOUT_S,
        startup_timeout_s=_STARTUP_TIMEOUT_S,
        seed=seed,
        faults=faults,
        hosts=hosts,
        horizon_s=options.horizon_s,
        command=shlex.join(options.command),
    )


def _run_world(
    spec: WorldSpec, backend: Backend, options: RunOptions, scratch: Path, directory: Path
) -> Judgement:
    """Run the world, showing what its ranks print, and judge it."""
    world = WatchedWorld.make(spec, directory=directory, scratch=scratch, early="fail")
    launcher = ServerLauncher({"script": partial(exec_server, _program(spec, options, directory))})
    progress, hides = WorldProgress(world.watchdog.blocking_ranks), options.log_folder is not None
    screen = Screen.make(progress, directory, spec.size, hides=hides)
    try:
        result = world.run(
            launcher,
            primary_leaves_last=backend.primary_leaves_last,
            on_tick=screen.show,
            tick_s=LiveOutput.tick_s,
        )
    finally:
        launcher.close()
        screen.close()
    symptoms = Symptoms(backend.symptoms, backend.fatal_symptoms)
    judged = judge_world(result, symptoms, SourceContext(str(Path.cwd())))
    # As of a test: a run whose fault never fired has shown nothing.
    return replace(judged, finding=require_fired(judged.finding, result))


def _program(spec: WorldSpec, options: RunOptions, directory: Path) -> ServerProgram:
    """Return the server: it forks a process for each rank, which becomes a fresh interpreter."""
    own = own_variables()
    variables = {**own, **thread_variables(own)}
    if any(each.kind == "slow_io" for each in spec.faults):
        variables |= preload_variables(variables)
    run = ScriptRun(
        script=options.script,
        is_module=options.is_module,
        script_args=tuple(options.script_args),
    )
    job = ServerJob(run=run, rank_code=SCRIPT_RANK_CODE)
    return ServerProgram(SPAWN_SERVER_CODE, job, variables, directory / "server.log")


@dataclass(frozen=True, slots=True)
class _Files:
    """Where the files of the world are: among temporary ones until it is known to be kept.

    Attributes:
        folder: The folder of this run, if it is kept.
        directory: Where the files are.
        spec: The world.
        is_kept: Whether that is in `folder`.
    """

    folder: RunFolder
    directory: Path
    spec: WorldSpec
    is_kept: bool = False

    def kept(self) -> _Files:
        """Return the files in the folder of the run, moved there if they are not.

        Raises:
            MultihostError: The folder of artifacts cannot be used.
        """
        if self.is_kept:
            return self
        try:
            RunFolder.open(self.folder.base, self.folder.run_id)
            directory = self.folder.attempt(self.spec.nodeid, self.spec.attempt)
            for each in self.directory.iterdir() if self.directory.exists() else ():
                shutil.move(each, directory / each.name)
        except OSError as error:
            raise SettingError(f"the folder {self.folder.base} cannot be used: {error}") from error
        return replace(self, directory=directory, is_kept=True)

    def save(self, judged: Judgement) -> str:
        """Write and keep what is known of the world; return where that is, or why nowhere."""
        try:
            return str(self.kept().write(judged))
        except (SettingError, OSError) as error:  # what is known is shown all the same
            return f"none: {error}"

    def write(self, judged: Judgement) -> Path:
        """Write what is known of the world; return the path of its page, or of the folder.

        Raises:
            OSError: The run's list of verdicts cannot be written.
        """
        about = Attempt(self.folder.run_id, self.directory.name, None, package_versions())
        verdict, problems = write_judged(self.directory, judged, about)
        self.folder.append_verdict(to_json(verdict))
        for each in problems:
            sys.stderr.write(f"multihost run: {each}\n")
        page = self.directory / PAGE_NAME
        shown = page if page.exists() else self.directory
        here = Path.cwd()
        return shown.relative_to(here) if shown.is_relative_to(here) else shown
