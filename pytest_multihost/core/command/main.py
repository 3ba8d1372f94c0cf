"""The console script ``multihost``: defines the command line, and runs a command.

Each command imports its modules in its own function, so no command waits for another's imports.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_multihost.core.command.explainer import Explainer
from pytest_multihost.core.command.program import Program, python_program
from pytest_multihost.core.command.torchrun_options import add_torchrun_options, torchrun_hints
from pytest_multihost.core.files import artifacts_folder
from pytest_multihost.core.host_kind import HostKind, offered_host_kinds
from pytest_multihost.core.model.errors import MultihostError, SettingError
from pytest_multihost.core.model.plugin_source import PluginSource
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.setting_values import ONE
from pytest_multihost.core.option import SCRIPT_OPTIONS, Option, Settings
from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.standard_streams import (
    ENDED_BY_PIPE,
    drop_output,
    has_lost_its_reader,
    open_closed_streams,
)

if TYPE_CHECKING:
    import pluggy

    from pytest_multihost.hookspecs import Commands


class _PrintVersion(argparse.Action):
    """Print the version of the package and exit; argparse's own action would look it up always."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        import importlib.metadata  # 20 ms

        name = "pytest-multihost-hangs"
        sys.stdout.write(f"{name} {importlib.metadata.version(name)}\n")
        parser.exit()


def make_parser(
    hook: pluggy.HookRelay,
) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and that of each command, including plugins'."""
    parser = argparse.ArgumentParser(
        prog="multihost", description="Find the rank that a hang waits for."
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="run a script on several ranks, and find the rank that makes it hang"
    )
    _add_run(run, _run_options(hook), offered_host_kinds(hook))
    _add_explain(commands, explainers_of(hook))
    last = commands.add_parser("open", help="open the last report in a browser")
    last.add_argument(
        "directory",
        type=Path,
        nargs="?",
        help="folder of a run or of all runs; its pages are written again first; default:"
        " .pytest_multihost",
    )
    last.add_argument(
        "--path", action="store_true", help="print the path of the report, and open nothing"
    )
    last.set_defaults(act=_open)
    report = commands.add_parser("report", help="write every page again from the artifacts alone")
    report.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=artifacts_folder(),
        help="folder of one attempt, one run or all runs; default: .pytest_multihost, all runs",
    )
    _add_source_root(report)
    report.set_defaults(act=_report)
    hook.pytest_multihost_commands(commands=commands)
    return parser, commands.choices


def explainers_of(hook: pluggy.HookRelay) -> Sequence[Explainer]:
    """Return the explainers of folders: those of plugins, and last the one of attempts."""
    return [*(each for group in hook.pytest_multihost_explainers() for each in group), ATTEMPTS]


def _add_explain(commands: Commands, explainers: Sequence[Explainer]) -> None:
    sources = " or ".join(each.source for each in reversed(explainers))
    again = commands.add_parser(
        "explain", help=f"find the rank that a hang waited for, from {sources} alone"
    )
    folders = ", or ".join(each.folder for each in reversed(explainers))
    again.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="*",
        help=f"latest (the newest run, the default), a run's folder, a folder {folders}, several"
        " logs, or - for standard input",
    )
    _add_source_root(again)
    again.add_argument(
        "--json", action="store_true", help="for dumps and logs: print the verdict as JSON"
    )
    again.add_argument(
        "--into",
        type=Path,
        help="for dumps and logs: write verdict.json and report.html to this folder",
    )
    for each in explainers:
        each.add_options(again)
    again.set_defaults(act=partial(_explain, explainers=explainers), folders=folders)


def _add_source_root(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--source-root",
        type=Path,
        action="append",
        metavar="DIR",
        help="show source lines of files below this folder; may be repeated; default: the working"
        " directory and installed packages",
    )


