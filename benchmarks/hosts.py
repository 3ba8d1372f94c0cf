"""What do hosts cost, and what do they leave behind?

    python benchmarks/hosts.py [--worlds N] [--json FILE]

Times how long the network of 4, 16 and 64 hosts takes to be made; runs N worlds on one host and on
hosts from namespaces, in turns, and compares what a world takes; then N worlds whose network is
disturbed, in each way that there is in turn. After each of these it looks for everything that
worlds could have left: network namespaces, interfaces, mounts. Exits with 1 if four hosts take more
than half a second, or anything is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_multihost.extensions.netns.hosts import hosts_of
from pytest_multihost.extensions.netns.network import make_network

MADE_LIMIT_S = 0.5
TRIALS = 9
SETTLE_S = 20.0
TESTS = """
import pytest

@pytest.mark.parametrize("i", range({count}))
@pytest.mark.multihost(ranks=4, backend="{backend}")
def test_it(world, i):
    {body}
"""
BODIES = {
    "none": "world.barrier()",
    "gloo": "import torch; torch.distributed.all_reduce(torch.ones(3))",
}

DISTURBED = """
import contextlib, socket
import pytest
from pytest_multihost import at, faults

NOW = at.sync_point("now")
SORTS = [
    faults.partition(groups=[[0], [1, 2, 3]], at=NOW),
    faults.partition(groups=[[0], [1]], one_way=True, at=NOW),
    faults.net_delay(rank=1, seconds=0.05, at=NOW),
    faults.net_loss(rank=1, percent=50, at=NOW),
    faults.net_rate(rank=1, bytes_per_s=100_000, at=NOW),
    faults.reset(rank=0, at=NOW),
    faults.dns_failure(rank=1, at=NOW),
]

def world_with(i):
    fault = SORTS[i % len(SORTS)]
    return pytest.param(i, marks=pytest.mark.multihost(faults=[fault]))

@pytest.mark.parametrize("i", map(world_with, range({count})))
@pytest.mark.multihost(ranks=4, backend="none")
def test_it(world, i):
    made = None
    if world.is_primary:
        with socket.create_server(("", 7000)) as server:
            world.barrier("up")
            made, _ = server.accept()
    else:
        world.barrier("up")
        if world.rank == 1:
            made = socket.create_connection(("host-0", 7000))
    world.sync_point("now")
    world.barrier("disturbed")
    if world.rank == 1:
        with contextlib.suppress(OSError):
            made.sendall(bytes(1000))  # is still on its way when the rank has ended
"""


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=100, help="worlds of each sort")
    parser.add_argument("--json", default="", help="file for the figures")
    options = parser.parse_args()
    before = traces()
    made = {size: made_s(size) for size in (4, 16, 64)}
    for size, taken in made.items():
        worst = max(taken) * 1e3
        print(f"{size:3} hosts made      median {median_ms(taken):6.1f} ms, worst {worst:6.1f} ms")
    worlds = {backend: compare(backend, options.worlds) for backend in BODIES}
    for backend, taken in worlds.items():
        each = ", ".join(f"{hosts} {found:6.1f} ms" for hosts, found in taken.items())
        print(f"world of 4, {backend}    median {each}")
    left = [told_left(f"{4 * options.worlds} worlds", before)]
    durations(DISTURBED.format(count=options.worlds), "netns")
    left.append(told_left(f"{options.worlds} worlds with a disturbed network", before))
    if options.json:
        figures = {"made_s": made, "world_ms": worlds, "left": left, "load": os.getloadavg()}
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if any(left) or statistics.median(made[4]) > MADE_LIMIT_S else 0


def told_left(after: str, before: Mapping[str, object]) -> dict[str, object]:
    """Print and return what is left after some worlds."""
    left = leftovers(before)
    print(f"left after {after}: {json.dumps(left)}", flush=True)
    return left


def made_s(size: int) -> list[float]:
    """Return how many seconds the network of so many hosts has taken to be made, each time."""
    taken = []
    with tempfile.TemporaryDirectory(prefix="multihost-bench-") as folder:
        for trial in range(TRIALS):
            start = time.perf_counter()
            network = make_network(hosts_of(size, 1), Path(folder, str(trial)))
            taken.append(time.perf_counter() - start)
            network.close()
    return taken


def median_ms(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def compare(backend: str, count: int) -> Mapping[str, float]:
    """Return the median milliseconds of a world by its kind of hosts; they take turns."""
    taken: dict[str, list[float]] = {"one": [], "netns": []}
    for turn in range(2):
        for hosts in taken if turn % 2 == 0 else reversed(taken):
            taken[hosts] += durations(quick_test(backend, count // 2), hosts)
    return {hosts: median_ms(found) for hosts, found in taken.items()}


def quick_test(backend: str, count: int) -> str:
    """Return the source of a test that is so many worlds."""
    return TESTS.format(count=count, backend=backend, body=BODIES[backend])


def durations(source: str, hosts: str) -> list[float]:
    """Run worlds and return how many seconds each has taken, from the wish to the end."""
    with tempfile.TemporaryDirectory(prefix="multihost-bench-") as folder:
        Path(folder, "test_worlds.py").write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs"]
        ended = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--multihost-hosts", hosts],
            cwd=folder,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
        )
        if ended.returncode:
            raise SystemExit(ended.stdout)
        lines = Path(folder, ".pytest_multihost", "verdicts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line)["duration_s"] for line in lines.splitlines()]


# What is left


def traces() -> dict[str, object]:
    """Return all that hosts could leave behind on this machine."""
    return {
        "namespaces": sorted(namespaces()),
        "network namespaces of the kernel": kernels_count(),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "mounts": len(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()),
        "names": sorted(each.name for each in Path("/var/run/netns").glob("*")),
    }


def namespaces() -> set[str]:
    """Return the network namespaces that processes are in, or hold open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(process / "ns/net"))
            found |= {os.readlink(each) for each in (process / "fd").iterdir()}
    return {each for each in found if each.startswith("net:")}


def kernels_count() -> int:
    """Return how many network namespaces the kernel has, by its own books; 0 where it hides it."""
    with contextlib.suppress(OSError):
        text = Path("/proc/slabinfo").read_text(encoding="utf-8")
        found = re.search(r"^net_namespace\s+(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def leftovers(before: Mapping[str, object]) -> dict[str, object]:
    """Return what is there that was not; the kernel takes namespaces down a little later."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = traces()
        added = {name: more(before[name], value) for name, value in now.items()}
        new = {name: value for name, value in added.items() if value}
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.5)


def more(before: object, now: object) -> object:
    """Return what there is more of something than before; counts of the kernel come in slabs."""
    if isinstance(before, list) and isinstance(now, list):
        return sorted(set(now) - set(before))
    rise = int(str(now)) - int(str(before))
    return rise if rise > _SLAB else 0


_SLAB = 14
"""Objects in two slabs, which the kernel counts as used where a processor keeps them."""


if __name__ == "__main__":
    sys.exit(main())
