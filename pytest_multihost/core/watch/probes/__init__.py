"""Collect stacks (faulthandler, py-spy, native frames) and flight recorder answers.

`dump` asks ranks for their stacks, or py-spy for them; `deep_probe` reads native frames, with the
program `native_reader`, and what ranks have entered.
"""

from pytest_multihost.core.watch.probes.deep_probe import (
    NativeReader,
    needs_native_frames,
    probe_partings,
    probe_unclear_ranks,
    with_probe_results,
)
from pytest_multihost.core.watch.probes.dump import PySpySampler, dump_stacks, request_dump

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