def _add_run(
    run: argparse.ArgumentParser, offered: Sequence[Option[object]], hosts: Sequence[HostKind]
) -> None:
    """Add the options of ``run`` and of plugins; the script gets the remaining arguments."""
    run.epilog = (
        "Exit codes: 0 if all ranks ended well, 1 if one raised or died, 2 if they could not be"
        " run, 3 if they hung, 130 if they were interrupted."
    )
    run.add_argument(
        "--ranks",
        "-n",
        type=int,
        metavar="N",
        help="number of ranks; default: the processes that torchrun, srun or mpirun started",
    )
    run.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="NAME=N:PROGRAM",
        help="instead of one script: run PROGRAM, such as train.py or '-m my.engine --port {port}',"
        " on N ranks, as the role NAME; may be repeated",
    )
    run.add_argument(
        "--ready",
        action="append",
        default=[],
        metavar="NAME=tcp:{port}",
        help="a rank of the role is ready once it listens at this port; {port}: a free"
        " port of the rank",
    )
    run.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="NAME=ROLE",
        help="start the ranks of NAME once the ranks of ROLE are ready; may be repeated",
    )
    run.add_argument(
        "--restarts",
        action="append",
        default=[],
        metavar="NAME=N",
        help="start the program of the role NAME again after an error, up to N times",
    )
    run.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME",
        help="the role NAME serves the others: end its program once all others have ended",
    )
    run.add_argument(
        "-p",
        action="append",
        dest="plugins",
        default=[],
        metavar="NAME",
        help="load a plugin that offers backends or faults, as pytest does",
    )
    forms = [ONE, *(form for kind in hosts for form in (kind.name, f"{kind.name}:N"))]
    *most, last = forms
    named = f"{', '.join(most)} or {last}" if most else last
    run.add_argument(
        "--hosts",
        default="",
        help=f"{named}; default: {ONE}, and for roles one host that no other process can reach",
    )
    for option in offered:
        run.add_argument(
            f"--{option.name}",
            type=partial(_checked, option),
            metavar=option.of_script.metavar or option.metavar,
            help=option.of_script.help,
        )
    run.add_argument(
        "--fault", action="append", default=[], help="such as 'slow_io(rank=0, seconds=2)'"
    )
    run.add_argument(
        "--keep",
        action="store_true",
        help="also keep the logs and the verdict of a job that ends well",
    )
    run.add_argument(
        "--log-dir",
        "--log_dir",
        type=Path,
        metavar="DIR",
        help="write the output of the ranks to this folder, not to the terminal",
    )
    run.add_argument("-m", "--module", action="store_true", help="the script is a module's name")
    add_torchrun_options(run)
    run.add_argument("script", nargs="?", default="")
    run.add_argument("args", nargs=argparse.REMAINDER, help="the script's arguments")
    run.set_defaults(act=_run)


def _checked(option: Option[object], text: str) -> str:
    """Return the text if it is a valid value of an option."""
    try:
        option.parse(text)
    except SettingError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _run_options(hook: pluggy.HookRelay) -> list[Option[object]]:
    """Return the options of ``run`` with values: the core's, and those that plugins offer."""
    offered = (option for group in hook.pytest_multihost_run_options() for option in group)
    return [*SCRIPT_OPTIONS, *offered]


def _with_others(hook: pluggy.HookRelay, command: str) -> pluggy.HookRelay:
    """Return the hooks of this package's plugins and of those that have an unknown command.

    A mistyped command loads nothing of the working directory: `sudo multihost atach` is called in
    folders of others. Prints an error if a plugin is not loaded, or cannot be.
    """
    from pytest_multihost.core.project_plugins import commands_source, may_offer, project_plugins

    source = PluginSource(folders=(str(Path.cwd()),))
    try:
        source = commands_source(command, source)
        if not may_offer(source):
            return hook
        return project_plugins(source).hook
    except SettingError as error:
        sys.stderr.write(f"{error}\n")
        return hook


def main() -> int:
    """Run a command; return its exit code.

    This is 1 if an error ended it, and that of SIGPIPE if nobody reads its output any more, as
    after ``| head -1``.
    """
    open_closed_streams()
    try:
        code = _run_command()
        sys.stdout.flush()  # an error shows here, and not at the end of the interpreter
    except OSError as error:
        if not has_lost_its_reader(sys.stdout):
            sys.stderr.write(f"the output cannot be written: {error}\n")
            code = 1
        else:
            code = ENDED_BY_PIPE
        drop_output(sys.stdout)
    return code


def _run_command() -> int:
    hook = new_plugin_manager().hook
    parser, commands = make_parser(hook)
    command = next(iter(sys.argv[1:]), "")
    if command[:1] not in {"", "-"} and command not in commands:
        hook = _with_others(hook, command)
        parser, commands = make_parser(hook)
    options = _parsed(parser, commands)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # its encoding may lack characters of a test name
            stream.reconfigure(errors="backslashreplace")
    try:
        code: int = options.act(options, hook)
    except (MultihostError, OSError) as error:
        if isinstance(error, BrokenPipeError) and has_lost_its_reader(sys.stdout):
            raise
        sys.stderr.write(f"{printable(str(error), keeps_lines=True)}\n")
        return 1
    return code


