"""Does anything stay behind, or grow? Kill pytest at random moments, then run many worlds in a row.

    python benchmarks/soak.py [--kills 50] [--worlds 1000] [--adopted]

First pytest is killed with SIGKILL while worlds of 4 ranks run whose children sit in sessions of
their own; told is how long it takes until all of them are gone. Then one run of pytest runs many
worlds of 2 ranks; told is, every hundred worlds, what the controller and the server hold, what the
machine has of ours, and what a world costs. With --adopted, these are tests of other harnesses in
turns: functions with the marker world_size, calls of spawn, and processes that a test joins. Exits
with 1 if something is left or grows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")  # noqa: S108 - not for files of ours
GONE_LIMIT_S = 1.0
PATIENCE_S = 30.0
COSTS = ("wall ms", "CPU ms")
COST_LIMIT = 1.1
"""For the lower of two ratios: busy neighbours move each of them, a world that costs more both."""

RSS_LIMIT_MB = 8.0
"""pytest keeps every report: about 4 KB for each test."""

KILLED = """
import pathlib, pytest, subprocess

@pytest.mark.parametrize("i", range(10_000))
@pytest.mark.multihost(ranks=4)
def test_it(world, i):
    pathlib.Path("has_worlds").touch()
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    world.barrier()
"""

REPEATED = """
import pytest

@pytest.mark.parametrize("i", range(WORLDS))
@pytest.mark.multihost(ranks=2)
def test_it(world, i, tmp_path):
    (tmp_path / "file").touch()
    world.barrier()
"""

ADOPTED = """
import multiprocessing, os, pytest, pytest_multihost

def meet(rank):
    pytest_multihost.current_world().barrier("all")

@pytest.mark.parametrize("i", range(0, WORLDS, 3))
@pytest.mark.world_size(2)
def test_function(i, tmp_path):
    meet(int(os.environ["RANK"]))

@pytest.mark.parametrize("i", range(1, WORLDS, 3))
def test_call(i):
    pytest_multihost.spawn(meet)

@pytest.mark.parametrize("i", range(2, WORLDS, 3))
def test_group(i):
    queue = multiprocessing.get_context("fork").SimpleQueue()
    fork = multiprocessing.get_context("fork").Process
    group = [fork(target=queue.put, args=(rank,)) for rank in range(2)]
    for each in group:
        each.start()
    for each in group:
        each.join()
    assert {queue.get(), queue.get()} == {0, 1}
    queue.close()
"""

# In the controller: how long each test takes, and every hundred tests what there is.
SAMPLING = """
import json, os, pathlib, psutil, statistics, time

HUNDRED, USED = [], []
PLACE = pathlib.Path(__file__).parent

def pytest_collection_modifyitems(items):
    items.sort(key=lambda each: each.callspec.params["i"])

def pytest_runtest_logstart():
    if not USED:
        USED.append(cpu_s())
    HUNDRED.append(-time.perf_counter())

def pytest_runtest_logfinish():
    HUNDRED[-1] += time.perf_counter()
    if len(HUNDRED) == 100:
        cpu_ms = (cpu_s() - USED.pop()) / 100 * 1000
        wall_ms = statistics.median(HUNDRED) * 1000
        with open(PLACE / "samples", "a") as file:
            print(json.dumps({**sample(), "wall ms": wall_ms, "CPU ms": cpu_ms}), file=file)
        HUNDRED.clear()

def ours():
    controller = psutil.Process()
    return controller, controller.children()[0]

def cpu_s():
    "Of controller and server with the ranks it has reaped."
    return sum(sum(process.cpu_times()[:4]) for process in ours())

def sample():
    controller, server = ours()
    pids = [controller.pid, server.pid]
    ports = [each for each in psutil.net_connections() if each.pid in pids]
    locks = [line.split() for line in pathlib.Path("/proc/locks").read_text().splitlines()]
    return {
        **held("controller", controller),
        **held("server", server),
        "children": len(controller.children()),
        "ranks": len(server.children(recursive=True)),
        "/dev/shm": len(os.listdir("/dev/shm")),
        "ports": len([each for each in ports if each.status == "LISTEN"]),
        "locks": len([line for line in locks if line[1] != "->" and int(line[4]) in pids]),
        "tmp": sum(len(names) + len(files) for _, names, files in os.walk(PLACE / "tmp")),
    }

def held(name, process):
    return {
        f"{name} fds": process.num_fds(),
        f"{name} threads": process.num_threads(),
        f"{name} MB": round(process.memory_info().rss / 2**20, 1),
    }
