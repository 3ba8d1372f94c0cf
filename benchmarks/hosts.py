"""What do hosts cost, and what do they leave behind?

    python benchmarks/hosts.py [--worlds N] [--json FILE]

Times how long the network of 4, 16 and 64 hosts takes to be made; runs N worlds on one host and on
hosts from namespaces, in turns, and compares what a world takes; then looks for everything that
N worlds could have left: processes, network namespaces, interfaces, mounts. Exits with 1 if four
hosts take more than half a second, or anything is left.
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

from pytest_multihost.launch.hosts import make_network
from pytest_multihost.model.hosts import all_hosts

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
    left = leftovers(before)
    print(f"left after {4 * options.worlds} worlds: {json.dumps(left)}")
    if options.json:
        figures = {"made_s": made, "world_ms": worlds, "left": left, "load": os.getloadavg()}
        Path(options.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if left or statistics.median(made[4]) > MADE_LIMIT_S else 0


def made_s(size: int) -> list[float]:
    """Return how many seconds the network of so many hosts has taken to be made, each time."""
    taken = []
    with tempfile.TemporaryDirectory(prefix="multihost-bench-") as folder:
        for trial in range(TRIALS):
            start = time.perf_counter()
            network = make_network(all_hosts("netns", size), Path(folder, str(trial)))
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
            taken[hosts] += durations(backend, hosts, count // 2)
    return {hosts: median_ms(found) for hosts, found in taken.items()}


def durations(backend: str, hosts: str, count: int) -> list[float]:
    """Run worlds and return how many seconds each has taken, from the wish to the end."""
    with tempfile.TemporaryDirectory(prefix="multihost-bench-") as folder:
        source = TESTS.format(count=count, backend=backend, body=BODIES[backend])
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
        new = {name: value for name, value in now.items() if is_more(before[name], value)}
        if not new or time.monotonic() > deadline:
            return new
        time.sleep(0.5)


def is_more(before: object, now: object) -> bool:
    """Whether there is more of something than before; counts of the kernel come in slabs."""
    if isinstance(before, list) and isinstance(now, list):
        return not set(now) <= set(before)
    return int(str(now)) > int(str(before)) + _SLAB


_SLAB = 14
"""Objects in two slabs, which the kernel counts as used where a processor keeps them."""


if __name__ == "__main__":
    sys.exit(main())
