"""The output of a look at a job: its page, its verdict, and the page for a browser."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command.world_page import Screen, page_of
from pytest_multihost.core.model.verdict import Verdict
from pytest_multihost.core.report.artifacts import Attempt, build_verdict
from pytest_multihost.extensions.live.as_user import Texts
from pytest_multihost.extensions.live.native_sections import native_sections
from pytest_multihost.extensions.live.processes import Job


def texts_of(
    job: Job,
    judged: Judgement,
    *,
    screen: Screen | None = None,
    shows_native: bool = False,
    has_html: bool = False,
) -> Texts:
    """Return the texts about a job.

    Args:
        screen: The output for the page; None: standard output.
        shows_native: Whether native frames are shown, if they were read.
        has_html: Whether the user has asked for the page for a browser.
    """
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    verdict = build_verdict(judged, Attempt(f"{now}-{os.getpid()}", "", None, {}))
    native = native_sections(judged.result) if shows_native else ()
    return Texts(
        page=page_of(judged, job.title, more=native, screen=screen),
        verdict=f"{json.dumps(verdict.record(), indent=2)}\n",
        html=_html(judged, verdict) if has_html else "",
        is_hung=judged.diagnosis is not None and judged.finding.outcome == "hung",
    )


def _html(judged: Judgement, verdict: Verdict) -> str:
    from pytest_multihost.core.report.html import PageModel, write_page  # rarely needed

    with tempfile.TemporaryDirectory(prefix="multihost-") as scratch:
        page = write_page(Path(scratch), PageModel(judged=judged, verdict=verdict))
        return page.read_text("utf-8")
