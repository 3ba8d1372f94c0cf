"""The page for the terminal of a world that is no attempt of a test."""

from __future__ import annotations

from pytest_multihost.blame import Judgement
from pytest_multihost.report.text import page_sections


def page_of(judged: Judgement, files: str) -> str:
    """Return the page for the terminal.

    Args:
        judged: The world.
        files: Where what it was told from is.
    """
    word = "NOT KNOWN TO HANG"
    if (
        judged.diagnosis is not None
    ):  # who looks only once cannot tell a slow rank from one that hangs
        word = "HUNG?" if judged.diagnosis.detected_by == "attach" else "HUNG"
    lines = [f"{word}  {judged.finding.reason}"]
    for part in page_sections(judged, files=files):
        lines += [f"--- {part.title}", part.text]
    return "\n".join(lines)
