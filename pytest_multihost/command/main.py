"""The console script ``multihost``."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Iterable
from pathlib import Path

from pytest_multihost.command.rejudged import explain, last_page, rebuild
from pytest_multihost.model.errors import MultihostError

_ARTIFACTS = "PYTEST_MULTIHOST_ARTIFACTS"
_DEFAULT = ".pytest_multihost"


def main() -> int:
    """Run a command; return the exit code: 0, or 1 if the command failed."""
    options = _parser().parse_args()
    try:
        code: int = options.run(options)
    except MultihostError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="multihost", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    artifacts = Path(os.environ.get(_ARTIFACTS) or _DEFAULT)
    explain_ = commands.add_parser(
        "explain", help="derive a verdict again from its artifacts alone"
    )
    explain_.add_argument(
        "directory", type=Path, help="folder of an attempt, below .pytest_multihost"
    )
    explain_.set_defaults(run=_explain)
    open_ = commands.add_parser("open", help="open the last report in a browser")
    open_.add_argument(
        "directory", type=Path, nargs="?", default=artifacts, help="default: .pytest_multihost"
    )
    open_.add_argument("--path", action="store_true", help="only say where it is")
    open_.set_defaults(run=_open)
    report = commands.add_parser("report", help="write every page again from the artifacts alone")
    report.add_argument(
        "directory", type=Path, help="folder of an attempt, of a run, or of all: .pytest_multihost"
    )
    report.set_defaults(run=_report)
    return parser


def _explain(options: argparse.Namespace) -> int:
    """Print the finding and its evidence; 1 if the verdict cannot be derived again."""
    page, differences = explain(options.directory)
    differs = f"differs from verdict.json in: {', '.join(differences)}"
    _print([page, differs if differences else "agrees with verdict.json"])
    return 1 if differences else 0


def _open(options: argparse.Namespace) -> int:
    """Open the page of the last run's only test that went wrong, else the run's page."""
    page = last_page(options.directory)
    _print([page])
    if not options.path and not webbrowser.open(page.resolve().as_uri()):
        _print(["no browser could be started: open this file in one"])
    return 0


def _report(options: argparse.Namespace) -> int:
    """Write every page again; 1 if one could not be written."""
    pages = list(rebuild(options.directory))
    failed = [each for each in pages if isinstance(each, MultihostError)]
    _print(f"left out: {each}" if each in failed else each for each in pages)
    return 1 if failed else 0


def _print(lines: Iterable[object]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
