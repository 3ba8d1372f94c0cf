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
    lines = [f"{_word(judged)}  {judged.finding.reason}"]
    for part in page_sections(judged, files=files):
        lines += [f"--- {part.title}", part.text]
    return "\n".join(lines)


def _word(judged: Judgement) -> str:
    """Return in a word whether the world hangs."""
    found = judged.diagnosis
    if found is None or judged.finding.outcome != "hung":
        return "NOT KNOWN TO HANG"
    # Who looks only once cannot tell a slow rank from one that hangs, unless it is proven.
    is_sure = found.detected_by != "attach" or judged.result.reason is not None
    return "HUNG" if is_sure else "HUNG?"
