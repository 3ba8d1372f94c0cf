"""Runs a script as a world: recorded, watched and judged like a test, without pytest."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pluggy

from pytest_multihost.core.artifacts_access import artifacts_access
from pytest_multihost.core.attempt import WatchedWorld, WorldProgress, judge, write
from pytest_multihost.core.backends import find_backend, offered_backends
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command.joined_script import JoinedScript, OtherProcesses
from pytest_multihost.core.command.world_page import page_of
from pytest_multihost.core.forgotten import forget_secret
from pytest_multihost.core.host_kind import Hosts, offered_host_kinds
from pytest_multihost.core.launch.ending_signals import interrupt_on_signals
from pytest_multihost.core.launch.job_spec import (
    SPAWN_SERVER_CODE,
    RoleScript,
    ScriptRun,
    ServerJob,
)
from pytest_multihost.core.launch.server import ServerLauncher, ServerProgram, exec_server
from pytest_multihost.core.locks import MOMENT_S, lock
from pytest_multihost.core.model.errors import LaunchError, SettingError
from pytest_multihost.core.model.plugin_source import PluginSource
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.replay import checksum
from pytest_multihost.core.model.setting_values import (
    MAX_RANKS,
    ONE,
)
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.option import BACKENDS, HORIZON, PATIENCE, TIMEOUT, Settings
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.preload import preload_variables
from pytest_multihost.core.project_plugins import environment_kept, may_offer, project_plugins
from pytest_multihost.core.rank import own_variables, thread_variables
from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.report import LiveOutput
from pytest_multihost.core.report.artifacts import (
    Attempt,
    RunFolder,
    build_verdict,
    new_run_id,
    package_versions,
)
from pytest_multihost.core.report.html import PAGE_NAME
from pytest_multihost.core.report.renderer import Renderer
from pytest_multihost.core.report.text import stacks_text
from pytest_multihost.core.services import asked_for
from pytest_multihost.core.world_plan import Offers, WorldPlan, plan_world
from pytest_multihost.extensions.scripts.program import Program
from pytest_multihost.extensions.scripts.role_programs import RoleProgram, roles_of
from pytest_multihost.extensions.scripts.screen import LiveScreen

ENDED_WELL, FAILED, NOT_RUN, HUNG, INTERRUPTED = 0, 1, 2, 3, 130
"""The exit codes of ``multihost run``."""

_IN_RANK = "pytest_multihost.extensions.scripts.in_rank"

SCRIPT_RANK_CODE = f"from {_IN_RANK} import main; main()"
"""The program of a rank that runs a script."""

SCRIPT_SERVER_CODE = f"from {_IN_RANK} import serve_script; serve_script()"
"""The program of a server that forks the ranks of a script."""

_STARTUP_TIMEOUT_S = 300.0
_SERVER_LOG = "server.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command line of ``multihost run``.

    Attributes:
        script: The script's file, or the name of a module.
        is_module: Whether `script` is a module, as for ``python -m``.
        ranks: Number of ranks; None for one per process that a launcher has started.
        hosts: The kind of the hosts; empty: this machine, or for roles a host that is sealed off.
        settings: The values of `SCRIPT_OPTIONS` and of options that plugins offer.
        log_folder: The folder for runs with the ranks' output, which is then not shown; None to
            show the output.
        artifacts: The folder for runs that failed.
        is_kept: Whether a run that ended well is kept as well.
        plugins: Names of plugins, as for pytest's ``-p``.
        roles: The roles with their programs, in place of `script`; empty: there are none.
    """

    script: str
    script_args: Sequence[str]
    is_module: bool
    ranks: int | None
    hosts: str
    settings: Settings
    faults: Sequence[str]
    log_folder: Path | None
    artifacts: Path
    is_kept: bool
    plugins: Sequence[str] = ()
    roles: Sequence[RoleProgram] = ()

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return ",".join(self.settings.get(BACKENDS))

    @property
    def programs(self) -> Sequence[Program]:
        """The programs of the ranks."""
        own = Program(self.script, self.script_args, is_module=self.is_module)
        return [each.program for each in self.roles] or [own]

    @property
    def size(self) -> int | None:
        """Number of ranks; None for one per process that a launcher has started."""
        return sum(each.role.ranks for each in self.roles) if self.roles else self.ranks

    @property
    def title(self) -> str:
        """Its name in reports."""
        named = [f"-m {e.script}" if e.is_module else e.script for e in self.programs]
        return " + ".join(named)

    @property
    def plugin_source(self) -> PluginSource:
        """Where to find other plugins: as pytest does, here and in the scripts' folders."""
        scripts = [Path(each.script).parent for each in self.programs if not each.is_module]
        folders = [Path.cwd(), *scripts]
        paths = dict.fromkeys(str(each.absolute()) for each in folders if each.is_dir())
        return PluginSource(folders=tuple(paths), named=tuple(self.plugins))

    @property
    def folder(self) -> Path:
        """The folder for the runs that are kept."""
        return (self.log_folder or self.artifacts).absolute()

    def command(self, size: int) -> list[str]:
        """Return the command line that repeats the world of `size` ranks."""
        args = ["multihost", "run", *([] if self.roles else ["--ranks", str(size)])]
        args += [part for each in self.roles for part in each.arguments()]
        args += [part for each in self.plugins for part in ("-p", each)]
        is_default = not self.hosts or (self.hosts == ONE and not self.roles)
        args += [] if is_default else ["--hosts", self.hosts]
        given = self.settings.replayed.items()
        args += [part for name, text in given for part in (f"--{name}", text)]
        args += [part for each in self.faults for part in ("--fault", each)]
        if self.roles:
            return args
        args += ["-m"] if self.is_module else []
        return [*args, self.script, *self.script_args]


