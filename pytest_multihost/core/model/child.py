"""A child process of a rank, which does the work of its role: an engine's core, a scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Child:
    """A child process of a rank.

    Attributes:
        name: Its name in its program; empty: none of its own.
        ended: How it has ended, as in "was killed by SIGKILL"; empty: it lives, or that is unknown.
    """

    pid: int
    name: str = ""
    program: str = ""
    ended: str = ""

    @property
    def title(self) -> str:
        """Its name for the reader: ``EngineCore_1``, ``python 4711``."""
        return self.name or f"{self.program or 'process'} {self.pid}"
