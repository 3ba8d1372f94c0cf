"""Find where the ranks of a group entered different operations.

The operations come from slot pages and from torch's flight recorders.
"""

from __future__ import annotations

from pathlib import Path

from pytest_multihost.core.blame.partings import find_partings
from pytest_multihost.core.model.history import Parting
from pytest_multihost.core.slots import slots_path
from pytest_multihost.core.slots.history import read_histories
from pytest_multihost.core.watch.probes.flight_requests import FlightRequests


def probe_partings(scratch: Path, size: int, flight: FlightRequests) -> tuple[Parting, ...]:
    """Return the partings of the ranks of each group.

    Args:
        size: Number of ranks.
        flight: The requests to the ranks that may answer.
    """
    recorded = [
        each
        for rank in range(size)
        for each in read_histories(slots_path(scratch, rank), rank=rank)
    ]
    return find_partings(flight.memberships.histories(recorded), flight.histories())
