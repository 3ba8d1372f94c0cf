"""The console script ``multihost``."""

from __future__ import annotations

import argparse
import io
import os
import sys
import webbrowser
from pathlib import Path

from pytest_multihost.command import attached
from pytest_multihost.command.dumps import explain_dumps
from pytest_multihost.command.merged_sweeps import sweep_merge
from pytest_multihost.command.rejudged import explain, last_page, rebuild
from pytest_multihost.flight import is_dump_folder
from pytest_multihost.model.errors import MultihostError


def main() -> int:
    """Run a command; return the exit code: 0, or 1 if the command failed.

    It has also failed if it has found a weakness or a difference.
    """
    options = _parser().parse_args()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test's name may have no bytes in its encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        match options.command:
            case "explain":
                return _explain(options)
            case "attach":
                return attached.attach(options)
            case "open":
                return _open(options.directory, shows_only=options.path)
            case "sweep-merge":
                return sweep_merge(options.directories, options.into)
            case _:
                return _report(options.directory)
    except (MultihostError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="multihost", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
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
    attached.add_options(commands.add_parser("attach", help=attached.HELP))
    last = commands.add_parser("open", help="open the last report in a browser")
    artifacts = Path(os.environ.get("PYTEST_MULTIHOST_ARTIFACTS") or ".pytest_multihost")
    last.add_argument(
        "directory", type=Path, nargs="?", default=artifacts, help="default: .pytest_multihost"
    )
    last.add_argument("--path", action="store_true", help="only say where it is")
    report = commands.add_parser("report", help="write every page again from the artifacts alone")
    report.add_argument(
        "directory", type=Path, help="folder of an attempt, of a run, or of all: .pytest_multihost"
    )
    merge = commands.add_parser("sweep-merge", help="join the results of shards of sweeps")
    merge.add_argument(
        "directories", type=Path, nargs="+", metavar="DIR", help="with sweep.json anywhere below"
    )
    merge.add_argument("--into", type=Path, help="write the joined results and their pages here")
    return parser


def _explain(options: argparse.Namespace) -> int:
    """Print the finding and its evidence; 1 if the verdict cannot be derived again."""
    directory: Path = options.directory
    if is_dump_folder(directory):
        return explain_dumps(
            directory, prefix=options.prefix, into=options.into, as_json=options.json
        )
    page, differences = explain(directory)
    differs = f"differs from verdict.json in: {', '.join(differences)}"
    sys.stdout.write(f"{page}\n{differs if differences else 'agrees with verdict.json'}\n")
    return 1 if differences else 0


def _open(directory: Path, *, shows_only: bool) -> int:
    """Open the page of the last run's only test that went wrong, else the run's page."""
    page = last_page(directory)
    sys.stdout.write(f"{page}\n")
    if not shows_only and not webbrowser.open(page.resolve().as_uri()):
        sys.stdout.write("no browser could be started: open this file in one\n")
    return 0


def _report(directory: Path) -> int:
    """Write every page again; 1 if one could not be written."""
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
