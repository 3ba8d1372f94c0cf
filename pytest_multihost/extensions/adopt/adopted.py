"""The answers of the hook `pytest_multihost_adopt` about a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Adopted:
    """A test of another harness that runs as a world.

    Attributes:
        ranks: Number of ranks; a list runs a test function once for each.
        backend: The process group that is made for it; "none": the harness makes its own.
        timeout: Seconds, as in the marker; None: the run's.
        enter: Called in each rank before the test's setup, to put this rank in the place of the
            processes that the harness would start. It may replace anything: a rank runs one
            test, and ends.
    """

    ranks: int | Sequence[int]
    backend: str = "none"
    timeout: float | None = None
    enter: Callable[[pytest.Item], None] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of ranks."""
        return (self.ranks,) if isinstance(self.ranks, int) else tuple(self.ranks)

    @property
    def marker(self) -> Mapping[str, Any]:
        """The keys of the marker `multihost` that it gets."""
        timeout = {} if self.timeout is None else {"timeout": self.timeout}
        return {"ranks": list(self.sizes), "backend": self.backend, **timeout}


@dataclass(frozen=True, slots=True)
class Refused:
    """A test of another harness that runs there, as without this plugin.

    Attributes:
        why: A short reason; tests are counted by it.
    """

    why: str


OUTCOME = pytest.StashKey[Adopted | Refused]()
"""The outcome of a collected test."""
