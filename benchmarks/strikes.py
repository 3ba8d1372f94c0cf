"""Is a simulated world ever called hung at the moment when a timeout strikes?

    python benchmarks/strikes.py [--strikes 300] [--burners 0 2 6] [--at-once 4] [--nice 12]

Every world is sound: one rank waits in vain until a timeout of its own strikes, then gives the
others what they wait for, at a pipe, a lock of a file, a store or in an operation. Printed is how
many of the worlds failed, for each number of busy processes beside them. `--nice` lets those go
first, which shows such mistakes more often. Exits with 1 if any world failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from load import loaded

PROGRAMS = """
import fcntl, os, socket, threading, time
from datetime import timedelta
import pytest, torch, torch.distributed as dist

LIMIT = timedelta(seconds=2.4)
MANNERS, STRIKES = {manners}, {strikes}


def strike(manner, group, store):
    "Wait in vain, until a timeout strikes."
    with pytest.raises(RuntimeError):
        if manner == "group":
            dist.all_reduce(torch.ones(1), group=group)
        elif manner == "barrier":
            dist.barrier(group=group)
        elif manner == "receive":
            dist.recv(torch.ones(1), src=1, group=group)
        elif manner == "work":
            dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(LIMIT)
        else:
            store.wait(["never"], LIMIT)


def at_pipe(rank, last, meanwhile):
    door = f"door{{last}}"
    if rank == 0:
        meanwhile()
        with open(door, "w") as pipe:
            pipe.write("x")
    elif rank == 1:
        with open(door) as pipe:
            pipe.read()


def at_socket(rank, last, meanwhile):
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as connection:
            while connection.connect_ex(f"socket{{last}}"):
                time.sleep(0.05)
            meanwhile()
            connection.send(b"x")
    elif rank == 1:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"socket{{last}}")
            listener.listen()
            listener.accept()[0].recv(1)


def at_lock(rank, last, meanwhile):
    with open("lock", "a") as file:
        if rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.barrier()
        if rank == 0:
            meanwhile()
        else:
            fcntl.flock(file, fcntl.LOCK_EX)


def at_store(rank, last, meanwhile):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        meanwhile()
        store.set(f"key{{last}}", "x")
    else:
        store.wait([f"key{{last}}"], timedelta(hours=1))


def in_operation(rank, last, meanwhile):
    if rank == 0:
        meanwhile()
    dist.barrier()


def in_thread(rank, last, meanwhile):
    if rank == 0:
        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join()
    dist.barrier()


PLACES = {{f.__name__: f for f in (at_pipe, at_socket, at_lock, at_store, in_operation, in_thread)}}


@pytest.mark.multihost(ranks=3, backend="simulated", timeout=600)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("place", PLACES)
def test_sound(world, manner, place):
    os.chdir(world.shared_directory)
    groups = [dist.new_group(timeout=LIMIT) for _ in range(STRIKES)]
    store = dist.distributed_c10d._get_default_store()
    for number, group in enumerate(groups):
        if world.rank == 0 and place == "at_pipe":
            os.mkfifo(f"door{{number}}")
        dist.barrier()
        PLACES[place](world.rank, number, lambda: strike(manner, group, store))
    dist.barrier()
"""

MANNERS = ("group", "barrier", "receive", "work", "store")
PLACES = 6


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strikes", type=int, default=300, help="for each number of burners")
    parser.add_argument("--burners", type=int, nargs="+", default=[0, 2, 6])
    parser.add_argument("--at-once", type=int, default=4, help="runs of pytest beside each other")
    parser.add_argument("--nice", type=int, default=0, help="of the worlds")
    options = parser.parse_args()
    wrong = [measure(options, burners) for burners in options.burners]
    return 1 if any(wrong) else 0


def measure(options: argparse.Namespace, burners: int) -> int:
    """Let timeouts strike beside so many busy processes; return how many worlds failed."""
    began_s = time.monotonic()
    per_world = max(1, -(-options.strikes // (len(MANNERS) * PLACES)))
    with loaded(burners), ThreadPoolExecutor(options.at_once) as pool:
        lots = [MANNERS[each :: options.at_once] for each in range(options.at_once)]
        runs = list(pool.map(lambda lot: run(lot, per_world, options.nice), filter(None, lots)))
    verdicts = [each for verdicts in runs for each in verdicts]
    failed = Counter(why(each) for each in verdicts if each["status"] != "passed")
    print(
        f"{burners} busy processes: {len(verdicts) * per_world} strikes in {len(verdicts)} worlds,"
        f" {sum(failed.values())} worlds failed, {time.monotonic() - began_s:.0f} s,"
        f" load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    for text, count in failed.items():
        print(f"    {count} x {text}", flush=True)
    is_short = len(verdicts) < len(MANNERS) * PLACES
    return sum(failed.values()) + is_short


def run(manners: tuple[str, ...], strikes: int, nice: int) -> list[dict[str, Any]]:
    """Run the worlds of some manners of waiting in vain; return their verdicts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = PROGRAMS.format(manners=list(manners), strikes=strikes)
        (folder / "test_strikes.py").write_text(source)
        (folder / "pytest.ini").write_text("[pytest]\n")
        clean = {name: value for name, value in os.environ.items() if name[:7] != "PYTEST_"}
        subprocess.run(
            [
                *("nice", "-n", str(nice), sys.executable, "-m", "pytest", "-q"),
                *("-p", "multihost_hangs", "-p", "no:cacheprovider"),
                "--multihost-artifacts=artifacts",
            ],
            cwd=folder,
            env={**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        lines = (folder / "artifacts" / "verdicts.jsonl").read_text("utf-8").splitlines()
        return [json.loads(each) for each in lines]


def why(verdict: dict[str, Any]) -> str:
    """Return in a few words why a world failed."""
    errors = [each["error"] for each in verdict["rank_results"] if each["error"]]
    texts = [f"{each['type']}: {each['message']}" for each in errors]
    return " | ".join([verdict["nodeid"], verdict["reason"] or verdict["outcome"], *texts])[:300]


if __name__ == "__main__":
    sys.exit(main())
