"""A script run as a world of ranks: recorded, watched and judged as a test is, without pytest."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_multihost.core.backends import BUILT_IN_BACKENDS, Backend, find_backend
from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.command.screen import Screen, page_of
from pytest_multihost.core.files import preload_variables
from pytest_multihost.core.launch import require_jumping_clock
from pytest_multihost.core.launch.job_spec import (
    SCRIPT_RANK_CODE,
    SPAWN_SERVER_CODE,
    ScriptRun,
    ServerJob,
)
from pytest_multihost.core.launch.reaper import interrupt_on_signals
from pytest_multihost.core.launch.server import ServerLauncher, ServerProgram, exec_server
from pytest_multihost.core.model.errors import LaunchError, SettingError
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import (
    DEFAULT_BACKEND,
    MAX_RANKS,
    NO_TIMEOUT_S,
    BackendFacts,
    ClockMode,
    Hosts,
    WorldSpec,
    checksum,
)
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.nemesis import BUILT_IN_KINDS, kinds_by_name, parse_fault, resolve_faults
from pytest_multihost.core.nemesis.io_shim import find_library
from pytest_multihost.core.outcome import RankFacts, Symptoms
from pytest_multihost.core.outcome.points import require_fired
from pytest_multihost.core.rank import own_variables, thread_variables
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    new_run_id,
    package_versions,
)
from pytest_multihost.core.report.html import PAGE_NAME, write_judged
from pytest_multihost.core.report.text import stacks_text
from pytest_multihost.core.watched_world import WatchedWorld, WorldProgress
from pytest_multihost.extensions.clock.page import find_clock_library
from pytest_multihost.extensions.engines.attach import AttachLauncher, Peer, Rendezvous, sites_for
from pytest_multihost.extensions.engines.joined_script import be_peer, check_peers, meet, part

ENDED_WELL, FAILED, NOT_RUN, HUNG, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes."""

HORIZON_S = 300.0
"""The horizon that a world has if none is given."""

_STARTUP_TIMEOUT_S = 300.0
_SERVER_LOG = "server.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command line of ``multihost run``.

    Attributes:
        script: The script's file, or the name of a module.
        script_args: Its arguments.
        is_module: Whether it is a module, as for ``python -m``.
        ranks: How many ranks run it; None: as many as processes that a launcher has started.
        backend: The backend that is initialised for them.
        hosts: What their hosts are made from.
        clock: How time passes for them.
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
    ranks: int | None
    backend: str
    hosts: str
    clock: ClockMode
    faults: Sequence[str]
    timeout_s: float | None
    horizon_s: float
    log_folder: Path | None
    artifacts: Path
    is_kept: bool

    @property
    def folder(self) -> Path:
        """Where runs are kept, whichever are."""
        return (self.log_folder or self.artifacts).absolute()

    def command(self, size: int) -> list[str]:
        """Return the command line that runs the world of `size` ranks again."""
        args = ["multihost", "run", "--ranks", str(size)]
        args += ["--backend", self.backend] if self.backend != DEFAULT_BACKEND else []
        args += ["--hosts", self.hosts] if self.hosts != "one" else []
        args += ["--clock", self.clock] if self.clock != "real" else []
        args += [part for each in self.faults for part in ("--fault", each)]
        args += [] if self.timeout_s is None else ["--timeout", f"{self.timeout_s:g}"]
        args += ["--horizon", f"{self.horizon_s:g}"] if self.horizon_s != HORIZON_S else []
        args += ["-m"] if self.is_module else []
        return [*args, self.script, *self.script_args]


def run_script(options: RunOptions) -> int:
    """Run a script in ranks, show what they print and how they end; return the exit code."""
    try:
        with scratch_folder() as scratch:
            if options.ranks is None:
                return _run_joined(options, scratch)
            interrupt_on_signals()
            return _run_world(options, _spec(options, options.ranks), scratch, {})
    except (SettingError, LaunchError) as error:
        sys.stderr.write(f"multihost run: {error}\n")
        return NOT_RUN
    except KeyboardInterrupt:  # before the ranks were started, or after they were ended
        return INTERRUPTED


def _run_joined(options: RunOptions, scratch: Path) -> int:
    """Run it in ranks of the processes that a launcher has started, this one among them."""
    try:
        rendezvous = Rendezvous.read(os.environ, options.folder)
    except SettingError as error:
        happened = (
            "--ranks is not given, and no launcher has started this process as one of several"
        )
        raise SettingError(happened, seen=str(error)) from error
    rendezvous.forget_variables()
    membership = rendezvous.membership
    spec = _spec(options, membership.size)
    if membership.rank:
        return be_peer(rendezvous, spec, scratch, _launcher(spec, options, scratch, scratch))
    interrupt_on_signals()
    peers, code = meet(rendezvous, spec, scratch), FAILED
    spec = replace(spec, sites=sites_for(spec.size, peers))
    try:
        code = _run_world(options, spec, scratch, peers)
    finally:
        part(peers, code)
    return code


