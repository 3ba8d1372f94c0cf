"""The table of the built-in kinds of faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_multihost.core.nemesis.call_results import VALUE_FAULTS
from pytest_multihost.core.nemesis.clock_skew import CLOCK_SKEW
from pytest_multihost.core.nemesis.elapsed_time import ELAPSED_TIME
from pytest_multihost.core.nemesis.file_views import FILE_VIEWS
from pytest_multihost.core.nemesis.pressure import FD_PRESSURE, MEMORY_PRESSURE
from pytest_multihost.core.nemesis.process_faults import PROCESS_FAULTS
from pytest_multihost.core.nemesis.slow_io import SLOW_IO
from pytest_multihost.faults.kind import FaultKind

BUILT_IN_KINDS: tuple[FaultKind, ...] = (
    *PROCESS_FAULTS,
    SLOW_IO,
    MEMORY_PRESSURE,
    FD_PRESSURE,
    *VALUE_FAULTS,
    *FILE_VIEWS,
    CLOCK_SKEW,
    ELAPSED_TIME,
)


def kinds_by_name(groups: Iterable[Sequence[FaultKind]]) -> dict[str, FaultKind]:
    """Return the kinds by name; if two have one name, the first counts.

    Args:
        groups: The kinds of each plugin, the plugin registered last first.
    """
    kinds = [kind for group in groups for kind in group]
    return {kind.name: kind for kind in reversed(kinds)}
