"""Collect stacks (faulthandler, py-spy, native frames) and flight recorder answers.

* `dump`: has ranks write their stacks, or has `py_spy` read them.
* `lent_memory`: runs py-spy where only ancestors may read the ranks.
* `thread_ids`: translates the ids of threads that a process in a container sees.
* `deep_probe`: probes ranks whose records do not show which ranks they wait for.
* `native_frames`: native stacks, read by the program `native_reader`.
* `flight_requests`: asks the ranks for the content of torch's flight recorder.
* `partings`: the points where ranks entered different operations.
* `native_collectives`: the collectives that C++ code has called.
"""

from pytest_multihost.core.watch.probes.deep_probe import (
    needs_native_frames,
    probe_unclear_ranks,
    with_probe_results,
)
from pytest_multihost.core.watch.probes.dump import dump_stacks, request_dump
from pytest_multihost.core.watch.probes.flight_requests import FlightRequests
from pytest_multihost.core.watch.probes.native_frames import NativeReader, native_threads
from pytest_multihost.core.watch.probes.partings import probe_partings
from pytest_multihost.core.watch.probes.py_spy import (
    PySpySampler,
    SpiedThread,
    parse_dump,
    spied_threads,
    threads_of,
)
from pytest_multihost.core.watch.probes.thread_ids import ids_by_handle, ids_by_own_id

__all__ = [
    "FlightRequests",
    "NativeReader",
    "PySpySampler",
    "SpiedThread",
    "dump_stacks",
    "ids_by_handle",
    "ids_by_own_id",
    "native_threads",
    "needs_native_frames",
    "parse_dump",
    "probe_partings",
    "probe_unclear_ranks",
    "request_dump",
    "spied_threads",
    "threads_of",
    "with_probe_results",
]
