"""Decorators of the corpus: how a program runs, and what its passing run shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])

TIMEOUT_S = 30.0


def guilty(
    rule: str,
    *lines: str,
    ranks: int = 2,
    backend: str = "gloo",
    like: str = "",
    also: Sequence[str] = (),
    **multihost: Any,  # noqa: ANN401 - further keys of the multihost marker
) -> Callable[[Test], Test]:
    """Mark a program that passes, and can hang elsewhere.

    Args:
        rule: The rule that finds it.
        lines: Parts of the lines that are to be named.
        ranks: Size of the world.
        backend: How it is formed.
        like: The published case that it is modelled on.
        also: Other rules that find it, too.
        multihost: Further keys of the multihost marker.
    """
    expected = {
        "rules": [rule, *also],
        "lines": list(lines),
        "like": like,
    }
    return _marked(expected, ranks=ranks, backend=backend, timeout=TIMEOUT_S, **multihost)


def innocent(
    *,
    ranks: int = 2,
    backend: str = "gloo",
    **multihost: Any,  # noqa: ANN401 - further keys of the multihost marker
) -> Callable[[Test], Test]:
    """Mark a program that looks like a hazard and is none."""
    expected: dict[str, object] = {"rules": [], "lines": [], "like": ""}
    return _marked(expected, ranks=ranks, backend=backend, timeout=TIMEOUT_S, **multihost)


def _marked(expected: dict[str, object], **multihost: Any) -> Callable[[Test], Test]:  # noqa: ANN401
    def mark(test: Test) -> Test:
        return pytest.mark.hazard(**expected)(pytest.mark.multihost(**multihost)(test))

    return mark


def in_order(rank: int, steps: Sequence[Callable[[], object]]) -> list[object]:
    """Take steps in order on rank 0, and in the opposite order on all others."""
    return [step() for step in (steps if rank == 0 else steps[::-1])]
