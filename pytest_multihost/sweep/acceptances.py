"""Match weaknesses with those that a project accepts."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_multihost.model.sweep import Acceptance, Weakness


def apply_acceptances(
    weaknesses: Sequence[Weakness], accepted: Sequence[Acceptance], *, nodeid: str
) -> tuple[tuple[Weakness, ...], tuple[Acceptance, ...]]:
    """Mark the weaknesses that are accepted.

    Args:
        weaknesses: All that a sweep of one test has found.
        accepted: The entries of the project's file.
        nodeid: The test.

    Returns:
        The weaknesses, and the entries for this test that no weakness meets.
    """
    raise NotImplementedError
