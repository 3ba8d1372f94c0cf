"""``multihost explain`` for a folder of dumps. ``--help`` imports it, so it imports little."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_multihost.core.command.explainer import Explainer


def add_options(explain: argparse.ArgumentParser) -> None:
    """Add the options for dumps."""
    explain.add_argument(
        "--prefix", help="for dumps: the text before the number of the rank in the files' names"
    )


def explain_dumps(options: argparse.Namespace) -> int | None:
    """Print the diagnosis of a folder of dumps; return 0, or 1 if there is none.

    Returns None if the folder holds no dumps.

    Raises:
        MultihostError: No dump in it is usable.
        OSError: A file cannot be written.
    """
    from pytest_multihost.core.command.job_files import write_job
    from pytest_multihost.core.model.source import files_below
    from pytest_multihost.core.model.stack import context_of
    from pytest_multihost.extensions.flight.recording import is_dump_folder, read_dumps
    from pytest_multihost.extensions.flight.told_world import judge_dumps

    directory: Path = options.directory
    if not is_dump_folder(directory):
        return None
    judged = judge_dumps(
        read_dumps(directory, prefix=options.prefix),
        str(directory),
        context_of(str(Path.cwd()), files_below(options.source_root)),
    )
    write_job(judged, str(directory), options)
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")


DUMPS = Explainer(
    source="dumps",
    folder="of torch's flight-recorder dumps",
    explain=explain_dumps,
    add_options=add_options,
)
"""The explainer for folders of dumps."""