"""

INI = """[pytest]
tmp_path_retention_policy = failed
"""


ADOPTING = f"{INI}multihost_adopt = deepspeed spawn\nmarkers = world_size(n): number of ranks\n"


def start(directory: Path, source: str, ini: str = INI) -> subprocess.Popen[bytes]:
    """Start pytest on `source` in `directory`, which becomes the place of all temporary files."""
    (directory / "test_worlds.py").write_text(source)
    (directory / "pytest.ini").write_text(ini)
    (directory / "tmp").mkdir(exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs"],
        cwd=directory,
        env={**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(directory / "tmp")},
        stdout=(directory / "output").open("wb"),
        stderr=subprocess.STDOUT,
    )


def living(directory: Path) -> list[psutil.Process]:
    """Return the processes that work in `directory`."""
    place, found = str(directory), []
    for pid in psutil.pids():
        try:
            if os.readlink(f"/proc/{pid}/cwd") == place:
                found.append(psutil.Process(pid))
        except (OSError, psutil.Error):  # gone meanwhile; a zombie has no directory any more
            continue
    return found


def kill_once(directory: Path, moment_s: float) -> tuple[int, float | None]:
    """Kill pytest so long after its first world has begun.

    Returns:
        How many processes there were, and after how many seconds the last was gone, None if never.
    """
    run = start(directory, KILLED)
    while not (directory / "has_worlds").exists():
        if run.poll() is not None:
            raise RuntimeError((directory / "output").read_text())
        time.sleep(0.001)
    time.sleep(moment_s)
    count = len(living(directory))
    killed_s = time.monotonic()
    run.kill()
    run.wait()
    while left := living(directory):
        if time.monotonic() - killed_s > PATIENCE_S:
            for process in left:
                process.kill()
            return count, None
        time.sleep(0.002)
    return count, time.monotonic() - killed_s


def soak_kills(kills: int, seed: int) -> bool:
    """Kill many times, print a line for every ten, and return whether all was gone in time."""
    chance, lasted, missed = random.Random(seed), [], 0
    print(f"SIGKILL of pytest at {kills} random moments of worlds of 4 ranks (seed {seed})\n")
    print("| kills | all gone | processes then: median (max) | gone after: median (slowest), s |")
    print("|---|---|---|---|")
    counts: list[int] = []
    for number in range(1, kills + 1):
        with tempfile.TemporaryDirectory() as directory:
            count, gone_s = kill_once(Path(directory).resolve(), chance.uniform(0.0, 0.5))
        counts.append(count)
        if gone_s is None:
            missed += 1
        else:
            lasted.append(gone_s)
        if number % 10 == 0 or number == kills:
            middle, most = statistics.median(counts), max(counts)
            times = f"{statistics.median(lasted):.3f} ({max(lasted):.3f})" if lasted else "-"
            print(f"| {number} | {len(lasted)} | {middle:g} ({most}) | {times} |", flush=True)
    slowest = max(lasted, default=PATIENCE_S)
    limit = f"limit {GONE_LIMIT_S:g} s"
    print(f"\n{len(lasted)}/{kills} gone, slowest {slowest:.3f} s ({limit})\n", flush=True)
    return not missed and slowest <= GONE_LIMIT_S


def soak_worlds(worlds: int, source: str, ini: str) -> bool:
    """Run many worlds, print what there was every hundred, and return whether nothing grew."""
    before = set(map(str, SHARED.iterdir()))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        (directory / "conftest.py").write_text(SAMPLING)
        run = start(directory, source.replace("WORLDS", str(worlds)), ini)
        run.wait()
        output = (directory / "output").read_text("utf-8", "backslashreplace")
        lines = (directory / "samples").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        left = [f"process {process}" for process in living(directory)]
        left += sorted(set(map(str, SHARED.iterdir())) - before)
    print(f"{worlds} worlds of 2 ranks, backend none: {output.splitlines()[-1].strip('= ')}\n")
    print_samples(samples)
    grown = [name for name in samples[0] if has_grown(name, [each[name] for each in samples])]
    wall, cpu = (samples[-1][name] / samples[0][name] for name in COSTS)
    print(f"\nlast hundred to first: wall {wall:.3f}, CPU {cpu:.3f}; the lower: limit {COST_LIMIT}")
    print(f"grown: {', '.join(grown) or 'nothing'}; left: {', '.join(left) or 'nothing'}")
    return run.returncode == 0 and not grown and not left and min(wall, cpu) <= COST_LIMIT


def print_samples(samples: Sequence[dict[str, float]]) -> None:
    """Print one line for every hundred worlds."""
    print("| worlds |", " | ".join(samples[0]), "|")
    print("|---" * (len(samples[0]) + 1) + "|")
    for number, sample in enumerate(samples, 1):
        values = " | ".join(f"{round(value, 1):g}" for value in sample.values())
        print(f"| {number * 100} | {values} |")


def has_grown(name: str, values: Sequence[float]) -> bool:
    """Return whether the last value is above the first; memory may by what pytest itself keeps."""
    if name in COSTS:  # they have a limit of their own
        return False
    allowed = RSS_LIMIT_MB if name.endswith("MB") else 0
    return values[-1] > values[0] + allowed


def main() -> int:
    """Run both parts and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--worlds", type=int, default=1000, help="a multiple of 100")
    parser.add_argument("--adopted", action="store_true", help="tests of other harnesses")
    parser.add_argument("--seed", type=int, default=1, help="decides the moments of the kills")
    options = parser.parse_args()
    results = []
    if options.kills:
        results.append(soak_kills(options.kills, options.seed))
    if options.worlds:
        source, ini = (ADOPTED, ADOPTING) if options.adopted else (REPEATED, INI)
        results.append(soak_worlds(options.worlds, source, ini))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