def run_script(options: RunOptions, hook: pluggy.HookRelay) -> int:
    """Run a script in ranks, show their output and how they end; return the exit code.

    Args:
        hook: The hooks of this package's own plugins.
    """
    try:
        with scratch_folder() as scratch:
            command = _Command(options, scratch, hook)
            if options.size is None:
                return command.run_joined()
            forget_secret()
            interrupt_on_signals()
            return command.run(command.plan(options.size), OtherProcesses())
    except (SettingError, LaunchError) as error:
        sys.stderr.write(f"multihost run: {printable(str(error), keeps_lines=True)}\n")
        return NOT_RUN
    except KeyboardInterrupt:  # before the ranks were started, or after they were ended
        return INTERRUPTED


@dataclass(slots=True)
class _Command:
    """One ``multihost run``.

    Attributes:
        hook: The hooks of this package's plugins, and of other plugins once they are loaded.
    """

    options: RunOptions
    scratch: Path
    hook: pluggy.HookRelay
    has_others: bool = False

    def plan(self, size: int) -> WorldPlan:
        """Return the plan of the world of `size` ranks.

        Other plugins are loaded only if they may offer something, or if an option names something
        that this package lacks.

        Raises:
            SettingError: An option cannot be used, or this machine lacks a need of a fault.
        """
        _require_script(self.options, size)
        if not may_offer(self.options.plugin_source):
            with contextlib.suppress(SettingError):
                return _plan(self.options, size, self.hook)
        with environment_kept():
            self.hook = project_plugins(self.options.plugin_source).hook
        self.has_others = True
        return _plan(self.options, size, self.hook)

    def run_joined(self) -> int:
        """Run the script in the processes that a launcher has started; return the exit code.

        Raises:
            SettingError: There are no such processes, or no plugin lets them join.
        """
        script = JoinedScript(
            folder=self.options.folder,
            scratch=self.scratch,
            plan=self.plan,
            launcher=partial(self._launcher, directory=self.scratch),
            run=self.run,
        )
        try:
            code: int | None = self.hook.pytest_multihost_run_joined(script=script)
        except SettingError as error:
            raise _behind_the_script(self.options.programs) or error from error
        if code is None:
            raise SettingError(
                "--ranks is missing, and no plugin can take the number of ranks from a launcher",
                remedy="Say how many ranks: --ranks N",
            )
        return code

    def run(self, plan: WorldPlan, others: OtherProcesses) -> int:
        """Run a world, show its ranks' output and how they end; return the exit code."""
        options = self.options
        folder, renderers = RunFolder(options.folder, new_run_id()), offered_renderers(self.hook)
        files = _Files(folder, self.scratch / "artifacts", plan.spec, renderers)
        if options.is_kept or options.log_folder is not None:
            files = files.kept()
        else:
            files.directory.mkdir()
        launcher = self._launcher(plan, directory=files.directory)
        if plan.spec.roles and not options.hosts:
            plan = self._as_possible(plan, launcher)
        spec = plan.spec
        world = WatchedWorld.make(
            spec,
            directory=files.directory,
            scratch=self.scratch,
            early="fail",
            others=others.pids,
            kinds=self.hook.pytest_multihost_services(),
        )
        progress = WorldProgress(world.watchdog.blocking_ranks, spec.names, spec.subject)
        hides = options.log_folder is not None
        names = [spec.names.rank(rank) for rank in range(spec.size)]
        screen = LiveScreen.make(progress, files.directory, names, hides=hides)

        def on_tick(seconds: float, facts: Sequence[RankFacts]) -> None:
            others.check()
            screen.show(seconds, facts)

        try:
            result = world.run(
                others.launcher(launcher),
                primary_leaves_last=plan.primary_leaves_last,
                on_tick=on_tick,
                tick_s=LiveOutput.tick_s,
            )
        finally:
            launcher.close()
            screen.close()
            log = files.directory / _SERVER_LOG
            if log.exists() and not log.stat().st_size:
                log.unlink()
        context = SourceContext(str(Path.cwd()))
        judged = judge(result, plan.symptoms, context)
        return _show_end(judged, files, options)

    def _as_possible(self, plan: WorldPlan, launcher: ServerLauncher) -> WorldPlan:
        """Return a world with roles without its host if this machine cannot make that."""
        kind = plan.hosts.kind
        if kind is None or not kind.probe:
            return plan
        error = launcher.why_no_hosts(kind.probe, self.scratch / "trial-of-hosts")
        if error is None:
            return plan
        why = " ".join(each if each.endswith(".") else f"{each}." for each in error.parts)
        sys.stderr.write(
            "multihost run: the roles share this machine's network, so other processes can connect"
            f" to them; while a role listens, no hang can be proven. {printable(why)}\n"
        )
        return plan.without_hosts()

    def _launcher(self, plan: WorldPlan, *, directory: Path) -> ServerLauncher:
        """Return a launcher whose server starts a new interpreter for each rank, or forks it.

        Args:
            directory: The folder for the server's log.
        """
        _require_backend(plan)
        own = own_variables(keeps_proxies=plan.spec.keeps_proxies)
        variables = {**own, **thread_variables(own)}
        libraries = [each.library.find() for each in plan.preloads]
        variables |= preload_variables(variables, libraries)
        source = self.options.plugin_source
        run = ScriptRun(
            script=self.options.script,
            is_module=self.options.is_module,
            script_args=tuple(self.options.script_args),
            plugins=source if self.has_others and not _is_own(plan, self.hook) else None,
            of_roles={
                each.name: RoleScript(
                    script=each.program.script,
                    is_module=each.program.is_module,
                    script_args=tuple(each.program.args),
                )
                for each in self.options.roles
            },
        )
        backend = plan.backend
        job = ServerJob(
            run=run,
            backends=(backend.name,),
            rank_code=SCRIPT_RANK_CODE,
            scratch=str(self.scratch),
        )
        program = ServerProgram(
            SCRIPT_SERVER_CODE if backend.forks_scripts else SPAWN_SERVER_CODE,
            job,
            variables,
            directory / _SERVER_LOG,
            keeps_input=has_input(),
        )
        return ServerLauncher({"script": partial(exec_server, program)})


