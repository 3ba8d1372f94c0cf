"""The console script ``multihost``."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from pytest_multihost.command.options import artifacts_folder, make_parser
from pytest_multihost.model.errors import MultihostError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

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
            case "sweep-merge":
                return _sweep_merge(options)
            case _:
                return _report(options.directory)
    except (MultihostError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(options: argparse.Namespace) -> int:
    from pytest_multihost.command.run import RunOptions, run_script

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
    from pytest_multihost.command.attached import attach

    return attach(options)


def _sweep_merge(options: argparse.Namespace) -> int:
    from pytest_multihost.command.merged_sweeps import sweep_merge

    return sweep_merge(options.directories, options.into)


def _explain(options: argparse.Namespace) -> int:
    """Print the finding and its evidence; 1 if the verdict cannot be derived again."""
    from pytest_multihost.command.rejudged import explain
    from pytest_multihost.flight import is_dump_folder

    directory: Path = options.directory
    if is_dump_folder(directory):
        from pytest_multihost.command.dumps import explain_dumps

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

    from pytest_multihost.command.rejudged import last_page

    page = last_page(directory)
    sys.stdout.write(f"{page}\n")
    if not shows_only and not webbrowser.open(page.resolve().as_uri()):
        sys.stdout.write("no browser could be started: open this file in one\n")
    return 0


def _report(directory: Path) -> int:
    """Write every page again; 1 if one could not be written."""
    from pytest_multihost.command.rejudged import rebuild

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
