"""Ranks that wait for the worker processes of a torch data loader."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import await_that, living, start_pytest
from scripts import run_script, start_script

pytest.importorskip("torch", reason="the data loaders are torch's")

LOADER = """
import multiprocessing, os, sys, threading, time
from pytest_multihost import current_world

world = current_world()
if world.rank == 1:
    import torch
    from torch.utils.data import DataLoader, Dataset, get_worker_info

    class Samples(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            read(index)
            return torch.ones(1)

SOURCE

if world.rank == 1:
    for _ in DataLoader(Samples(), num_workers=2):
        pass
world.barrier("step")
print("done")
"""
"""Rank 1 reads samples in two processes, each by `read`; rank 0 waits for it."""

LOCK = """
lock = threading.Lock()

def hold():
    with lock:
        time.sleep(1)

def read(index):
    with lock:  # taken here
        pass

threading.Thread(target=hold, daemon=True).start()
"""
OF_ONE = """
lock = threading.Lock()

def read(index):
    if get_worker_info().id == 0:
        lock.acquire()
        lock.acquire()  # taken here
"""
FULL = """
counts = multiprocessing.Queue(1)

def read(index):
    counts.put(index)  # taken here
"""
OF_RANK = """
lock = multiprocessing.Lock()
lock.acquire()

def read(index):
    with lock:  # taken here
        pass
"""


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No process works in the directory of the script when its run is over."""
    yield
    await_that(lambda: living(tmp_path) == [])


def verdict_in(path: Path) -> dict[str, object]:
    """Return the diagnosis of the last run."""
    [found] = (path / ".pytest_multihost" / "latest").glob("*/verdict.json")
    diagnosis: dict[str, object] = json.loads(found.read_text())["diagnosis"]
    return diagnosis


@pytest.mark.parametrize(
    "source",
    [LOCK, OF_ONE, FULL, OF_RANK],
    ids=["held at the fork", "one of two", "full queue", "held by the rank"],
)
def test_a_loader_whose_processes_deadlock_is_proven_to_hang(tmp_path: Path, source: str) -> None:
    """Their locks, queues and pipes are the world's own; the line of the process is named."""
    whole = LOADER.replace("SOURCE", source)
    code, printed = run_script(tmp_path, whole)
    assert code == 3, printed
    found = verdict_in(tmp_path)
    assert (found["detected_by"], found["culprits"], found["waiting"]) == ("proof", [1], [0])
    line = whole.splitlines().index(next(e for e in whole.splitlines() if "# taken here" in e)) + 1
    page = " ".join(printed.split())
    assert f" in read at train.py:{line} » " in page
    assert "rank 1: its child" in page
    assert "for _ in DataLoader(Samples(), num_workers=2):" in page


def test_a_test_whose_loader_deadlocks_is_proven_to_hang_before_its_timeout(tmp_path: Path) -> None:
    """Under pytest as in a script."""
    lines = LOADER.replace("SOURCE", OF_ONE).replace("world = current_world()", "").splitlines()
    source = "import pytest\n\n@pytest.mark.multihost(ranks=2, timeout=600)\ndef test_it(world):\n"
    source += "\n".join(f"    {line}" for line in lines)
    process = start_pytest(tmp_path, source, "-p", "no:cacheprovider")
    printed, _ = process.communicate(timeout=200)
    assert "1 failed" in printed
    found = verdict_in(tmp_path)
    assert (found["detected_by"], found["culprits"], found["waiting"]) == ("proof", [1], [0])


SLOW = """
def read(index):
    if index == 0:
        time.sleep(7)
"""
OUTSIDE = """
def read(index):
    if index == 0:
        print(open("letters").read())
"""
RELEASED = """
lock = multiprocessing.Lock()
lock.acquire()
threading.Timer(7, lock.release).start()

def read(index):
    with lock:
        pass
"""
OF_A_THREAD = """
def read(index):
    if index == 0:
        thread = threading.Thread(target=time.sleep, args=(7,))
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(
    "source",
    [SLOW, OUTSIDE, OF_A_THREAD, RELEASED],
    ids=["sleeps", "reads from outside", "waits for a thread", "lock that is released"],
)
def test_a_loader_whose_processes_are_only_slow_does_not_hang(tmp_path: Path, source: str) -> None:
    """They sleep, or wait for a thread that does, or for somebody outside of the world."""
    os.mkfifo(tmp_path / "letters")
    process = start_script(tmp_path, LOADER.replace("SOURCE", source), "train.py")
    writer = threading.Thread(target=_write_late, args=(tmp_path / "letters",), daemon=True)
    writer.start()
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == 0, printed
    assert printed.count("done") == 2


def _write_late(fifo: Path) -> None:
    """Write to a fifo long after a hang would have been proven."""
    time.sleep(12)
    fifo.write_text("late")


def test_a_process_of_a_loader_that_has_ended_is_no_hang(tmp_path: Path) -> None:
    """The rank sees that between two turns, and raises."""
    source = "def read(index):\n    os._exit(0)\n"
    code, printed = run_script(tmp_path, LOADER.replace("SOURCE", source))
    assert code == 1, printed
    assert "exited unexpectedly" in printed
    assert "HUNG" not in printed


def test_processes_that_are_spawned_work(tmp_path: Path) -> None:
    """They find torch's own function, which nobody has wrapped there."""
    source = """
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(range(4), num_workers=1, multiprocessing_context="spawn")
    print([int(each) for each in loader])
"""
    code, printed = run_script(tmp_path, source, "-n1", "train.py")
    assert (code, printed) == (0, "[rank 0] [0, 1, 2, 3]\n")