def has_input() -> bool:
    """Return whether rank 0 may read this process's standard input.

    It may not if that is closed, because another file may have its number then. A terminal belongs
    to the processes in the foreground; rank 0 is in a session of its own, where the kernel does not
    stop it if it reads in the background.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.fileno() != 0:
        return False
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # a terminal that does not control this process has no foreground
        return True


def _is_own(plan: WorldPlan, hook: pluggy.HookRelay) -> bool:
    """Return whether this package's own plugins offer the backend and the faults of a world."""
    own = new_plugin_manager().hook
    kinds, own_kinds = (
        {kind.name: kind for group in reversed(each.pytest_multihost_faults()) for kind in group}
        for each in (hook, own)
    )
    return plan.backend in offered_backends(own) and all(
        kinds[each.kind] == own_kinds.get(each.kind) for each in plan.spec.faults
    )


def _show_end(judged: Judgement, files: _Files, options: RunOptions) -> int:
    """Show how a world ended, and keep its files; return the exit code."""
    if judged.finding.outcome == "passed":
        if options.is_kept:
            sys.stdout.write(f"files {files.save(judged)}\n")
        return ENDED_WELL
    if judged.result.ending == "interrupted":
        stacks = stacks_text(judged)
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


def _require_backend(plan: WorldPlan) -> None:
    """Raise a SettingError if this machine lacks a need of the world's backend."""
    if lacking := plan.lacking:
        raise SettingError(f"--backend {plan.spec.backend}: {lacking}")


