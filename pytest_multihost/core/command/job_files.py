"""The output of ``multihost explain`` about a job that was not an attempt of a test."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command.world_page import page_of
from pytest_multihost.core.model.json_values import to_json
from pytest_multihost.core.report.artifacts import Attempt, build_verdict
from pytest_multihost.core.report.html import PageModel, write_page


def write_job(judged: Judgement, name: str, options: argparse.Namespace) -> None:
    """Print the page of a job, or its verdict; write both to a folder if the user names one.

    Args:
        name: The source of the judgement, which the page shows.

    Raises:
        OSError: A file cannot be written.
    """
    into: Path | None = options.into
    is_asked = options.json or into is not None  # it grows with the square of the ranks
    text = _write(judged, Path(name).name, into) if is_asked else ""
    sys.stdout.write(f"{text if options.json else page_of(judged, str(into or name))}\n")


def _write(judged: Judgement, name: str, into: Path | None) -> str:
    """Return the verdict as JSON; also write it and its page if a folder is given."""
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    verdict = build_verdict(judged, Attempt(now, name, None, {}))
    text = json.dumps(to_json(verdict), indent=2)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        files.write_named(into / "verdict.json", f"{text}\n")
        write_page(into, PageModel(judged=judged, verdict=verdict))
    return text
