"""Processes that ranks had left behind, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_multihost.core.model.result import WorldResult


def leftover_texts(result: WorldResult) -> Iterator[str]:
    """Yield a sentence for each command line; a forked process has the command line of its rank."""
    for command, count in Counter(result.leftovers).items():
        processes = "1 process" if count == 1 else f"{count} processes"
        yield f"ended {processes} that ranks had left running: {command}"
