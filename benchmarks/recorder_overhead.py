"""What the recorder adds to a call of torch.distributed.

Groups of one rank and of two, all in one process per rank; with and without the recorder in turns
of a few hundred calls, in every second round backwards, and a ratio compares two of one round. What
is subtracted is the method that torch binds, put back into its class. On a machine that does other
things at the same time both the times and what is added are larger, and the ratio says most.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch import install
from pytest_multihost.watch.slots import SlotPage, slots_path

CALLS = 300
LIMIT = timedelta(seconds=60)
METHODS = [
    (owner, name, vars(owner)[name])
    for owner in (dist.ProcessGroup, dist.Work)
    for name in ("allreduce", "barrier", "wait")
    if name in vars(owner)
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} cores")
    torch.set_num_threads(1)
    for size in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            children = [_fork(Path(directory), size, rank, rounds) for rank in range(1, size)]
            _be_rank(Path(directory), size, 0, rounds)
            for child in children:
                os.waitpid(child, 0)
            dist.destroy_process_group()
        _put_back()


def _fork(directory: Path, size: int, rank: int, rounds: int) -> int:
    child = os.fork()
    if child == 0:
        _be_rank(directory, size, rank, rounds)
        os._exit(0)
    return child


def _be_rank(directory: Path, size: int, rank: int, rounds: int) -> None:
    page = SlotPage.create(slots_path(directory, rank))
    install(Recorder(page, rank, size))
    wrapped = [(owner, name, vars(owner)[name]) for owner, name, _ in METHODS]
    store = dist.FileStore(str(directory / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT)
    tensor = torch.ones(4)
    for name, call in (
        ("all_reduce", lambda: dist.all_reduce(tensor)),
        ("all_reduce, async", lambda: dist.all_reduce(tensor, async_op=True).wait()),
        ("barrier", dist.barrier),
    ):
        pairs = [_measure(call, wrapped, backwards=each % 2 == 1) for each in range(rounds)]
        if rank == 0:
            _show(f"{size} rank(s), {name}", pairs)


def _measure(
    call: Callable[[], Any], wrapped: list[tuple[type, str, Any]], *, backwards: bool
) -> tuple[float, float]:
    """Return nanoseconds per call without and with the recorder."""
    times = {}
    for is_recorded in (True, False) if backwards else (False, True):
        for owner, name, method in wrapped if is_recorded else METHODS:
            setattr(owner, name, method)
        call()
        started = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        times[is_recorded] = (time.perf_counter_ns() - started) / CALLS
    return times[False], times[True]


def _put_back() -> None:
    for owner, name, method in METHODS:
        setattr(owner, name, method)


def _show(name: str, pairs: list[tuple[float, float]]) -> None:
    without, added = median(one for one, _ in pairs), median(two - one for one, two in pairs)
    ratio = median(two / one for one, two in pairs)
    print(f"{name:28} {without:9.0f} ns, with recorder {added:+7.0f} ns, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
