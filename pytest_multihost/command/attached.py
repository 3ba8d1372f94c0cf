"""A running job, looked at from outside."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_multihost.command.judged_page import page_of
from pytest_multihost.live import find_job, judge_job
from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.report.artifacts import Attempt, build_verdict


def attach_once(names: Sequence[str], *, as_json: bool) -> int:
    """Print what a job's ranks do, and which one is waited for; return 0, or 1 if none is.

    Args:
        names: Of each process its id, or its rank and its id: ``0=4711``.
        as_json: Whether to print the verdict instead of the page.

    Raises:
        MultihostError: A process cannot be read, or it is not clear which rank it is.
    """
    job = find_job(names)
    title = f"processes {' '.join(map(str, job.pids.values()))}"
    judged = judge_job(job, title, SourceContext(str(Path.cwd())))
    if as_json:
        now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        verdict = build_verdict(judged, Attempt(f"{now}-{os.getpid()}", "", None, {}))
        sys.stdout.write(f"{json.dumps(to_json(verdict), indent=2)}\n")
    else:
        sys.stdout.write(f"{page_of(judged, title)}\n")
    return int(judged.diagnosis is None or judged.diagnosis.kind == "unknown")
