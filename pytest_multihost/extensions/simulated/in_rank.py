"""The part of a simulated world in a rank: it says when the rank has returned from the test."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.services import RankPart
from pytest_multihost.extensions.simulated.learned import learn, write_learned
from pytest_multihost.extensions.simulated.link import links


def join(spec: RankSpec) -> RankPart:
    """Return the part; the backend connects the rank to the exchange."""
    before = len(sys.modules)
    is_witness = spec.rank in (0, spec.world.size - 1)

    has_returned = False

    def end() -> None:
        nonlocal has_returned
        has_returned = True
        if is_witness:
            with contextlib.suppress(OSError):
                write_learned(Path(spec.scratch), spec.rank, learn(before))

    def parked() -> None:
        # Only now: a hang that the exchange proves must not find a rank on its way.
        for each in links if has_returned else ():
            each.finish()

    def rest() -> None:
        for each in links:
            each.rest()

    return RankPart(begin=rest, end=end, parked=parked)
