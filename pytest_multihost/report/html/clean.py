"""Logs as a reader wants them: of long ones both ends, of a progress bar its last state."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_multihost.report.html.markup import plain


@dataclass(frozen=True, slots=True)
class Log:
    """What is known of a rank's log.

    Attributes:
        rank: Whose.
        name: Its file's name.
        head: Its beginning.
        tail: Its end; empty where `head` is all of it.
        left_out: Bytes between the two.
    """

    rank: int
    name: str
    head: str
    tail: str = ""
    left_out: int = 0


def as_shown(text: str) -> str:
    """Return what a terminal would show in the end: what was written over is gone."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return plain("\n".join(lines))
