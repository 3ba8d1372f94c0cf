"""Render worlds as text for the terminal.

`page` is the page of a hang, with `native` frames if asked for, `progress` the live line.
"""

from pytest_multihost.report.layout import COLOURS
from pytest_multihost.report.text.page import page_sections, stacks_text
from pytest_multihost.report.text.progress import (
    ERASE,
    blocking_text,
    overlay,
    points_lines,
    progress_text,
)

__all__ = [
    "COLOURS",
    "ERASE",
    "blocking_text",
    "overlay",
    "page_sections",
    "points_lines",
    "progress_text",
    "stacks_text",
]
