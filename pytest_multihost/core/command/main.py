"""The console script ``multihost``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.spec import NO_TIMEOUT_S

# The command line of the console script; imports nothing of what the commands do.


_ATTACH = "say which rank of a running job is waited for; reads, and disturbs nothing"


def artifacts_folder() -> Path:
    """Return where runs are kept."""
    return Path(os.environ.get("PYTEST_MULTIHOST_ARTIFACTS") or ".pytest_multihost")


def make_parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(
        prog="multihost", description="Say which rank a hang waits for."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="run a script in ranks, and say which one hangs"))
    again = commands.add_parser(
        "explain", help="say which rank a hang waits for, from artifacts or dumps alone"
    )
    again.add_argument(
        "directory",
        type=Path,
        help="folder of an attempt, below .pytest_multihost, or of torch's flight-recorder dumps",
    )
    again.add_argument("--prefix", help="of dumps: their files' names before the rank's number")
    again.add_argument("--json", action="store_true", help="of dumps: print the verdict as JSON")
    again.add_argument(
        "--into", type=Path, help="of dumps: write verdict.json and report.html to this folder"
    )
    _add_attach(commands.add_parser("attach", help=_ATTACH))
    last = commands.add_parser("open", help="open the last report in a browser")
    last.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=artifacts_folder(),
        help="default: .pytest_multihost",
    )
    last.add_argument("--path", action="store_true", help="only say where it is")
    report = commands.add_parser("report", help="write every page again from the artifacts alone")
    report.add_argument(
        "directory", type=Path, help="folder of an attempt, of a run, or of all: .pytest_multihost"
    )
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    """Add the options of ``run``; what follows the script is the script's."""
    run.epilog = (
        "Exit codes: 0 if all ranks ended well, 1 if one raised or died, 2 if they could not be"
        " run, 3 if they hung, 130 if they were interrupted."
    )
    run.add_argument(
        "--ranks",
        "-n",
        type=int,
        metavar="N",
        help="how many ranks; default: those that torchrun, srun or mpirun has started",
    )
    run.add_argument(
        "--backend",
        default="none",
        choices=("none", "gloo", "jax", "nccl"),
        help="what is initialised before the script; default: none, it does so by itself",
    )
    run.add_argument("--hosts", default="one", help="one, netns or netns:N; default: one")
    run.add_argument(
        "--clock",
        default="real",
        choices=("real", "jump"),
        help="how time passes; jump: over waits that only time can end; default: real",
    )
    run.add_argument(
        "--fault", action="append", default=[], help="such as 'slow_io(rank=0, seconds=2)'"
    )
    run.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", help="end it then; default: never"
    )
    run.add_argument(
        "--horizon",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="it hangs if nothing in it can move within so long; default: 300",
    )
    run.add_argument(
        "--keep", action="store_true", help="keep logs and verdict also if all ends well"
    )
    run.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="write what ranks print there, do not show it",
    )
    run.add_argument("-m", dest="module", action="store_true", help="the script is a module's name")
    run.add_argument("script")
    run.add_argument("args", nargs=argparse.REMAINDER, help="the script's arguments")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= NO_TIMEOUT_S:
        raise ValueError(text)
    return seconds


def _add_attach(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``attach``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "processes",
        nargs="*",
        default=[],
        metavar="PID",
        help="a rank's process; RANK=PID if it does not say; none: list the jobs of this machine",
    )
    which.add_argument("--match", metavar="TEXT", help="the job with this in its command line")
    which.add_argument(
        "--children-of", type=int, metavar="PID", help="the job that this torchrun or mpirun runs"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="look together with the other processes that srun or mpirun has started, one for each"
        " machine of the job; so it is also with PYTEST_MULTIHOST_RANK, _SIZE and _ADDRESS",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="look once: the default")
    how.add_argument("--follow", action="store_true", help="look until the job stops moving")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --follow: a rank that is waited for so long hangs, whatever it does",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="read native frames, too: stops each thread for a moment, with ptrace",
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict; -: print nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")


# Each function imports what its command needs: `attach` is to look soon, and reads no artifacts.


def main() -> int:
    """Run a command; return the exit code: 0, or 1 if the command failed.

    It has also failed if it has found a weakness or a difference.
    """
    options = make_parser().parse_args()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test's name may have no bytes in its encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        match options.command:
            case "run":
                return _run(options)
            case "explain":
                return _explain(options)
            case "attach":
                return _attach(options)
            case "open":
                return _open(options.directory, shows_only=options.path)
            case _:
                return _report(options.directory)
    except (MultihostError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(options: argparse.Namespace) -> int:
    from pytest_multihost.core.command.run import RunOptions, run_script

    return run_script(
        RunOptions(
            script=options.script,
            script_args=options.args,
            is_module=options.module,
            ranks=options.ranks,
            backend=options.backend,
            hosts=options.hosts,
            clock=options.clock,
            faults=options.fault,
            timeout_s=options.timeout,
            horizon_s=options.horizon,
            log_folder=options.log_dir,
            artifacts=artifacts_folder(),
            is_kept=options.keep,
        )
    )


def _attach(options: argparse.Namespace) -> int:
    from pytest_multihost.extensions.live.command import attach

    return attach(options)


def _explain(options: argparse.Namespace) -> int:
    """Print the finding and its evidence; 1 if the verdict cannot be derived again."""
    from pytest_multihost.core.command.rejudged import explain
    from pytest_multihost.extensions.flight import is_dump_folder

    directory: Path = options.directory
    if is_dump_folder(directory):
        from pytest_multihost.core.command.rejudged import explain_dumps

        return explain_dumps(
            directory, prefix=options.prefix, into=options.into, as_json=options.json
        )
    page, differences = explain(directory)
    differs = f"differs from verdict.json in: {', '.join(differences)}"
    sys.stdout.write(f"{page}\n{differs if differences else 'agrees with verdict.json'}\n")
    return 1 if differences else 0


def _open(directory: Path, *, shows_only: bool) -> int:
    """Open the page of the last run's only test that went wrong, else the run's page."""
    import webbrowser

    from pytest_multihost.core.command.rejudged import last_page

    page = last_page(directory)
    sys.stdout.write(f"{page}\n")
    if not shows_only and not webbrowser.open(page.resolve().as_uri()):
        sys.stdout.write("no browser could be started: open this file in one\n")
    return 0


def _report(directory: Path) -> int:
    """Write every page again; 1 if one could not be written."""
    from pytest_multihost.core.command.rejudged import rebuild

    code = 0
    for each in rebuild(directory):
        if isinstance(each, MultihostError):
            sys.stderr.write(f"left out: {each}\n")
            code = 1
        else:
            sys.stdout.write(f"{each}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
