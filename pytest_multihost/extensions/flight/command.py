"""``multihost explain`` for a folder of dumps. ``--help`` imports it, so it imports little."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.core.command.explainer import Explainer

if TYPE_CHECKING:
    from pytest_multihost.core.blame import Judgement


def add_options(explain: argparse.ArgumentParser) -> None:
    """Add the options for dumps."""
    explain.add_argument(
        "--prefix", help="for dumps: the text before the number of the rank in the files' names"
    )
    explain.add_argument("--json", action="store_true", help="for dumps: print the verdict as JSON")
    explain.add_argument(
        "--into", type=Path, help="for dumps: write verdict.json and report.html to this folder"
    )


def explain_dumps(options: argparse.Namespace) -> int | None:
    """Print the diagnosis of a folder of dumps; return 0, or 1 if there is none.

    Returns None if the folder holds no dumps.

    Raises:
        MultihostError: No dump in it is usable.
        OSError: A file cannot be written.
    """
    from pytest_multihost.core.command.world_page import page_of
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
    is_asked = options.json or options.into is not None  # it grows with the square of the ranks
    text = _write(judged, directory, options.into) if is_asked else ""
    sys.stdout.write(
        f"{text if options.json else page_of(judged, str(options.into or directory))}\n"
    )
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")


def _write(judged: Judgement, directory: Path, into: Path | None) -> str:
    """Return the verdict as JSON; also write it and its page if a folder is given."""
    from datetime import UTC, datetime

    from pytest_multihost.core import files
    from pytest_multihost.core.model.json_values import to_json
    from pytest_multihost.core.report.artifacts import Attempt, build_verdict
    from pytest_multihost.core.report.html import PageModel, write_page

    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    verdict = build_verdict(judged, Attempt(now, directory.name, None, {}))
    text = json.dumps(to_json(verdict), indent=2)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        files.write_named(into / "verdict.json", f"{text}\n")
        write_page(into, PageModel(judged=judged, verdict=verdict))
    return text


DUMPS = Explainer(
    source="dumps",
    folder="of torch's flight-recorder dumps",
    explain=explain_dumps,
    add_options=add_options,
)
"""The explainer for folders of dumps."""
