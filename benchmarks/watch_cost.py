"""What it costs to watch a world through /proc: ``python benchmarks/watch_cost.py``.

Prints the time of a shallow snapshot of 64 ranks, and of deep ones of 4 torch and 4 jax ranks that
wait for each other.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from pytest_multihost.core.watch.kernel.proc import ProcReader

REPEATS = 10
SLEEP = "print('ready', flush=True)\nimport time; time.sleep(600)"
TORCH = """
import sys, torch, torch.distributed as dist
rank, size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", store=dist.FileStore(place, size), rank=rank, world_size=size)
x = torch.ones(3)
dist.all_reduce(x)
print("ready", flush=True)
if rank:
    dist.all_reduce(x)
"""
JAX = """
import sys, jax
rank, size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(place, size, rank)
from jax.experimental.multihost_utils import process_allgather
process_allgather(jax.numpy.ones(3))
print("ready", flush=True)
if rank:
    process_allgather(jax.numpy.ones(3))
"""
WAIT = "\nimport time; time.sleep(600)"


@contextlib.contextmanager
def ranks(source: str, count: int, *args: str) -> Iterator[ProcReader]:
    """Run `count` processes of a source until they are ready, and end them at last."""
    started = []
    try:
        for rank in range(count):
            command = [sys.executable, "-c", source, str(rank), *args]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert any(line.strip() == "ready" for line in process.stdout)
        time.sleep(1)
        yield ProcReader({rank: process.pid for rank, process in enumerate(started)})
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


def measure(name: str, action: Callable[[], object]) -> None:
    """Print the median of wall and processor time of an action."""
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    times = statistics.median(walls) * 1e3, statistics.median(cpus) * 1e3
    print(f"{name:32} {times[0]:7.1f} ms wall {times[1]:7.1f} ms cpu")


def main(names: Sequence[str]) -> None:
    """Measure what is asked for, by default all."""
    if "shallow" in names:
        with ranks(SLEEP, 64) as watch:
            measure("shallow snapshot of 64 ranks", watch.shallow_snapshot)
    if "torch" in names:
        with (
            tempfile.TemporaryDirectory() as path,
            ranks(TORCH + WAIT, 4, "4", f"{path}/store") as watch,
        ):
            measure("deep snapshot of 4 torch ranks", watch.deep_snapshot)
    if "jax" in names:
        with socket.create_server(("127.0.0.1", 0)) as server:
            place = f"127.0.0.1:{server.getsockname()[1]}"
        with ranks(JAX + WAIT, 4, "4", place) as watch:
            measure("deep snapshot of 4 jax ranks", watch.deep_snapshot)
            count = sum(len(each.threads) for each in watch.deep_snapshot().processes)
            print(f"{'':32} {count} threads")


if __name__ == "__main__":
    main(sys.argv[1:] or ("shallow", "torch", "jax"))
