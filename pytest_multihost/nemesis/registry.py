"""The built-in kinds of faults, and how plugins' kinds are put beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.nemesis.kind import FaultKind
from pytest_multihost.nemesis.network_faults import NETWORK_FAULTS
from pytest_multihost.nemesis.process_faults import PROCESS_FAULTS
from pytest_multihost.nemesis.resource_faults import FD_PRESSURE, MEMORY_PRESSURE
from pytest_multihost.nemesis.slow_io import SLOW_IO

BUILT_IN_KINDS: tuple[FaultKind, ...] = (
    *PROCESS_FAULTS,
    SLOW_IO,
    MEMORY_PRESSURE,
    FD_PRESSURE,
    *NETWORK_FAULTS,
)


def kinds_by_name(groups: Iterable[Sequence[FaultKind]]) -> dict[str, FaultKind]:
    """Return the kinds by name; of two with one name the first counts.

    Args:
        groups: What each plugin offers, that of the plugin registered last first.
    """
    found: dict[str, FaultKind] = {}
    for kind in (kind for group in groups for kind in group):
        found.setdefault(kind.name, kind)
    return found
