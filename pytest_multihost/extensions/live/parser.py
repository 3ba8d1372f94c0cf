"""The command line of ``multihost attach``. ``--help`` imports it, so it imports little."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pluggy

    from pytest_multihost.hookspecs import Commands


def add_attach(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "attach",
        help="find the rank of a running job that the others wait for; changes nothing in the job",
        epilog="Run by root, it reads a job with the rights of the job's user, if that user"
        " may read"
        " this Python. docs/security.md lists what an attacker can do.",
    )
    parser.set_defaults(act=_attach)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "processes",
        nargs="*",
        default=[],
        metavar="PID",
        help="the process of a rank; RANK=PID if its environment names no rank; without"
        " PID: list the jobs of this machine",
    )
    which.add_argument("--match", metavar="TEXT", help="the job with this in its command line")
    which.add_argument(
        "--children-of", type=int, metavar="PID", help="the job that this torchrun or mpirun runs"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="look at the job on all its machines: start this command once per machine with srun or"
        " mpirun, or set PYTEST_MULTIHOST_RANK, _SIZE and _ADDRESS",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="look once: the default")
    how.add_argument("--follow", action="store_true", help="look until the job stops moving")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --follow: report a hang once others have waited this long for a rank,"
        " even if it moves",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="also read native frames, which stops each thread for a moment (ptrace)",
    )
    parser.add_argument(
        "--source-root",
        type=Path,
        action="append",
        metavar="DIR",
        help="for processes of another user: show source lines of files below this folder; may be"
        " repeated; default: the working directory and installed packages",
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict; -: print nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")


def _attach(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    from pytest_multihost.extensions.live.command import attach

    return attach(options, hook)
