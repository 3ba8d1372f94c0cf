"""The part of a simulated world in a rank: it says when the rank has left the test."""

from __future__ import annotations

import sys

from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.services import RankPart


def _finish() -> None:
    group = sys.modules.get("pytest_multihost.extensions.simulated.group")
    if group is not None and group.links:
        group.links[0].finish()


def join(_spec: RankSpec) -> RankPart:
    """Return the part; the backend connects the rank to the exchange."""
    return RankPart(end=_finish)