_PYTHON = re.compile(r"python[\d.]*")
_NO_PYTHON = "Leave out python: multihost run --ranks N train.py. --no-python runs other programs."


def _behind_the_script(programs: Sequence[Program]) -> SettingError | None:
    """Return the error if the number of ranks was given behind the script; None if it was not."""
    for each in programs:
        for given in {"--ranks", "-n"}.intersection(each.args):
            return SettingError(
                f"{given} stands after the script, so the script gets it, and multihost does not",
                remedy=f"Options come first: multihost run --ranks N {each.script}",
            )
    return None


def _require_script(options: RunOptions, size: int) -> None:
    """Check the number of ranks and the script, which do not depend on plugins.

    Raises:
        SettingError: The number of ranks is out of range, or there is no script.
    """
    if not 1 <= size <= MAX_RANKS:
        raise SettingError(f"--ranks must be 1 to {MAX_RANKS}, not {size}")
    if options.roles and options.ranks is not None:
        raise SettingError("--ranks and --role: the roles say how many ranks there are")
    if options.roles and options.script:
        raise SettingError(f"{options.script}: with --role, each role names its own program")
    for each in options.programs:
        if not each.is_module and not Path(each.script).is_file():
            remedy = _NO_PYTHON if _PYTHON.fullmatch(each.script) else ""
            raise SettingError(f"there is no script {each.script}", remedy=remedy)


