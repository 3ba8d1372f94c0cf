"""A world explained from the dumps of its ranks' flight recorders."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from pytest_multihost.blame import Judgement
from pytest_multihost.command.judged_page import page_of
from pytest_multihost.flight import judge_dumps, read_dumps
from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.model.verdict import Verdict
from pytest_multihost.report.artifacts import Attempt, build_verdict
from pytest_multihost.report.html import PageModel, write_page


def explain_dumps(directory: Path, *, prefix: str | None, into: Path | None, as_json: bool) -> int:
    """Print what follows from a folder of dumps; return 0, or 1 if nothing does.

    Args:
        directory: The folder.
        prefix: What the files' names begin with, if several kinds are there.
        into: A folder for verdict.json and report.html; None: nothing is written.
        as_json: Whether to print the verdict instead of the page.

    Raises:
        MultihostError: There are no dumps that can be used.
        OSError: Something cannot be written.
    """
    judged = judge_dumps(
        read_dumps(directory, prefix=prefix), str(directory), SourceContext(str(Path.cwd()))
    )
    verdict = _verdict(judged, directory)
    text = json.dumps(to_json(verdict), indent=2)
    if into is not None:
        into.mkdir(parents=True, exist_ok=True)
        (into / "verdict.json").write_text(f"{text}\n", encoding="utf-8")
        write_page(into, PageModel(judged=judged, verdict=verdict))
    sys.stdout.write(f"{text if as_json else page_of(judged, str(into or directory))}\n")
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")


def _verdict(judged: Judgement, directory: Path) -> Verdict:
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    return build_verdict(judged, Attempt(now, directory.name, None, {}))
