"""Collect stacks (faulthandler, py-spy, native frames) and flight recorder answers.

`dump` asks ranks for their stacks; `pyspy` and `native` read them from outside, `native` with
the program `native_reader`; `deep_probe` uses all of them. `histories` reads what ranks entered.
"""

from pytest_multihost.watch.probes.deep_probe import (
    needs_native_frames,
    probe_unclear_ranks,
    with_probe_results,
)
from pytest_multihost.watch.probes.dump import dump_stacks, request_dump
from pytest_multihost.watch.probes.histories import probe_partings
from pytest_multihost.watch.probes.native import NativeReader
from pytest_multihost.watch.probes.pyspy import PySpySampler

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
