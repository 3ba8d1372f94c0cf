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
from pytest_multihost.core.files import artifacts_folder
from pytest_multihost.core.model.errors import MultihostError, SettingError
from pytest_multihost.core.model.plugin_source import PluginSource
from pytest_multihost.core.model.printable import printable
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
    hook.pytest_multihost_commands(commands=commands, hook=hook)
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


def _with_others(hook: pluggy.HookRelay, command: str) -> pluggy.HookRelay:
    """Return the hooks of this package's plugins and of plugins that have an unknown command.

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

    This is 1 if an error ended it, and that of SIGPIPE if no process reads its output any more, as
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
    if options.directory is not None:  # it may be foreign, and its pages may run any script
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
