"""Collect stacks (faulthandler, py-spy, native frames) and flight recorder answers.

* `dump`: has ranks write their stacks, or has `py_spy` read them.
* `thread_ids`: translates the ids of threads that a process in a container sees.
* `deep_probe`: probes ranks whose records do not show which ranks they wait for.
* `native_frames`: native stacks, read by the program `native_reader`.
* `partings`: the points where ranks entered different operations.
"""

from pytest_multihost.core.watch.probes.deep_probe import (
    needs_native_frames,
    probe_unclear_ranks,
    with_probe_results,
)
from pytest_multihost.core.watch.probes.dump import dump_stacks, request_dump
from pytest_multihost.core.watch.probes.native_frames import NativeReader
from pytest_multihost.core.watch.probes.partings import probe_partings
from pytest_multihost.core.watch.probes.py_spy import PySpySampler

__all__ = [
    "NativeReader",
    "PySpySampler",
    "dump_stacks",
    "needs_native_frames",
    "probe_partings",
    "probe_unclear_ranks",
    "request_dump",
    "with_probe_results",
]