def _run_world(
    options: RunOptions, spec: WorldSpec, scratch: Path, peers: Mapping[int, Peer]
) -> int:
    files = _Files(RunFolder(options.folder, new_run_id()), scratch / "artifacts", spec)
    if options.is_kept or options.log_folder is not None:
        files = files.kept()
    else:
        files.directory.mkdir()
    backend = _backend(spec)
    launcher = _launcher(spec, options, files.directory, scratch)
    world = WatchedWorld.make(
        spec,
        directory=files.directory,
        scratch=scratch,
        early="fail",
        others=frozenset(e.hello.pid for e in peers.values() if e.is_local and e.hello.pid),
    )
    progress = WorldProgress(world.watchdog.blocking_ranks, spec.subject)
    hides = options.log_folder is not None
    screen = Screen.make(progress, files.directory, spec.size, hides=hides)

    def on_tick(seconds: float, facts: Sequence[RankFacts]) -> None:
        check_peers(peers)
        screen.show(seconds, facts)

    try:
        result = world.run(
            AttachLauncher(launcher, peers) if peers else launcher,
            primary_leaves_last=backend.primary_leaves_last,
            on_tick=on_tick,
            tick_s=LiveOutput.tick_s,
        )
    finally:
        launcher.close()
        screen.close()
        log = files.directory / _SERVER_LOG
        if log.exists() and not log.stat().st_size:
            log.unlink()
    return _show_end(_judged(result, backend), files, options)


def _judged(result: WorldResult, backend: Backend) -> Judgement:
    symptoms = Symptoms(backend.symptoms, backend.fatal_symptoms)
    judged = judge_world(result, symptoms, SourceContext(str(Path.cwd())))
    # As of a test: a run whose fault never fired has shown nothing.
    return replace(judged, finding=require_fired(judged.finding, result))


def _show_end(judged: Judgement, files: _Files, options: RunOptions) -> int:
    """Show how a world has ended, and keep its files; return the exit code."""
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


def _backend(spec: WorldSpec) -> Backend:
    """Return the backend of a world.

    Raises:
        SettingError: There is none of that name, or this machine lacks what it needs.
    """
    backend = find_backend(spec.backend, BUILT_IN_BACKENDS)
    if lacking := backend.lacking(len(spec.host_of(0).ranks) if spec.sites else spec.size):
        raise SettingError(f"--backend {spec.backend}: {lacking}")
    return backend


def _spec(options: RunOptions, size: int) -> WorldSpec:
    """Return the world of `size` ranks.

    Raises:
        SettingError: An option cannot be used, or this machine lacks what a fault needs.
    """
    if not 1 <= size <= MAX_RANKS:
        raise SettingError(f"--ranks must be 1 to {MAX_RANKS}, not {size}")
    if not options.is_module and not Path(options.script).is_file():
        raise SettingError(f"there is no script {options.script}")
    hosts = Hosts.parse(options.hosts)
    if hosts.kind == "docker":
        raise SettingError(
            "--hosts docker is for tests: containers hold no script's files",
            remedy="Hosts of Linux namespaces need no image: --hosts netns",
        )
    if hosts.kind != "one" and options.ranks is None:
        raise SettingError("--hosts: hosts are made on one machine alone: say --ranks N")
    if options.clock == "jump":
        require_jumping_clock()
    name = f"-m {options.script}" if options.is_module else options.script
    seed, kinds = checksum(name) % 1_000_000, kinds_by_name([BUILT_IN_KINDS])
    asked = [parse_fault(each) for each in options.faults]
    faults, problems = resolve_faults(asked, size=size, seed=seed, hosts=hosts, kinds=kinds)
    problems += [why for each in faults if (why := kinds[each.kind].lacking(each))]
    if problems:
        raise SettingError("; ".join(f"--fault: {each}" for each in problems))
    facts = {each.name: each.facts for each in BUILT_IN_BACKENDS}
    return WorldSpec(
        nodeid=name,
        attempt=1,
        size=size,
        backend=options.backend,
        backend_facts=facts.get(options.backend, BackendFacts()),  # `_backend` refuses others
        local_devices=1,
        timeout_s=options.timeout_s or NO_TIMEOUT_S,
        startup_timeout_s=_STARTUP_TIMEOUT_S,
        seed=seed,
        faults=faults,
        fault_facts={each.kind: kinds[each.kind].facts for each in faults},
        hosts=hosts,
        clock=options.clock,
        horizon_s=options.horizon_s,
        command=shlex.join(options.command(size)),
        subject="script",
    )


def _launcher(
    spec: WorldSpec, options: RunOptions, directory: Path, scratch: Path
) -> ServerLauncher:
    """Return what starts ranks: it forks a process for each, which becomes a fresh interpreter.

    Args:
        spec: The world.
        options: The command line.
        directory: Where its log goes.
        scratch: What it removes if this process is killed.
    """
    own = own_variables(keeps_proxies=spec.keeps_proxies)
    variables = {**own, **thread_variables(own)}
    libraries = [
        find_library() if any(each.needs_shim for each in spec.fault_facts.values()) else None,
        find_clock_library() if spec.clock == "jump" else None,
    ]
    variables |= preload_variables(variables, libraries)
    run = ScriptRun(
        script=options.script,
        is_module=options.is_module,
        script_args=tuple(options.script_args),
    )
    job = ServerJob(run=run, rank_code=SCRIPT_RANK_CODE, scratch=str(scratch))
    program = ServerProgram(SPAWN_SERVER_CODE, job, variables, directory / _SERVER_LOG)
    return ServerLauncher({"script": partial(exec_server, program)})


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


# The temporary directory of a run, which does not outlive it for long however that ends.
#
# Its server removes it when the controller is killed. Where both are killed, the next run does: who
# uses a directory holds a lock on it, which also tells of processes in another namespace.


_PREFIX = "multihost-run-"
_YOUNG_S = 60.0
"""One that was just made may not be locked yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary directory for a run, and remove it and those of runs that were killed."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _remove_abandoned(folder.parent)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Remove directories of this user's runs whose processes have been killed."""
    for each in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is locked, or gone
            found = each.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(descriptor)