def _plan(options: RunOptions, size: int, hook: pluggy.HookRelay) -> WorldPlan:
    """Return the plan of the world of `size` ranks, with the offers of plugins.

    Raises:
        SettingError: An option cannot be used, or this machine lacks a need of a fault.
    """
    kinds_of_hosts = offered_host_kinds(hook)
    if options.roles and not options.hosts:
        hosts = Hosts.sealed(kinds_of_hosts, size)
    else:
        hosts = Hosts.parse(options.hosts or ONE, kinds_of_hosts)
    if hosts.kind is not None and options.size is None:
        raise SettingError("--hosts works on one machine alone: add --ranks N")
    offers = Offers.of(hook)
    services = asked_for([offers.services], options.settings.values)
    for each in services:
        if each.preload is not None:
            each.preload.require()
    name, roles = options.title, roles_of(options.roles, options.backend)
    backend = find_backend(options.backend, offered_backends(hook))
    if backend.package is not None and any(each.has_children for each in roles):
        raise SettingError(
            "--restarts and --service: such a program runs in a child process, and cannot use the"
            f" process group of the backend {backend.name}",
            remedy="Leave out --backend; the program may make a group.",
        )
    draft = WorldSpec(
        nodeid=name,
        attempt=1,
        size=size,
        backend=options.backend,
        local_devices=1,
        timeout_s=options.settings.get(TIMEOUT),
        startup_timeout_s=_STARTUP_TIMEOUT_S,
        seed=checksum(name) % 1_000_000,
        faults=tuple(map(offers.planner.parse, options.faults)),
        horizon_s=options.settings.get(HORIZON),
        patience_s=options.settings.get(PATIENCE),
        argv=tuple(options.command(size)),
        subject="script",
        roles=roles,
    )
    plan = plan_world(
        draft,
        offers,
        backend=backend,
        role_backends=[backend] * len(roles),
        hosts=hosts,
        services=services,
    )
    lacking = (offers.planner.lacking(each) for each in plan.spec.faults)
    if problems := [*plan.fault_problems, *filter(None, lacking)]:
        raise SettingError("; ".join(f"--fault: {each}" for each in problems))
    return plan


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of the world: temporary ones until it is clear that they are kept.

    Attributes:
        folder: The folder of this run, if it is kept.
        directory: The present folder of the files.
        is_kept: Whether `directory` is in `folder`.
    """

    folder: RunFolder
    directory: Path
    spec: WorldSpec
    renderers: Sequence[Renderer]
    is_kept: bool = False

    def kept(self) -> _Files:
        """Return the files in the folder of the run; move them there if necessary.

        Raises:
            SettingError: The folder of artifacts cannot be used.
        """
        if self.is_kept:
            return self
        try:
            RunFolder.open(self.folder.base, self.folder.run_id, artifacts_access())
            directory = self.folder.attempt(self.spec.nodeid, self.spec.attempt)
            for each in self.directory.iterdir() if self.directory.exists() else ():
                shutil.move(each, directory / each.name)
        except OSError as error:
            raise SettingError(f"the folder {self.folder.base} cannot be used: {error}") from error
        return replace(self, directory=directory, is_kept=True)

    def save(self, judged: Judgement) -> str:
        """Write and keep the records of the world; return their path, or why there is none."""
        try:
            return str(self.kept().write(judged))
        except (SettingError, OSError) as error:  # the judgement is still shown
            return f"none: {error}"

    def write(self, judged: Judgement) -> Path:
        """Write the records of the world; return the path of its page, or of the folder.

        Raises:
            OSError: The run's list of verdicts cannot be written.
        """
        about = Attempt(self.folder.run_id, self.directory.name, None, package_versions())
        verdict = build_verdict(judged, about)
        for _, error in write(
            self.directory, judged, verdict, about, self.renderers, run=self.folder
        ):
            sys.stderr.write(f"multihost run: {printable(str(error))}\n")
        page = self.directory / PAGE_NAME
        shown = page if page.exists() else self.directory
        here = Path.cwd()
        return shown.relative_to(here) if shown.is_relative_to(here) else shown


# The temporary directory of a run, which does not outlive the run for long however that ends.
#
# If the controller is killed, its server removes the directory. If both are killed, the next run
# does. A process that uses a directory holds a lock on it, which other PID namespaces also see.

_PREFIX = "multihost-run-"
_YOUNG_S = 60.0
"""A directory younger than this may not be locked yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary directory for a run and remove it at the end, with those of killed runs."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(descriptor, within_s=MOMENT_S)
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
                if lock(descriptor, within_s=0):
                    shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(descriptor)
