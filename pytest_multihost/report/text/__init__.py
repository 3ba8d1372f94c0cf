"""Render worlds as text for the terminal."""

from pytest_multihost.report.text.page import page_sections
from pytest_multihost.report.text.points import points_lines
from pytest_multihost.report.text.progress import blocking_text, erase, overlay, progress_text
from pytest_multihost.report.text.spans import COLOURS
from pytest_multihost.report.text.stacks import stacks_text

__all__ = [
    "COLOURS",
    "blocking_text",
    "erase",
    "overlay",
    "page_sections",
    "points_lines",
    "progress_text",
    "stacks_text",
]
