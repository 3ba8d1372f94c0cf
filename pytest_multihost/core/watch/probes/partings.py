"""Find where the ranks of a group entered different operations.

The operations come from slot pages and from torch's flight recorders.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.core.blame.partings import find_partings
from pytest_multihost.core.model.history import History, Parting
from pytest_multihost.core.slots import FlightMailbox, slots_path
from pytest_multihost.core.slots.history import read_histories
from pytest_multihost.core.watch.probes.deep_probe import FLIGHT_S, POLL_S

_ANSWER_S = 1.0
"""How long a rank may take to send its flight recorder's stacks, once it has begun to answer."""


def probe_partings(scratch: Path, size: int, alive: Sequence[int]) -> tuple[Parting, ...]:
    """Return the partings of the ranks of each group.

    Args:
        size: Number of ranks.
        alive: Ranks that may answer requests.
    """
    recorded = [
        each
        for rank in range(size)
        for each in read_histories(slots_path(scratch, rank), rank=rank)
    ]
    return find_partings(recorded, _flight_histories(scratch, alive))


def _flight_histories(scratch: Path, asked: Sequence[int]) -> Sequence[History]:
    since_s = time.monotonic()
    waiting = [
        each for rank in asked if (each := FlightMailbox(scratch, rank)).ask(for_histories=True)
    ]
    found: list[History] = []
    while waiting and (now_s := time.monotonic()) < since_s + _ANSWER_S:
        time.sleep(POLL_S)
        if now_s > since_s + FLIGHT_S:
            waiting = [each for each in waiting if each.read(since_s=since_s) is not None]
        answers = [(each, each.read_histories(since_s=since_s)) for each in waiting]
        found += [history for _, answer in answers for history in answer or ()]
        waiting = [each for each, answer in answers if answer is None]
    return found
