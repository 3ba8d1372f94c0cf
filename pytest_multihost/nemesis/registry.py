"""The kinds of faults that there are without anybody adding one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.nemesis.descriptors import FD_PRESSURE
from pytest_multihost.nemesis.kind import FaultKind
from pytest_multihost.nemesis.memory import MEMORY_PRESSURE
from pytest_multihost.nemesis.network import NETWORK
from pytest_multihost.nemesis.raising import RAISE_AT
from pytest_multihost.nemesis.signals import CPU_THROTTLE, DELAY, FREEZE, KILL
from pytest_multihost.nemesis.slow_files import SLOW_IO
from pytest_multihost.nemesis.startup import HASH_SEED, START_SKEW

BUILT_IN: tuple[FaultKind, ...] = (
    DELAY,
    START_SKEW,
    FREEZE,
    KILL,
    RAISE_AT,
    SLOW_IO,
    MEMORY_PRESSURE,
    FD_PRESSURE,
    CPU_THROTTLE,
    HASH_SEED,
    *NETWORK,
)


def by_name(groups: Iterable[Sequence[FaultKind]]) -> dict[str, FaultKind]:
    """Return the kinds by name; of two with one name the first counts.

    Args:
        groups: What each plugin offers, that of the plugin registered last first.
    """
    found: dict[str, FaultKind] = {}
    for kind in (kind for group in groups for kind in group):
        found.setdefault(kind.name, kind)
    return found
