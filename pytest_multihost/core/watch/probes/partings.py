"""Find where the ranks of a group entered different operations.

The operations come from slot pages and from torch's flight recorders.
"""

from __future__ import annotations

from pathlib import Path

from pytest_multihost.core.blame.partings import find_partings
from pytest_multihost.core.model.history import Parting
from pytest_multihost.core.model.operation import Operations
from pytest_multihost.core.slots import slots_path
from pytest_multihost.core.slots.history import read_histories
from pytest_multihost.core.watch.probes.flight_requests import FlightRequests
from pytest_multihost.core.watch.probes.native_collectives import native_collectives


def probe_partings(
    scratch: Path, size: int, flight: FlightRequests
) -> tuple[tuple[Parting, ...], tuple[Operations, ...]]:
    """Return the partings of the ranks of each group, and the collectives that C++ code has called.

    Args:
        flight: The requests to the ranks that may answer.
    """
    recorded = [
        each
        for rank in range(size)
        for each in read_histories(slots_path(scratch, rank), rank=rank)
    ]
    known, seen = [*flight.memberships.histories(recorded)], flight.histories()
    return find_partings(known, seen), native_collectives(known, seen)
