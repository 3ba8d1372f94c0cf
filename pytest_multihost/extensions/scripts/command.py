"""The command ``multihost run``: its options, and the program that it runs."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.core.files import artifacts_folder
from pytest_multihost.core.host_kind import offered_host_kinds
from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.model.setting_values import ONE
from pytest_multihost.core.option import SCRIPT_OPTIONS, Option, Settings
from pytest_multihost.extensions.scripts.program import Program, python_program
from pytest_multihost.extensions.scripts.torchrun_options import (
    add_torchrun_options,
    torchrun_hints,
)

if TYPE_CHECKING:
    import pluggy

    from pytest_multihost.hookspecs import Commands


def add_run(commands: Commands, hook: pluggy.HookRelay) -> None:
    """Add the command, with the options of plugins; the script gets the remaining arguments."""
    run = commands.add_parser(
        "run", help="run a script on several ranks, and find the rank that makes it hang"
    )
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
    forms = [
        ONE,
        *(form for kind in offered_host_kinds(hook) for form in (kind.name, f"{kind.name}:N")),
    ]
    *most, last = forms
    named = f"{', '.join(most)} or {last}" if most else last
    run.add_argument(
        "--hosts",
        default="",
        help=f"{named}; default: {ONE}, and for roles one host that no other process can reach",
    )
    for option in _run_options(hook):
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
    """Return the options of ``run`` with values: the core's, and offers of plugins."""
    offered = (option for group in hook.pytest_multihost_run_options() for option in group)
    return [*SCRIPT_OPTIONS, *offered]


def _run(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    from pytest_multihost.extensions.scripts.role_programs import StartOptions, parse_roles
    from pytest_multihost.extensions.scripts.run import NOT_RUN, RunOptions, run_script

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
    """Return the program of the ranks.

    Raises:
        SettingError: It is not a Python program, or is given as a module and a command.
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
