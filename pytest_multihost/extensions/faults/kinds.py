"""The table of the built-in kinds of faults."""

from __future__ import annotations

from pytest_multihost.extensions.faults.call_results import VALUE_FAULTS
from pytest_multihost.extensions.faults.clock_skew import CLOCK_SKEW
from pytest_multihost.extensions.faults.elapsed_time import ELAPSED_TIME
from pytest_multihost.extensions.faults.file_views import FILE_VIEWS
from pytest_multihost.extensions.faults.pressure import FD_PRESSURE, MEMORY_PRESSURE
from pytest_multihost.extensions.faults.process_faults import PROCESS_FAULTS
from pytest_multihost.extensions.faults.slow_io import SLOW_IO
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