def _parsed(
    parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]
) -> argparse.Namespace:
    """Return the options of this process; errors repeat arguments, so they are made printable.

    Raises:
        SystemExit: The arguments are wrong, or ask for help only.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options, unknown = parser.parse_known_args()
            if unknown:  # argparse would show the usage of `multihost`, not that of the command
                commands[options.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    finally:
        sys.stderr.write(printable(said.getvalue(), keeps_lines=True))
    return options


def _run(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    from pytest_multihost.core.command.role_programs import StartOptions, parse_roles
    from pytest_multihost.core.command.run import NOT_RUN, RunOptions, run_script

    try:
        hints, program = list(torchrun_hints(options)), _program(options)
        # torchrun's --role names the role of all ranks.
        roles = parse_roles(
            [each for each in options.role if "=" in each],
            StartOptions(
                ready=options.ready,
                after=options.after,
                restarts=options.restarts,
                services=options.service,
            ),
        )
    except SettingError as error:
        sys.stderr.write(f"multihost run: {error}\n")
        return NOT_RUN
    sys.stderr.writelines(f"multihost run: {each}\n" for each in hints)
    return run_script(
        RunOptions(
            script=program.script,
            script_args=program.args,
            is_module=program.is_module,
            ranks=options.ranks,
            hosts=options.hosts,
            settings=Settings.of_script(_run_options(hook), vars(options)),
            faults=options.fault,
            log_folder=options.log_dir,
            artifacts=artifacts_folder(),
            is_kept=options.keep,
            plugins=options.plugins,
            roles=roles,
        ),
        hook,
    )


def _program(options: argparse.Namespace) -> Program:
    """Return what the ranks run.

    Raises:
        SettingError: It is not a Python program, or is said to be a module and a command.
    """
    if not options.script and not any("=" in each for each in options.role):
        remedy = "Name one: multihost run --ranks N train.py"
        raise SettingError("a script is missing", remedy=remedy)
    if not options.no_python:
        return Program(options.script, options.args, is_module=options.module)
    if options.module:
        happened = "--no-python and -m: the program is either a command or a module"
        raise SettingError(happened, remedy="Leave out one.")
    return python_program([options.script, *options.args])


def _explain(
    options: argparse.Namespace, hook: pluggy.HookRelay, explainers: Sequence[Explainer]
) -> int:
    del hook
    options.paths = options.paths or [Path("latest")]
    options.directory = options.paths[0]
    is_one = len(options.paths) == 1
    for each in explainers:
        if is_one or each.takes_files:
            code = each.explain(options)
            if code is not None:
                return code
    if not is_one:
        raise MultihostError(
            "multihost explain reads one folder, or several logs",
            seen=f"Not all of them are logs: {', '.join(map(str, options.paths))}",
            remedy="Name one folder, or logs alone.",
        )
    return _explain_attempt(options)


def _explain_attempt(options: argparse.Namespace) -> int:
    """Print the finding and its evidence; return 1 if the derived verdict differs."""
    from pytest_multihost.core.command.rejudged import explain, failed_attempt
    from pytest_multihost.core.model.source import files_below

    directory = failed_attempt(options.directory, folders=options.folders)
    page, differences = explain(directory, files_below(options.source_root))
    differs = f"differs from verdict.json in: {printable(', '.join(differences))}"
    sys.stdout.write(f"{page}\n{differs if differences else 'agrees with verdict.json'}\n")
    return 1 if differences else 0


ATTEMPTS = Explainer(
    source="artifacts", folder="of an attempt, below .pytest_multihost", explain=_explain_attempt
)
"""The explainer for attempts of a test or script; accepts any folder."""


def _open(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    """Open the page of the last run's only failed test, else the run's page."""
    import webbrowser

    from pytest_multihost.core.command.rejudged import last_page, rebuild

    renderers, written = offered_renderers(hook), set()
    if options.directory is not None:  # it may be somebody else's, whose pages may run any script
        found = rebuild(options.directory, renderers)
        written = {each.resolve() for each in found if isinstance(each, Path)}
    page = last_page(options.directory or artifacts_folder(), renderers)
    if options.directory is not None and page.resolve() not in written:
        sys.stderr.write("the page was not written again: it may be from another person\n")
    sys.stdout.write(f"{printable(str(page))}\n")
    if not options.path and not webbrowser.open(page.resolve().as_uri()):
        sys.stdout.write("no browser could be started: open this file in one\n")
    return 0


def _report(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    """Write every page again; return 1 if one could not be written."""
    from pytest_multihost.core.command.rejudged import rebuild
    from pytest_multihost.core.model.source import files_below

    code = 0
    sources = files_below(options.source_root)
    for each in rebuild(options.directory, offered_renderers(hook), sources):
        if isinstance(each, MultihostError):
            sys.stderr.write(f"left out: {printable(str(each), keeps_lines=True)}\n")
            code = 1
        else:
            sys.stdout.write(f"{printable(str(each))}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
